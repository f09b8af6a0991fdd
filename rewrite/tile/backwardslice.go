package tile

// The backward slice of a value: what one slice of it is computed from.
//
// backwardSlice.of(v, axis) says how the slices of v along an axis come about: cut out
// of v itself (a leaf), or by v's operator from slices of its inputs. A value is
// followed where that needs less to wait than the value itself takes; a forward
// value, which waits for backward anyway, only where it needs far less. What is
// known about an operator is one row of the table sliceRules.

import (
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// farLess: a forward value is computed again in slices where what that needs
// takes at most one part in so many.
const farLess = 8

// A shard tells how a part of a value is made.
type shard struct {
	v    *onnx.Value
	axis int
	size int64 // of a part along the axis
	// make emits the part from the operator; nil: it is cut out of v.
	make func(e *emitter) *onnx.Value
	// needs are slices of inputs, whole the inputs that are read as they are.
	needs []*shard
	whole []*onnx.Value
	// waits holds the bytes of each value that must stay alive, whole, until the
	// last slice has been made from it.
	waits map[*onnx.Value]int64
}

// A shardKey is a value and the axis along which it is cut.
type shardKey struct {
	v    *onnx.Value
	axis int
}

// A backwardSlice is what the slices of some next values are computed from.
type backwardSlice struct {
	rules map[string]sliceRule
	joins bool // see joinsAxes
	// together: a slice of one next value is there when the same one of another is made.
	together bool
	forward  func(*onnx.Node) bool
	part     int64         // elements of one slice along the split axis
	next     []*onnx.Value // values that the slices are for, in the order of their makers
	shards   map[shardKey]*shard
	roots    []root              // of next
	cloned   map[*onnx.Node]bool // computed in slices
}

func newBackwardSlice(joins bool, forward func(*onnx.Node) bool, part int64, next []*onnx.Value) *backwardSlice {
	return &backwardSlice{rules: sliceRules, joins: joins, forward: forward, part: part, next: next, shards: map[shardKey]*shard{}, cloned: map[*onnx.Node]bool{}}
}

// root is the backward slice of a next value.
func (c *backwardSlice) root(v *onnx.Value, axis int) root {
	s := &shard{v: v, axis: axis, size: c.part}
	if !c.follow(s) {
		s = c.leaf(v, axis)
	}
	if c.together {
		c.shards[shardKey{v, axis}] = s
	} else { // next values that are computed from this one cut it: it exists whole by then
		c.shards[shardKey{v, axis}] = c.leaf(v, axis)
	}
	r := root{s, sharding(axis)}
	c.roots = append(c.roots, r)
	c.mark(s, map[*shard]bool{})
	return r
}

// of returns how slices of v along an axis are made.
func (c *backwardSlice) of(v *onnx.Value, axis int) *shard {
	key := shardKey{v, axis}
	if s := c.shards[key]; s != nil {
		return s
	}
	s := &shard{v: v, axis: axis, size: c.part}
	c.shards[key] = c.leaf(v, axis)
	if v.Producer == nil || v.IsOutput() || !c.follow(s) {
		return c.shards[key]
	}
	limit := v.Type.KnownBytes()
	if c.forward(v.Producer) {
		limit /= farLess
	}
	if total(s.waits) > limit {
		return c.shards[key]
	}
	c.shards[key] = s
	return s
}

// follow asks the rule of the operator that makes s.v how the slice is computed,
// and adds up what has to wait for that; false where no rule says.
func (c *backwardSlice) follow(s *shard) bool {
	n := s.v.Producer
	rule := c.rules[ruleKey(n)]
	if rule == nil || s.v.Index != 0 || len(n.Captures) > 0 || !s.v.Type.IsStatic() {
		return false
	}
	for _, o := range n.Outputs[1:] {
		if o != nil {
			return false
		}
	}
	for _, in := range n.Reads() {
		if !in.Type.IsStatic() {
			return false
		}
	}
	if !rule(c, s, n) {
		return false
	}
	s.collectWaits()
	return true
}

// collectWaits adds up what has to wait for the slices of s.
func (s *shard) collectWaits() {
	s.waits = map[*onnx.Value]int64{}
	for _, need := range s.needs {
		maps.Copy(s.waits, need.waits)
	}
	for _, v := range s.whole {
		if v.Producer != nil {
			s.waits[v] = v.Type.KnownBytes()
		}
	}
}

// leaf is a slice that is cut out of the whole value, which waits.
func (c *backwardSlice) leaf(v *onnx.Value, axis int) *shard {
	s := &shard{v: v, axis: axis, size: c.part}
	if v.Producer != nil && !slices.Contains(c.next, v) {
		s.waits = map[*onnx.Value]int64{v: v.Type.KnownBytes()}
	}
	return s
}

func total(waits map[*onnx.Value]int64) int64 {
	sum := int64(0)
	for _, bytes := range waits {
		sum += bytes
	}
	return sum
}

// mark notes the operators that are computed in slices.
func (c *backwardSlice) mark(s *shard, seen map[*shard]bool) {
	if seen[s] || s.make == nil {
		return
	}
	seen[s] = true
	c.cloned[s.v.Producer] = true
	for _, need := range s.needs {
		c.mark(need, seen)
	}
}

// waiting are the values that have to wait for the slices of all next values.
func (c *backwardSlice) waiting() map[*onnx.Value]int64 {
	waits := map[*onnx.Value]int64{}
	for _, s := range c.roots {
		maps.Copy(waits, s.waits)
	}
	return waits
}

// leafBytes is the size of all that has to wait.
func (c *backwardSlice) leafBytes() int64 { return total(c.waiting()) }

// wholeLeaf returns a value of at least that many bytes that would have to wait
// whole, the first by name.
func (c *backwardSlice) wholeLeaf(bytes int64) *onnx.Value {
	var found *onnx.Value
	for v, size := range c.waiting() {
		if size >= bytes && (found == nil || v.Name < found.Name) {
			found = v
		}
	}
	return found
}

// lastLeaf is the waiting value that is made last of those that depend on none
// of the next values.
func (c *backwardSlice) lastLeaf(place map[*onnx.Node]int) *onnx.Value {
	after := step.Behind(c.next...)
	var last *onnx.Value
	for v := range c.waiting() {
		if after[v.Producer] || slices.Contains(c.next, v) {
			continue
		}
		if last == nil || place[v.Producer] > place[last.Producer] || place[v.Producer] == place[last.Producer] && v.Name < last.Name {
			last = v
		}
	}
	return last
}

// stays returns a reader that keeps a value of the last next value's shape alive,
// though they are all made in slices.
func (c *backwardSlice) stays() *onnx.Node {
	gone := map[*onnx.Node]bool{}
	for _, v := range c.next {
		gone[v.Producer] = true
	}
	for changed := true; changed; {
		changed = false
		for n := range c.cloned {
			if !gone[n] && readerLeft(n, gone) == nil {
				gone[n], changed = true, true
			}
		}
	}
	var stay *onnx.Node
	shape := c.next[len(c.next)-1].Type.Shape
	for n := range c.cloned {
		if gone[n] || !n.Outputs[0].Type.Shape.Equal(shape) {
			continue
		}
		reader := readerLeft(n, gone)
		for c.cloned[reader] { // which stays for the sake of another
			reader = readerLeft(reader, gone)
		}
		if stay == nil || reader.Label() < stay.Label() {
			stay = reader
		}
	}
	return stay
}

// readerLeft returns a reader of a node's outputs that is not gone, else nil.
func readerLeft(n *onnx.Node, gone map[*onnx.Node]bool) *onnx.Node {
	for _, o := range n.Returns() {
		for _, use := range o.Uses() {
			if !gone[use.Node] {
				return use.Node
			}
		}
	}
	return nil
}
