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

// Text is the text form of a graph without the notes of where its nodes come from,
// which tests of passes ask for one by one.
func Text(m *onnx.Model) string {
	for _, n := range m.Graph.Nodes {
		n.SetOrigin(onnx.Origin{})
	}
	return m.Text()
}
