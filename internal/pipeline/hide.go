package pipeline

// Values that have a dead buffer wait for them, in half types.
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

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/runtime/predict"
)

const (
	// worthHiding: of a peak, a buffer that waits is at least one part in so many.
	worthHiding = 20
	// maxHidings bounds how many shapes are hidden, one after another, that do not
	// lower the peak by what is worth it (rough).
	maxHidings = 6
)

// hides reports a variant in half types, on a device: the prediction of a file as it
// stands says nothing of the casts that the CPU's session adds.
func (v *Variant) hides() bool { return v.Options.Precision != nil && v.Options.provider().Device }

// hiding returns the file, or one of the same plan that holds less as it hides shapes.
func (p *Planner) hiding(f *File) (*File, error) {
	names := toHide(f.Prediction)
	if len(names) == 0 {
		return f, nil
	}
	next, err := p.writeHiding(f.Variant, f.Plan, names)
	if err != nil || next.Peak >= f.Peak {
		return f, err
	}
	return next, nil
}

// toHide names the values without whose shapes the peak is lower, none that does
// nothing for it.
func toHide(q *predict.Prediction) []string {
	g := q.Graph.Copy()
	trace := ortmodel.Simulate(g, q.Order)
	var hidden []int
	best, peak := 0, trace.Peak
	for tries := 0; tries < maxHidings; tries++ {
		v := waitedFor(q, g, trace)
		if v == ortmodel.None {
			break
		}
		g.Values[v].Class = ortmodel.None
		hidden = append(hidden, v)
		if trace = ortmodel.Simulate(g, q.Order); trace.Peak < almost(peak) {
			best, peak, tries = len(hidden), trace.Peak, -1
		}
	}
	for _, v := range hidden[best:] {
		g.Values[v].Class = q.Graph.Values[v].Class
	}
	var names []string
	for _, v := range hidden[:best] {
		g.Values[v].Class = q.Graph.Values[v].Class
		if ortmodel.Simulate(g, q.Order).Peak > peak {
			g.Values[v].Class = ortmodel.None
			names = append(names, q.Values[v].Name)
		}
	}
	return names
}

// waitedFor is the value that takes over the largest buffer that waits at the peak of a
// trace, None where none is worth it.
func waitedFor(q *predict.Prediction, g *ortmodel.Graph, trace *ortmodel.Trace) int {
	waits := map[int]bool{} // owners: made before the peak, and not read until what takes it over is made
	for _, i := range q.Order[:trace.PeakAt] {
		for _, v := range g.Nodes[i].Outputs {
			if v != ortmodel.None {
				waits[trace.Owner[v]] = true
			}
		}
	}
	taker, most := ortmodel.None, trace.Peak/worthHiding
	for k, i := range q.Order[trace.PeakAt:] {
		n := &g.Nodes[i]
		for _, v := range slices.Concat(n.Inputs, n.Captures) {
			if v != ortmodel.None {
				delete(waits, trace.Owner[v])
			}
		}
		for _, v := range n.Outputs {
			if v == ortmodel.None || !waits[trace.Owner[v]] {
				continue
			}
			owner := trace.Owner[v]
			delete(waits, owner)
			if bytes := g.Values[owner].Bytes; k > 0 && g.Values[owner].Kind == ortmodel.Inner && bytes > most && mayHide(q.Values[v]) {
				taker, most = v, bytes
			}
		}
	}
	return taker
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
	var nodes []*onnx.Node
	for _, name := range w.hidden {
		if v := g.Value(name); v != nil && v.Producer != nil {
			nodes = append(nodes, v.Producer)
		}
	}
	order, err := control.Hide(g, g.Nodes, nodes)
	g.Nodes = order
	return order, err
}
