package grad

import (
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
	fromX := s.columns(s.linear(s.x, s.w, s.wb), 2, 1)
	fromH := s.columns(s.linear(s.before, s.r, s.rb), 2, 1)
	zr := s.squash[0].of(c, c.Plus(fromX[0], fromH[0]))
	gates := s.columns(zr, 1, 1)
	z, r, m := gates[0], gates[1], fromH[1]
	n := s.squash[1].of(c, c.Plus(fromX[1], c.Do("Mul", r, m)))
	an := s.masked(c.Do("Mul", c.rest(z), s.squash[1].slope(c, n)))
	azr := s.masked(c.Do("Mul", s.beside(c.Minus(s.before, n), c.Do("Mul", an, m)), s.squash[0].slope(c, zr)))
	factorR := s.rows(s.beside(azr, c.Do("Mul", an, r)))

	factors, keep, gy := s.each(factorR), s.each(s.keeping(z)), s.each(s.gy)
	states := make([]*onnx.Value, s.steps)
	order := s.order()
	dh := s.start(gy)
	for k := s.steps - 1; k >= 0; k-- {
		t := order[k]
		states[t] = dh
		if k == 0 && !s.wantH0 {
			break
		}
		pass := c.Do("Mul", dh, keep[t])
		if k > 0 {
			pass = c.plus(pass, gy[order[k-1]])
		}
		dh = c.gemm(c.Do("Mul", s.beside(dh, dh, dh), factors[t]), s.r, pass, false, false)
	}
	all := s.joined(states)
	three := s.beside(all, all, all)
	g := s.weights(c.Do("Mul", three, s.beside(azr, an)), c.Do("Mul", three, factorR))
	g.dh0 = dh
	return g
}

// gruBefore: with q = δ_n R_n, δ_r = q h_{t-1} r(1-r), and h_{t-1} gets q r.
func gruBefore(s *strand) strandGrads {
	c := s.c
	rows := c.Nodes("", "Split", []*onnx.Value{s.r, c.IntList(2*s.hidden, s.hidden)}, 2, onnx.IntAttr("axis", 0))
	rzr, rn := rows[0], rows[1]
	bias := s.wb
	if bias != nil {
		bias = c.Plus(s.wb, s.rb)
	}
	fromX := s.columns(s.linear(s.x, s.w, bias), 2, 1)
	zr := s.squash[0].of(c, s.linear(s.before, rzr, fromX[0]))
	gates := s.columns(zr, 1, 1)
	z, r := gates[0], gates[1]
	reset := c.Do("Mul", r, s.before)
	n := s.squash[1].of(c, s.linear(reset, rn, fromX[1]))
	an := s.each(s.masked(c.Do("Mul", c.rest(z), s.squash[1].slope(c, n))))
	azr := s.each(s.masked(s.rows(c.Do("Mul", s.beside(c.Minus(s.before, n), s.before), s.squash[0].slope(c, zr)))))

	keep, open, gy := s.each(s.keeping(z)), s.each(r), s.each(s.gy)
	deltaN, deltaZR := make([]*onnx.Value, s.steps), make([]*onnx.Value, s.steps)
	order := s.order()
	dh := s.start(gy)
	for k := s.steps - 1; k >= 0; k-- {
		t := order[k]
		deltaN[t] = c.Do("Mul", dh, an[t])
		q := c.gemm(deltaN[t], rn, nil, false, false)
		deltaZR[t] = c.Do("Mul", s.beside(dh, q), azr[t])
		if k == 0 && !s.wantH0 {
			break
		}
		pass := c.Plus(c.Do("Mul", dh, keep[t]), c.Do("Mul", q, open[t]))
		if k > 0 {
			pass = c.plus(pass, gy[order[k-1]])
		}
		dh = c.gemm(deltaZR[t], rzr, pass, false, false)
	}
	dzr, dn := s.joined(deltaZR), s.joined(deltaN)
	g := s.weights(s.beside(dzr, dn), nil)
	if c.Needs(2) {
		g.dr = c.Op("Concat", []*onnx.Value{c.gemm(dzr, s.before, nil, true, false), c.gemm(dn, reset, nil, true, false)}, onnx.IntAttr("axis", 0))
	}
	g.dh0 = dh
	return g
}
