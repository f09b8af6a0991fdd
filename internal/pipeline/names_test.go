package pipeline

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestRenameInitializers: names may be exchanged and handed on, and what cannot
// be is said of the same name every time.
func TestRenameInitializers(t *testing.T) {
	parse := func() *onnx.Model {
		m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[2]\ninit a float32[2] = [1,2]\ninit b float32[2] = [3,4]\ninit c float32[2] = [5,6]\n" +
			"p = Sub(x, a)\nq = Mul(p, b)\ny = Sub(q, c)\nout y float32[2]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for range 8 { // the order of a map decided before
		m := parse()
		if err := renameInitializers(m.Graph, map[string]string{"a": "b", "b": "a", "c": "d"}); err != nil {
			t.Fatal(err)
		}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		if text := m.Text(); !strings.Contains(text, "Sub(x, b)") || !strings.Contains(text, "Mul(p, a)") || !strings.Contains(text, "Sub(q, d)") {
			t.Fatalf("renamed to\n%s", text)
		}
		for want, names := range map[string]map[string]string{
			`no initializer "f"`:  {"g": "h", "f": "e", "a": "z"},
			`"x" is already used`: {"a": "x", "b": "p", "c": "d"},
			`"p" is already used`: {"a": "d", "b": "p", "c": "y"},
			`"e" is already used`: {"a": "e", "b": "e"},
			`"b" has no new name`: {"b": "", "c": ""},
		} {
			if err := renameInitializers(parse().Graph, names); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v: %v, want %s", names, err, want)
			}
		}
	}
}
