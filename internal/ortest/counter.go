package ortest

import (
	"fmt"
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
}

// Counter runs a pass on the pattern, its variants and the graphs beside it, at
// prime and at equal extents, and compares what ONNX Runtime computes before and
// after. pass returns how many places it changed; of the pattern it must change
// some. tolerance is relative to the largest number of an output.
func (p Pattern) Counter(t *testing.T, tolerance float64, pass func(*onnx.Model) (int, error)) {
	t.Helper()
	opset := p.Opset
	if opset == 0 {
		opset = 20
	}
	for _, e := range Shapes {
		base := e.Template(t, opset, p.Body)
		list := Variants(t, base)
		for i, body := range p.Beside {
			list = append(list, Variant{fmt.Sprintf("beside %d", i), e.Template(t, opset, body)})
		}
		ran, fired := 0, 0
		for i, v := range list {
			changed, valid := compared(t, p.Name+", "+e.Name+", "+v.What, v.Model, tolerance, pass)
			if i == 0 && (changed == 0 || !valid) {
				t.Errorf("%s, %s: the pattern is not seen (valid: %t) in\n%s", p.Name, e.Name, valid, base.Text())
			}
			if !valid && v.What[:6] == "beside" {
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

// compared runs one model before and after the pass; valid is false where ONNX
// Runtime or inference refuses it as it is.
func compared(t *testing.T, what string, m *onnx.Model, tolerance float64, pass func(*onnx.Model) (int, error)) (changed int, valid bool) {
	t.Helper()
	before, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	typed, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(typed, infer.Options{}); err != nil {
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
