package ortest

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// Parse reads a text graph and infers its types; the test ends where it cannot.
func Parse(t testing.TB, text string) (*onnx.Model, *infer.Result) {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return m, types
}
