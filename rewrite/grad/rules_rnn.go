package grad

// Recurrent networks by backpropagation through time. The forward kernel stays;
// it gives every hidden state h_t, so that the gates of many steps are computed
// again by two products over [time*batch] rows at once:
//
//	gates = σ(X Wᵀ + H₋₁ Rᵀ + b)          H₋₁: the states one step earlier; σ: see squash.go
//
// What is left for the loop over time is small: each step's gradient of the
// gates is the arriving one times a factor that was computed for many steps
// before (a_t), and the state's gradient one product with R:
//
//	δ_t = (dh_t …) * a_t                   dh_{t-1} = g_{t-1} + δ_t R
//
// Weight gradients are again single products over all rows. Some seven nodes a
// step for an LSTM, whose cell states take two more. Gates and factors are computed by
// stretches of time (strand.stretches), from the last to the first: of all steps at once
// they would be the peak. Source: A. Graves,
// "Supervised Sequence Labelling with Recurrent Neural Networks", 2012,
// section 4.6; the gate order is ONNX's.
//
// Where sequences end before the last step (sequence_lens), or have not begun in
// the reverse direction, the state passes unchanged and Y is zero: every factor
// times a mask, and dh_{t-1} = dh_t there.
//
// Weakness: the number of steps must be known.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

var recurrentRules = []Rule{
	{Op: "LSTM", Since: 7, Doc: "through time, from the hidden states; see rules_rnn.go", Inputs: []int{0, 1, 2, 3, 5, 6, 7}, Grad: func(c *Context) { gradRecurrent(c, 4, lstmBackward) }},
	{Op: "GRU", Since: 7, Doc: "through time, from the hidden states; see rules_rnn.go", Inputs: []int{0, 1, 2, 3, 5}, Grad: func(c *Context) { gradRecurrent(c, 3, gruBackward) }},
	{Op: "RNN", Since: 7, Doc: "through time, from the hidden states; see rules_rnn.go", Inputs: []int{0, 1, 2, 3, 5}, Grad: func(c *Context) { gradRecurrent(c, 1, rnnBackward) }},
}

// strandGrads is what a strand's backward pass yields; of the shapes of its
// values, bias [2*G*H].
type strandGrads struct {
	dx, dw, dr, db, dh0, dc0 *onnx.Value
}

func gradRecurrent(c *Context, gates int64, backward func(*strand) strandGrads) {
	list := c.strands(gates)
	if c.e.b.Err() != nil {
		return
	}
	var all []strandGrads
	for _, s := range list {
		all = append(all, backward(s))
	}
	if c.e.b.Err() != nil {
		return
	}
	stack := func(i int, pick func(strandGrads) *onnx.Value) {
		if !c.Needs(i) {
			return
		}
		var parts []*onnx.Value
		for _, g := range all {
			parts = append(parts, c.Unsqueeze(pick(g), 0))
		}
		if len(parts) == 1 {
			c.Add(i, parts[0])
			return
		}
		c.Add(i, c.Op("Concat", parts, onnx.IntAttr("axis", 0)))
	}
	for _, g := range all {
		c.Add(0, c.Reshape(g.dx, c.In(0)))
	}
	stack(1, func(g strandGrads) *onnx.Value { return g.dw })
	stack(2, func(g strandGrads) *onnx.Value { return g.dr })
	stack(3, func(g strandGrads) *onnx.Value { return g.db })
	stack(5, func(g strandGrads) *onnx.Value { return g.dh0 })
	stack(6, func(g strandGrads) *onnx.Value { return g.dc0 })
}

// refuseRecurrent fails on forms that are not covered.
func (c *Context) refuseRecurrent() {
	n := c.Node
	switch {
	case n.Has("clip"):
		c.Fail("clip=%g bounds what goes into the activations, which has no rule: export the model without clip", n.Float("clip", 0))
	case n.Int("input_forget", 0) != 0:
		c.Fail("input_forget couples two gates, which has no rule: export the model without it")
	case n.Int("layout", 0) != 0:
		c.Fail("layout=1 must be normalized first")
	case c.In(7) != nil:
		c.Fail("peephole weights have no rule: export the model without them")
	}
}

// weights are the gradients that are one product over all rows: dgw of what W
// made, dgr of what R made.
func (s *strand) weights(dgw, dgr *onnx.Value) strandGrads {
	c := s.c
	var g strandGrads
	if c.Needs(1) {
		g.dw = c.gemm(dgw, s.x, nil, true, false)
	}
	if c.Needs(2) && dgr != nil {
		g.dr = c.gemm(dgr, s.before, nil, true, false)
	}
	if c.Needs(3) {
		bw := c.Sum(dgw, false, 0)
		br := bw
		if dgr != nil && dgr != dgw {
			br = c.Sum(dgr, false, 0)
		}
		g.db = c.Op("Concat", build.In(bw, br), onnx.IntAttr("axis", 0))
	}
	if c.Needs(0) {
		g.dx = c.gemm(dgw, s.w, nil, false, false)
	}
	return g
}

// start is the gradient of the last state: of Y there, and of Y_h.
func (s *strand) start(gy []*onnx.Value) *onnx.Value {
	dh := s.c.plus(gy[s.place(s.steps-1)], s.gyh)
	if dh == nil {
		dh = s.zeros()
	}
	return dh
}

// earlier is the gradient of the state before step k of the strand: what R hands back of the
// step's δ, what passes unchanged, and what arrives there. Of the first step's it is made only
// where it is wanted.
func (s *strand) earlier(k int, delta, dh, pass *onnx.Value, gy []*onnx.Value) *onnx.Value {
	if k == 0 && !s.wantH0 {
		return dh
	}
	rest := s.c.times(dh, pass)
	if k > 0 {
		rest = s.c.plus(gy[s.place(k-1)], rest)
	}
	return s.c.gemm(delta, s.r, rest, false, false)
}

func rnnBackward(s *strand) strandGrads {
	c := s.c
	slopes, gy, pass := s.each(s.masked(s.squash[0].slope(c, s.y))), s.each(s.gy), s.passing()
	delta := make([]*onnx.Value, s.steps)
	dh := s.start(gy)
	for i := s.steps - 1; i >= 0; i-- {
		t := s.place(i)
		delta[t] = c.Do("Mul", dh, slopes[t])
		dh = s.earlier(i, delta[t], dh, pass[t], gy)
	}
	all := s.joined(delta)
	g := s.weights(all, all)
	g.dh0 = dh
	return g
}
