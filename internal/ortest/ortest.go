// Package ortest runs models in ONNX Runtime for tests: one engine for a test
// binary, opened when a test first asks for it, and a session that reads its
// inputs from memory that the test may change between runs.
package ortest

import (
	"bytes"
	"context"
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

// A Session is a model that may be run many times over the same input memory.
type Session struct {
	t       testing.TB
	text    string // of the model, for messages
	session *ort.Session
	binding *ort.Binding
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
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	env := Engine(t).Env
	s := &Session{t: t, text: m.Text()}
	if s.session, err = env.NewSessionFromBytes(data, ort.SessionOptions{Level: level, Threads: threads, Provider: ort.CPU}); err != nil {
		t.Fatalf("%v in\n%s", err, s.text)
	}
	t.Cleanup(func() { s.session.Close() })
	if s.binding, err = s.session.NewBinding(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.binding.Close() })
	for _, in := range s.session.Inputs {
		x := inputs[in.Name]
		if x == nil {
			t.Fatalf("no value for input %q", in.Name)
		}
		memory, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		v, err := env.TensorOver(memory, ort.DType(x.DType()), x.Dims())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { v.Close() })
		if err := s.binding.BindInput(in.Name, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range s.session.Outputs {
		if err := s.binding.BindOutputToDevice(o.Name, ort.CPU, 0); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Run executes the model once and returns every output as numbers, by name.
func (s *Session) Run() map[string][]float64 {
	s.t.Helper()
	if err := s.session.Run(context.Background(), s.binding, ""); err != nil {
		s.t.Fatalf("%v in\n%s", err, s.text)
	}
	bound, err := s.binding.Outputs()
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string][]float64{}
	for _, o := range bound {
		if o.Err != nil {
			s.t.Fatalf("output %q: %v", o.Name, o.Err)
		}
		x := onnx.NewTensor(onnx.DType(o.Value.Type), o.Value.Shape, bytes.Clone(o.Value.Bytes()))
		if out[o.Name], err = x.Float64s(); err != nil {
			s.t.Fatalf("output %q: %v", o.Name, err)
		}
		o.Value.Close()
	}
	return out
}

// Run opens the model and executes it once.
func Run(t testing.TB, m *onnx.Model, level int, inputs map[string]*onnx.Tensor) map[string][]float64 {
	t.Helper()
	return Open(t, m, level, inputs).Run()
}

// RandomInputs returns float32 numbers between -2 and 2 for every input of the
// model, the same ones for models with the same inputs. Free extents become 2.
func RandomInputs(m *onnx.Model) map[string]*onnx.Tensor {
	rng := rand.New(rand.NewPCG(1, 2))
	inputs := map[string]*onnx.Tensor{}
	for _, in := range m.Graph.Inputs {
		dims := make([]int64, len(in.Type.Shape))
		for i, d := range in.Type.Shape {
			if n, ok := d.Int(); ok {
				dims[i] = n
			} else {
				dims[i] = 2
			}
		}
		n, _ := onnx.Elements(dims)
		values := make([]float32, n)
		for i := range values {
			values[i] = rng.Float32()*4 - 2
		}
		inputs[in.Name] = onnx.Float32Tensor(values, dims...)
	}
	return inputs
}
