package onnx

// Dimensions are polynomials over named symbols with integer coefficients,
// because that is what shapes of exported models are: a Reshape gives
// batch*seq, a Slice seq-1, a Concat seq+1. A Dim is comparable with ==: its
// polynomial is kept in one canonical text. Division that does not come out
// even becomes a symbol of its own, so equal expressions stay equal.

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// A Dim is one extent of a shape, in elements: a number, a polynomial over
// symbols, or unknown (the zero value).
type Dim struct {
	known bool
	n     int64
	// sym is the canonical polynomial: monomials joined by monoSep, each a
	// coefficient followed by its sorted atoms, each after atomSep.
	sym string
}

const (
	monoSep = "\x01"
	atomSep = "\x02"
)

// Static is the dimension of n elements.
func Static(n int64) Dim { return Dim{known: true, n: n} }

// Symbol is the free dimension of that name; unknown where the name is empty,
// longer than 1024 bytes or holds control characters.
func Symbol(name string) Dim {
	if name == "" || len(name) > maxText || strings.ContainsAny(name, monoSep+atomSep) {
		return Dim{}
	}
	return Dim{known: true, sym: "1" + atomSep + name}
}

// Int returns the number, and whether the dimension is one.
func (d Dim) Int() (int64, bool) { return d.n, d.known && d.sym == "" }

// Is reports whether the dimension is the number n.
func (d Dim) Is(n int64) bool { return d.known && d.sym == "" && d.n == n }

// Known reports that the dimension is a number or a polynomial.
func (d Dim) Known() bool { return d.known }

// IsStatic reports that the dimension is a number.
func (d Dim) IsStatic() bool { return d.known && d.sym == "" }

// poly maps the atoms of a monomial (joined by atomSep) to its coefficient.
type poly map[string]int64

func (d Dim) poly() poly {
	if d.sym == "" {
		return poly{"": d.n}
	}
	p := poly{}
	for mono := range strings.SplitSeq(d.sym, monoSep) {
		coef, atoms, _ := strings.Cut(mono, atomSep)
		c, _ := strconv.ParseInt(coef, 10, 64)
		p[atoms] += c
	}
	return p
}

