package traits

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

func TestTableIsWhole(t *testing.T) {
	seen := map[key]bool{}
	for _, c := range table {
		k := key{c.domain, c.op}
		if seen[k] {
			t.Errorf("%v stands twice in the table", k)
		}
		seen[k] = true
		if c.why == "" {
			t.Errorf("%v gives no reason for its precision class", k)
		}
	}
	inner := map[key]bool{}
	for _, r := range memory {
		k := key{r.domain, r.op}
		if !seen[k] {
			t.Errorf("%v has memory columns but no row", k)
		}
		inner[k] = r.inner
	}
	for k := range scratchRules {
		if !inner[k] {
			t.Errorf("%v has a scratch rule, but its row says that it allocates nothing", k)
		}
	}
	for _, k := range expanded {
		if !seen[k] {
			t.Errorf("%v is expanded but has no row", k)
		}
	}
	for _, tr := range All() {
		k := key{tr.Domain, tr.Op}
		moves := []key{{"", "Cast"}, {"", "Identity"}, {"", "Where"}}
		if tr.Elementwise && (tr.Cost != Pointwise && tr.Cost != Transcendental && !slices.Contains(moves, k) || !tr.Deterministic) {
			t.Errorf("%v is elementwise, but not by its other columns: %+v", k, tr)
		}
		if tr.Cost == View && (tr.facts&moving == 0 || !slices.Equal(tr.Alias, first)) {
			t.Errorf("%v is a view, but not by its other columns: %+v", k, tr)
		}
		if tr.facts&moving != 0 && tr.Cost != View && tr.Cost != Copy {
			t.Errorf("%v moves elements, but computes: %+v", k, tr)
		}
		if tr.Cost == Random && tr.facts&random == 0 || tr.facts&picking != 0 && tr.facts&moving == 0 {
			t.Errorf("%v: its facts contradict its cost or each other: %+v", k, tr)
		}
		if tr.facts&matrixProduct != 0 && tr.Cost != Contraction {
			t.Errorf("%v multiplies matrices, but does not cost that: %+v", k, tr)
		}
	}
}

func TestUnknownOperator(t *testing.T) {
	if _, ok := OfOp("", "NoSuchOperator"); ok {
		t.Error("an operator that does not exist has traits")
	}
	if tr, ok := OfOp("ai.onnx", "Dropout"); !ok || tr.Deterministic {
		t.Error("Dropout is taken for deterministic")
	}
}

func TestParseEquation(t *testing.T) {
	for _, c := range []struct {
		text   string
		ranks  []int
		ok     bool
		output []int
		last   []int
	}{
		{"ij,jk->ik", []int{2, 2}, true, []int{0, 2}, []int{None, 1, None}},
		{"ij , jk", []int{2, 2}, true, []int{0, 2}, []int{None, 1, None}},
		{"ba", []int{2}, true, []int{1, 0}, []int{None, None}},
		{"ij->", []int{2}, true, nil, []int{0, 0}},
		{"oi, ...ih -> ...oh", []int{2, 4}, true, []int{0, 1, 2, 4}, []int{None, None, None, 1, None}},
		{"...ij,jk", []int{2, 2}, true, []int{0, 2}, []int{None, 1, None}},
		{"ii->i", []int{2}, false, nil, nil},
		{"...i->i", []int{2}, false, nil, nil},
		{"...i,...i->...i", []int{2, 3}, false, nil, nil},
		{"ij->k", []int{2}, false, nil, nil},
		{"ij->i", []int{3}, false, nil, nil},
	} {
		eq, ok := parseEquation(c.text, c.ranks)
		if ok != c.ok {
			t.Errorf("%q: ok %v", c.text, ok)
			continue
		}
		if ok && (!slices.Equal(eq.output, c.output) || !slices.Equal(eq.last, c.last)) {
			t.Errorf("%q: output %v, last %v", c.text, eq.output, eq.last)
		}
	}
}

// Figures that the probe of package runtime/predict does not reach: threads.
func TestConvThreads(t *testing.T) {
	for _, c := range []struct {
		filters, places, depth int64
		threads                int
		want                   int64
	}{
		{4, 64, 27, 16, 1},
		{16, 256, 72, 16, 4}, // 4.5 shares of work, 5 strides of 64 are 4
		{16, 1024, 144, 8, 8},
		{64, 3136, 576, 16, 16},
		{64, 3136, 576, 1, 1},
	} {
		if got := convThreads(c.filters, c.places, c.depth, c.threads); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestScratchNeedsShapes(t *testing.T) {
	m := onnx.NewModel("m", 18)
	x := m.Graph.AddInput("x", onnx.Type{DType: onnx.Float32})
	n := m.Graph.NewNode("", "Where", "w", []*onnx.Value{x, x, x}, []string{"y"})
	if _, ok := Scratch(n, 1); ok {
		t.Error("scratch of unknown shapes claimed to be known")
	}
}
