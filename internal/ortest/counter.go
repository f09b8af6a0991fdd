package ortest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// A Pattern is what a pass looks for, as a template, and graphs close to it.
type Pattern struct {
	Name string
	// Opset of the standard operators; 0: 20.
	Opset int
	// Body is a graph that the pass changes.
	Body string
	// Beside are graphs that no change of one thing leads to; the pass may change
	// them or not.
	Beside []string
	// Except name changes that may change the result: the pass rests on their
	// absence, which its doc says.
	Except []string
}

// pairs is how many variants of variants are tried for each pattern.
const pairs = 24

// Counter runs a pass on the pattern, its variants and the graphs beside it, at
// prime and at equal extents, and compares what ONNX Runtime computes before and
// after. pass returns how many places it changed; of the pattern it must change
// some. tolerance is relative to the largest number of an output.
func (p Pattern) Counter(t *testing.T, tolerance float64, pass func(*onnx.Model) (int, error)) {
	t.Helper()
	opset := cmp.Or(p.Opset, 20)
	for _, e := range Shapes {
		base := e.Template(t, opset, p.Body)
		list := Variants(t, base)
		list = append(list, doubles(t, list, pairs)...)
		for i, body := range p.Beside {
			list = append(list, Variant{fmt.Sprintf("beside %d", i), e.Template(t, opset, body)})
		}
		ran, fired := 0, 0
		for i, v := range list {
			if slices.ContainsFunc(p.Except, func(s string) bool { return strings.Contains(v.What, s) }) {
				continue
			}
			changed, valid := Compare(t, p.Name+", "+e.Name+", "+v.What, v.Model, tolerance, pass)
			if i == 0 && (changed == 0 || !valid) {
				t.Errorf("%s, %s: the pattern is not seen (valid: %t) in\n%s", p.Name, e.Name, valid, base.Text())
			}
			if !valid && strings.HasPrefix(v.What, "beside") {
				t.Errorf("%s, %s: %s is no valid model:\n%s", p.Name, e.Name, v.What, v.Model.Text())
			}
			if valid {
				ran++
			}
			if changed > 0 {
				fired++
			}
		}
		t.Logf("%s, %s: %d variants, %d valid, %d changed", p.Name, e.Name, len(list), ran, fired)
	}
}

// doubles are variants of some of the variants: two things changed. Those that
// inference refuses lead to no valid model and are passed over.
func doubles(t *testing.T, list []Variant, count int) []Variant {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, uint64(len(list))))
	var out []Variant
	for range count / 8 {
		v := list[rng.IntN(len(list))]
		if m, err := v.Model.Clone(); err != nil || !typed(m) {
			continue
		}
		next := Variants(t, v.Model)
		for range min(8, len(next)) {
			w := next[rng.IntN(len(next))]
			out = append(out, Variant{v.What + "; " + w.What, w.Model})
		}
	}
	return out
}

func typed(m *onnx.Model) bool {
	_, err := infer.Model(m, infer.Options{})
	return err == nil
}

// Compare runs one model before and after the pass; valid is false where ONNX
// Runtime or inference refuses it as it is.
func Compare(t *testing.T, what string, m *onnx.Model, tolerance float64, pass func(*onnx.Model) (int, error)) (changed int, valid bool) {
	t.Helper()
	before, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	probe, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if !typed(probe) || dividesByZero(probe) || draws(probe) || endless(probe) {
		return 0, false
	}
	inputs := RandomInputs(m)
	a, err := Try(t, before, inputs)
	if err != nil {
		return 0, false
	}
	changed, err = pass(m)
	if err != nil {
		t.Errorf("%s: %v in\n%s", what, err, before.Text())
		return 0, true
	}
	if err := m.Check(); err != nil {
		t.Errorf("%s: %v in\n%s", what, err, m.Text())
		return changed, true
	}
	b, err := Try(t, m, inputs)
	if err != nil {
		t.Errorf("%s: %v in\n%s\nwas\n%s", what, err, m.Text(), before.Text())
		return changed, true
	}
	if d := Difference(a, b, tolerance); d != "" {
		t.Errorf("%s: %s in\n%s\nwas\n%s", what, d, m.Text(), before.Text())
	}
	return changed, true
}

// dividesByZero reports a SplitToSequence into parts of extent 0: ONNX Runtime
// divides by it while it loads the model, and the process ends (SIGFPE in 1.31).
func dividesByZero(m *onnx.Model) bool {
	for _, n := range m.Graph.Nodes {
		if n.Is("SplitToSequence") && n.In(1) != nil && n.In(1).Init != nil {
			if step, ok := n.In(1).Init.Scalar(); ok && step == 0 {
				return true
			}
		}
	}
	return false
}

// draws reports a Dropout without a seed, whose numbers differ from run to run.
func draws(m *onnx.Model) bool {
	return slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return n.Is("Dropout") && !n.Has("seed") })
}

// endless reports a Loop that may make very many trips.
func endless(m *onnx.Model) bool {
	for _, n := range m.Graph.Nodes {
		if !n.Is("Loop") {
			continue
		}
		if n.In(0) == nil || n.In(0).Init == nil {
			return true
		}
		if trips, ok := n.In(0).Init.Scalar(); !ok || trips > 100 {
			return true
		}
	}
	return false
}
