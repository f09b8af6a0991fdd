// Package ortest runs models in ONNX Runtime for tests: one engine for a test
// binary, opened when a test first asks for it, and a session that reads its
// inputs from memory that the test may change between runs.
package ortest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// The engine is never closed: it lives until the test binary ends.
var engine = sync.OnceValues(func() (*runtime.Engine, error) { return runtime.New("") })

// Engine returns ONNX Runtime. The test ends where it is not installed.
func Engine(t testing.TB) *runtime.Engine {
	t.Helper()
	e, err := engine()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Opens skips a test of an opset that the library which is tested with does not open; a
// newer release does (make test-ort).
func Opens(t testing.TB, opset int64) {
	t.Helper()
	m := onnx.NewModel("opens", opset)
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(1)))
	n := m.Graph.NewNode("", "Identity", "identity", []*onnx.Value{x}, []string{"y"})
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Outputs[0])
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Engine(t).Env.NewSessionFromBytes(data, ort.SessionOptions{Provider: ort.CPU})
	if err != nil {
		t.Skip(err)
	}
	s.Close()
}

// A Session is a model that may be run many times over the same input memory.
type Session struct {
	t       testing.TB
	text    string // of the model, for messages
	session *ort.Session
	binding *ort.Binding
	inputs  []*ort.Value
}

// An Output is what a model gave under one name.
type Output struct {
	DType  onnx.DType
	Dims   []int64
	Values []float64
}

// Open opens a session on the CPU with one thread. It reads the inputs from the
// tensors' own bytes, so what is written there later counts in the next run.
// Everything is closed when the test ends.
func Open(t testing.TB, m *onnx.Model, level int, inputs map[string]*onnx.Tensor) *Session {
	t.Helper()
	return OpenThreads(t, m, level, 1, inputs)
}

// OpenThreads is Open with that many threads, be there as many cores or not.
func OpenThreads(t testing.TB, m *onnx.Model, level, threads int, inputs map[string]*onnx.Tensor) *Session {
	t.Helper()
	s := &Session{t: t, text: m.Text()}
	t.Cleanup(s.close)
	if err := s.open(m, level, threads, inputs); err != nil {
		t.Fatalf("%v in\n%s", err, s.text)
	}
	return s
}

func (s *Session) open(m *onnx.Model, level, threads int, inputs map[string]*onnx.Tensor) error {
	data, err := m.Encode()
	if err != nil {
		return err
	}
	env := Engine(s.t).Env
	if s.session, err = env.NewSessionFromBytes(data, ort.SessionOptions{
		Level: level, Threads: threads, Provider: ort.CPU,
		// More threads than cores would spin in each other's way.
		Config: map[string]string{"session.intra_op.allow_spinning": "0"},
	}); err != nil {
		return err
	}
	if s.binding, err = s.session.NewBinding(); err != nil {
		return err
	}
	for _, in := range s.session.Inputs {
		x := inputs[in.Name]
		if x == nil {
			return fmt.Errorf("no value for input %q", in.Name)
		}
		memory, err := x.Bytes()
		if err != nil {
			return err
		}
		v, err := env.TensorOver(memory, ort.DType(x.DType()), x.Dims())
		if err != nil {
			return err
		}
		s.inputs = append(s.inputs, v)
		if err := s.binding.BindInput(in.Name, v); err != nil {
			return err
		}
	}
	for _, o := range s.session.Outputs {
		if err := s.binding.BindOutputToDevice(o.Name, ort.CPU, 0); err != nil {
			return err
		}
	}
	return nil
}

func (s *Session) close() {
	for _, v := range s.inputs {
		v.Close()
	}
	if s.binding != nil {
		s.binding.Close()
	}
	if s.session != nil {
		s.session.Close()
	}
}

// Run executes the model once and returns every output as numbers, by name.
func (s *Session) Run() map[string][]float64 {
	s.t.Helper()
	outs, err := s.run()
	if err != nil {
		s.t.Fatalf("%v in\n%s", err, s.text)
	}
	values := map[string][]float64{}
	for name, o := range outs {
		values[name] = o.Values
	}
	return values
}

func (s *Session) run() (map[string]Output, error) {
	if err := s.session.Run(context.Background(), s.binding, ""); err != nil {
		return nil, err
	}
	bound, err := s.binding.Outputs()
	if err != nil {
		return nil, err
	}
	out := map[string]Output{}
	for _, o := range bound {
		if o.Err != nil {
			return nil, fmt.Errorf("output %q: %w", o.Name, o.Err)
		}
		x := onnx.NewTensor(onnx.DType(o.Value.Type), o.Value.Shape, bytes.Clone(o.Value.Bytes()))
		values, err := x.Float64s()
		o.Value.Close()
		if err != nil {
			return nil, fmt.Errorf("output %q: %w", o.Name, err)
		}
		out[o.Name] = Output{x.DType(), x.Dims(), values}
	}
	return out, nil
}

// Try opens the model at level 0, executes it once and closes it. The error is
// ONNX Runtime's.
func Try(t testing.TB, m *onnx.Model, inputs map[string]*onnx.Tensor) (map[string]Output, error) {
	t.Helper()
	s := &Session{t: t}
	defer s.close()
	if err := s.open(m, 0, 1, inputs); err != nil {
		return nil, err
	}
	return s.run()
}

// Run opens the model and executes it once.
func Run(t testing.TB, m *onnx.Model, level int, inputs map[string]*onnx.Tensor) map[string][]float64 {
	t.Helper()
	return Open(t, m, level, inputs).Run()
}

// RandomInputs returns numbers for every input of the model, the same ones for
// models with the same inputs: floats between -2 and 2, integers and bools 0 or 1.
// Free extents become 2.
func RandomInputs(m *onnx.Model) map[string]*onnx.Tensor {
	rng := rand.New(rand.NewPCG(1, 2))
	inputs := map[string]*onnx.Tensor{}
	for _, in := range m.Graph.Inputs {
		inputs[in.Name] = randomTensor(rng, in.Type)
	}
	return inputs
}
