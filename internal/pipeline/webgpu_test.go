package pipeline

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// TestWebGPUForms: a file that may run on WebGPU holds no control dependency that its
// kernels refuse, nor float64; on the CPU it takes the memory that is predicted, to the byte,
// hardly more than the same plan's other form, and returns the same bits; and planned anew it
// is the same graph as one in the other form.
func TestWebGPUForms(t *testing.T) {
	e := engine(t)
	small := func(c *models.Config) {
		smallZoo(c)
		c.Layers = min(c.Layers, 2)
	}
	for _, kind := range []optim.Kind{optim.SGD, optim.AdamW} {
		m := zooStep(t, "gpt2-tiny", kind, small)
		for _, strategy := range []string{"none", "full", "optimal"} {
			of := func(gpu bool) *File {
				p, err := NewPlanner(e, m, Options{OptLevel: 1, Threads: 2, Outputs: step.Returned, WebGPU: gpu})
				if err != nil {
					t.Fatal(err)
				}
				f, err := p.Plan(strategy, 0)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			plain, f := of(false), of(true)
			if n := refused(t, f.Model); n == 0 {
				t.Errorf("%s, %s: no control dependency, so nothing was tested", kind, strategy)
			}
			if more := f.Peak - plain.Peak; more > shapesBytes {
				t.Errorf("%s, %s: takes %d bytes, %d more than the other form", kind, strategy, f.Peak, more)
			}
			want, got := executeBy(t, e, plain.Model, step.Returned, plain.Roles()), executeBy(t, e, f.Model, step.Returned, f.Roles())
			for run, peak := range got.peaks {
				if peak != f.Peak {
					t.Errorf("%s, %s, run %d: live peak %d, predicted %d", kind, strategy, run+1, peak, f.Peak)
				}
			}
			if kind == optim.SGD { // AdamW's numbers are in float32
				for name, w := range want.outputs {
					if string(w) != string(got.outputs[name]) {
						t.Errorf("%s, %s: output %s has other bits than the other form's", kind, strategy, name)
					}
				}
			}
			control.Lift(f.Model.Graph)
			control.Lift(plain.Model.Graph)
			if a, b := operators(f.Model), operators(plain.Model); kind == optim.SGD && !slices.Equal(a, b) {
				t.Errorf("%s, %s: lifted it has %d operators, the other form %d", kind, strategy, len(a), len(b))
			}
		}
	}
}

// refused reports what WebGPU refuses of a model, and counts its views along axes.
func refused(t *testing.T, m *onnx.Model) (views int) {
	t.Helper()
	for _, n := range m.Graph.Nodes {
		for _, v := range n.Outputs {
			if v != nil && v.Type.DType == onnx.Float64 {
				t.Errorf("%s is in float64", v.Name)
			}
		}
		if n.Is("Unsqueeze", "Squeeze") && len(n.Inputs) > 1 && !n.Inputs[1].IsConstant() {
			views++
			if c := n.Inputs[1].Producer; !c.Is("Concat") || !c.Inputs[0].IsConstant() {
				t.Errorf("%s is along no axis", n.Label())
			}
		}
	}
	return views
}

// operators are those of a model without the casts around numbers in float64.
func operators(m *onnx.Model) []string {
	var list []string
	for _, n := range m.Graph.Nodes {
		if !n.Is("Cast") {
			list = append(list, n.OpType())
		}
	}
	slices.Sort(list)
	return list
}
