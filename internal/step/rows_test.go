package step

import (
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// byRows updates w in two slices of its rows, each an output.
const byRows = `in x float32[4,3]
in w float32[4,3]
in y float32[2,3]
init zero int64[1] = [0]
init two int64[1] = [2]
init four int64[1] = [4]
init end int64[1] = [-1]
top = Slice(w, zero, two, zero)
all = Size(top)
count = Unsqueeze(all, zero)
none = Slice(count, zero, zero)
late = Unsqueeze(w, none)
bottom = Slice(late, two, four, zero)
w.new.0 = Relu(top)
w.new.1 = Relu(bottom)
w.new = Concat(w.new.0, w.new.1) {axis=0}
out w.new.0 float32[2,3]
out w.new.1 float32[2,3]
out w.new float32[4,3]
`

func rowsGraph(t *testing.T, text string) *onnx.Graph {
	t.Helper()
	m := parse(t, text)
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	return m.Graph
}

func joined(values []*onnx.Value) string {
	var list []string
	for _, v := range values {
		list = append(list, v.Name)
	}
	return strings.Join(list, " ")
}

// TestRowsOf: only outputs that a next value joins along its first axis, each once and
// with its columns, are its rows.
func TestRowsOf(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"as it is", "", "", "w.new.0 w.new.1"},
		{"past what renames a part", "w.new = Concat(w.new.0,", "past = Unsqueeze(w.new.0, none)\nw.new = Concat(past,", "w.new.0 w.new.1"},
		{"axis from the end", "{axis=0}", "{axis=-2}", "w.new.0 w.new.1"},
		{"a part twice", "Concat(w.new.0, w.new.1)", "Concat(w.new.0, w.new.0)", ""},
		{"no output", "out w.new.1 float32[2,3]\n", "", ""},
		{"an input", "Concat(w.new.0, w.new.1)", "Concat(w.new.0, y)", ""},
		{"another axis", "{axis=0}\nout w.new.0 float32[2,3]\nout w.new.1 float32[2,3]\nout w.new float32[4,3]", "{axis=1}\nout w.new.0 float32[2,3]\nout w.new.1 float32[2,3]\nout w.new float32[2,6]", ""},
		{"a copy between", "w.new = Concat(w.new.0,", "past = Relu(w.new.0)\nw.new = Concat(past,", ""},
	} {
		text := strings.Replace(byRows, c.old, c.new, 1)
		if c.old != "" && text == byRows {
			t.Fatalf("%s: nothing is replaced", c.name)
		}
		next := rowsGraph(t, text).Value("w.new")
		if got := joined(RowsOf(next)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		want := "w.new"
		if c.want != "" {
			want = c.want + " w.new"
		}
		if got := joined(BoundWith(next, Rows)); got != want {
			t.Errorf("%s: bound with it %q", c.name, got)
		}
		if got := joined(BoundWith(next, Bound)); got != "w.new" {
			t.Errorf("%s: bound %q", c.name, got)
		}
	}
	if RowsOf(nil) != nil {
		t.Error("rows of nothing")
	}
}

// TestSpares: who cuts other rows out may come after a writer, whatever view leads there;
// who reads the same rows, or may, must not.
func TestSpares(t *testing.T) {
	for _, c := range []struct {
		cut  string // of w or late, read beside the update
		want [2]bool
	}{
		{"Slice(w, zero, two, zero)", [2]bool{false, true}},
		{"Slice(late, two, four, zero)", [2]bool{true, false}},
		{"Unsqueeze(w, none)", [2]bool{true, true}},
		{"Slice(w, zero, two, end)", [2]bool{false, false}}, // columns
		{"Slice(w, zero, end, zero)", [2]bool{false, false}},
		{"Slice(w, zero, two, zero, two)", [2]bool{false, false}},
		{"Slice(w, zero, two)", [2]bool{false, false}},
		{"Relu(w)", [2]bool{false, false}},
		{"Transpose(w)", [2]bool{false, false}},
		{"Unsqueeze(w, zero)", [2]bool{false, false}},
		{"Slice(x, two, four, zero)", [2]bool{false, false}}, // not of w
	} {
		g := rowsGraph(t, byRows+"beside = "+c.cut+"\n")
		for i, w := range WritersOf(g.Value("w.new"), Rows) {
			if got := w.Spares(g.Value("w"), g.Value("beside").Producer); got != c.want[i] {
				t.Errorf("%s, rows %d: %v", c.cut, i, got)
			}
		}
		if whole := WritersOf(g.Value("w.new"), Bound); len(whole) != 1 || whole[0].Spares(g.Value("w"), g.Value("late").Producer) {
			t.Errorf("the writer of all spares one who reads it")
		}
	}
}
