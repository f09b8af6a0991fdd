package optim

// Updates in place are right if whoever reads the old value runs before the
// node that writes the new one. ONNX Runtime does not know that the two share
// memory, so the graph must say so by data:
//
//	P ──▶ reader ──▶ r ─▶ Reshape [-1] ─▶ Slice [0:0] ─▶ Cast int64 ─┐
//	                                              shape of x ────────┴▶ Concat
//	x ─────────────────────────────────────▶ Reshape ◀───────────────────┘
//	P ──▶ writer(P, x') ──▶ P.new
//
// Most readers need nothing: the gradient is computed from what they made.
// Those that remain are the products that pass the gradient on to the layer
// below (dX = dY·Wᵀ beside dW = Xᵀ·dY), unless the global norm, which depends
// on all gradients, stands between. Aliases of P (Reshape and the like) share
// its memory, so their readers count; so do those of what an optimizer may take
// into its readers (a Transpose of P, traits.PutsOff).
//
// Behind a view, or before one, the barrier is an Unsqueeze along no axes, which
// the readers and the view lead to: ONNX Runtime makes one Reshape of views that
// follow a Reshape, if each has one reader, and that one waits for nothing.
// Opsets before 13 have no such Unsqueeze, so there the barrier takes the place
// of the view before it.
//
// The barrier holds the reader's output until the update runs, so an order
// that puts updates late keeps those outputs: run each update as soon as its
// gradient is there.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// An OrderError says that no order lets an update run in place: a reader of
// the old value needs the new one.
type OrderError struct{ Value, Reader string }

func (e *OrderError) Error() string {
	return fmt.Sprintf("%q cannot be updated in place: node %q reads it and needs its next value", e.Value, e.Reader)
}

// A link is an update in place, and the readers of what it writes over that no
// data dependency brings before it.
type link struct {
	writer  *onnx.Node
	old     *onnx.Value
	readers []*onnx.Node
}

// Guard makes every reader of each key of next come before the node that makes
// the key's next value, adding barriers where no data dependency does so yet.
// It returns the number of readers that it led. It is idempotent, and to be
// called again by a pass that adds readers of parameters. Nodes may stand in
// any order; after an addition they are sorted.
func Guard(m *onnx.Model, next map[*onnx.Value]*onnx.Value) (int, error) {
	links, err := lateLinks(m.Graph, next)
	if err != nil {
		return 0, err
	}
	b := build.New(m.Graph, nil, "barrier")
	count := 0
	for _, l := range links {
		if len(l.readers) == 0 {
			continue
		}
		count += len(l.readers)
		b.Scope = l.old.Name
		if err := bar(b, m.Opset(""), l.writer, l.old, l.readers); err != nil {
			return 0, err
		}
	}
	if count == 0 {
		return 0, nil
	}
	place := make(map[*onnx.Node]int, len(m.Graph.Nodes))
	for i, n := range m.Graph.Nodes {
		place[n] = i
	}
	b.Flush()
	if err := m.Graph.SortTopologically(); err != nil {
		return 0, err
	}
	settle(m.Graph, place)
	return count, nil
}

// lateLinks finds, by the names of what is updated, the readers to lead. An
// OrderError says that one of them needs the value's next one.
func lateLinks(g *onnx.Graph, next map[*onnx.Value]*onnx.Value) ([]link, error) {
	k := newKin(g)
	olds := slices.SortedFunc(maps.Keys(next), func(a, b *onnx.Value) int { return strings.Compare(a.Name, b.Name) })
	var links []link
	for _, old := range olds {
		writer := next[old].Producer
		if writer == nil || viewOf(next[old], old) {
			continue // or it is written over itself
		}
		if late := k.lateReaders(old, writer, traits.PutsOff); len(late) > 0 {
			links = append(links, link{writer, old, late})
		}
	}
	for i, l := range links {
		for _, r := range k.lateReaders(l.old, l.writer, aliases) {
			if k.needs(r, l.writer) {
				return nil, &OrderError{l.old.Name, r.Label()}
			}
		}
		// What might come to read it has to wait only if it can.
		links[i].readers = slices.DeleteFunc(l.readers, func(r *onnx.Node) bool { return k.needs(r, l.writer) })
	}
	return links, nil
}

