package normalize

// Parts of one value taken by Slice or by Gather with a constant index become
// one Split where they tile an axis:
//
//	x ─Gather(0)─▶ q     x ─Slice(:h)─▶ a     x ─Split─▶ parts [─Squeeze─▶]
//	x ─Gather(1)─▶ k     x ─Slice(h:)─▶ b
//	x ─Gather(2)─▶ v
//
// ONNX Runtime does the same at level 99, and the gradient of a Split is one
// Concat.

import (
	"maps"
	"slices"
	"sort"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A part is what one node takes of a value.
type part struct {
	node       *onnx.Node
	start, end int64
	squeeze    bool
}

func splits(s *state) error {
	done := map[*onnx.Value]bool{}
	for _, n := range s.nodes() {
		x := n.In(0)
		if !n.Is("Slice", "Gather") || x == nil || done[x] || !x.Type.Ranked {
			continue
		}
		done[x] = true
		byAxis := map[int][]part{}
		for _, u := range x.Uses() {
			if p, axis, ok := s.partOf(u, x); ok {
				byAxis[axis] = append(byAxis[axis], p)
			}
		}
		for _, axis := range slices.Sorted(maps.Keys(byAxis)) {
			s.split(x, axis, byAxis[axis])
		}
	}
	return s.g.SortTopologically()
}

// partOf reads a use of x as a run of elements along one axis.
func (s *state) partOf(u onnx.Use, x *onnx.Value) (part, int, bool) {
	n := u.Node
	if u.Index != 0 || n.Out(0) == nil || n.Out(0).IsOutput() {
		return part{}, 0, false
	}
	if n.Is("Gather") {
		idx, ok := s.types.Int64s(n.In(1))
		axis := normalAxis(n.Int("axis", 0), rank(x))
		if !ok || len(idx) != 1 || rank(n.In(1)) != 0 || axis < 0 {
			return part{}, 0, false
		}
		extent, static := x.Type.Shape[axis].Int()
		k := idx[0]
		if k < 0 {
			k += extent
		}
		return part{n, k, k + 1, true}, axis, static && k >= 0 && k < extent
	}
	if !n.Is("Slice") || n.In(3) == nil {
		return part{}, 0, false
	}
	spans, known := s.types.Spans(n)
	if !known || len(spans) != 1 || spans[0].Step != 1 {
		return part{}, 0, false
	}
	axis := spans[0].Axis
	extent, static := x.Type.Shape[axis].Int()
	start, end := onnx.SliceBounds(spans[0].Start, spans[0].End, 1, extent)
	return part{n, start, end, false}, axis, static && start < end
}

// normalAxis is onnx.Axis, or -1.
func normalAxis(axis int64, rank int) int {
	if k, ok := onnx.Axis(axis, rank); ok {
		return k
	}
	return -1
}

// split replaces the parts if they tile the axis; equal ones share an output.
func (s *state) split(x *onnx.Value, axis int, parts []part) {
	sort.SliceStable(parts, func(i, j int) bool { return parts[i].start < parts[j].start })
	var sizes []int64
	var at []int
	end := int64(0)
	for i, p := range parts {
		switch {
		case p.start == end:
			sizes = append(sizes, p.end-p.start)
			end = p.end
		case i > 0 && p.start == parts[i-1].start && p.end == parts[i-1].end:
		default:
			return
		}
		at = append(at, len(sizes)-1)
	}
	if extent, _ := x.Type.Shape[axis].Int(); end != extent || len(sizes) < 2 {
		return
	}
	first := parts[0].node
	for _, n := range s.g.Nodes { // the earliest in file order
		if readsPart(n, parts) {
			first = n
			break
		}
	}
	s.scope(first)
	out := s.b.Node("", "Split", build.In(x, s.b.Ints(sizes...)), len(sizes), onnx.IntAttr("axis", int64(axis)))
	if s.b.Err() != nil {
		return
	}
	s.g.InsertBefore(first, s.b.Take()...)
	for i, p := range parts {
		v := out[at[i]]
		if p.squeeze {
			s.scope(p.node)
			v = s.b.Op("Squeeze", build.In(v, s.b.Ints(int64(axis))))
		}
		nodes := s.b.Take()
		if s.b.Err() != nil {
			return
		}
		s.g.InsertBefore(p.node, nodes...)
		s.g.ReplaceUses(p.node.Out(0), v)
		s.count++
	}
}

func readsPart(n *onnx.Node, parts []part) bool {
	return slices.ContainsFunc(parts, func(p part) bool { return p.node == n })
}
