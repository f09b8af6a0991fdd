package ort

import (
	"context"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice/devicetest"
)

// TestOnNullDevice runs the tests of lifetimes once more on the CUDA provider.
func TestOnNullDevice(t *testing.T) {
	out := devicetest.Again(t, "Closed|Outlives|Leaks|Stats")
	if !strings.Contains(out, "TestClosedInAnyOrder") || strings.Contains(out, "on the CPU only") {
		t.Error("no test ran on the device")
	}
}

// testEnv is the environment of all tests; the library is REMAT_ORT or the
// installed one.
var testEnv *Environment

func TestMain(m *testing.M) {
	path, err := install.Find("")
	if gpu := devicetest.Library(); gpu != "" {
		path = gpu
		err = devicetest.Load()
	}
	if err == nil {
		testEnv, err = Open(path)
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

func floats(v *Value) []float32 {
	b := v.Bytes()
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
}

func newSession(t *testing.T, model []byte, o SessionOptions) *Session {
	t.Helper()
	s, err := testEnv.NewSessionFromBytes(model, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// runOne runs a session with the given inputs and returns its outputs, each
// left to ONNX Runtime.
func runOne(t *testing.T, s *Session, inputs map[string]*Value) []*Value {
	t.Helper()
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for name, v := range inputs {
		if err := b.BindInput(name, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range s.Outputs {
		if err := b.BindOutputToDevice(o.Name, CPU, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Run(context.Background(), b, ""); err != nil {
		t.Fatal(err)
	}
	out, err := b.Outputs()
	if err != nil {
		t.Fatal(err)
	}
	var values []*Value
	for _, o := range out {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		t.Cleanup(func() { o.Value.Close() })
		values = append(values, o.Value)
	}
	return values
}

func newTensor(t *testing.T, d DType, shape ...int64) *Value {
	t.Helper()
	v, err := testEnv.NewTensor(d, shape)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}
