// Package infer finds the element type and shape of every value of a model,
// with symbolic dimensions, and the elements of small tensors that shapes are
// computed from.
//
//	inputs, initializers ──▶ node by node in file order ──▶ Value.Type
//	                              │        ▲
//	                              ▼        │ elements
//	                        rows of one table: (domain, operator, opset)
//	                        each with a type rule and maybe a value rule
//
// A value rule computes with onnx.Dim as its numbers, so Shape → Gather →
// Mul → Concat → Reshape over a free batch and seq yields batch*seq exactly.
//
// What a rule cannot prove stays unknown: an extent that depends on data, the
// broadcast of two different symbols. Two assumptions are made, both true of
// every graph that does useful work: a symbol stands for 1 or more, and a
// Slice whose bound is symbolic stays inside its dimension.
//
// Weakness: subgraphs are not entered; If, Loop and Scan have the types that
// their subgraphs declare.
package infer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// LastOpset is the newest standard operator set that the rules know.
const LastOpset = 28

// Options say how to infer.
type Options struct {
	// Dims are numbers for free dimensions, by symbol.
	Dims map[string]int64
	// Strict makes an operator without a row an error; else its outputs stay
	// as declared.
	Strict bool
	// Follow limits the nodes whose elements are followed; nil follows all
	// that have a rule. It makes inference as weak as another program's.
	Follow func(*onnx.Node) bool
	// Shapes are those of values whose extents are known to data alone, such as what
	// NonZero finds; they say what the rules leave open.
	Shapes map[string]onnx.Shape
}

// A Result keeps what inference knows beside the types: the elements of small
// tensors. It serves the model it was made for while that is edited.
type Result struct {
	opts     Options
	opsets   map[string]int64
	partials map[*onnx.Value]*partial
	// shapes and tables are how many elements of tensors up to shapeElems and of larger ones
	// may still be recorded, so that no file makes inference hold more than a fixed amount.
	shapes, tables int
}

// UnknownOpError names an operator for which the table has no row, or none for
// that opset.
type UnknownOpError struct {
	Domain, Op string
	Opset      int64
	Node       string
	// Since is the first opset with a row, 0 where there is none at all.
	Since int64
}

func (e *UnknownOpError) Error() string {
	domain := cmp.Or(e.Domain, "ai.onnx")
	switch {
	case domain == "ai.onnx" && e.Opset > LastOpset:
		return fmt.Sprintf("node %q: opset %d is newer than %d, the newest supported: export the model with an older opset", e.Node, e.Opset, LastOpset)
	case e.Since > e.Opset:
		return fmt.Sprintf("node %q: %s of opset %d is too old: upgrade the model to opset %d or newer", e.Node, e.Op, e.Opset, max(e.Since, 13))
	}
	return fmt.Sprintf("node %q: no shape inference for operator %s.%s (opset %d)", e.Node, domain, e.Op, e.Opset)
}

