package rewrite

// A model for a part of its batch. The batch is the leading axis of the inputs.
//
//	free     [batch,seq] ─▶ batch becomes a number
//	fixed    [8,seq]     ─▶ a symbol, followed node by node ─▶ a number
//
// Exporters write a fixed batch into the extents of Reshape and Expand. Where a
// value that holds the batch comes to such a Reshape, the extent at the same
// place in memory order is the batch's, and is left to be found (-1) by ONNX
// Runtime; an Expand to a leading extent of the batch gets the smaller one.
// Weakness: a fixed batch inside other constants, or merged as the inner one of
// two axes, is not followed.
//
// In the end every value must have its old shape, or the old one with one axis
// divided; a batch that is inside something else is an error.

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// A BatchError says why a model cannot be made for a part of its batch. Batch is the
// batch where it is only no multiple of the parts, 0 otherwise.
type BatchError struct {
	Reason string
	Batch  int64
}

func (e *BatchError) Error() string { return "the batch cannot be split: " + e.Reason }

func undivided(format string, args ...any) error {
	return &BatchError{Reason: fmt.Sprintf(format, args...)}
}

// batchSymbol stands for a fixed batch while it is followed.
const batchSymbol = "remat_batch"

// DivideBatch makes a forward model one for 1/parts of its batch, which it
// returns, in samples. Dims are numbers for free dimensions; those of other axes
// stay free. After an error the model is of no use.
func DivideBatch(m *onnx.Model, dims map[string]int64, parts int64) (batch int64, err error) {
	if _, err := infer.Model(m, infer.Options{Dims: dims}); err != nil {
		return 0, err
	}
	was := shapesOf(m.Graph)
	lead, inputs, err := leading(m.Graph)
	if err != nil {
		return 0, err
	}
	batch, known := lead.Subst(dims).Int()
	if !known {
		return 0, undivided("dimension %s is symbolic: give --dim %s=N", lead, lead)
	}
	if batch%parts != 0 {
		return 0, &BatchError{fmt.Sprintf("%d is not a multiple of %d", batch, parts), batch}
	}
	if lead.IsStatic() {
		setLeading(inputs, onnx.Symbol(batchSymbol))
		expanded, err := followBatch(m, was, batch)
		if err != nil {
			return 0, err
		}
		if expanded, err = holding(m, inputs, expanded, batch, dims); err != nil {
			return 0, err
		}
		if err := setLeads(m.Graph, expanded, batch/parts); err != nil {
			return 0, err
		}
	}
	for _, v := range m.Graph.Inputs {
		for i, d := range v.Type.Shape {
			if !lead.IsStatic() {
				v.Type.Shape[i] = d.Subst(map[string]int64{lead.String(): batch / parts})
			}
		}
	}
	setLeading(inputs, onnx.Static(batch/parts))
	forgetShapes(m.Graph)
	if _, err := infer.Model(m, infer.Options{Dims: dims}); err != nil {
		return 0, undivided("%v", err)
	}
	return batch, divided(m.Graph, was, parts)
}

// pretended is a batch that no other extent is, and that broadcasts with none.
const pretended = 1<<20 + 7

// holding returns those of the Expands to the batch's extent that make the batch:
// all of them or none, whichever goes together with a batch of another extent. A
// mask of queries and keys may have the same extents as the batch. The others get
// their extent back.
func holding(m *onnx.Model, inputs []*onnx.Value, expanded []*onnx.Node, batch int64, dims map[string]int64) ([]*onnx.Node, error) {
	setLeading(inputs, onnx.Static(pretended))
	var failed error
	for _, list := range [][]*onnx.Node{expanded, nil} {
		if err := setLeads(m.Graph, expanded, batch); err != nil {
			return nil, err
		}
		if err := setLeads(m.Graph, list, pretended); err != nil {
			return nil, err
		}
		forgetShapes(m.Graph)
		_, err := infer.Model(m, infer.Options{Dims: dims})
		if err == nil {
			return list, nil
		}
		failed = cmp.Or(failed, err)
	}
	return nil, undivided("%s", strings.ReplaceAll(failed.Error(), strconv.Itoa(pretended), "batch"))
}

// setLeads sets the leading extent that each Expand makes.
func setLeads(g *onnx.Graph, expands []*onnx.Node, lead int64) error {
	for _, n := range expands {
		extents, err := n.In(1).Init.Int64s()
		if err != nil {
			return err
		}
		extents[0] = lead
		setExtents(g, n, extents)
	}
	return nil
}

// leading finds the batch: the leading extent of the first input that has axes,
// and all inputs that begin with it.
func leading(g *onnx.Graph) (onnx.Dim, []*onnx.Value, error) {
	var lead onnx.Dim
	var inputs []*onnx.Value
	for _, v := range g.Inputs {
		if v.Init != nil || !v.Type.Ranked || len(v.Type.Shape) == 0 {
			continue
		}
		d := v.Type.Shape[0]
		if len(inputs) == 0 {
			lead = d
		}
		if d == lead && d.Known() {
			inputs = append(inputs, v)
		}
	}
	if len(inputs) == 0 {
		return lead, nil, undivided("no input has a leading axis of known extent")
	}
	return lead, inputs, nil
}

func setLeading(inputs []*onnx.Value, d onnx.Dim) {
	for _, v := range inputs {
		v.Type.Shape = slices.Clone(v.Type.Shape)
		v.Type.Shape[0] = d
	}
}

