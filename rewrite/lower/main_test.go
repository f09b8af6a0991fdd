package lower

import (
	"context"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort"
)

// testEnv is ONNX Runtime for all tests of the package.
var testEnv *ort.Environment

func TestMain(m *testing.M) {
	path, err := install.Find("")
	if err == nil {
		testEnv, err = ort.Open(path)
	}
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	code := m.Run()
	if err := testEnv.Close(); err != nil {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}

// run executes m once and returns its outputs as numbers.
func run(t *testing.T, m *onnx.Model, level int, inputs map[string]*onnx.Tensor) map[string][]float64 {
	t.Helper()
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s, err := testEnv.NewSessionFromBytes(data, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
	if err != nil {
		t.Fatalf("%v in\n%s", err, m.Text())
	}
	defer s.Close()
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for _, in := range s.Inputs {
		x := inputs[in.Name]
		if x == nil {
			t.Fatalf("no value for input %q", in.Name)
		}
		bytes, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		v, err := testEnv.TensorOver(bytes, ort.DType(x.DType()), x.Dims())
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		if err := b.BindInput(in.Name, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range s.Outputs {
		if err := b.BindOutputToDevice(o.Name, ort.CPU, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Run(context.Background(), b, ""); err != nil {
		t.Fatalf("%v in\n%s", err, m.Text())
	}
	bound, err := b.Outputs()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]float64{}
	for _, o := range bound {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		if !onnx.DType(o.Value.Type).IsFloat() {
			continue
		}
		x := onnx.NewTensor(onnx.DType(o.Value.Type), o.Value.Shape, append([]byte(nil), o.Value.Bytes()...))
		if out[o.Name], err = x.Float64s(); err != nil {
			t.Fatal(err)
		}
		o.Value.Close()
	}
	return out
}

// load reads a model and its archive of feeds and expected values.
func load(t *testing.T, path string) (*onnx.Model, map[string]runtime.Tensor) {
	t.Helper()
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	archive := strings.NewReplacer(".training_model.onnx", ".npz", ".onnx", ".npz").Replace(path)
	expected, err := runtime.ReadNPZ(archive)
	if err != nil {
		t.Fatal(err)
	}
	return m, expected
}

func maxAbs(v []float64) float64 {
	m := 0.0
	for _, x := range v {
		m = math.Max(m, math.Abs(x))
	}
	return m
}

// opens reports whether ONNX Runtime accepts a model.
func opens(data []byte) error {
	s, err := testEnv.NewSessionFromBytes(data, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
	if err != nil {
		return err
	}
	return s.Close()
}
