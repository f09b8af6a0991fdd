package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// gruBackward: with gates z, r and candidate n, h_t = (1-z) n + z h_{t-1}:
//
//	δ_z = dh (h_{t-1}-n) z(1-z)     δ_n = dh (1-z)(1-n²)
//
// The reset gate comes after the product with R (linear_before_reset, as PyTorch
// has it), n = tanh(x + r*m) with m = R h + b, or before it, n = tanh(x + R(r*h)).
func gruBackward(s *strand) strandGrads {
	if s.c.Node.Int("linear_before_reset", 0) != 0 {
		return gruAfter(s)
	}
	return gruBefore(s)
}

// gruAfter: δ_r = δ_n m r(1-r), and what R made for n gets δ_n r. All three are
// dh times a factor.
func gruAfter(s *strand) strandGrads {
	c := s.c
	gy, k := s.each(s.gy), s.steps-1
	stretches := s.stretches()
	fromW, fromR := make([]*onnx.Value, len(stretches)), make([]*onnx.Value, len(stretches))
	dh := s.start(gy)
	for i, w := range slices.Backward(stretches) {
		fromX := w.columns(w.linear(w.x, w.w, w.wb), 2, 1)
		fromH := w.columns(w.linear(w.before, w.r, w.rb), 2, 1)
		zr := w.squash[0].of(c, c.Plus(fromX[0], fromH[0]))
		gates := w.columns(zr, 1, 1)
		z, r, m := gates[0], gates[1], fromH[1]
		n := w.squash[1].of(c, c.Plus(fromX[1], c.Do("Mul", r, m)))
		an := w.masked(c.Do("Mul", c.rest(z), w.squash[1].slope(c, n)))
		azr := w.masked(c.Do("Mul", w.beside(c.Minus(w.before, n), c.Do("Mul", an, m)), w.squash[0].slope(c, zr)))
		factorR := w.rows(w.beside(azr, c.Do("Mul", an, r)))

		factors, keep := w.each(factorR), w.each(w.keeping(z))
		states := make([]*onnx.Value, w.steps)
		for end := k - w.steps; k > end; k-- {
			t := s.place(k) - w.from
			states[t] = dh
			if k == 0 && !s.wantH0 {
				continue
			}
			pass := c.Do("Mul", dh, keep[t])
			if k > 0 {
				pass = c.plus(pass, gy[s.place(k-1)])
			}
			dh = c.gemm(c.Do("Mul", w.beside(dh, dh, dh), factors[t]), w.r, pass, false, false)
		}
		all := w.joined(states)
		three := w.beside(all, all, all)
		fromW[i], fromR[i] = c.Do("Mul", three, w.beside(azr, an)), c.Do("Mul", three, factorR)
	}
	g := s.weights(s.inFile(fromW), s.inFile(fromR))
	g.dh0 = dh
	return g
}

// gruBefore: with q = δ_n R_n, δ_r = q h_{t-1} r(1-r), and h_{t-1} gets q r.
func gruBefore(s *strand) strandGrads {
	c := s.c
	rows := c.Split(s.r, 0, 2*s.hidden, s.hidden)
	rzr, rn := rows[0], rows[1]
	bias := s.wb
	if bias != nil {
		bias = c.Plus(s.wb, s.rb)
	}
	gy, k := s.each(s.gy), s.steps-1
	stretches := s.stretches()
	dzr, dn, resets := make([]*onnx.Value, len(stretches)), make([]*onnx.Value, len(stretches)), make([]*onnx.Value, len(stretches))
	dh := s.start(gy)
	for i, w := range slices.Backward(stretches) {
		fromX := w.columns(w.linear(w.x, w.w, bias), 2, 1)
		zr := w.squash[0].of(c, w.linear(w.before, rzr, fromX[0]))
		gates := w.columns(zr, 1, 1)
		z, r := gates[0], gates[1]
		resets[i] = c.Do("Mul", r, w.before)
		n := w.squash[1].of(c, w.linear(resets[i], rn, fromX[1]))
		an := w.each(w.masked(c.Do("Mul", c.rest(z), w.squash[1].slope(c, n))))
		azr := w.each(w.masked(w.rows(c.Do("Mul", w.beside(c.Minus(w.before, n), w.before), w.squash[0].slope(c, zr)))))

		keep, open := w.each(w.keeping(z)), w.each(r)
		deltaN, deltaZR := make([]*onnx.Value, w.steps), make([]*onnx.Value, w.steps)
		for end := k - w.steps; k > end; k-- {
			t := s.place(k) - w.from
			deltaN[t] = c.Do("Mul", dh, an[t])
			q := c.gemm(deltaN[t], rn, nil, false, false)
			deltaZR[t] = c.Do("Mul", w.beside(dh, q), azr[t])
			if k == 0 && !s.wantH0 {
				continue
			}
			pass := c.Plus(c.Do("Mul", dh, keep[t]), c.Do("Mul", q, open[t]))
			if k > 0 {
				pass = c.plus(pass, gy[s.place(k-1)])
			}
			dh = c.gemm(deltaZR[t], rzr, pass, false, false)
		}
		dzr[i], dn[i] = w.joined(deltaZR), w.joined(deltaN)
	}
	allZR, allN := s.inFile(dzr), s.inFile(dn)
	g := s.weights(s.beside(allZR, allN), nil)
	if c.Needs(2) {
		g.dr = c.Op("Concat", []*onnx.Value{c.gemm(allZR, s.before, nil, true, false), c.gemm(allN, s.inFile(resets), nil, true, false)}, onnx.IntAttr("axis", 0))
	}
	g.dh0 = dh
	return g
}
