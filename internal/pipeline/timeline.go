package pipeline

import (
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/predict"
)

// categoryOf maps the predictor's categories to the report's.
var categoryOf = [predict.Categories]report.Category{
	predict.Activation: report.Activations, predict.Gradient: report.Gradients,
	predict.Output: report.Outputs, predict.Temporary: report.Temporaries,
	predict.Parameter: report.Parameters, predict.State: report.State, predict.Feed: report.Feeds,
}

// Timeline is the prediction's trace, event by event, for the report. Layer
// names a node's layer, or is nil.
func Timeline(p *predict.Prediction, layer func(*onnx.Node) string) *report.Timeline {
	t := &report.Timeline{Base: report.Sizes{
		Parameters: p.Parameters, State: p.State, Feeds: p.Feeds, Session: p.Session.Bytes(),
	}}
	for k := range p.Nodes {
		t.Updates = t.Updates || phase(p, k) == report.Update
	}
	requests := p.Trace.Requests()
	for i, e := range p.Trace.Events {
		ev := report.Event{Category: report.Temporaries, Bytes: e.Bytes, Buffer: requests[i].ID, Node: "end of the step"}
		if e.Step < len(p.Nodes) {
			n := p.Nodes[e.Step]
			ev.Node, ev.Op, ev.Phase = n.Label(), n.OpType(), phase(p, e.Step)
			if layer != nil {
				ev.Layer = report.Text(layer(n))
			}
		}
		if e.Value != ortmodel.None {
			ev.Value = p.Values[e.Value].Name
			ev.Category = categoryOf[p.Category(e.Value)]
		} else {
			ev.Value = "scratch of " + ev.Node
		}
		if !e.Alloc {
			ev.Bytes = -e.Bytes
		}
		t.Events = append(t.Events, ev)
	}
	return t
}

// phase is the part of the step that place k of the execution order belongs to.
func phase(p *predict.Prediction, k int) report.Phase {
	n := p.Nodes[k]
	switch {
	case n.MadeBy(optim.Pass):
		return report.Update
	case p.Forward(k):
		return report.Forward
	}
	return report.Backward
}

// Fragmentation is the arena's worst moment; nil where it never grew beside free memory.
func Fragmentation(p *predict.Prediction) *report.Fragmentation {
	g, e, ok := p.Growth()
	if !ok {
		return nil
	}
	f := &report.Fragmentation{Request: g.Bytes, Live: g.Live, Reserved: g.Reserved, Free: g.Free(), Largest: g.Largest}
	if e.Step < len(p.Nodes) {
		f.Node = report.Text(p.Nodes[e.Step].Label())
	}
	if e.Value != ortmodel.None {
		f.Value = report.Text(p.Values[e.Value].Name)
	}
	return f
}

// PartOf is what the work of the node at place k of the execution order is for.
func PartOf(p *predict.Prediction, k int) report.Part {
	switch ph := phase(p, k); {
	case ph == report.Update:
		return report.PartUpdate
	case p.Nodes[k].MadeBy(onnx.RecomputePass):
		return report.PartRecomputed
	case ph == report.Forward:
		return report.PartForward
	}
	return report.PartBackward
}
