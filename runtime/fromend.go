package runtime

// Fed numbers below zero where a value is indexed: ONNX Runtime counts them from its end,
// so that a label of -1 is the last class, which a loss of PyTorch refuses.

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// FromEnd is a fed number that is counted from the end of what it indexes.
type FromEnd struct {
	Input  string
	Number int64
	Extent int64  // of what it indexes
	Count  int    // how many of the input's numbers are below zero so
	Feed   string // what to feed instead
}

// outside says which fed number lies outside what it indexes, as a kernel refuses without its
// name, in what ended a run; nil if none.
func (s *Session) outside(ended error) (cause error) {
	_ = s.eachIndex(func(input string, x Indexed, n int64) { // the run's own error stands where a feed can't be read
		if cause == nil && (n >= x.Extent || n < -x.Extent) {
			cause = &FeedError{input, fmt.Sprintf("%d lies outside of what it indexes: %s", n, x.feed())}
		}
	})
	if cause == nil {
		cause = s.outsidePart(ended.Error())
	}
	return cause
}

// refusedIndex finds the number that a kernel refused as an index, in what it says.
var refusedIndex = regexp.MustCompile(`idx=(-?\d+)|index = (-?\d+)|Actual value is (-?\d+)`)

// outsidePart is outside of a number that is one of a part of its input, as a column, by the
// node that refused it and the number, if it says that.
func (s *Session) outsidePart(ended string) error {
	node := failed.FindStringSubmatch(ended)
	if node == nil {
		return nil
	}
	number := "a number"
	if m := refusedIndex.FindStringSubmatch(ended); m != nil {
		number = m[1] + m[2] + m[3]
	}
	for _, in := range s.inputs {
		for _, p := range in.indexes.parts {
			if p.node == node[1] {
				return &FeedError{in.info.Name, fmt.Sprintf("%s lies outside of what a part of it indexes in %s: feed 0 to %d there", number, p.node, p.extent-1)}
			}
		}
	}
	return nil
}

// feed says what to feed.
func (x Indexed) feed() string {
	text := fmt.Sprintf("feed 0 to %d", x.Extent-1)
	if len(x.Replaced) > 0 {
		text += fmt.Sprintf(", or %d for what is left out", x.Replaced[0])
	}
	return text
}

// FromEnd lists the inputs of which a number that was fed, as the next step reads it, is counted
// from the end.
func (s *Session) FromEnd() (list []FromEnd, err error) {
	err = s.eachIndex(func(input string, x Indexed, n int64) {
		if n >= 0 || n < -x.Extent {
			return
		}
		if len(list) == 0 || list[len(list)-1].Input != input {
			list = append(list, FromEnd{Input: input, Number: n, Extent: x.Extent, Feed: x.feed()})
		}
		list[len(list)-1].Count++
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// eachIndex calls f for each number that the next step indexes something by, as it is fed.
func (s *Session) eachIndex(f func(input string, x Indexed, n int64)) error {
	for _, in := range s.inputs {
		x := in.indexes
		if x.Extent == 0 {
			continue
		}
		t, _, err := s.Input(in.info.Name)
		if err != nil {
			return err
		}
		for i := int64(0); i < int64(len(t.Data)); i += t.Type.Size() {
			if n := t.Type.Int(t.Data[i:]); !slices.Contains(x.Replaced, n) {
				f(in.info.Name, x, n)
			}
		}
	}
	return nil
}

// Indexed is what every element of an input of integers indexes as it is.
type Indexed struct {
	Extent   int64   // the least, 0 where there is none
	Replaced []int64 // numbers in whose place others are read, or that a loss ignores
	// parts are the nodes that parts of it index, or all of it, as a column of a table does.
	parts []indexedPart
}

// An indexedPart is what elements index by one node.
type indexedPart struct {
	node   string
	extent int64
}

// IndexedBy is what every element of an input of integers indexes: as the file's metadata says
// ({"NAME": {"each": N}}), else as the graph shows. Columns of a table that index tables of
// their own are bounded by none of these, nor is what is clipped first.
func IndexedBy(m *onnx.Model, v *onnx.Value) (x Indexed) {
	if !v.Type.DType.IsInt() {
		return x
	}
	indexes := false
	eachUse(v, func(v *onnx.Value, u onnx.Use) bool {
		if u.Index == onnx.Captured {
			return false
		}
		if _, ok := boundOf(u); ok {
			indexes = true
			if extent := useLimit(u); extent > 0 {
				x.parts = append(x.parts, indexedPart{u.Node.Name(), extent})
			}
			if u.Node.Has("ignore_index") {
				x.Replaced = append(x.Replaced, u.Node.Int("ignore_index", 0))
			}
		}
		but, kept := keepsBut(v, u)
		x.Replaced = append(x.Replaced, but...)
		return kept
	})
	if !indexes {
		return x
	}
	slices.Sort(x.Replaced)
	x.Replaced = slices.Compact(x.Replaced)
	if x.Extent = feedsOf(m)[v.Name].Each; x.Extent == 0 {
		x.Extent = eachLimit(v)
	}
	return x
}

// eachLimit is the least extent that every value of v indexes, 0 where none is found.
func eachLimit(v *onnx.Value) int64 {
	return leastLimit(v, func(v *onnx.Value, u onnx.Use) bool {
		_, kept := keepsBut(v, u)
		return kept && !takesPart(u)
	})
}

// keepsBut reports a use that hands on numbers as they are, but those that a Where replaces,
// as in Where(Equal(v, -100), 0, v).
func keepsBut(v *onnx.Value, u onnx.Use) (but []int64, kept bool) {
	n := u.Node
	if !n.Is("Where") {
		return nil, n.Is("Cast") && onnx.DType(n.Int("to", 0)).IsInt() || n.Is("Concat") || u.Index == 0 && (traits.Moves(n) || n.Is("Pad"))
	}
	cond, differs := n.In(0).Producer, false
	if cond != nil && cond.Is("Not") {
		cond, differs = cond.In(0).Producer, true
	}
	if u.Index == 0 || cond == nil || !cond.Is("Equal") {
		return nil, false
	}
	for i := range 2 {
		if number, ok := cond.In(1 - i).Number(); ok && cond.In(i) == v {
			if differs != (u.Index == 1) {
				return nil, true // no other number is handed on
			}
			return []int64{int64(number)}, true
		}
	}
	return nil, false
}

// takesPart reports a use that hands on some elements alone, as a column of a table. A cut at
// an end, as of shifted labels, leaves more than half of an axis, and counts as the whole.
func takesPart(u onnx.Use) bool {
	n := u.Node
	if !traits.Picks(n) && !n.Is("Split", "Compress") {
		return false
	}
	if n.Is("Gather") && !n.In(1).Stored() || !n.Is("Gather", "Slice", "Split") {
		return true // data choose
	}
	from, to := n.In(0).Type, n.Out(0).Type
	if n.Is("Gather") {
		rows, known := from.Extent(n.Int("axis", 0))
		picked, counted := n.In(1).Type.Shape.Elements().Int()
		return !known || !counted || 2*picked <= rows
	}
	for i := range min(len(from.Shape), len(to.Shape)) {
		whole, known := from.Shape[i].Int()
		part, counted := to.Shape[i].Int()
		if known && counted && 2*part <= whole {
			return true
		}
	}
	return false
}
