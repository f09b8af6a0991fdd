package tile

// The update of a large parameter over slices of its rows.
//
// With an optimizer in the graph a parameter's gradient exists once, whole,
// between backward and the update, and beside it what the update computes: no
// elementwise kernel of ONNX Runtime runs in place on the CPU, so two or three
// buffers of the parameter's size are alive. For a language model's embedding
// that is more than all activations after recomputation. But every row of the
// next value depends on one row of the gradient only, and that row can be
// computed on its own:
//
//	h ───────────────┐
//	W[rows] ─▶ logits[:, rows] ─▶ − lse ─▶ exp ─▶ − one-hot ─▶ dlogits[:, rows]
//	                                  dlogits[:, rows]ᵀ · h ─▶ dW[rows]
//	ids ─▶ those within the rows ─▶ scatter ────────────────────▶ gradient[rows]
//	m[rows], gradient[rows] ─▶ … ─▶ m.new[rows]       concatenated: m.new
//
// So each next value is computed slice by slice, gradient included, and only
// its own slices wait for each other. Where an update has several next values
// (Adam: v, then m, then the parameter), the gradient's slices are computed for
// each of them that needs it: time for memory, for a planner to choose.
//
// The way back from a next value (its backward slice) is followed as long as what a value
// is computed from is smaller than the value (backwardslice.go); a softmax along the
// sliced axis uses the sum of the whole, which the graph computes anyway.
//
// An update that takes sums over its gradient, as means of rows and columns or a norm,
// takes them slice by slice first (sums.go).
//
// Weakness: static extents only.

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/control"
)

const (
	rowsPass = "rows"
	// maxSlices bounds the slices, minSlices is the least number that pays.
	maxSlices, minSlices = 64, 4
	// large: parameters of at least one part in so many of the largest one are
	// updated in slices.
	large = 2
)

// Rows rewrites the updates of the largest parameters. next holds the graph's
// next values of parameters and state; forward tells the two sides of the graph
// apart; want is the least number of slices wished. It returns how many next
// values were found that are large, how many are computed in slices, and why
// the others are not. The graph must be typed and sorted, and is so afterwards.
func Rows(m *onnx.Model, types build.Typer, next []*onnx.Value, forward func(*onnx.Node) bool, want int) (found, applied int, skipped []*SkipError, err error) {
	return divideUpdates(m, types, next, forward, want, false)
}

// divideUpdates is Rows; bound: each slice can be written where it belongs (boundrows.go).
func divideUpdates(m *onnx.Model, types build.Typer, next []*onnx.Value, forward func(*onnx.Node) bool, want int, bound bool) (found, applied int, skipped []*SkipError, err error) {
	m.Graph.RemoveDead()
	place := onnx.Places(m.Graph.Nodes)
	for _, group := range groups(largest(next), place) {
		found += len(group)
		u, skip := newUpdate(m, group, forward, place, want, bound)
		if skip != nil {
			skipped = append(skipped, skip)
			continue
		}
		if err := u.apply(types); err != nil {
			return found, applied, skipped, fmt.Errorf("pass rows: %w", err)
		}
		applied += len(group)
	}
	m.Graph.RemoveDead()
	return found, applied, skipped, m.Graph.SortTopologically()
}

// largest are the next values of at least a share of the largest one's bytes.
func largest(next []*onnx.Value) []*onnx.Value {
	most := int64(0)
	for _, v := range next {
		most = max(most, v.Type.KnownBytes())
	}
	return slices.DeleteFunc(slices.Clone(next), func(v *onnx.Value) bool {
		return v.Producer == nil || len(v.Type.Shape) == 0 || v.Type.KnownBytes() == 0 || v.Type.KnownBytes() < most/large
	})
}

// groups collects next values that depend on each other, in the order of their
// producers: a state's next value comes before the parameter's.
func groups(next []*onnx.Value, place map[*onnx.Node]int) [][]*onnx.Value {
	slices.SortFunc(next, func(a, b *onnx.Value) int { return place[a.Producer] - place[b.Producer] })
	var list [][]*onnx.Value
	for _, v := range next {
		reads := map[*onnx.Value]bool{}
		collect(v, v.Type.Shape, reads)
		joined := []*onnx.Value{}
		list = slices.DeleteFunc(list, func(group []*onnx.Value) bool {
			if !slices.ContainsFunc(group, func(w *onnx.Value) bool { return reads[w] }) {
				return false
			}
			joined = append(joined, group...)
			return true
		})
		list = append(list, append(joined, v))
	}
	return list
}

