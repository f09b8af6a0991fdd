package planner

import (
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// A flat is the graph in arrays without pointers, as the simulation of
// thousands of schedules wants it.
type flat struct {
	// in lists what each op reads: inputs, then captures; missing ones are -1.
	in rows
	// out lists what each op makes; missing ones are -1. Its places, the
	// slots, number the arrays below.
	out rows
	// view is the place in the op's list in of the value whose buffer the slot
	// shares whatever happens, or -1.
	view []int32
	// over lists for each slot the places in the op's list in that it may take
	// over.
	over   rows
	values []flatValue
	// fresh is by slot the instance that an execution makes, held by its maker alone. made
	// lists in the order of in the slot that makes each value read, or -1, and once is
	// fresh with the reads counted: as long as each op runs once.
	fresh, once []instance
	made        []int32
	// scratch is the sum of what the op's kernel takes inside; scripted: it
	// takes it in an order of its own.
	scratch  []int64
	scripted []bool
}

// A flatValue is what the simulation asks of a value that no instance says.
type flatValue struct {
	inner  bool
	scalar bool
	bound  bool // its buffer is somebody else's
}

// rows holds lists back to back.
type rows struct{ start, items []int32 }

func (r *rows) of(i int) []int32 { return r.items[r.start[i]:r.start[i+1]] }

// end closes a list.
func (r *rows) end() { r.start = append(r.start, int32(len(r.items))) }

// newFlat lays the graph out, each list in the order of nodes and values.
func newFlat(g *ortmodel.Graph) *flat {
	nn, nv := len(g.Nodes), len(g.Values)
	f := &flat{values: make([]flatValue, nv), scratch: make([]int64, nn), scripted: make([]bool, nn)}
	for v := range g.Values {
		val := &g.Values[v]
		f.values[v] = flatValue{val.Kind == ortmodel.Inner, val.Scalar, val.Kind == ortmodel.Bound}
	}
	for _, r := range []*rows{&f.in, &f.out, &f.over} {
		r.end()
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for _, list := range [2][]int{n.Inputs, n.Captures} {
			for _, v := range list {
				f.in.items = append(f.in.items, int32(v))
			}
		}
		f.in.end()
		for slot, v := range n.Outputs {
			f.out.items = append(f.out.items, int32(v))
			f.slot(n, slot)
		}
		f.out.end()
		for _, b := range n.Scratch {
			f.scratch[i] += b
		}
		f.scripted[i] = n.Script != nil && f.scratch[i] != 0
	}
	f.link(g)
	return f
}

// link finds which slot each read means, and how often each is read.
func (f *flat) link(g *ortmodel.Graph) {
	f.fresh, f.made = make([]instance, len(f.out.items)), make([]int32, len(f.in.items))
	slot := slices.Repeat([]int32{-1}, len(f.values))
	for k, v := range f.out.items {
		f.fresh[k] = instance{value: v, buf: -1, uses: 1, birth: -1, death: -1, class: -1}
		if v >= 0 {
			slot[v] = int32(k)
			f.fresh[k].class, f.fresh[k].bytes = int32(g.Values[v].Class), g.Values[v].Bytes
			if !f.values[v].inner {
				f.fresh[k].uses = forever
			}
		}
	}
	f.once = slices.Clone(f.fresh)
	for i, v := range f.in.items {
		f.made[i] = -1
		if v >= 0 {
			f.made[i] = slot[v]
		}
		if k := f.made[i]; k >= 0 {
			f.once[k].uses++
		}
	}
}

// slot records whose buffer an output shares or may take over.
func (f *flat) slot(n *ortmodel.Node, slot int) {
	view := int32(-1)
	for _, a := range n.Alias {
		if a.Output == slot && view < 0 {
			view = int32(a.Input)
		}
	}
	f.view = append(f.view, view)
	for _, a := range n.InPlace {
		if a.Output == slot {
			f.over.items = append(f.over.items, int32(a.Input))
		}
	}
	f.over.end()
}
