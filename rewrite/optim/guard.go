package optim

// Updates in place are right if whoever reads the old value runs before the
// node that writes the new one. ONNX Runtime does not know that the two share
// memory, so the graph must say so by control dependencies:
//
//	P ─▶ reader ─▶ r ───┐
//	            x ─▶ Wait ─▶ x'
//	P ─▶ writer(P, x') ─▶ P.new
//
// Most readers need nothing: the gradient is computed from what they made.
// Those that remain are the products that pass the gradient on to the layer
// below (dX = dY·Wᵀ beside dW = Xᵀ·dY), unless the global norm, which depends
// on all gradients, stands between. Aliases of P (Reshape and the like) share
// its memory, so their readers count; so do those of what an optimizer may take
// into its readers (a Transpose of P, traits.PutsOff).
//
// The dependency holds the reader's output until the update runs, so an order
// that puts updates late keeps those outputs: run each update as soon as its
// gradient is there.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/control"
)

// A Refusal is a value that no order lets be updated in place: a reader of the old
// value needs the new one, or that of another value whose reader needs this one's.
type Refusal struct{ Value, Reader string }

// Why says what stands in the way.
func (r Refusal) Why() string {
	return fmt.Sprintf("node %q reads it and needs an updated value", r.Reader)
}

// A link is an update in place, and the readers of what it writes over that no
// data dependency brings before it.
type link struct {
	writer  *step.RowWriter
	old     *onnx.Value
	readers []*onnx.Node
}

// Guard makes every reader of each key of next come before the node that makes
// the key's next value, adding control dependencies where no data dependency does
// so yet.
// It returns the number of readers that it led and the updates that no order lets
// run in place. It is idempotent, and to be called again by a pass that adds readers
// of parameters. Nodes may stand in any order; after an addition they are sorted.
func Guard(m *onnx.Model, next map[*onnx.Value]*onnx.Value) (led int, refused []Refusal, err error) {
	links, refused := lateLinks(m.Graph, next)
	if err := control.Check(m); err != nil {
		return 0, nil, err
	}
	b := build.New(m.Graph, nil, "updates")
	for _, l := range links {
		led += len(l.readers)
		if err := wait(b, l.writer.Node, l.old, l.readers); err != nil {
			return 0, nil, err
		}
	}
	if led == 0 {
		return 0, refused, nil
	}
	place := onnx.Places(m.Graph.Nodes)
	b.Flush()
	if m.Graph.Nodes, err = control.Lower(m.Graph, m.Graph.Nodes); err != nil {
		return 0, nil, err
	}
	if err := m.Graph.SortTopologically(); err != nil {
		return 0, nil, err
	}
	stableOrder(m.Graph, place)
	return led, refused, nil
}

// lateLinks finds, by the names of what is updated, the readers to lead, and what
// cannot be led.
func lateLinks(g *onnx.Graph, next map[*onnx.Value]*onnx.Value) ([]link, []Refusal) {
	k := late{step.DependenciesOf(g)}
	olds := slices.SortedFunc(maps.Keys(next), func(a, b *onnx.Value) int { return strings.Compare(a.Name, b.Name) })
	var links []link
	for _, old := range olds {
		if next[old].Producer == nil || step.Viewed(next[old]) == old {
			continue // or it is written over itself
		}
		for _, w := range step.WritersOf(next[old], step.Rows) {
			if late := k.readers(old, &w, traits.PutsOff); len(late) > 0 {
				links = append(links, link{&w, old, late})
			}
		}
	}
	var refused []Refusal
	possible := links[:0]
	for _, l := range links {
		if r := k.needing(l.writer.Node, k.readers(l.old, l.writer, traits.Aliases)); r != nil {
			refused = append(refused, Refusal{l.old.Name, r.Label()})
			continue
		}
		// What might come to read it has to wait only if it can.
		l.readers = slices.DeleteFunc(l.readers, func(r *onnx.Node) bool { return k.Needs(step.Any, r, l.writer.Node) })
		if len(l.readers) > 0 {
			possible = append(possible, l)
		}
	}
	possible, crossed := k.uncrossed(possible)
	return possible, append(refused, crossed...)
}

// uncrossed returns the links that can hold together. A reader of one value may need
// the next one of another whose reader needs the next one of the first: either
// update may wait for its readers, not both.
func (k late) uncrossed(links []link) (kept []link, refused []Refusal) {
	blocking := k.blocking(links)
	left := make([]int, len(links))
	for i := range left {
		left[i] = i
	}
	for len(left) > 0 {
		free := slices.IndexFunc(left, func(i int) bool {
			return !slices.ContainsFunc(left, func(j int) bool { return blocking[i][j] != nil })
		})
		if free >= 0 {
			kept = append(kept, links[left[free]])
			left = slices.Delete(left, free, free+1)
			continue
		}
		var i int
		i, left = left[0], left[1:]
		at := slices.IndexFunc(left, func(j int) bool { return blocking[i][j] != nil })
		refused = append(refused, Refusal{links[i].old.Name, blocking[i][left[at]].Label()})
	}
	slices.SortFunc(kept, func(a, b link) int { return strings.Compare(a.old.Name, b.old.Name) })
	return kept, refused
}

// blocking returns, for each link, the first of its readers that needs the next value
// of another, by that one's place. Readers are outermost, since what one needs is
// looked up once for all writers.
func (k late) blocking(links []link) []map[int]*onnx.Node {
	table := make([]map[int]*onnx.Node, len(links))
	for i, l := range links {
		table[i] = map[int]*onnx.Node{}
		for _, r := range l.readers {
			for j, other := range links {
				if other.writer.Node != l.writer.Node && table[i][j] == nil && k.Needs(step.Any, r, other.writer.Node) {
					table[i][j] = r
				}
			}
		}
	}
	return table
}

// needing returns the first of the readers that needs the writer, nil: none.
func (k late) needing(writer *onnx.Node, readers []*onnx.Node) *onnx.Node {
	for _, r := range readers {
		if k.Needs(step.Any, r, writer) {
			return r
		}
	}
	return nil
}

// stableOrder gives every node of a sorted graph the place it had, or the first one
// at which what it reads is there: a barrier and the update behind it stand
// right after the last reader, not at the graph's end.
func stableOrder(g *onnx.Graph, place map[*onnx.Node]int) {
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

// wait leads an input of the writer past the readers.
func wait(b *build.Builder, writer *onnx.Node, old *onnx.Value, readers []*onnx.Node) error {
	at := -1
	for i, v := range writer.Reads() {
		if v != old && v.Type.DType != onnx.Undefined {
			at = i
		}
	}
	if at < 0 {
		return fmt.Errorf("node %q: no input of known type to wait with, besides %q", writer.Label(), old.Name)
	}
	var made []*onnx.Value
	for _, r := range readers {
		made = append(made, r.Outputs[slices.IndexFunc(r.Outputs, func(v *onnx.Value) bool { return v != nil })])
	}
	writer.SetInput(at, control.Wait(b, writer.Inputs[at], made...))
	return nil
}

// late finds the readers of a value that an update does not come after yet.
type late struct{ *step.Dependencies }

// readers lists the readers of old that the writer does not need, each
// once; the readers of a node's outputs count where through says so.
func (k late) readers(old *onnx.Value, writer *step.RowWriter, through func(n *onnx.Node, input int) bool) []*onnx.Node {
	var late []*onnx.Node
	for _, n := range step.ReadersOf(old, writer.Node, through) {
		if n != writer.Node && !k.Needs(step.Any, writer.Node, n) && !slices.Contains(late, n) && !writer.Spares(old, n) {
			late = append(late, n)
		}
	}
	return late
}
