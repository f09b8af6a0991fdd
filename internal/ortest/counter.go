package ortest

import (
	"cmp"
	"fmt"
	"math"
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
// Runtime or inference refuses it as it is. An output that differs by more than
// tolerance of its largest number is held to how far it moves when the numbers
// that go in move by a quarter of tolerance.
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
	allowed := map[string]float64{}
	for name, x := range a {
		allowed[name] = tolerance * (largest(x) + 1e-3)
	}
	d := difference(a, b, allowed)
	if d != "" {
		for name, moved := range moves(t, before, inputs, a, tolerance/4) {
			allowed[name] = max(allowed[name], moved)
		}
		d = difference(a, b, allowed)
	}
	if d != "" {
		t.Errorf("%s: %s in\n%s\nwas\n%s", what, d, m.Text(), before.Text())
	}
	return changed, true
}

// moves returns how far the numbers of each output move when every float32 that
// goes in moves by up to share of itself. A sum whose terms cancel moves by more
// than its own size times share; how it is rounded differs by as much, from one
// order of its terms to another and from processor to processor.
func moves(t *testing.T, m *onnx.Model, inputs map[string]*onnx.Tensor, at map[string]Output, share float64) map[string]float64 {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	moved := map[string]float64{}
	for range 4 {
		near := map[string]*onnx.Tensor{}
		for name, x := range inputs {
			near[name] = x
			if values, err := x.Float64s(); err == nil && x.DType() == onnx.Float32 {
				for i := range values {
					values[i] *= 1 + share*(2*rng.Float64()-1)
				}
				near[name] = onnx.FloatTensor(onnx.Float32, values, x.Dims()...)
			}
		}
		out, err := Try(t, m, near)
		if err != nil {
			return nil
		}
		for name, x := range at {
			if y := out[name]; len(y.Values) == len(x.Values) {
				for i, v := range x.Values {
					if d := math.Abs(y.Values[i] - v); d > moved[name] && !math.IsInf(d, 0) {
						moved[name] = d
					}
				}
			}
		}
	}
	return moved
}

// difference says how what two models give differs, "" where it does not: names,
// types and extents must be equal, the numbers of an output up to what is allowed
// of it.
func difference(a, b map[string]Output, allowed map[string]float64) string {
	for name, x := range a {
		y, ok := b[name]
		switch {
		case !ok:
			return fmt.Sprintf("output %s is gone", name)
		case x.DType != y.DType:
			return fmt.Sprintf("%s is %s, was %s", name, y.DType, x.DType)
		case !slices.Equal(x.Dims, y.Dims):
			return fmt.Sprintf("%s is of shape %v, was %v", name, y.Dims, x.Dims)
		}
		for i, v := range x.Values {
			u := y.Values[i]
			if u == v || math.IsNaN(u) && math.IsNaN(v) {
				continue
			}
			if !(math.Abs(u-v) <= allowed[name]) {
				return fmt.Sprintf("%s[%d] is %g, was %g", name, i, u, v)
			}
		}
	}
	if len(a) != len(b) {
		return fmt.Sprintf("%d outputs, were %d", len(b), len(a))
	}
	return ""
}

func largest(x Output) float64 {
	l := 0.0
	for _, v := range x.Values {
		if !math.IsInf(v, 0) && !math.IsNaN(v) {
			l = max(l, math.Abs(v))
		}
	}
	return l
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
