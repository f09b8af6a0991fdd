// Package traits is the one table of what operators do: whether a second run
// gives the same bits, which buffers they share, what they allocate inside,
// what they cost, and which precision they bear. Recompute, precision,
// analysis and prediction ask it; no other package names operators to find
// such things out.
//
//	t, ok := traits.Of(node)
//	t.Alias     outputs that are their input's buffer (Reshape)
//	t.InPlace   inputs whose buffer an output may take over at its last use
//	t.Inner     the kernel allocates inside; Scratch says how much
//
// An operator that is not in the table is not known: Of reports it and the
// caller decides, in general by refusing to touch the node.
package traits

import "github.com/onnx-remat/remat/onnx"

// A Pair joins an input position with an output position of one node.
type Pair struct{ Input, Output int }

// Traits is what is known of one operator.
type Traits struct {
	Domain, Op string
	// Deterministic: run again on the same inputs it gives the same bits. A
	// node that draws random numbers does not, unless its seed is fixed and
	// ONNX Runtime sees the clone as a step of its own (see Dropout in the
	// recompute pass).
	Deterministic bool
	// SideEffects: the node does something besides making its outputs, or
	// contains subgraphs that this table cannot see into.
	SideEffects bool
	// Alias lists outputs that always share an input's buffer; InPlace, in
	// ONNX Runtime's order of preference, inputs whose buffer an output takes
	// over when that was their last use and shape and element size agree.
	Alias, InPlace []Pair
	// Inner: the kernel allocates buffers of its own; see Scratch.
	Inner bool
	// Elementwise: an output element depends on the input elements at its place
	// alone, where inputs broadcast.
	Elementwise bool
	// Degree says how the operator treats the degree of homogeneous inputs.
	Degree Homogeneity
	// Expanded: there is no CPU kernel; ONNX Runtime expands the operator into
	// others when it loads a file.
	Expanded bool
	Cost     Cost
	// Precision says what half types do to the operator, Why gives the
	// reason in a few words.
	Precision Precision
	Why       string

	facts fact
}

// A Cost is the kind of work an operator does, which decides how its time
// grows with sizes.
type Cost uint8

const (
	// Unknown work.
	Unknown Cost = iota
	// View costs nothing.
	View
	// Copy moves bytes: as many as input and output hold.
	Copy
	// Pointwise does one cheap operation per output element.
	Pointwise
	// Transcendental does one expensive operation per output element.
	Transcendental
	// Reduction reads every input element a few times.
	Reduction
	// Contraction is a matrix product.
	Contraction
	// Convolution is a matrix product over windows.
	Convolution
	// Recurrent is a sequence of matrix products.
	Recurrent
	// Random draws one number per output element.
	Random
)

// A Precision is a class of operators with regard to half types.
type Precision uint8

const (
	// NotFloat operators have no float arithmetic to speak of.
	NotFloat Precision = iota
	// Gain: faster in half, and as good, as it sums in float.
	Gain
	// Follow: as good in half as its inputs are; takes its neighbours' type.
	Follow
	// Inside: sums in float32 inside, whatever type goes in and out; follows
	// its neighbours.
	Inside
	// Full: needs float32.
	Full
	// Boundary: changes the type itself.
	Boundary
)

// A Homogeneity says what an operator does to the degree of what is homogeneous in
// some value: of degree d where the value times s makes it s^d times as large.
type Homogeneity uint8

const (
	// Nonlinear operators return nothing homogeneous of what is of another degree
	// than 0.
	Nonlinear Homogeneity = iota
	// Keeps: the first input's; the others are numbers that have no degree.
	Keeps
	// Sums: that of all float inputs, which is one.
	Sums
	// Products: the float inputs' add up.
	Products
	// Quotients: the first one's less the second's.
	Quotients
	// Gemms: the first two add up, to the third's.
	Gemms
)

type key struct{ domain, op string }

var index = func() map[key]Traits {
	m := make(map[key]Traits, len(table))
	for _, c := range table {
		m[key{c.domain, c.op}] = Traits{
			Domain: c.domain, Op: c.op, Deterministic: c.facts&random == 0, Elementwise: c.facts&elementwise != 0,
			SideEffects: c.cost == Unknown,
			Cost:        c.cost, Precision: c.precision, Why: c.why, Degree: c.degree, facts: c.facts,
		}
	}
	for _, r := range memory {
		t := m[key{r.domain, r.op}]
		t.Alias, t.InPlace, t.Inner = r.alias, r.inPlace, r.inner
		m[key{r.domain, r.op}] = t
	}
	for _, k := range expanded {
		t := m[k]
		t.Expanded = true
		m[k] = t
	}
	return m
}()

// Product reports an operator whose work is products: of matrices, or of windows with filters.
func (t Traits) Product() bool {
	return t.Cost == Contraction || t.Cost == Convolution || t.Cost == Recurrent
}

// Of returns what is known of the node's operator and of its kernel for the type of
// its first input; false if nothing is. The slices are shared and not to be changed.
func Of(n *onnx.Node) (Traits, bool) {
	t, ok := OfOp(n.Domain(), n.OpType())
	if t.InPlace != nil && neverInPlace(n) {
		t.InPlace = nil
	}
	return t, ok
}

// OfOp is Of for a domain ("" for the standard one) and an operator, of float32.
func OfOp(domain, op string) (Traits, bool) {
	t, ok := index[key{onnx.NormalDomain(domain), op}]
	return t, ok
}

// All returns the whole table in its order.
func All() []Traits {
	out := make([]Traits, len(table))
	for i, c := range table {
		out[i] = index[key{c.domain, c.op}]
	}
	return out
}