// Model sets the Type of every value of the model, in file order. A type that
// the file declares is merged with the inferred one: each fills in what the
// other lacks. Where they disagree about a shape inside the graph the inferred
// one counts; about an element type or an output the error names the node.
func Model(m *onnx.Model, o Options) (*Result, error) {
	r := &Result{
		opts:     o,
		opsets:   opsets(m),
		partials: map[*onnx.Value]*partial{},
		shapes:   budgetBase,
		tables:   budgetBase,
	}
	for _, name := range slices.Sorted(maps.Keys(o.Dims)) {
		if n := o.Dims[name]; n < 1 {
			return nil, fmt.Errorf("dimension %s=%d: must be 1 or more", name, n)
		}
	}
	for _, v := range m.Graph.Inputs {
		v.Type = r.subst(v.Type)
		if err := sane(v.Type.Shape); err != nil {
			return nil, fmt.Errorf("graph input %q: %w", v.Name, err)
		}
	}
	for _, n := range m.Graph.Nodes {
		if err := r.Node(n); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Inputs reports the first node that lacks a required input. Of an operator in a form older than
// the table's, only the first input is required here.
func Inputs(m *onnx.Model) error {
	r := &Result{opsets: opsets(m)}
	for _, n := range m.Graph.Nodes {
		must := 0
		if row, _, err := r.row(n); err == nil {
			must = row.inputs
		} else if row := rows[key{n.Domain(), n.OpType()}]; row != nil && row.inputs != 0 {
			must = 1
		}
		if err := given(n, must); err != nil {
			return nodeError(n, err)
		}
	}
	return nil
}

// opsets are the versions of the domains that a model imports.
func opsets(m *onnx.Model) map[string]int64 {
	list := map[string]int64{}
	for _, p := range m.Proto.GetOpsetImport() {
		list[onnx.NormalDomain(p.GetDomain())] = p.GetVersion()
	}
	return list
}

// nodeError says which node does not fit, and what to do where that is known.
func nodeError(n *onnx.Node, err error) error {
	return fmt.Errorf("node %q: %s: %w%s", n.Label(), n.OpType(), err, advice(n))
}

// Types are those that Model would set, of inputs and what nodes make; the model's own stay.
func Types(m *onnx.Model, o Options) (map[*onnx.Value]onnx.Type, error) {
	own := map[*onnx.Value]onnx.Type{}
	for _, v := range m.Graph.Inputs {
		own[v] = v.Type
	}
	for _, n := range m.Graph.Nodes {
		for _, v := range n.Returns() {
			own[v] = v.Type
		}
	}
	_, err := Model(m, o)
	types := make(map[*onnx.Value]onnx.Type, len(own))
	for v, t := range own {
		types[v], v.Type = v.Type, t
	}
	return types, err
}

// Node infers the outputs of one node whose inputs are typed, and records
// their elements where they are known. Types that the outputs already have are
// merged as Model does. The error names the node.
func (r *Result) Node(n *onnx.Node) error {
	row, opset, err := r.row(n)
	if err != nil {
		if !r.opts.Strict {
			for _, v := range n.Returns() {
				v.Type = r.subst(v.Type)
			}
			return nil
		}
		return err
	}
	c := &ctx{r: r, n: n, opset: opset}
	if len(n.Outputs) <= len(c.buf) {
		c.types = c.buf[:len(n.Outputs)]
	} else {
		c.types = make([]onnx.Type, len(n.Outputs))
	}
	if err := c.infer(row); err != nil {
		return nodeError(n, err)
	}
	if row.eval != nil {
		r.shapes += budgetPerNode
		r.tables += budgetPerNode
	}
	for i, v := range n.Returns() {
		if err := sane(c.types[i].Shape); err != nil {
			return fmt.Errorf("node %q: %s: output %q: %w", n.Label(), n.OpType(), v.Name, err)
		}
		t, err := merge(c.types[i], r.subst(v.Type))
		if err != nil && !v.IsOutput() && (t.DType == v.Type.DType || n.Is("Constant")) {
			// A shape beside the graph is a hint: exporters write wrong ones, and
			// ONNX Runtime goes by the operator, for a constant also in its type: a tool that
			// converts to float16 leaves constants that a CastLike reads.
			t, err = c.types[i], nil
		}
		if err != nil {
			return fmt.Errorf("node %q: %s: output %q is %s by its inputs and %s as declared: %w", n.Label(), n.OpType(), v.Name, c.types[i], v.Type, err)
		}
		if s := r.opts.Shapes[v.Name]; s != nil && !t.IsStatic() {
			if told, err := merge(t, onnx.TensorOf(t.DType, s)); err == nil {
				t = told
			}
		}
		v.Type = t
		delete(r.partials, v) // of an earlier call, before an edit
	}
	if row.eval != nil && (r.opts.Follow == nil || r.opts.Follow(n)) {
		r.record(c, row)
	}
	return nil
}

// sane refuses shapes that no tensor has. All outputs go through it, so that rules need not
// look whether what they make of data is an extent.
func sane(s onnx.Shape) error {
	if len(s) > maxRank {
		return fmt.Errorf("rank %d, at most %d is supported", len(s), maxRank)
	}
	for _, d := range s {
		if n, ok := d.Int(); ok && n < 0 {
			return fmt.Errorf("shape %s is negative", s)
		}
	}
	return nil
}

// row looks up the node's row.
func (r *Result) row(n *onnx.Node) (*row, int64, error) {
	domain := n.Domain()
	opset := r.opsets[domain]
	if opset == 0 && domain != "" {
		opset = 1 // a domain that a pass will import when it saves
	}
	row := rows[key{domain, n.OpType()}]
	if row != nil && row.since <= opset && (domain != "" || opset <= LastOpset) {
		return row, opset, nil
	}
	e := &UnknownOpError{Domain: domain, Op: n.OpType(), Opset: opset, Node: n.Label()}
	if row != nil {
		e.Since = row.since
	}
	return nil, 0, e
}

func (r *Result) subst(t onnx.Type) onnx.Type {
	if len(r.opts.Dims) == 0 {
		return t
	}
	for i, d := range t.Shape {
		if d.Known() && !d.IsStatic() {
			shape := append(onnx.Shape(nil), t.Shape...)
			for j := i; j < len(shape); j++ {
				if shape[j] = shape[j].Subst(r.opts.Dims); shape[j].IsStatic() && !shape[j].AtLeast(0) {
					shape[j] = onnx.Dim{}
				}
			}
			t.Shape = shape
			return t
		}
	}
	return t
}

// merge combines an inferred type with a declared one.
func merge(inferred, declared onnx.Type) (onnx.Type, error) {
	if inferred.Other != nil {
		return inferred, nil
	}
	if !declared.Known() && !declared.Ranked || declared.Other != nil && !inferred.Known() {
		if declared.Other != nil {
			return declared, nil
		}
		return inferred, nil
	}
	if declared.Other != nil {
		return inferred, fmt.Errorf("a tensor and no tensor")
	}
	t := inferred
	if t.DType == onnx.Undefined {
		t.DType = declared.DType
	} else if declared.DType != onnx.Undefined && t.DType != declared.DType {
		return t, fmt.Errorf("element types differ")
	}
	if !declared.Ranked {
		return t, nil
	}
	if !t.Ranked {
		t.Ranked, t.Shape = true, declared.Shape
		return t, nil
	}
	if len(t.Shape) != len(declared.Shape) {
		return t, fmt.Errorf("ranks differ")
	}
	shape, err := unifyShapes(t.Shape, declared.Shape)
	t.Shape = shape
	return t, err
}
