package tile

// Writing the shards of a backward slice: each slice's operators are cloned, behind
// control dependencies on the slice before, so that one slice is computed at a
// time and ONNX Runtime keeps them apart.

import (
	"fmt"
	"maps"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

type emitter struct {
	b       *build.Builder
	before  []*onnx.Value // of the slice before, which this one waits for
	i       int64         // the slice's number
	scope   string
	now     map[*shard]*onnx.Value
	kept    []map[*shard]*onnx.Value    // of each slice, for the next loop; nil: made again
	once    map[*onnx.Value]*onnx.Value // made for all slices, by what it is of
	renamed map[*onnx.Value]*onnx.Value // next values that are joined already
}

func newEmitter(b *build.Builder) *emitter {
	return &emitter{b: b, once: map[*onnx.Value]*onnx.Value{}, renamed: map[*onnx.Value]*onnx.Value{}}
}

// begin starts the i-th slice.
func (e *emitter) begin(before []*onnx.Value, i int64, scope string) {
	e.before, e.i, e.scope, e.now = before, i, scope, map[*shard]*onnx.Value{}
	if e.kept != nil {
		maps.Copy(e.now, e.kept[i])
	}
}

// keep lets the next loop read what this slice computed; what it cut out of a value is
// cut again, so that it need not wait.
func (e *emitter) keep() {
	maps.DeleteFunc(e.now, func(s *shard, _ *onnx.Value) bool { return s.make == nil })
	e.kept[e.i] = e.now
}

// shard returns this turn's part.
func (e *emitter) shard(s *shard) *onnx.Value {
	if v := e.now[s]; v != nil {
		return v
	}
	var v *onnx.Value
	if s.make != nil {
		v = s.make(e)
	} else {
		v = e.extract(s)
	}
	e.now[s] = v
	return v
}

// extract takes the part out of a value.
func (e *emitter) extract(s *shard) *onnx.Value {
	from := s.v
	if r := e.renamed[from]; r != nil {
		from = r
	}
	from = e.entry(from)
	e.b.Scope = e.scope + "/" + s.v.Name
	return e.b.Op("Slice", build.In(from, e.b.Ints(e.i*s.size), e.b.Ints((e.i+1)*s.size), e.b.Ints(int64(s.axis))))
}

// smallBytes: what a slice reads waits for the slice before from this size on; what
// is made of less may as well be computed for several slices at once.
const smallBytes = 64 << 10

// entry returns a value from outside as this slice reads it.
func (e *emitter) entry(v *onnx.Value) *onnx.Value {
	if v.Type.KnownBytes() < smallBytes {
		return v
	}
	return e.late(v)
}

// late returns a value past the slice before, whatever
// its size, so that what is made from it is made for this slice alone.
func (e *emitter) late(v *onnx.Value) *onnx.Value {
	if len(e.before) == 0 || e.b.Err() != nil {
		return v
	}
	return control.Wait(e.b, v, e.before...)
}

// clone repeats a node with other inputs.
func (e *emitter) clone(n *onnx.Node, inputs []*onnx.Value) *onnx.Value {
	name := fmt.Sprintf("%s%s/%s", e.b.Prefix, e.scope, n.Label())
	attrs := n.Proto.GetAttribute()
	return e.b.NodeNamed(n.Domain(), n.OpType(), name, inputs, []string{name}, attrs...)[0]
}

// op makes a node in place of n.
func (e *emitter) op(op string, n *onnx.Node, inputs ...*onnx.Value) *onnx.Value {
	e.b.From(n, e.scope+"/"+n.Label())
	return e.b.Op(op, inputs)
}

// logSum is the logarithm of the sum of exp(x) along the last axis, where y is
// its LogSoftmax: their difference, in the column of the largest element, since
// masked ones are infinite or leave no digits.
func (e *emitter) logSum(x, y *onnx.Value) *onnx.Value {
	if v := e.once[y]; v != nil {
		return v
	}
	e.b.Scope = y.Name
	last := onnx.IntAttr("axis", int64(rank(y)-1))
	largest := e.b.Op("ArgMax", build.In(y), last, onnx.IntAttr("keepdims", 1))
	column := func(v *onnx.Value) *onnx.Value { return e.b.Op("GatherElements", build.In(v, largest), last) }
	v := e.b.Op("Sub", build.In(column(x), column(y)))
	e.once[y] = v
	return v
}

// within returns indices along the sliced axis of data as indices into the
// slice, and which of them lie in it. Indices that an Expand spreads are
// looked at before.
func (e *emitter) within(index, data *onnx.Value, s *shard) (at, inside *onnx.Value) {
	narrow, spread := index, (*onnx.Value)(nil)
	if p := index.Producer; p != nil && p.Is("Expand") && rank(p.Inputs[0]) == rank(index) {
		narrow, spread = p.Inputs[0], p.Inputs[1]
	}
	e.b.Scope = e.scope + "/" + index.Name
	op := func(op string, inputs ...*onnx.Value) *onnx.Value { return e.b.Op(op, inputs) }
	from := e.once[narrow]
	if from == nil { // indices may count from the end
		from = narrow
		if from.Type.DType != onnx.Int64 {
			from = e.b.Op("Cast", build.In(from), onnx.IntAttr("to", int64(onnx.Int64)))
		}
		extent, _ := data.Type.Shape[s.axis].Int()
		from = op("Mod", from, e.b.Int(extent))
		e.once[narrow] = from
	}
	relative := e.entry(from)
	if e.i > 0 { // ONNX Runtime would take off a Sub of 0, and order the file anew
		relative = op("Sub", relative, e.b.Int(e.i*s.size))
	}
	inside = op("And", op("GreaterOrEqual", relative, e.b.Int(0)), op("Less", relative, e.b.Int(s.size)))
	at = op("Clip", relative, e.b.Int(0), e.b.Int(s.size-1))
	if spread != nil {
		at = op("Expand", e.late(at), spread)
	}
	return at, inside
}
