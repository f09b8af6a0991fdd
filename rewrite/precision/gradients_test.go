package precision

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// TestGradientsWaitInHalf: nothing but casts, and nodes of half, read the gradient
// of a matrix, and no two readers of the update share a float32 copy.
func TestGradientsWaitInHalf(t *testing.T) {
	s := twoProducts(t)
	for _, k := range optim.Kinds() {
		for _, to := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
			for _, provider := range []kernels.Provider{kernels.CPU, kernels.CUDA} {
				m := s.training(t, optim.Defaults(k), Options{To: to, Provider: provider})
				for _, name := range []string{"W", "V"} {
					s.waitsInHalf(t, m, name)
				}
			}
		}
	}
}

func (s *sample) waitsInHalf(t *testing.T, m *onnx.Model, name string) {
	t.Helper()
	copies := 0
	for _, n := range m.Graph.Nodes {
		full := n.Is("Cast") && n.Out(0).Type.DType == onnx.Float32 && len(n.Out(0).Type.Shape) == 2
		updates := 0
		for _, o := range n.Outputs {
			for _, u := range o.Uses() {
				if optim.IsUpdate(u.Node, name) {
					updates++
				}
			}
		}
		if full && updates > 0 {
			copies++
			if updates > 1 {
				t.Errorf("%d nodes of the update of %s share %s", updates, name, n.Out(0).Name)
			}
		}
	}
	grad := m.Graph.Value(name + ".grad")
	for _, u := range grad.Uses() {
		if grad.Type.DType == onnx.Float32 && !u.Node.Is("Cast") {
			t.Errorf("%s reads %s in float32", u.Node.Name(), grad.Name)
		}
	}
	if copies == 0 {
		t.Errorf("the update of %s reads no float32 copy", name)
	}
}

// TestClippedInAnyOrder: in which order the readers of a gradient are listed, which
// edits change, does not matter to a norm that its update is scaled by.
func TestClippedInAnyOrder(t *testing.T) {
	s := load(t, "gpt2_tiny_mask.ts")
	o := optim.Defaults(optim.AdamW)
	o.ClipNorm = 1
	for _, turn := range []func([]onnx.Use){func([]onnx.Use) {}, slices.Reverse[[]onnx.Use]} {
		m := s.training(t, o, Options{})
		for _, q := range s.res.Params {
			v := m.Graph.Value(q.Input.Name + ".grad")
			uses := slices.Clone(v.Uses())
			turn(uses)
			for _, u := range uses {
				u.Node.SetInput(u.Index, nil)
			}
			for _, u := range uses {
				u.Node.SetInput(u.Index, v)
			}
		}
		if _, err := Apply(m, Options{To: onnx.Float16, Provider: kernels.CPU}); err != nil {
			t.Error(err)
		}
	}
}

// TestReadersInAnyOrder: nodes of an update that read only the gradient may stand in any
// order; what the copies wait for follows the order in which they are needed.
func TestReadersInAnyOrder(t *testing.T) {
	s := twoProducts(t)
	for _, k := range optim.Kinds() {
		for _, o := range []Options{{To: onnx.BFloat16, Provider: kernels.CPU}, {To: onnx.Float16, Provider: kernels.CPU}, {To: onnx.Float16, Provider: kernels.CUDA}} {
			for _, clip := range []optim.Clip{"", optim.ClipGlobal, optim.ClipParameter, optim.ClipPrevious} {
				update := optim.Defaults(k)
				if update.ClipBy = clip; clip != "" {
					update.ClipNorm = 1
				}
				for _, turn := range []func(*onnx.Graph){func(*onnx.Graph) {}, lastFirst} {
					m := s.training(t, update, Options{})
					turn(m.Graph)
					if _, err := Apply(m, o); err != nil {
						t.Errorf("%s, clipped by %q, %s: %v", k, clip, o.To, err)
					}
				}
			}
		}
	}
}

// lastFirst orders nodes anew: of those whose inputs are there, the last comes first.
func lastFirst(g *onnx.Graph) {
	place, made := onnx.Places(g.Nodes), map[*onnx.Node]bool{}
	left := slices.Clone(g.Nodes)
	ready := func(n *onnx.Node) bool {
		return !slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && v.Producer != nil && !made[v.Producer] })
	}
	g.Nodes = g.Nodes[:0]
	for len(left) > 0 {
		at := -1
		for i, n := range left {
			if ready(n) && (at < 0 || place[n] > place[left[at]]) {
				at = i
			}
		}
		made[left[at]] = true
		g.Nodes = append(g.Nodes, left[at])
		left = slices.Delete(left, at, at+1)
	}
}

// TestMastersAreCastForEachSide: no half copy of a matrix is read on both sides.
func TestMastersAreCastForEachSide(t *testing.T) {
	s := load(t, "gpt2_tiny_mask.ts")
	m := s.training(t, optim.Defaults(optim.AdamW), Options{To: onnx.BFloat16, Provider: kernels.CUDA})
	casts := 0
	for _, p := range s.res.Params {
		v := m.Graph.Value(p.Input.Name)
		if len(v.Type.Shape) < 2 {
			continue
		}
		for _, u := range v.Uses() {
			if u.Node.Is("Unsqueeze") && len(u.Node.Out(0).Uses()) > 0 && u.Node.Out(0).Uses()[0].Node.Is("Cast") {
				casts++
			}
		}
	}
	if casts == 0 {
		t.Error("backward casts no master for itself")
	}
}
