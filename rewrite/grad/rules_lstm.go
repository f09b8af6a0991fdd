package grad

import (
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
	z := s.linear(s.before, s.r, s.linear(s.x, s.w, bias))
	parts := s.columns(z, 3, 1)
	atGates, atInput, atOutput := s.squash[0], s.squash[1], s.squash[2]
	iof, n := atGates.of(c, parts[0]), atInput.of(c, parts[1])
	gates := s.columns(iof, 1, 1, 1)
	i, o, f := gates[0], gates[1], gates[2]
	cell, earlier, forget := s.cells(s.masked(c.Do("Mul", i, n)), s.keeping(f))
	bent := atOutput.of(c, cell)
	factors := s.each(s.masked(s.rows(s.beside(c.Do("Mul", atGates.slope(c, iof), s.beside(n, bent, earlier)), c.Do("Mul", i, atInput.slope(c, n))))))
	open := s.each(s.masked(c.Do("Mul", o, atOutput.slope(c, bent))))
	gy, pass := s.each(s.gy), s.passing()

	delta := make([]*onnx.Value, s.steps)
	order := s.order()
	dh, dc := s.start(gy), s.gyc
	for k := s.steps - 1; k >= 0; k-- {
		t := order[k]
		dc = c.plus(c.Do("Mul", dh, open[t]), dc)
		delta[t] = c.Do("Mul", s.beside(dc, dh, dc, dc), factors[t])
		if k > 0 || s.wantC0 {
			dc = c.Do("Mul", dc, forget[t])
		}
		if k > 0 {
			dh = c.gemm(delta[t], s.r, c.plus(gy[order[k-1]], c.times(dh, pass[t])), false, false)
		} else if s.wantH0 {
			dh = c.gemm(delta[t], s.r, c.times(dh, pass[t]), false, false)
		}
	}
	all := s.joined(delta)
	g := s.weights(all, all)
	g.dh0, g.dc0 = dh, dc
	return g
}

// cells runs c_t = f_t c_{t-1} + in_t and returns the states, the states one
// step earlier, and f by steps.
func (s *strand) cells(in, f *onnx.Value) (cell, earlier *onnx.Value, forget []*onnx.Value) {
	c := s.c
	ins, forget := s.each(in), s.each(f)
	now, old := make([]*onnx.Value, s.steps), make([]*onnx.Value, s.steps)
	state := s.c0
	for _, t := range s.order() {
		if state == nil {
			old[t] = s.zeros()
			state = ins[t]
		} else {
			old[t] = state
			state = c.Plus(c.Do("Mul", forget[t], state), ins[t])
		}
		now[t] = state
	}
	return s.joined(now), s.joined(old), forget
}
