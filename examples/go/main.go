// Train trains five steps from a bundle.
//
//	remat rewrite step.onnx --strategy full --bundle B --for go
//	go run . B libonnxruntime.so
package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"

	ort "github.com/yalue/onnxruntime_go"
)

type manifest struct {
	Graph   string `json:"graph"`
	Loss    string `json:"loss"`
	Next    string `json:"next_values"`
	Session struct {
		MemoryPattern bool   `json:"memory_pattern"`
		Arena         bool   `json:"arena"`
		Level         string `json:"graph_optimization_level"`
		Threads       int    `json:"intra_op_num_threads"`
	} `json:"session"`
	Inputs  []input `json:"inputs"`
	Outputs []struct {
		Name  string  `json:"name"`
		Type  string  `json:"type"`
		Shape []int64 `json:"shape"`
	} `json:"outputs"`
}

type input struct {
	Name    string  `json:"name"`
	Type    string  `json:"type"`
	Shape   []int64 `json:"shape"`
	Fed     string  `json:"fed"`
	Below   int64   `json:"below"`
	Next    string  `json:"next"`
	Initial *struct {
		File          string `json:"file"`
		Offset, Bytes int64
	} `json:"initial"`
	Value float32 `json:"value"`
}

var types = map[string]struct {
	code ort.TensorElementDataType
	size int
}{
	"float32": {ort.TensorElementDataTypeFloat, 4}, "int64": {ort.TensorElementDataTypeInt64, 8},
	"int32": {ort.TensorElementDataTypeInt32, 4}, "float64": {ort.TensorElementDataTypeDouble, 8},
	"uint8": {ort.TensorElementDataTypeUint8, 1}, "int8": {ort.TensorElementDataTypeInt8, 1}, "bool": {ort.TensorElementDataTypeBool, 1},
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: train BUNDLE LIBRARY")
	}
	ort.SetSharedLibraryPath(os.Args[2])
	if err := ort.InitializeEnvironment(); err != nil {
		log.Fatal(err)
	}
	if err := train(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

// batch stands for data of yours.
func batch(data []byte, in input) {
	for i := 0; in.Type == "int64" && i < len(data)/8; i++ {
		binary.LittleEndian.PutUint64(data[8*i:], uint64(int64(i*7+3)%max(in.Below, 1)))
	}
	for i := 0; in.Type == "float32" && i < len(data)/4; i++ {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32((i*37)%19-9)/64))
	}
}

// first is the first value of an input, in memory of its own.
func first(folder string, in input) ([]byte, error) {
	n := types[in.Type].size
	for _, d := range in.Shape {
		n *= int(d)
	}
	data := make([]byte, n)
	switch {
	case in.Fed == "batch":
		batch(data, in)
	case in.Initial != nil:
		f, err := os.Open(filepath.Join(folder, in.Initial.File))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if _, err := f.ReadAt(data, in.Initial.Offset); err != nil {
			return nil, err
		}
	case in.Fed == "parameter":
		return nil, fmt.Errorf("%s: the bundle has no first value of it", in.Name)
	}
	return data, nil
}

// tensor is a value over data; one without axes is a Scalar, which copies.
func tensor(kind string, shape []int64, data []byte) (ort.Value, error) {
	if len(shape) > 0 {
		return ort.NewCustomDataTensor(ort.NewShape(shape...), data, types[kind].code)
	}
	switch kind {
	case "float32":
		return ort.NewScalar(math.Float32frombits(binary.LittleEndian.Uint32(data)))
	case "int64":
		return ort.NewScalar(int64(binary.LittleEndian.Uint64(data)))
	case "bool":
		return ort.NewScalar(data[0] != 0)
	}
	return nil, fmt.Errorf("a number of type %s", kind)
}

func open(folder string, m *manifest) (*ort.DynamicAdvancedSession, error) {
	o, err := ort.NewSessionOptions()
	if err != nil {
		return nil, err
	}
	defer o.Destroy()
	level := map[string]ort.GraphOptimizationLevel{
		"disabled": ort.GraphOptimizationLevelDisableAll, "basic": ort.GraphOptimizationLevelEnableBasic, "all": ort.GraphOptimizationLevelEnableAll,
	}[m.Session.Level]
	for _, err := range []error{
		o.SetMemPattern(m.Session.MemoryPattern), // off: a pattern holds more from the second step on
		o.SetCpuMemArena(m.Session.Arena), o.SetIntraOpNumThreads(m.Session.Threads), o.SetGraphOptimizationLevel(level),
	} {
		if err != nil {
			return nil, err
		}
	}
	var inputs, outputs []string
	for _, in := range m.Inputs {
		inputs = append(inputs, in.Name)
	}
	for _, out := range m.Outputs {
		outputs = append(outputs, out.Name)
	}
	return ort.NewDynamicAdvancedSession(filepath.Join(folder, m.Graph), inputs, outputs, o)
}

func train(folder string) error {
	text, err := os.ReadFile(filepath.Join(folder, "manifest.json"))
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	session, err := open(folder, &m)
	if err != nil {
		return err
	}
	defer session.Destroy()

	feeds := make([]ort.Value, len(m.Inputs))
	becomes := map[string]int{} // the input that an output is the next value of
	scale := float32(0)
	for i, in := range m.Inputs {
		data, err := first(folder, in)
		if err != nil {
			return err
		}
		if feeds[i], err = tensor(in.Type, in.Shape, data); err != nil {
			return fmt.Errorf("%s: %w", in.Name, err)
		}
		if in.Next != "" {
			becomes[in.Next] = i
		}
		if in.Fed == "loss_scale" {
			scale = in.Value
		}
	}
	if len(becomes) == 0 {
		return errors.New("the bundle's graph updates nothing: derive it with remat grad --optimizer sgd, or another")
	}
	results := make([]ort.Value, len(m.Outputs))
	for o, out := range m.Outputs {
		if i, ok := becomes[out.Name]; ok && m.Next == "bound" {
			results[o] = feeds[i] // over its input
		} else if len(out.Shape) == 0 && !ok { // the binding cannot make a number
			if results[o], err = tensor(out.Type, nil, make([]byte, 8)); err != nil {
				return err
			}
		}
	}
	step := int64(1)
	for run := 1; run <= 5; run++ {
		for i, in := range m.Inputs { // a new Scalar each time: Set does not reach the session
			var next ort.Value
			var err error
			switch in.Fed {
			case "lr":
				next, err = ort.NewScalar(float32(1e-3))
			case "step":
				next, err = ort.NewScalar(step)
			case "loss_scale":
				next, err = ort.NewScalar(scale)
			default:
				continue
			}
			if err != nil {
				return err
			}
			feeds[i].Destroy()
			feeds[i] = next
		}
		outputs := append([]ort.Value(nil), results...)
		if err := session.Run(feeds, outputs); err != nil {
			return err
		}
		overflow := false
		for o, out := range m.Outputs {
			if i, ok := becomes[out.Name]; ok && m.Next == "returned" {
				feeds[i].Destroy()
				feeds[i] = outputs[o]
			} else if results[o] == nil {
				outputs[o].Destroy() // a gradient, say: take what you want of it before
			}
			if out.Name == m.Loss {
				fmt.Printf("%d %.9g\n", run, outputs[o].(*ort.Scalar[float32]).GetData())
			}
			if out.Name == "found_inf" {
				overflow = outputs[o].(*ort.Scalar[bool]).GetData()
			}
		}
		if overflow { // a gradient overflowed, and nothing was updated
			scale /= 2
		} else {
			step++
		}
	}
	return nil
}
