package pipeline

// Updates in backward: each parameter is updated when its gradient is complete,
// so that gradients are never all alive.
//
//	… dW3 ─▶ update 3 ─▶ dW2 ─▶ update 2 ─▶ dW1 ─▶ update 1
//
// The order that holds least does that wherever the graph lets it, so there is
// nothing to switch on: what is said here is read from the order that the written
// file runs. What keeps gradients is a norm of all of them, without which no
// update may begin, and gradients that are returned. remat grad can clip by other
// norms, of each gradient or of the step before, which is another training.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
)

// A waited is a gradient with places in the order that the written file runs: of
// the node that makes it, and of the last one that reads it.
type waited struct {
	param      *onnx.Value // whose gradient it is
	grad       *onnx.Value
	made, read int
}

// gradients lists the gradients, by name, of the parameters that the file
// updates, and the one that is made last.
func (r *File) gradients() (list []waited, last waited) {
	at := map[string]int{}
	for i, n := range r.Prediction.Nodes {
		at[n.Name()] = i
	}
	last.made = -1
	g := r.Model.Graph
	for _, in := range g.Inputs {
		if r.Roles().New[in.Name] == "" {
			continue
		}
		grad := step.GradientOf(g, in)
		if grad == nil || grad.Producer == nil {
			continue // state, or a gradient without a name
		}
		w := waited{param: in, grad: grad, made: at[grad.Producer.Name()]}
		for _, use := range grad.Uses() {
			w.read = max(w.read, at[use.Node.Name()])
		}
		if w.made > last.made {
			last = w
		}
		list = append(list, w)
	}
	return list, last
}

// UpdatesInBackward reports which of the parameters that the file updates are
// updated before the last gradient is made, and why others are not.
func (r *File) UpdatesInBackward() rewrite.Report {
	list, last := r.gradients()
	rep := rewrite.Report{Pass: "update in backward", Requested: len(list)}
	if len(list) == 0 {
		rep.Requested = 1
		rep.Skipped = []rewrite.Skip{{What: "updates", Why: "the graph has no update of a named gradient: derive it with remat grad --optimizer"}}
		return rep
	}
	var late []*onnx.Value
	for _, w := range list {
		switch {
		case w.grad.IsOutput():
			rep.Skipped = append(rep.Skipped, rewrite.Skip{What: w.grad.Name, Why: "it is a graph output: remove it with --drop-output '*.grad'"})
		case w.read > last.made && w.made < last.made:
			late = append(late, w.grad)
			rep.Skipped = append(rep.Skipped, rewrite.Skip{What: w.grad.Name})
		default:
			rep.Applied++
		}
	}
	why := r.whyLate(late, last.grad)
	for i := range rep.Skipped {
		if rep.Skipped[i].Why == "" {
			rep.Skipped[i].Why = why
		}
	}
	return rep
}

// whyLate says why gradients wait for the last one, and how large they are.
func (r *File) whyLate(late []*onnx.Value, last *onnx.Value) string {
	size := map[string]int64{}
	for i, v := range r.Prediction.Values {
		size[v.Name] = r.Prediction.Graph.Values[i].Bytes
	}
	var bytes int64
	norm, after := false, step.DependenciesOf(r.Model.Graph).Forward(step.Any, last)
	for _, grad := range late {
		bytes += size[grad.Name]
		norm = norm || slices.ContainsFunc(grad.Uses(), func(use onnx.Use) bool { return after.Has(use.Node) })
	}
	if !norm {
		return fmt.Sprintf("updating it earlier would raise the peak; %s of gradients wait", report.Bytes(bytes))
	}
	return fmt.Sprintf("the norm of all gradients is needed first; %s of gradients wait: remat grad --clip-by parameter "+
		"(each gradient's own norm) or previous (that of the previous step) avoids this", report.Bytes(bytes))
}