// collect notes the outputs of a shape that v is computed from by values of
// that shape.
func collect(v *onnx.Value, shape onnx.Shape, into map[*onnx.Value]bool) {
	for _, in := range v.Producer.Reads() {
		if in.Producer == nil || into[in] || !slices.Equal(in.Type.Shape, shape) {
			continue
		}
		into[in] = true
		if !in.IsOutput() {
			collect(in, shape, into)
		}
	}
}

// An update is the next values of one parameter and its state.
type update struct {
	g     *onnx.Graph
	next  []*onnx.Value
	loops [][]root
	parts int64
	keep  bool        // what one loop computed in slices is there for the next
	after *onnx.Value // what the first slice waits for; nil: for nothing
	// together: the slices of all next values come in one loop, each an output.
	together bool
	whole    []*onnx.Node // that made at once what is joined of slices now
}

// A root is a value that is computed in parts, and how they are joined: along an axis,
// or partialSum for summands.
type root struct {
	*shard
	join sharding
}

// newUpdate finds the backward slices of a group of next values, along the axis under
// which the least has to wait for them.
func newUpdate(m *onnx.Model, group []*onnx.Value, forward func(*onnx.Node) bool, place map[*onnx.Node]int, want int, bound bool) (*update, *SkipError) {
	last := group[len(group)-1]
	var best *update
	least := int64(0)
	var why *SkipError // of the rows, where they can be divided
	for axis := range last.Type.Shape {
		extent, ok := last.Type.Shape[axis].Int()
		parts := divisor(extent, int64(want), maxSlices)
		if !ok || parts < minSlices {
			continue
		}
		along := func(sums []*onnx.Node) *backwardSlice {
			c := newBackwardSlice(joinsAxes(m), forward, extent/parts, append(outputs(sums), group...))
			c.together = bound && axis == 0
			return c
		}
		c, sums, skip := withSums(along, group, axis, place)
		if skip != nil {
			why = cmp.Or(why, skip)
			continue
		}
		if waits := c.leafBytes(); best == nil || waits < least {
			least = waits
			best = &update{g: m.Graph, next: group, parts: parts, together: c.together}
			best.keep = len(sums) > 0 && len(group) == 1 && !c.together
			best.loops = loops(c.roots, len(sums), c.together)
			best.after = c.lastLeaf(place)
		}
	}
	if best == nil {
		return nil, cmp.Or(why, &SkipError{last.Name, "its extents have no common divisor"})
	}
	return best, nil
}

// apply writes the slices, behind all there is, and joins them under the names of what they
// are of. What nothing reads any more then reads nothing; the caller sorts, and removes it.
func (u *update) apply(types build.Typer) error {
	e := newEmitter(build.New(u.g, types, rowsPass))
	if u.keep {
		e.kept = make([]map[*shard]*onnx.Value, u.parts)
	}
	var before []*onnx.Value
	if u.after != nil {
		before = []*onnx.Value{u.after}
	}
	for _, roots := range u.loops {
		parts := make([][]*onnx.Value, len(roots))
		for i := range u.parts {
			e.begin(before, i, fmt.Sprintf("%s/%d", roots[0].v.Name, i))
			before = nil
			for k, r := range roots {
				v := e.shard(r.shard)
				parts[k], before = append(parts[k], v), append(before, v)
			}
			if u.keep {
				e.keep()
			}
		}
		before = nil
		for k, r := range roots {
			if u.together && slices.Contains(u.next, r.v) {
				giveOut(u.g, r.v, parts[k])
			}
			v, err := u.join(e, r, parts[k])
			if err != nil {
				return err
			}
			before = append(before, v)
		}
	}
	var err error
	if e.b.Nodes, err = control.Lower(u.g, e.b.Nodes); err != nil {
		return err
	}
	made := e.b.Take()
	u.g.Append(made...)
	u.g.Release(append(made, u.whole...)...)
	return nil
}

// join puts the parts of a root in its place.
func (u *update) join(e *emitter, r root, parts []*onnx.Value) (*onnx.Value, error) {
	e.b.Scope = r.v.Name
	var whole *onnx.Value
	if r.join == partialSum {
		whole = e.b.Op("Sum", parts)
	} else {
		whole = e.b.Op("Concat", parts, onnx.IntAttr("axis", int64(r.join)))
	}
	if err := e.b.Err(); err != nil {
		return nil, err
	}
	old := r.v
	whole.Type = old.Type
	whole.Producer.SetOrigin(onnx.Origin{Pass: rowsPass, Of: old.Name, Step: old.Producer.Origin().Step})
	u.g.TakeOver(old, whole)
	u.whole = append(u.whole, old.Producer)
	e.renamed[old] = whole
	return whole, nil
}
