package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// lstmBackward: with gates i, o, f and candidate n, c_t = f c_{t-1} + i n and
// h_t = o tanh(c_t):
//
//	dc_t = dh_t o (1-tanh²c_t) + f_{t+1} dc_{t+1}
//	δ    = [dc, dh, dc, dc] * [n i(1-i), tanh(c) o(1-o), c_{t-1} f(1-f), i (1-n²)]
//
// With other activations, their slopes. The cell states are not among the node's outputs; they are run through again.
func lstmBackward(s *strand) strandGrads {
	c := s.c
	bias := s.wb
	if bias != nil {
		bias = c.Plus(s.wb, s.rb)
	}
	var runs []*lstmRun
	cell := s.c0
	for _, w := range s.stretches() {
		r := &lstmRun{strand: w}
		cell = r.forward(bias, cell)
		runs = append(runs, r)
	}
	gy, pass := s.each(s.gy), s.passing()
	delta := make([]*onnx.Value, s.steps)
	dh, dc := s.start(gy), s.gyc
	k := s.steps - 1
	for _, r := range slices.Backward(runs) {
		factors, open := r.factors()
		for end := k - r.steps; k > end; k-- {
			t := s.place(k)
			dc = c.plus(c.Do("Mul", dh, open[t-r.from]), dc)
			delta[t] = c.Do("Mul", s.beside(dc, dh, dc, dc), factors[t-r.from])
			if k > 0 || s.wantC0 {
				dc = c.Do("Mul", dc, r.forget[t-r.from])
			}
			dh = s.earlier(k, delta[t], dh, pass[t], gy)
		}
	}
	all := s.joined(delta)
	g := s.weights(all, all)
	g.dh0, g.dc0 = dh, dc
	return g
}

// An lstmRun is what a stretch keeps of its way forward, for the way back: gates and candidate,
// [T*B,H], and the cell states and forget gates by steps, [B,H].
type lstmRun struct {
	*strand
	i, o, f, n           *onnx.Value
	cell, before, forget []*onnx.Value
}

// forward computes the gates and runs c_t = f_t c_{t-1} + i_t n_t from a state, nil for zeros; it
// returns the last one.
func (r *lstmRun) forward(bias, state *onnx.Value) *onnx.Value {
	c, s := r.c, r.strand
	z := s.linear(s.before, s.r, s.linear(s.x, s.w, bias))
	parts := s.columns(z, 3, 1)
	gates := s.columns(s.squash[0].of(c, parts[0]), 1, 1, 1)
	r.i, r.o, r.f, r.n = gates[0], gates[1], gates[2], s.squash[1].of(c, parts[1])
	ins := s.each(s.masked(c.Do("Mul", r.i, r.n)))
	r.forget = s.each(s.keeping(r.f))
	r.cell, r.before = make([]*onnx.Value, s.steps), make([]*onnx.Value, s.steps)
	for k := range s.steps {
		t := s.place(k) - s.from
		if state == nil {
			r.before[t] = s.zeros()
			state = ins[t]
		} else {
			r.before[t] = state
			state = c.Plus(c.Do("Mul", r.forget[t], state), ins[t])
		}
		r.cell[t] = state
	}
	return state
}

// factors are those of the gates' gradients, [B,4*H], and of the cell's, [B,H], by steps.
func (r *lstmRun) factors() (gates, cell []*onnx.Value) {
	c, s := r.c, r.strand
	atGates, atInput, atOutput := s.squash[0], s.squash[1], s.squash[2]
	bent := atOutput.of(c, s.joined(r.cell))
	all := s.beside(
		c.Do("Mul", atGates.slope(c, r.i), r.n), c.Do("Mul", atGates.slope(c, r.o), bent),
		c.Do("Mul", atGates.slope(c, r.f), s.joined(r.before)), c.Do("Mul", r.i, atInput.slope(c, r.n)))
	return s.each(s.masked(s.rows(all))), s.each(s.masked(c.Do("Mul", r.o, atOutput.slope(c, bent))))
}
