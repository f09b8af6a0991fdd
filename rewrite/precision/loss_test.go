package precision

// Training in half: overflow, and what loss scaling is for.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// training is the sample with an optimizer, converted.
func (s *sample) training(t testing.TB, o optim.Options, p Options) *onnx.Model {
	t.Helper()
	m := clone(t, s.model)
	var params []optim.Param
	for _, q := range s.res.Params {
		params = append(params, optim.Param{Value: m.Graph.Value(q.Input.Name), Grad: m.Graph.Value(q.Grad.Name)})
	}
	if _, err := optim.Apply(m, params, o); err != nil {
		t.Fatal(err)
	}
	if p.To != onnx.Undefined {
		if _, err := Apply(m, p); err != nil {
			t.Fatal(err)
		}
	}
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestOverflow makes gradients overflow at chosen steps, by a scale that half
// cannot hold: nothing changes in those steps, not a bit of a parameter or of
// the optimizer's state, the scale halves, and training goes on.
func TestOverflow(t *testing.T) {
	s := load(t, "gpt2_tiny_mask.ts")
	sgd := optim.Options{Kind: optim.SGD, Momentum: 0.9, WeightDecay: 0.01, ClipNorm: 1}
	cases := map[string]optim.Options{"adamw": optim.Defaults(optim.AdamW), "clipped sgd": sgd}
	lion := optim.Defaults(optim.Lion)
	lion.ClipNorm, lion.ClipBy = 1, optim.ClipPrevious
	cases["clipped lion"] = lion
	for _, by := range []optim.Clip{optim.ClipParameter, optim.ClipPrevious} {
		sgd.ClipBy = by
		cases["sgd clipped by "+string(by)] = sgd
	}
	for name, o := range cases {
		for _, keep := range []bool{false, true} {
			o.KeepGrads = keep
			m := s.training(t, o, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
			e, err := ortest.Engine(t).Open(m, runtime.Options{
				Level: 1, Threads: 2, Provider: ort.CPU, Feeds: s.feeds, LR: 1e-2,
				LossScale: 1 << 30, Scaling: runtime.Scaling{Interval: 3, Backoff: 1.0 / (1 << 8), Growth: 1 << 12, Max: 1 << 40},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			skipped, went := 0, 0
			first, last := math.NaN(), 0.0
			for i := range 12 {
				before, scale := state(t, e), e.Scaler().Scale
				step, err := e.Step(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				loss, _ := step.Output(s.loss)
				values, err := loss.Float64s()
				if err != nil || math.IsNaN(values[0]) || math.IsInf(values[0], 0) {
					t.Fatalf("%s: step %d: loss %v %v", name, i, values, err)
				}
				if i == 0 {
					first = values[0]
				}
				last = values[0]
				after := state(t, e)
				changed := 0
				for n := range before {
					if !bytes.Equal(before[n], after[n]) {
						changed++
					}
				}
				switch {
				case step.Skipped && changed > 0:
					t.Errorf("%s: step %d was skipped and changed %d of %d", name, i, changed, len(before))
				case step.Skipped && e.Scaler().Scale != scale/(1<<8):
					t.Errorf("%s: step %d: scale %g after %g", name, i, e.Scaler().Scale, scale)
				case !step.Skipped && changed < len(before)*9/10:
					t.Errorf("%s: step %d changed only %d of %d", name, i, changed, len(before))
				}
				if step.Skipped {
					skipped++
				} else {
					went++
				}
			}
			if skipped < 2 || went < 6 {
				t.Errorf("%s: %d steps skipped, %d not", name, skipped, went)
			}
			if !(last < first) {
				t.Errorf("%s: the loss goes from %g to %g", name, first, last)
			}
		}
	}
}

// twoProducts is a graph whose gradient of W is x·scale and of V y·scale, each
// summed over four rows, with W and V matrices.
func twoProducts(t *testing.T) *sample {
	t.Helper()
	return derived(t, `in x float32[4,2]
		in y float32[4,2]
		in z float32[4,2]
		init W float32[2,2] = zeros
		init V float32[2,2] = zeros
		h = MatMul(x, W)
		k = MatMul(y, V)
		both = Add(h, k)
		weighed = Mul(both, z)
		loss = ReduceMean(weighed) {keepdims=0}
		out loss float32[]`)
}

// derived is the training graph of a model in text.
func derived(t *testing.T, body string) *sample {
	t.Helper()
	m := parse(t, body)
	res, err := grad.Differentiate(m, grad.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &sample{model: m, res: res}
}

// TestOverflowOfOneGradient: with the scale 65536 only the gradient of W leaves
// float16. A step is skipped as a whole, or by parameter: W and its state keep every
// bit, V is updated as it would be without W, and found_inf says so either way.
func TestOverflowOfOneGradient(t *testing.T) {
	s := twoProducts(t)
	cases := map[string]optim.Options{}
	for _, k := range optim.Kinds() {
		for _, by := range []optim.Clip{"", optim.ClipGlobal, optim.ClipParameter, optim.ClipPrevious} {
			o := optim.Defaults(k)
			if by != "" {
				o.ClipNorm, o.ClipBy = 1, by
			}
			cases[string(k)+" "+string(by)] = o
		}
		sums := optim.Defaults(k)
		sums.Accumulate = 2
		cases[string(k)+" over two steps"] = sums
	}
	for name, o := range cases {
		for _, emulate := range []bool{true, false} {
			for _, by := range []Overflow{OverflowAll, OverflowParameter} {
				m := s.training(t, o, Options{To: onnx.Float16, Emulate: emulate, Overflow: by, Provider: kernels.CPU})
				global := o.ClipNorm > 0 && o.ClipBy == optim.ClipGlobal
				s.overflowOfW(t, name+", "+string(by), m, by == OverflowParameter && !global)
			}
		}
	}
}

// overflowOfW takes a good step, one in which W's gradient overflows, and a good one.
func (s *sample) overflowOfW(t *testing.T, name string, m *onnx.Model, alone bool) {
	t.Helper()
	xs, ys, ones := make([]float32, 3*8), make([]float32, 3*8), make([]float32, 8)
	for i := range xs {
		xs[i], ys[i] = 0.5, 0.25+float32(i%3)/8
		if i/8 == 1 {
			xs[i] = 300
		}
		ones[i%8] = 1
	}
	e, err := ortest.Engine(t).Open(m, runtime.Options{
		Level: 1, Threads: 2, Provider: ort.CPU, LR: 1e-2, LossScale: 65536,
		Feeds: map[string]runtime.Tensor{"z": runtime.FromFloat32s(ones, 4, 2)},
		Data:  map[string]runtime.Tensor{"x": runtime.FromFloat32s(xs, 3, 4, 2), "y": runtime.FromFloat32s(ys, 3, 4, 2)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for i := range 3 {
		before, scale := state(t, e), e.Scaler().Scale
		step, err := e.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if bad := i == 1; step.Skipped != bad || bad && e.Scaler().Scale != scale/2 {
			t.Fatalf("%s: step %d: found_inf %v, scale %g after %g", name, i, step.Skipped, e.Scaler().Scale, scale)
		}
		if i != 1 {
			continue
		}
		changed := map[byte]int{}
		for n, data := range state(t, e) {
			if !bytes.Equal(before[n], data) {
				changed[n[0]]++
			}
		}
		if changed['W'] > 0 || changed['c'] > 0 || (changed['V'] > 0) != alone {
			t.Errorf("%s: a gradient of W that overflows changes %d tensors of W, %d of V", name, changed['W'], changed['V'])
		}
	}
}

// TestEqualGradients: W and U have one gradient, and what their updates make of it is merged,
// as a file has it. Both are updated as in float32, and neither where it overflows.
func TestEqualGradients(t *testing.T) {
	s := derived(t, `in x float32[4,2]
		in y float32[4,2]
		in z float32[4,2]
		init W float32[2,2] = zeros
		init U float32[2,2] = zeros
		init V float32[2,2] = zeros
		g = MatMul(x, W)
		h = MatMul(x, U)
		k = MatMul(y, V)
		two = Add(g, h)
		all = Add(two, k)
		weighed = Mul(all, z)
		loss = ReduceMean(weighed) {keepdims=0}
		out loss float32[]`)
	for _, kind := range optim.Kinds() {
		for _, by := range []Overflow{OverflowAll, OverflowParameter} {
			for i, clip := range []optim.Clip{"", "", optim.ClipGlobal, optim.ClipParameter, optim.ClipPrevious} {
				o := optim.Defaults(kind)
				if o.ClipBy = clip; clip != "" {
					o.ClipNorm = 0.1
				}
				o.Accumulate = int64(1 + i%2)
				text := fmt.Sprintf("%s, %d runs an update, clipped by %q, overflow by %s", kind, o.Accumulate, clip, by)
				half := s.training(t, o, Options{})
				normalize.MergeEqual(half.Graph)
				if _, err := Apply(half, Options{To: onnx.Float16, Emulate: true, Overflow: by, Provider: kernels.CPU}); err != nil {
					t.Fatal(err)
				}
				s.updatesTwins(t, text, s.training(t, o, Options{}), half, by == OverflowParameter && clip != optim.ClipGlobal)
			}
		}
	}
}

// updatesTwins takes two good steps of both graphs, and one in which the gradient of W and U
// overflows in half.
func (s *sample) updatesTwins(t *testing.T, text string, single, half *onnx.Model, alone bool) {
	t.Helper()
	values := make([]float32, 3*8)
	for i := range values {
		values[i] = 0.5
		if i/8 == 2 {
			values[i] = 1 << 12
		}
	}
	open := func(m *onnx.Model) *runtime.Session {
		e, err := ortest.Engine(t).Open(m, runtime.Options{
			Level: 1, Threads: 2, Provider: ort.CPU, LR: 1e-2, LossScale: 1 << 10,
			Data: map[string]runtime.Tensor{
				"x": runtime.FromFloat32s(values, 3, 4, 2),
				"y": runtime.FromFloat32s(make([]float32, 3*8), 3, 4, 2),
			},
			Feeds: map[string]runtime.Tensor{"z": runtime.FromFloat32s([]float32{1, 1, 1, 1, 1, 1, 1, 1}, 4, 2)},
		})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	a, b := open(single), open(half)
	defer a.Close()
	defer b.Close()
	for i := range 3 {
		before := state(t, b)
		_, err := a.Step(context.Background())
		step, err2 := b.Step(context.Background())
		if err := errors.Join(err, err2); err != nil || step.Skipped != (i == 2) {
			t.Fatalf("%s: step %d: %v, skipped %v", text, i, err, step.Skipped)
		}
		for name, data := range state(t, b) {
			switch same := bytes.Equal(before[name], data); {
			case i < 2:
				want, _, _ := a.Input(name)
				got, _, _ := b.Input(name)
				w, _ := want.Float64s()
				g, _ := got.Float64s()
				if d := distance(g, w); d > 1e-5 {
					t.Errorf("%s: step %d: %s is %v, in float32 %v", text, i, name, g, w)
				}
			case !same && (!alone || !strings.HasPrefix(name, "V")):
				t.Errorf("%s: a step that is skipped changes %s", text, name)
			}
		}
	}
}

// sameNumbers compares float32 values; 0 and -0 are the same.
func sameNumbers(a, b []byte) bool {
	for i := 0; i+4 <= len(a) && len(a) == len(b); i += 4 {
		x, y := binary.LittleEndian.Uint32(a[i:]), binary.LittleEndian.Uint32(b[i:])
		if x != y && (x|y)<<1 != 0 {
			return false
		}
	}
	return len(a) == len(b)
}

// state is everything that steps update; NaN and infinity are errors.
func state(t *testing.T, s *runtime.Session) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, name := range s.Updated() {
		v, _, err := s.Input(name)
		if err != nil {
			t.Fatal(err)
		}
		x, err := v.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		for _, y := range x {
			if math.IsNaN(y) || math.IsInf(y, 0) {
				t.Fatalf("%s holds %v", name, y)
			}
		}
		all[name] = v.Data
	}
	return all
}

// TestUselessScale: with a scale that says nothing about the gradients (zero,
// negative, not finite, or so small that dividing by it overflows) a step finds
// an overflow, and not a bit of a parameter or of the optimizer's state changes.
func TestUselessScale(t *testing.T) {
	s := load(t, "gpt2_tiny_mask.ts")
	sgd := optim.Options{Kind: optim.SGD, Momentum: 0.9, WeightDecay: 0.01, ClipNorm: 1}
	cases := map[string]optim.Options{"clipped sgd": sgd}
	for _, k := range optim.Kinds() {
		cases[string(k)] = optim.Defaults(k)
	}
	sgd.ClipBy = optim.ClipPrevious
	cases["sgd clipped by the norm before"] = sgd
	sums := optim.Defaults(optim.AdamW)
	sums.Accumulate = 2
	cases["adamw over two steps"] = sums
	for name, o := range cases {
		for _, keep := range []bool{false, true} {
			o.KeepGrads = keep
			rate := 1e-2
			if o.Kind == optim.ApolloMini { // whose step of that rate leads to gradients beyond half
				rate = o.Kind.Rate()
			}
			s.uselessScales(t, name, rate, s.training(t, o, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU}))
		}
	}
}

// uselessScales trains with one scale after another.
func (s *sample) uselessScales(t *testing.T, name string, rate float64, m *onnx.Model) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	scales := []float32{256, 0, float32(math.Copysign(0, -1)), -1, -65536, nan, inf, -inf, 0x1p-149, 0.25, 0, 65536}
	useful := map[float32]bool{256: true, 0.25: true, 65536: true}
	e, err := ortest.Engine(t).Open(m, runtime.Options{
		Level: 1, Threads: 2, Provider: ort.CPU, Feeds: s.feeds, LR: rate,
		Data: map[string]runtime.Tensor{"loss_scale": runtime.FromFloat32s(scales, int64(len(scales)))},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, scale := range scales {
		before := state(t, e)
		step, err := e.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if step.Skipped == useful[scale] {
			t.Errorf("%s: scale %g: found_inf %v", name, scale, step.Skipped)
		}
		changed := 0
		for n, data := range state(t, e) {
			if sum := strings.HasSuffix(n, ".acc"); !sum && !bytes.Equal(before[n], data) || sum && !sameNumbers(before[n], data) {
				changed++
			}
		}
		if (changed > 0) != useful[scale] {
			t.Errorf("%s: scale %g: %d of %d changed", name, scale, changed, len(before))
		}
	}
}

// TestOverflowAfterUnscaling: gradients that are finite as they come, and not
// once they are divided by the scale, count as an overflow.
func TestOverflowAfterUnscaling(t *testing.T) {
	m := parse(t, `in x float32[2]
		init W float32[2] = zeros
		init V float32[2] = zeros
		h = Mul(W, x)
		k = Mul(h, x)
		l = Mul(V, x)
		both = Add(k, l)
		twice = Add(both, both)
		loss = ReduceSum(twice) {keepdims=0}
		out loss float32[]`)
	res, err := grad.Differentiate(m, grad.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{model: m, res: res}
	for _, scale := range []float64{0x1p-120, 0x1p-10, 1} {
		for _, x := range []float32{1e30, 1e3} {
			m := s.training(t, optim.Options{Kind: optim.SGD}, Options{To: onnx.Float16, KeepFP32: []string{"*"}, Provider: kernels.CPU})
			e, err := ortest.Engine(t).Open(m, runtime.Options{
				Level: 1, Provider: ort.CPU, LossScale: scale, LR: 1,
				Feed: map[string]runtime.Tensor{"x": runtime.FromFloat32s([]float32{x, x}, 2)},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			step, err := e.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if found := x > 1e20; step.Skipped != found {
				t.Errorf("scale %g, a gradient of %g²: found_inf %v", scale, x, step.Skipped)
			}
			state(t, e) // fails where it is not finite
		}
	}
}

// TestScaleOfOneGradient: the gradient that an optimizer reads is no place for
// the scale, as nothing behind it would divide by it again.
func TestScaleOfOneGradient(t *testing.T) {
	m := parse(t, "in x float32[2]\ninit W float32[2] = zeros\nh = Mul(W, x)\nk = Mul(h, x)\nloss = ReduceSum(k) {keepdims=0}\nout loss float32[]")
	res, err := grad.Differentiate(m, grad.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sample{model: m, res: res}
	e, err := ortest.Engine(t).Open(s.training(t, optim.Options{Kind: optim.SGD}, emulated), runtime.Options{
		Level: 1, Provider: ort.CPU, LR: 1, Feed: map[string]runtime.Tensor{"x": runtime.FromFloat32s([]float32{1, 2}, 2)},
		Feeds: map[string]runtime.Tensor{"W": runtime.FromFloat32s([]float32{0, 0}, 2)},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if _, err := e.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	w, _, err := e.Input("W")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.Float64s(); err != nil || got[0] != -1 || got[1] != -4 {
		t.Errorf("W is %v (%v), want the gradient's negative, [-1 -4]", got, err)
	}
}

// TestOtherOptimizer: a graph whose own update reads a value named W.grad is not
// scaled, as nothing there would divide by the scale.
func TestOtherOptimizer(t *testing.T) {
	m := parse(t, `in x float32[8,8]
		in W float32[8,8]
		in rate float32[]
		h = MatMul(x, W)
		q = Mul(h, h)
		loss = ReduceMean(q) {keepdims=0}
		d = Mul(h, rate)
		xt = Transpose(x) {perm=[1, 0]}
		W.grad = MatMul(xt, d)
		u = Mul(W.grad, rate)
		W.new = Sub(W, u)
		out loss float32[]
		out W.new float32[8,8]`)
	m.SetMetadata("remat.roles", `{"loss": "loss", "new": {"W": "W.new"}}`)
	r, err := Apply(m, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
	if err != nil {
		t.Fatal(err)
	}
	if r.Scaled || m.Graph.Value(ScaleInput) != nil {
		t.Error("the loss is scaled, and the update is not")
	}
}

// TestRenamedGradient: where a tool saved the graph so that an update begins with another value than the one
// named as its gradient, or reads that by way of another node, that would stay scaled: nothing is.
func TestRenamedGradient(t *testing.T) {
	for name, change := range map[string]func(g *onnx.Graph, grad *onnx.Value){
		"renamed": func(g *onnx.Graph, grad *onnx.Value) { g.Rename(grad, "other") },
		"behind a copy": func(g *onnx.Graph, grad *onnx.Value) {
			uses, at := slices.Clone(grad.Uses()), grad.Uses()[0].Node
			b := build.New(g, nil, "other")
			copied := b.Op("Identity", build.In(grad))
			copied.Type = grad.Type
			g.InsertBefore(at, b.Take()...)
			uses[0].Node.SetInput(uses[0].Index, copied)
		},
	} {
		m := twoProducts(t).training(t, optim.Defaults(optim.AdamW), Options{})
		change(m.Graph, m.Graph.Value("W.grad"))
		r, err := Apply(m, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
		if err != nil {
			t.Fatal(err)
		}
		if r.Scaled || m.Graph.Value(ScaleInput) != nil || len(r.Skipped) == 0 || !strings.Contains(r.Skipped[0].Why, `"W"`) {
			t.Errorf("%s: the loss is scaled, and the update of W is not: %v", name, r.Skipped)
		}
	}
}

// TestLossOfSeveralTerms: where no single value carries the gradients of all terms, several
// are scaled, and gradients that half would lose are those of float32.
func TestLossOfSeveralTerms(t *testing.T) {
	const small = "init tiny float32[] = [0.00000002]\ninit less float32[] = [0.0000000002]\n"
	for name, c := range map[string]struct {
		graph  string
		places int
	}{
		"two towers": {`p = MatMul(x, V)
			q = MatMul(x, W)
			pt = Tanh(p)
			qt = Tanh(q)
			pm = ReduceMean(pt) {keepdims=0}
			qq = Mul(qt, qt)
			qm = ReduceMean(qq) {keepdims=0}
			pl = Mul(pm, tiny)
			ql = Mul(qm, tiny)
			loss = Add(pl, ql)`, 2},
		"a variational autoencoder": {`h = MatMul(x, V)
			mu = Tanh(h)
			s = MatMul(x, U)
			half = Mul(s, s)
			deviation = Exp(half)
			n = Mul(deviation, noise)
			z = Add(mu, n)
			y = MatMul(z, W)
			d = Sub(y, x)
			dd = Mul(d, d)
			r = ReduceMean(dd) {keepdims=0}
			m2 = Mul(mu, mu)
			e = Sub(deviation, half)
			k2 = Add(m2, e)
			k = ReduceMean(k2) {keepdims=0}
			rl = Mul(r, tiny)
			kl = Mul(k, tiny)
			loss = Add(rl, kl)`, 4},
		"heads of inner layers": {`a = MatMul(x, V)
			b = Tanh(a)
			first = ReduceMean(b) {keepdims=0}
			c = MatMul(b, U)
			d = Tanh(c)
			dd = Mul(d, d)
			second = ReduceMean(dd) {keepdims=0}
			e = MatMul(d, W)
			f = Tanh(e)
			ff = Mul(f, x)
			third = ReduceMean(ff) {keepdims=0}
			l1 = Mul(first, tiny)
			l2 = Mul(second, tiny)
			l3 = Mul(third, tiny)
			l12 = Add(l1, l2)
			loss = Add(l12, l3)`, 3},
		"decay of weights": {`a = MatMul(x, V)
			b = Tanh(a)
			c = MatMul(b, W)
			d = Tanh(c)
			e = MatMul(d, x)
			f = Tanh(e)
			m = ReduceMean(f) {keepdims=0}
			vv = Mul(V, V)
			vs = ReduceSum(vv) {keepdims=0}
			ww = Mul(W, W)
			ws = ReduceSum(ww) {keepdims=0}
			s = Add(vs, ws)
			l1 = Mul(m, tiny)
			l2 = Mul(s, less)
			loss = Add(l1, l2)`, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			params := ""
			for _, w := range []string{"U", "V", "W"} {
				if strings.Contains(c.graph, w+")") {
					names = append(names, w)
					params += "in " + w + " float32[4,4]\n"
				}
			}
			m := parse(t, "in x float32[4,4]\nin noise float32[4,4]\n"+params+small+c.graph+"\nout loss float32[]")
			res, err := grad.Differentiate(m, grad.Options{Params: names})
			if err != nil {
				t.Fatal(err)
			}
			feeds := map[string]runtime.Tensor{}
			for i, in := range m.Graph.Inputs {
				values := make([]float32, 16)
				for j := range values {
					values[j] = float32(math.Sin(float64(3*i+7*j+1))) / 2
				}
				feeds[in.Name] = runtime.FromFloat32s(values, 4, 4)
			}
			gradients := func(m *onnx.Model, scale float64) map[string][]float64 {
				e, err := ortest.Engine(t).Open(m, runtime.Options{Level: 1, Provider: ort.CPU, Feeds: feeds, LossScale: scale})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				step, err := e.Step(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				got := map[string][]float64{}
				for _, q := range res.Params {
					g, _ := step.Output(q.Grad.Name)
					if got[q.Grad.Name], err = g.Float64s(); err != nil {
						t.Fatal(err)
					}
				}
				return got
			}
			want := gradients(m, 0)
			half := clone(t, m)
			p, err := newTyped(clone(t, m), Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
			if err != nil {
				t.Fatal(err)
			}
			if places, _ := p.scalePlaces(); len(places) != c.places {
				t.Errorf("%d values are scaled, want %d: %v", len(places), c.places, places)
			}
			r, err := Apply(half, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
			if err != nil || !r.Scaled {
				t.Fatalf("scaled: %v, error %v, skipped %v", r.Scaled, err, r.Skipped)
			}
			got := gradients(half, 1<<22)
			for name, w := range want {
				for i := range w {
					if math.Abs(got[name][i]-w[i]) > 2e-2*slices.Max(abs(w)) {
						t.Errorf("%s[%d] is %g, want %g", name, i, got[name][i], w[i])
					}
				}
			}
			lost := false // without a scale, or the test says nothing
			for name, g := range gradients(half, 1) {
				for i, w := range want[name] {
					lost = lost || math.Abs(g[i]-w) > 0.2*slices.Max(abs(want[name]))
				}
			}
			if !lost {
				t.Error("half loses nothing of these gradients without a scale")
			}
		})
	}
}

func abs(values []float64) []float64 {
	out := slices.Clone(values)
	for i := range out {
		out[i] = math.Abs(out[i])
	}
	return out
}

// TestLossScaleGrowsWithTheGraph: where no single value carries the gradients of two losses,
// that is known without asking what each of backward does to all the rest.
func TestLossScaleGrowsWithTheGraph(t *testing.T) {
	asked := func(layers int) int {
		body := ortest.Layers(layers, "in v# float32[8,8]\nin w# float32[8,8]\n"+
			"a# = MatMul(x#, v#)\nx+ = Tanh(a#)\nb# = MatMul(y#, w#)\ny+ = Tanh(b#)\n")
		losses := fmt.Sprintf("p = Mul(x%d, x%[1]d)\nq = Mul(y%[1]d, y%[1]d)\nl = ReduceMean(p) {keepdims=0}\nm = ReduceMean(q) {keepdims=0}\nloss = Add(l, m)\nout loss float32[]\n", layers)
		m, _ := ortest.Parse(t, "model ir=10 opset=20\ngraph g {\nin x0 float32[4,8]\nin y0 float32[4,8]\n"+body+losses+"}\n")
		if _, err := grad.Differentiate(m, grad.Options{Params: []string{"v*", "w*"}}); err != nil {
			t.Fatal(err)
		}
		p, err := newTyped(m, Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU})
		if err != nil {
			t.Fatal(err)
		}
		if places, _ := p.scalePlaces(); len(places) != 2 {
			t.Fatalf("%d layers, two losses: %d values are scaled", layers, len(places))
		}
		return p.asked
	}
	few, many := asked(12), asked(96)
	if t.Logf("12 layers: %d nodes asked, 96: %d", few, many); many > 12*few {
		t.Errorf("12 layers: %d nodes asked, 96 layers: %d, more than twelve times as many", few, many)
	}
}
