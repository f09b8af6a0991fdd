package pipeline

// Values that have a dead buffer wait for them, in half types and where shapes are erased.
//
// ONNX Runtime hands a dead buffer on to the next value of its shape and element size,
// and it counts in between. Half types make more of that: what backward keeps of a
// float32 value, its half copy, has the shape of much in half that died before, and
// no longer that of the float32 value.
//
//	logits, half       ████░░░░░░░░████   the copy takes over the buffer of the logits,
//	logits, float32       █████           which waits through the LogSoftmax
//	log-probabilities         ███████
//	their half copy               █████
//
// So where such a buffer waits at the peak, the shape of what takes it over is hidden
// (control.Hide): the buffer is released at its last reader. Then the next value of
// the shape may have it wait, and so on, until none is left: the peak falls only then.
// Which values these are, and whether it helps, the model of ONNX Runtime says; the file
// is written anew once.
//
// Where shapes are erased from the first recomputation on, those of small values stand, and of what an
// output or an operand tells: a dead buffer may wait for one of these. Small ones that nothing but
// their declaration tells are hidden by leaving it away, all that a buffer would be handed on to, since
// that takes no node.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/runtime/predict"
)

// maxHidings bounds how many shapes are hidden, one after another, that do not
// lower the peak by what is worth it.
const maxHidings = 6

// A hiding says what is worth a view: of a peak, a buffer that waits is at least one part in so many,
// and so is what the peak falls by. Zero: nothing is.
type hiding struct {
	waits, gains int64
	// promised: the file is to hold what its plan is judged to, and no less, as plans are chosen by
	// that.
	promised bool
}

var (
	hidingHalf   = hiding{waits: 20, gains: rough}
	hidingErased = hiding{waits: 4096, gains: 4096, promised: true}
)

// hides says what is worth hiding in a plan's file. Of half types that is so on a device alone: the
// prediction of a file as it stands says nothing of the casts that the CPU's session adds. In float32
// it is done where a plan erases shapes.
func (v *Variant) hides(plan *planner.Plan) hiding {
	half, device := v.Options.Precision != nil, v.Options.provider().Device
	switch {
	case half && device:
		return hidingHalf
	case !half && !device && plan.EraseShapes:
		return hidingErased
	}
	return hiding{}
}

// hiding returns the file, or one of the same plan that holds less as it hides shapes.
func (p *Planner) hiding(f *File) (*File, error) {
	h := f.Variant.hides(f.Plan)
	if h.waits == 0 || h.promised && f.Peak <= f.Verdict.Peak {
		return f, nil
	}
	var enough int64
	if h.promised {
		enough = f.Verdict.Peak
	}
	values := h.of(f.Prediction, enough)
	if len(values) == 0 {
		return f, nil
	}
	next, err := p.writeHiding(f.Variant, f.Plan, values)
	if err != nil || next.Peak >= f.Peak {
		return f, err
	}
	return next, nil
}

// A hidden names a value whose shape ONNX Runtime is not to know.
type hidden struct {
	name string
	// follows: it is small, takes over the buffer of another one that is hidden, and is worth no view.
	follows bool
}

// of are the values without whose shapes the peak is lower, none that does
// nothing for it; it does not fall below what is enough, in bytes.
func (h hiding) of(q *predict.Prediction, enough int64) (list []hidden) {
	g, trace := q.Graph.Copy(), q.Trace
	var tried [][]int
	best, peak := 0, trace.Peak
	for tries := 0; tries < maxHidings && peak > enough; tries++ {
		takers := h.takers(q, g, trace, enough)
		if takers == nil {
			break
		}
		for _, v := range takers {
			g.Values[v].Class = ortmodel.None
		}
		tried = append(tried, takers)
		if trace = ortmodel.Simulate(g, q.Order); trace.Peak < enough {
			break
		}
		if trace.Peak < peak-peak/h.gains {
			best, peak, tries = len(tried), trace.Peak, -1
		}
	}
	known := func(values []int) {
		for _, v := range values {
			g.Values[v].Class = q.Graph.Values[v].Class
		}
	}
	for _, values := range tried[best:] {
		known(values)
	}
	for _, values := range tried[:best] {
		known(values)
		if ortmodel.Simulate(g, q.Order).Peak <= peak {
			continue
		}
		for i, v := range values {
			g.Values[v].Class = ortmodel.None
			list = append(list, hidden{q.Values[v].Name, i > 0})
		}
	}
	return list
}

// takers are the value that takes over the largest buffer that waits at the peak of a
// trace, or the smallest without which it holds enough, and, where it is small, those that do after it; nil
// where none is worth it.
func (h hiding) takers(q *predict.Prediction, g *ortmodel.Graph, trace *ortmodel.Trace, enough int64) (takers []int) {
	waits := map[int]bool{} // owners: made before the peak, and not read until what takes it over is made
	for _, i := range q.Order[:trace.PeakAt] {
		for _, v := range g.Nodes[i].Outputs {
			if v != ortmodel.None {
				waits[trace.Owner[v]] = true
			}
		}
	}
	most, over := trace.Peak/h.waits, trace.Peak-enough
	for k, i := range q.Order[trace.PeakAt:] {
		n := &g.Nodes[i]
		for _, v := range slices.Concat(n.Inputs, n.Captures) {
			if v != ortmodel.None {
				delete(waits, trace.Owner[v])
			}
		}
		for _, v := range n.Outputs {
			if v == ortmodel.None {
				continue
			}
			owner := trace.Owner[v]
			if len(takers) > 0 && owner == trace.Owner[takers[0]] && g.Values[owner].Bytes < control.EraseBytes {
				takers = append(takers, v)
			}
			if !waits[owner] {
				continue
			}
			delete(waits, owner)
			if bytes := g.Values[owner].Bytes; k > 0 && g.Values[owner].Kind == ortmodel.Inner && mayHide(q.Values[v]) &&
				(bytes > most && (most < over || takers == nil) || takers != nil && bytes >= over && bytes < most) {
				takers, most = []int{v}, bytes
			}
		}
	}
	return takers
}

// mayHide reports a value that can be made of a view. Where its shape does not go with
// that of what its maker reads first, hiding does nothing, and the file shows it.
func mayHide(v *onnx.Value) bool {
	n := v.Producer
	return n != nil && n.In(0) != nil && n.In(0).Producer != nil && !control.Is(n)
}

// hide hides the shapes that are to be hidden, and returns the order.
func (w *rewriting) hide() ([]*onnx.Node, error) {
	g := w.model.Graph
	if len(w.hidden) == 0 {
		return g.Nodes, nil
	}
	var values, followers []*onnx.Value
	for _, h := range w.hidden {
		switch v := g.Value(h.name); {
		case v == nil:
		case h.follows:
			followers = append(followers, v)
		default:
			values = append(values, v)
		}
	}
	order, err := control.Hide(g, g.Nodes, values, followers)
	g.Nodes = order
	return order, err
}
