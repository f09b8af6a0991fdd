package optim

// Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"):
// the momentum of a hidden matrix, brought near the closest orthogonal one by five
// Newton-Schulz steps. Nesterov's momentum as there:
//
//	m_add   = grad · grad_m            n_add = grad · grad_n
//	P.m.new = (P.m + m_add) · keep_m   x     = P.m.new + n_add, over its norm + 1e-7
//	five times a = x·xᵀ, b = -4.7750·a + 2.0315·a², x = 3.4445·x + b·x
//	rated   = x · rate · 0.2·sqrt(the larger of rows and columns)
//
// A tall matrix takes xᵀ·x and x·b, whose sides are its columns. The rate is AdamW's:
// with that factor the root mean square of an update is about 0.2, as AdamW's is (Liu et
// al. 2025, "Muon is Scalable for LLM Training"). Vectors, embeddings, classifier heads
// and what has three axes are updated as by AdamW. Decay is decoupled.
//
// The sum x = m' + k·g, k = (1-β)/β, is (1-β)·g + β·m' up to its length, which goes. All
// of a matrix goes into each of its numbers, so its update cannot be made in slices.

import (
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

const (
	muonSteps               = 5
	muonA, muonB, muonC     = 3.4445, -4.7750, 2.0315
	muonEps, muonRootSquare = 1e-7, 0.2
)

var muon = row{
	kind:     Muon,
	settings: []defaulted{{&momentum, 0.95}, {&weightDecay, 0.1}, {&beta1, 0.9}, {&beta2, 0.999}, {&eps, 1e-8}},
	rate:     1e-3,
	state: func(a *applier, p *onnx.Value) []held {
		if a.hidden(p) {
			return alike(p.Type, "m")
		}
		return alike(p.Type, "m", "v")
	},
	decays:  func(*Options) bool { return true },
	scalars: muonScalars,
	update:  func(u *updater) { u.next(u.muon()) },
}

func muonScalars(a *applier, lr, step, factor *onnx.Value) *onnx.Value {
	mu := a.o.Momentum
	a.declare("keep_mu", 1, a.f32(mu))
	a.declare("grad_mu", 0, a.times("grad_mu", factor, (1-mu)*before(mu)))
	if mu >= scaleLast {
		a.declare("grad_n", 0, a.times("grad_n", factor, (1-mu)/mu))
	}
	a.s.correction = a.float("correction", a.adamCorrection(step, factor))
	return a.lr64(lr)
}

// muon is what is subtracted from the parameter.
func (u *updater) muon() *onnx.Value {
	rate := u.scalar("rate")
	if !u.hidden(u.p) {
		return u.mul("rated", u.adamw(), &scalar{rate.name, rate.neutral, u.named("rate_corrected", "Mul", build.In(rate.Value, u.s.correction))})
	}
	m, _ := matrixOf(u.p.Type.Shape)
	x := u.averageBy("m", u.scaleGradient("m_add", "grad_mu"), u.o.Momentum, "keep_mu")
	if u.o.Momentum >= scaleLast {
		x = u.named("nesterov", "Add", build.In(x, u.scaleGradient("n_add", "grad_n")))
	}
	over := u.named("over", "Add", build.In(u.norm("length", x, 1), u.f32(muonEps)))
	x = u.named("direction", "Div", build.In(x, u.like(over)))
	if len(m.dims) > 2 {
		x = u.named("direction_flat", "Reshape", build.In(x, u.b.Ints(m.rows, m.columns)))
	}
	for range muonSteps {
		x = u.newtonSchulz(m, x)
	}
	if len(m.dims) > 2 {
		x = u.named("orthogonal", "Reshape", build.In(x, u.b.Ints(m.dims...)))
	}
	side := muonRootSquare * math.Sqrt(float64(max(m.rows, m.columns)))
	return u.mul("rated", x, &scalar{rate.name, rate.neutral, u.named("rate_side", "Mul", build.In(rate.Value, u.f32(side)))})
}

// newtonSchulz is one step of x [rows, columns] towards an orthogonal matrix.
func (u *updater) newtonSchulz(m matrix, x *onnx.Value) *onnx.Value {
	gemm := func(what string, a, b, c *onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
		return u.named(what, "Gemm", build.In(a, b, c), attrs...)
	}
	alpha, beta := func(v float64) onnx.Attribute { return onnx.FloatAttr("alpha", v) }, func(v float64) onnx.Attribute { return onnx.FloatAttr("beta", v) }
	side := onnx.IntAttr("transB", 1)
	if m.rows > m.columns {
		side = onnx.IntAttr("transA", 1)
	}
	a := gemm("gram", x, x, nil, side)
	b := gemm("polynomial", a, a, a, alpha(muonC), beta(muonB))
	if m.rows > m.columns {
		return gemm("newton_schulz", x, b, x, beta(muonA))
	}
	return gemm("newton_schulz", b, x, x, beta(muonA))
}

// hidden reports a matrix, or filters, of a hidden layer: no embedding, which is gathered
// from, nor the last matrix before a softmax that the loss is computed from.
func (a *applier) hidden(p *onnx.Value) bool {
	if a.hiddens == nil {
		a.findHidden()
	}
	return a.hiddens[p.Name]
}

func (a *applier) findHidden() {
	g, matrices := a.loss.Graph, map[*onnx.Value]bool{}
	for _, p := range a.params {
		if _, ok := matrixOf(p.Value.Type.Shape); ok && len(p.Value.Type.Shape) != 3 {
			matrices[g.Value(p.Value.Name)] = true
		}
	}
	deps, forward := step.DependenciesOf(g), func(*onnx.Node) bool { return true }
	if r, _, err := step.RolesOf(a.loss, nil); err == nil && r.Loss != "" {
		forward = deps.Backward(step.Any, g.Value(r.Loss)).Has
	}
	a.hiddens = map[string]bool{}
	for p := range matrices {
		a.hiddens[p.Name] = !gathered(p, forward) && !isHead(p, matrices, forward, deps.Forward(step.Data, p))
	}
}

// gathered reports a parameter that forward takes rows of.
func gathered(p *onnx.Value, forward func(*onnx.Node) bool) bool {
	return slices.ContainsFunc(p.Uses(), func(u onnx.Use) bool { return u.Node.Is("Gather") && u.Index == 0 && forward(u.Node) })
}

// isHead reports a matrix after which forward has a softmax and no other matrix.
func isHead(p *onnx.Value, matrices map[*onnx.Value]bool, forward func(*onnx.Node) bool, after *step.Slice) bool {
	for q := range matrices {
		for _, u := range q.Uses() {
			if q != p && forward(u.Node) && after.Has(u.Node) {
				return false
			}
		}
	}
	return slices.ContainsFunc(after.Nodes(), func(n *onnx.Node) bool {
		return forward(n) && n.Is("Softmax", "LogSoftmax", "SoftmaxCrossEntropyLoss", "ReduceLogSumExp")
	})
}