// viewOf reports that v is x's own memory.
func viewOf(v, x *onnx.Value) bool {
	for v != x {
		if v.Producer == nil || !v.Producer.Is("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten") {
			return false
		}
		v = v.Producer.Inputs[0]
	}
	return true
}

// settle gives every node of a sorted graph the place it had, or the first one
// at which what it reads is there: a barrier and the update behind it stand
// right after the last reader, not at the graph's end.
func settle(g *onnx.Graph, place map[*onnx.Node]int) {
	at := make(map[*onnx.Node]int, len(g.Nodes))
	for _, n := range g.Nodes {
		k := place[n] // 0 for a new one
		for _, list := range [][]*onnx.Value{n.Inputs, n.Captures} {
			for _, v := range list {
				if v != nil && v.Producer != nil {
					k = max(k, at[v.Producer])
				}
			}
		}
		at[n] = k
	}
	slices.SortStableFunc(g.Nodes, func(a, b *onnx.Node) int { return at[a] - at[b] })
}

// bar leads an input of the writer through a barrier that waits for readers.
func bar(b *build.Builder, opset int64, writer *onnx.Node, old *onnx.Value, readers []*onnx.Node) error {
	at := -1
	for i, v := range writer.Inputs {
		if v != nil && v != old && v.Type.DType != onnx.Undefined {
			at = i
		}
	}
	if at < 0 {
		return fmt.Errorf("node %q: no input of known type to wait with, besides %q", writer.Label(), old.Name)
	}
	x := writer.Inputs[at]
	var waits []*onnx.Value
	for _, r := range readers {
		waits = append(waits, nothing(b, r))
	}
	from := x
	if isView(x.Producer) || isView(writer) {
		if opset >= unsqueezeOpset {
			if isView(x.Producer) {
				waits = append(waits, nothing(b, x.Producer))
			}
			return unsqueeze(b, writer, at, waits)
		}
		for isView(from.Producer) {
			if c := from.Producer.In(1); c != nil && c.Producer != nil && c.Producer.Is("Concat") { // a barrier's waits go on
				waits = append(waits, c.Producer.Inputs[1:]...)
			}
			from = from.Producer.Inputs[0]
		}
	}
	var shape []*onnx.Value
	length := onnx.TensorOf(onnx.Int64, make(onnx.Shape, 1))
	if x.Type.Ranked {
		length = onnx.TensorOf(onnx.Int64, onnx.StaticShape(int64(len(x.Type.Shape))))
	}
	if dims, static := x.Type.Shape.Ints(); static && x.Type.Ranked {
		if len(dims) > 0 {
			shape = append(shape, b.Ints(dims...))
		}
	} else {
		known := b.Op("Shape", build.In(x))
		if known != nil {
			known.Type = length
		}
		shape = append(shape, known)
	}
	to := b.Op("Concat", append(shape, waits...), onnx.IntAttr("axis", 0))
	barred := b.Op("Reshape", build.In(from, to))
	if b.Err() != nil {
		return b.Err()
	}
	to.Type, barred.Type = length, x.Type
	writer.SetInput(at, barred)
	return nil
}

// unsqueezeOpset is the opset from which Unsqueeze takes its axes as an input.
const unsqueezeOpset = 13

// unsqueeze leads an input of the writer through a view along no axes.
func unsqueeze(b *build.Builder, writer *onnx.Node, at int, waits []*onnx.Value) error {
	x, none := writer.Inputs[at], waits[0]
	if len(waits) > 1 {
		none = typed(b.Op("Concat", waits, onnx.IntAttr("axis", 0)), onnx.Int64, 0)
	}
	barred := b.Op("Unsqueeze", build.In(x, none))
	if b.Err() != nil {
		return b.Err()
	}
	barred.Type = x.Type
	writer.SetInput(at, barred)
	return nil
}

// isView reports an operator that only renames a buffer.
func isView(n *onnx.Node) bool {
	if n == nil {
		return false
	}
	t, _ := traits.Of(n)
	return t.Cost == traits.View && len(n.Inputs) > 0 && n.Inputs[0] != nil
}