func (p poly) dim() Dim {
	keys := make([]string, 0, len(p))
	for k, c := range p {
		if c != 0 {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return Static(0)
	}
	if len(keys) == 1 && keys[0] == "" {
		return Static(p[""])
	}
	if len(keys) > maxTerms {
		return Dim{}
	}
	// The constant comes last, so that seq-1 reads as people write it.
	sort.Slice(keys, func(i, j int) bool {
		if (keys[i] == "") != (keys[j] == "") {
			return keys[j] == ""
		}
		return keys[i] < keys[j]
	})
	for i, k := range keys {
		keys[i] = strconv.FormatInt(p[k], 10)
		if k != "" {
			keys[i] += atomSep + k
		}
	}
	return Dim{known: true, sym: strings.Join(keys, monoSep)}
}

// Add is d+e.
func (d Dim) Add(e Dim) Dim {
	if !d.known || !e.known {
		return Dim{}
	}
	if d.sym == "" && e.sym == "" {
		return checked(addInt(d.n, e.n))
	}
	p := d.poly()
	for k, c := range e.poly() {
		sum, ok := addInt(p[k], c)
		if !ok {
			return Dim{}
		}
		p[k] = sum
	}
	return p.dim()
}

// Mul is d*e.
func (d Dim) Mul(e Dim) Dim {
	if d.Is(0) || e.Is(0) {
		return Static(0)
	}
	if !d.known || !e.known {
		return Dim{}
	}
	if d.sym == "" && e.sym == "" {
		return checked(mulInt(d.n, e.n))
	}
	// In order, as what is cut off below may hang on it.
	p, q, by := poly{}, d.poly(), e.poly()
	factors := slices.Sorted(maps.Keys(by))
	for _, k := range slices.Sorted(maps.Keys(q)) {
		for _, l := range factors {
			c, b, atoms := q[k], by[l], joinAtoms(k, l)
			part, ok := mulInt(c, b)
			sum, ok2 := addInt(p[atoms], part)
			if !ok || !ok2 || len(p) > 4*maxTerms || len(atoms) > maxText {
				return Dim{}
			}
			p[atoms] = sum
		}
	}
	return p.dim()
}

// Polynomials of hostile files are cut off: what has more terms, longer
// monomials or larger numbers than these counts as unknown.
const (
	maxTerms = 16
	maxText  = 1 << 10
)

func checked(n int64, ok bool) Dim {
	if !ok {
		return Dim{}
	}
	return Static(n)
}

func addInt(a, b int64) (int64, bool) {
	c := a + b
	return c, (c > a) == (b > 0)
}

func mulInt(a, b int64) (int64, bool) {
	if a == 0 || b == 0 {
		return 0, true
	}
	c := a * b
	return c, c/b == a && (a != -1 || b != math.MinInt64) && (b != -1 || a != math.MinInt64)
}

// AtLeast reports that the dimension is n or more whatever its symbols stand
// for, as long as each stands for 1 or more.
func (d Dim) AtLeast(n int64) bool {
	if !d.known {
		return false
	}
	least, p := Static(0), d.poly()
	for _, atoms := range slices.Sorted(maps.Keys(p)) {
		c := p[atoms]
		if strings.Contains(atoms, "floor(") {
			if c < 0 {
				return false
			}
			continue
		}
		if c < 0 && atoms != "" {
			return false
		}
		least = least.Add(Static(c))
	}
	min, ok := least.Int()
	return ok && min >= n
}

// Sub is d-e.
func (d Dim) Sub(e Dim) Dim { return d.Add(e.Mul(Static(-1))) }

// Div is d/e rounded down, as a symbol of its own where it does not come out
// even.
func (d Dim) Div(e Dim) Dim {
	if !d.known || !e.known || e.Is(0) {
		return Dim{}
	}
	if d == e {
		return Static(1)
	}
	if d.sym == "" && e.sym == "" {
		return Static(floorDiv(d.n, e.n))
	}
	if q, ok := divideExactly(d.poly(), e.poly()); ok {
		return q.dim()
	}
	name := fmt.Sprintf("floor((%s)/(%s))", d, e)
	if len(name) > maxText {
		return Dim{}
	}
	return Symbol(name)
}

func floorDiv(a, b int64) int64 {
	if b == -1 && a == math.MinInt64 {
		return math.MaxInt64
	}
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

// divideExactly divides by a divisor of one monomial; by others only where
// the dividend is a multiple of it by a single monomial.
func divideExactly(p, by poly) (poly, bool) {
	if len(by) != 1 {
		return divideByMultiple(p, by)
	}
	q := poly{}
	for atoms, c := range by {
		for k, v := range p {
			rest, ok := removeAtoms(k, atoms)
			if !ok || c == 0 || v%c != 0 {
				return nil, false
			}
			q[rest] += v / c
		}
	}
	return q, true
}

// divideByMultiple finds the monomial m with by*m == p, if there is one.
func divideByMultiple(p, by poly) (poly, bool) {
	if len(p) != len(by) {
		return nil, false
	}
	// Any one monomial of the divisor fixes the quotient.
	want := p.dim()
	for l, c := range by {
		for k, v := range p {
			rest, ok := removeAtoms(k, l)
			if ok && c != 0 && v%c == 0 && (poly{rest: v / c}).dim().Mul(by.dim()) == want {
				return poly{rest: v / c}, true
			}
		}
		break
	}
	return nil, false
}

func joinAtoms(a, b string) string {
	if a == "" {
		return b
	}
	if b == "" {
		return a
	}
	all := append(strings.Split(a, atomSep), strings.Split(b, atomSep)...)
	slices.Sort(all)
	return strings.Join(all, atomSep)
}

func removeAtoms(from, atoms string) (string, bool) {
	if atoms == "" {
		return from, true
	}
	left := strings.Split(from, atomSep)
	for a := range strings.SplitSeq(atoms, atomSep) {
		i := slices.Index(left, a)
		if i < 0 {
			return "", false
		}
		left = slices.Delete(left, i, i+1)
	}
	return strings.Join(left, atomSep), true
}

// Symbols lists the names that occur in the dimension.
func (d Dim) Symbols() []string {
	var names []string
	for k := range d.poly() {
		if k != "" {
			names = append(names, strings.Split(k, atomSep)...)
		}
	}
	slices.Sort(names)
	return names
}

// Subst puts numbers for symbols. A symbol that stands for an uneven division
// becomes unknown when it holds a name that was given.
func (d Dim) Subst(dims map[string]int64) Dim {
	if !d.known || d.sym == "" {
		return d
	}
	sum, p := Static(0), d.poly()
	for _, atoms := range slices.Sorted(maps.Keys(p)) {
		term := Static(p[atoms])
		if atoms != "" {
			for a := range strings.SplitSeq(atoms, atomSep) {
				term = term.Mul(substAtom(a, dims))
			}
		}
		sum = sum.Add(term)
	}
	return sum
}

func substAtom(atom string, dims map[string]int64) Dim {
	if n, ok := dims[atom]; ok {
		return Static(n)
	}
	for name := range dims {
		if Divides(atom, name) {
			return Dim{}
		}
	}
	return Symbol(atom)
}

// Divides reports a symbol that stands for an uneven division in which a name occurs.
func Divides(symbol, name string) bool {
	if !strings.HasPrefix(symbol, "floor(") {
		return false
	}
	word := func(c byte) bool {
		return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
	}
	for at := 0; name != ""; {
		i := strings.Index(symbol[at:], name)
		if i < 0 {
			return false
		}
		from, to := at+i, at+i+len(name)
		if !(from > 0 && word(symbol[from-1]) && word(name[0])) && !(to < len(symbol) && word(symbol[to]) && word(name[len(name)-1])) {
			return true
		}
		at = from + 1
	}
	return false
}
