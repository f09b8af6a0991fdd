package normalize

// GELU as exporters write it below opset 20, in any order of its factors:
//
//	0.5 * x * (1 + erf(x/√2))
//	0.5 * x * (1 + tanh(√(2/π) (x + 0.044715 x³)))
//
// The product is taken apart into factors; what stands inside erf or tanh is
// read as a polynomial in x and its coefficients are compared, so that x*x*x,
// Pow(x, 3) and a factor drawn out all match.

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

func gelus(s *state) error {
	for _, n := range s.nodes() {
		if !n.Is("Erf", "Tanh") || len(n.Out(0).Uses()) != 1 {
			continue
		}
		one := only(n.Out(0))
		if one == nil || !one.Is("Add") {
			continue
		}
		if _, c, ok := withNumber(one); !ok || c != 1 {
			continue
		}
		root, x := geluProduct(one.Out(0))
		if root == nil {
			continue
		}
		p, ok := polynomial(n.In(0), x, 12)
		if !ok || !matches(p, n.OpType()) {
			continue
		}
		s.scope(n)
		approximate := "none"
		if n.Is("Tanh") {
			approximate = "tanh"
		}
		y := s.b.Op("Gelu", build.In(x), onnx.StringAttr("approximate", approximate))
		s.replace(root, y, root.Producer)
	}
	return nil
}

// geluProduct climbs from 1+erf(…) through multiplications to the value that
// is 0.5 * x * that, and returns it with x.
func geluProduct(term *onnx.Value) (root, x *onnx.Value) {
	at := term
	for range 3 {
		m := only(at)
		if m == nil || !m.Is("Mul", "Div") {
			return nil, nil
		}
		at = m.Out(0)
		c, rest, ok := factors(at, term, 4)
		if ok && near(c, 0.5) && len(rest) == 1 {
			return at, rest[0]
		}
	}
	return nil, nil
}

// factors takes the product v apart into constants, term once, and the rest.
func factors(v, term *onnx.Value, depth int) (c float64, rest []*onnx.Value, ok bool) {
	if v == term {
		return 1, nil, true
	}
	if k, isNumber := number(v); isNumber {
		return k, nil, true
	}
	m := made(v, "Mul", "Div")
	if m == nil || depth == 0 || !leadsTo(v, term, depth) && !halved(v) {
		return 1, []*onnx.Value{v}, true
	}
	c1, r1, _ := factors(m.In(0), term, depth-1)
	c2, r2, _ := factors(m.In(1), term, depth-1)
	if m.Is("Div") {
		if len(r2) > 0 || c2 == 0 || leadsTo(m.In(1), term, depth) {
			return 0, nil, false
		}
		c2 = 1 / c2
	}
	return c1 * c2, append(r1, r2...), true
}

// leadsTo reports that term is a factor of v.
func leadsTo(v, term *onnx.Value, depth int) bool {
	if v == term {
		return true
	}
	m := made(v, "Mul", "Div")
	if m == nil || depth == 0 {
		return false
	}
	return leadsTo(m.In(0), term, depth-1) || leadsTo(m.In(1), term, depth-1)
}

// halved reports 0.5*x or x/2.
func halved(v *onnx.Value) bool {
	m := made(v, "Mul", "Div")
	_, c, ok := withNumber(m)
	return ok && (m.Is("Mul") && near(c, 0.5) || m.Is("Div") && near(c, 2) && m.In(0) != v)
}

// poly holds the coefficients of 1, x, x², x³.
type poly [4]float64

// polynomial reads v as a polynomial in x of degree three or less.
func polynomial(v, x *onnx.Value, depth int) (poly, bool) {
	if v == x {
		return poly{0, 1}, true
	}
	if c, ok := number(v); ok {
		return poly{c}, true
	}
	n := made(v, "Add", "Sub", "Mul", "Div", "Pow", "Neg")
	if n == nil || depth == 0 {
		return poly{}, false
	}
	a, ok := polynomial(n.In(0), x, depth-1)
	if !ok {
		return poly{}, false
	}
	if n.Is("Neg") {
		return scaled(a, -1), true
	}
	if n.Is("Pow") {
		k, ok := n.In(1).Number()
		if !ok || k != math.Trunc(k) || k < 1 || k > 3 {
			return poly{}, false
		}
		p := a
		for range int(k) - 1 {
			if p, ok = multiplied(p, a); !ok {
				return poly{}, false
			}
		}
		return p, true
	}
	b, ok := polynomial(n.In(1), x, depth-1)
	if !ok {
		return poly{}, false
	}
	switch n.OpType() {
	case "Sub":
		b = scaled(b, -1)
		fallthrough
	case "Add":
		for i := range a {
			a[i] += b[i]
		}
		return a, true
	case "Div":
		if b[0] == 0 || b != (poly{b[0]}) {
			return poly{}, false
		}
		return scaled(a, 1/b[0]), true
	}
	return multiplied(a, b)
}

func scaled(p poly, c float64) poly {
	for i := range p {
		p[i] *= c
	}
	return p
}

func multiplied(a, b poly) (poly, bool) {
	var p poly
	for i, x := range a {
		for j, y := range b {
			if x*y == 0 {
				continue
			}
			if i+j >= len(p) {
				return p, false
			}
			p[i+j] += x * y
		}
	}
	return p, true
}

// matches compares with what stands inside the two forms.
func matches(p poly, op string) bool {
	want := poly{0, math.Sqrt2 / 2}
	if op == "Tanh" {
		k := math.Sqrt(2 / math.Pi)
		want = poly{0, k, 0, 0.044715 * k}
	}
	for i := range p {
		if !near(p[i], want[i]) {
			return false
		}
	}
	return true
}