// nothing is an int64 tensor without elements that depends on the node.
func nothing(b *build.Builder, n *onnx.Node) *onnx.Value {
	out := n.Outputs[slices.IndexFunc(n.Outputs, func(v *onnx.Value) bool { return v != nil })]
	zero := b.Ints(0)
	from := out
	if n.Is("Reshape", "Squeeze", "Unsqueeze") { // which ONNX Runtime would join with the next
		if from = b.Op("Flatten", build.In(out), onnx.IntAttr("axis", 0)); from != nil {
			from.Type = onnx.TensorOf(out.Type.DType, append(onnx.StaticShape(1), make(onnx.Shape, 1)...))
			if out.Type.Ranked {
				from.Type.Shape[1] = out.Type.Shape.Elements()
			}
		}
	}
	flat := b.Op("Reshape", build.In(from, b.Ints(-1)))
	if flat != nil {
		flat.Type = onnx.TensorOf(out.Type.DType, make(onnx.Shape, 1))
		if out.Type.Ranked {
			flat.Type.Shape[0] = out.Type.Shape.Elements()
		}
	}
	none := typed(b.Op("Slice", build.In(flat, zero, zero, zero)), out.Type.DType, 0)
	if out.Type.DType == onnx.Int64 {
		return none
	}
	return typed(b.Op("Cast", build.In(none), to(onnx.Int64)), onnx.Int64, 0)
}

func typed(v *onnx.Value, d onnx.DType, n int64) *onnx.Value {
	if v != nil {
		v.Type = onnx.TensorOf(d, onnx.StaticShape(n))
	}
	return v
}

// kin answers which nodes a node needs, for one node at a time, on numbers.
type kin struct {
	number map[*onnx.Node]int32
	needed [][]int32
	// mark is the round in which a node was last found needed; of is whom the
	// last round was for.
	mark  []int32
	round int32
	of    *onnx.Node
	stack []int32
}

func newKin(g *onnx.Graph) *kin {
	k := &kin{
		number: make(map[*onnx.Node]int32, len(g.Nodes)),
		needed: make([][]int32, len(g.Nodes)), mark: make([]int32, len(g.Nodes)),
	}
	for i, n := range g.Nodes {
		k.number[n] = int32(i)
	}
	for i, n := range g.Nodes {
		for _, list := range [][]*onnx.Value{n.Inputs, n.Captures} {
			for _, v := range list {
				if v != nil && v.Producer != nil {
					k.needed[i] = append(k.needed[i], k.number[v.Producer])
				}
			}
		}
	}
	return k
}

// needs reports that a is b or needs b, directly or not.
func (k *kin) needs(a, b *onnx.Node) bool {
	if k.of != a {
		k.of = a
		k.round++
		k.stack = append(k.stack[:0], k.number[a])
		for len(k.stack) > 0 {
			i := k.stack[len(k.stack)-1]
			k.stack = k.stack[:len(k.stack)-1]
			if k.mark[i] == k.round {
				continue
			}
			k.mark[i] = k.round
			k.stack = append(k.stack, k.needed[i]...)
		}
	}
	return k.mark[k.number[b]] == k.round
}

// aliases reports a node whose output is its input's memory.
func aliases(n *onnx.Node, input int) bool {
	t, _ := traits.Of(n)
	return slices.ContainsFunc(t.Alias, func(p traits.Pair) bool { return p.Input == input })
}

// lateReaders lists the readers of old that the writer does not need, each
// once; the readers of a node's outputs count where through says so.
func (k *kin) lateReaders(old *onnx.Value, writer *onnx.Node, through func(n *onnx.Node, input int) bool) []*onnx.Node {
	var late []*onnx.Node
	for _, u := range old.Uses() {
		n := u.Node
		if n == writer {
			continue
		}
		if !k.needs(writer, n) && !slices.Contains(late, n) {
			late = append(late, n)
		}
		if u.Index < 0 || !through(n, u.Index) {
			continue
		}
		for _, o := range n.Outputs {
			if o == nil {
				continue
			}
			for _, r := range k.lateReaders(o, writer, through) {
				if !slices.Contains(late, r) {
					late = append(late, r)
				}
			}
		}
	}
	return late
}