// shapesOf keeps the shapes of what nodes make.
func shapesOf(g *onnx.Graph) map[*onnx.Value]onnx.Shape {
	shapes := map[*onnx.Value]onnx.Shape{}
	eachMade(g, func(v *onnx.Value) {
		if v.Type.Ranked {
			shapes[v] = v.Type.Shape
		}
	})
	for _, v := range g.Inputs {
		shapes[v] = v.Type.Shape
	}
	return shapes
}

// forgetShapes drops what is known of what nodes make, the element type apart.
func forgetShapes(g *onnx.Graph) {
	eachMade(g, func(v *onnx.Value) { v.Type.Ranked, v.Type.Shape = false, nil })
}

func eachMade(g *onnx.Graph, do func(*onnx.Value)) {
	for _, n := range g.Nodes {
		for _, v := range n.Returns() {
			if v.Type.Other == nil {
				do(v)
			}
		}
	}
}

// followBatch infers node by node what holds the batch, frees the extents of
// each Reshape that would lose it, and returns the Expands that make the batch,
// with 1 in its place.
func followBatch(m *onnx.Model, was map[*onnx.Value]onnx.Shape, batch int64) (expanded []*onnx.Node, err error) {
	g := m.Graph
	forgetShapes(g)
	nodes := g.Nodes
	g.Nodes = nil
	known, err := infer.Model(m, infer.Options{})
	g.Nodes = nodes
	if err != nil {
		return nil, undivided("%v", err)
	}
	for _, n := range nodes {
		switch {
		case n.Is("Reshape"):
			freeExtent(g, n, known, was)
		case n.Is("Expand"):
			if expandsBatch(g, n, known, batch) {
				expanded = append(expanded, n)
			}
		}
		if err := known.Node(n); err != nil {
			return nil, undivided("%v", err)
		}
		if picksSamples(n) {
			return nil, undivided("node %q takes samples of the batch by their places", n.Label())
		}
	}
	return expanded, nil
}

// picksSamples reports a node that takes what it makes from places of the batch and makes no batch: of a
// part of the batch it would take other samples.
func picksSamples(n *onnx.Node) bool {
	if !n.Is("Gather", "GatherND", "GatherElements", "Slice", "Split", "TopK") || batchAxis(n.In(0)) < 0 {
		return false
	}
	for _, v := range n.Returns() {
		if batchAxis(v) < 0 {
			return true
		}
	}
	return false
}

// freeExtent rewrites the constant extents of a Reshape whose data holds the
// batch.
func freeExtent(g *onnx.Graph, n *onnx.Node, known *infer.Result, was map[*onnx.Value]onnx.Shape) {
	axis := batchAxis(n.In(0))
	extents := constantExtents(n, known)
	from, ok1 := extentsOf(was[n.In(0)])
	to, ok2 := extentsOf(was[n.Out(0)])
	if axis < 0 || extents == nil || !ok1 || !ok2 || len(to) != len(extents) {
		return
	}
	before, _ := onnx.Elements(from[:axis])
	passed := int64(1)
	for j := range to {
		if passed *= to[j]; passed <= before {
			continue
		}
		if extents[j] <= 0 { // it copies, or is found already
			return
		}
		for k, e := range extents {
			if e == -1 {
				extents[k] = to[k]
			}
		}
		extents[j] = -1
		setExtents(g, n, extents)
		return
	}
}

// expandsBatch puts 1 where a constant without the batch is expanded to it.
func expandsBatch(g *onnx.Graph, n *onnx.Node, known *infer.Result, batch int64) bool {
	extents := constantExtents(n, known)
	if len(extents) < 2 || extents[0] != batch || batchAxis(n.In(0)) >= 0 {
		return false
	}
	if data := n.In(0).Type.Shape; len(data) == len(extents) && !data[0].Is(1) {
		return false
	}
	extents[0] = 1
	setExtents(g, n, extents)
	return true
}

// batchAxis is the axis that holds the batch, -1 for none.
func batchAxis(v *onnx.Value) int {
	return slices.IndexFunc(v.Type.Shape, func(d onnx.Dim) bool { return slices.Contains(d.Symbols(), batchSymbol) })
}

// constantExtents is a copy of a node's second input where it is constant.
func constantExtents(n *onnx.Node, known *infer.Result) []int64 {
	if n.In(1) == nil {
		return nil
	}
	constant, ok := known.Const(n.In(1))
	if !ok {
		return nil
	}
	extents, err := constant.Int64s()
	if err != nil {
		return nil
	}
	return slices.Clone(extents)
}

func setExtents(g *onnx.Graph, n *onnx.Node, extents []int64) {
	n.SetInput(1, g.AddConstant(n.In(1).Name+"_free", onnx.Int64Tensor(extents, int64(len(extents)))))
}

// extentsOf is a shape in numbers; false where there is none.
func extentsOf(s onnx.Shape) ([]int64, bool) {
	dims, ok := s.Ints()
	return dims, ok && s != nil
}

// divided proves that every shape is the old one, or has one axis divided.
func divided(g *onnx.Graph, was map[*onnx.Value]onnx.Shape, parts int64) error {
	var err error
	eachMade(g, func(v *onnx.Value) {
		before, ok := extentsOf(was[v])
		after, ok2 := extentsOf(v.Type.Shape)
		if !ok || err != nil {
			return
		}
		changed, wrong := 0, !ok2 || len(before) != len(after)
		for i := range min(len(before), len(after)) {
			if before[i] != after[i] {
				changed++
				wrong = wrong || before[i] != parts*after[i]
			}
		}
		if wrong || changed > 1 {
			err = undivided("%q would become %s from %s", v.Name, v.Type.Shape, was[v])
		}
	})
	return err
}
