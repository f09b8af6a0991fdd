package grad

import (
	"context"
	"os"
	"testing"

	"github.com/onnx-remat/remat/onnx"
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

// A runner is a model that is run many times over the same input memory.
type runner struct {
	t       *testing.T
	session *ort.Session
	binding *ort.Binding
	inputs  map[string]*onnx.Tensor
}

// openModel opens a session over the given inputs, whose bytes may be changed
// between runs.
func openModel(t *testing.T, m *onnx.Model, level int, inputs map[string]*onnx.Tensor) (*runner, error) {
	t.Helper()
	data, err := m.Encode()
	if err != nil {
		return nil, err
	}
	s, err := testEnv.NewSessionFromBytes(data, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { s.Close() })
	b, err := s.NewBinding()
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { b.Close() })
	for _, in := range s.Inputs {
		x := inputs[in.Name]
		if x == nil {
			t.Fatalf("no value for input %q", in.Name)
		}
		bytes, err := x.Bytes()
		if err != nil {
			return nil, err
		}
		v, err := testEnv.TensorOver(bytes, ort.DType(x.DType()), x.Dims())
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { v.Close() })
		if err := b.BindInput(in.Name, v); err != nil {
			return nil, err
		}
	}
	for _, o := range s.Outputs {
		if err := b.BindOutputToDevice(o.Name, ort.CPU, 0); err != nil {
			return nil, err
		}
	}
	return &runner{t, s, b, inputs}, nil
}

// run executes once and returns every output as numbers.
func (r *runner) run() (map[string][]float64, error) {
	r.t.Helper()
	if err := r.session.Run(context.Background(), r.binding, ""); err != nil {
		return nil, err
	}
	bound, err := r.binding.Outputs()
	if err != nil {
		return nil, err
	}
	out := map[string][]float64{}
	for _, o := range bound {
		if o.Err != nil {
			return nil, o.Err
		}
		x := onnx.NewTensor(onnx.DType(o.Value.Type), o.Value.Shape, append([]byte(nil), o.Value.Bytes()...))
		if out[o.Name], err = x.Float64s(); err != nil {
			return nil, err
		}
		o.Value.Close()
	}
	return out, nil
}
