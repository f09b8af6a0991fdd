package pipeline

// Updates in backward: each parameter is updated when its gradient is complete,
// so that gradients are never all alive.
//
//	… dW3 ─▶ update 3 ─▶ dW2 ─▶ update 2 ─▶ dW1 ─▶ update 1
//
// The order that holds least does that wherever the graph lets it, so there is
// nothing to switch on: what is said here is read from the order that the written
// file runs. What keeps gradients is a norm of all of them, without which no
// update may begin, loss scaling that asks whether all of them are finite, and
// gradients that are returned. remat grad can clip by other norms, of each gradient
// or of the step before, which is another training.

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
)

// A waited is a gradient with places in the order that the written file runs: of
// the node that makes it, and of the last one that reads it, as it was made or cast
// to the type in which it waits.
type waited struct {
	param      *onnx.Value // whose gradient it is
	grad       *onnx.Value
	next       *onnx.Value // of the parameter
	made, read int
}

// gradients lists the gradients, by name, of the parameters that the file
// updates, and the one that is made last. Parameters whose equal gradients were merged have
// one together.
func (r *File) gradients() (list []waited, last waited) {
	at := map[string]int{}
	for i, n := range r.Prediction.Nodes {
		at[n.Name()] = i
	}
	last.made = -1
	g := r.Model.Graph
	merged := optim.Gradients(g, r.Roles().New)
	for _, in := range g.Inputs {
		if r.Roles().New[in.Name] == "" {
			continue
		}
		grad := step.GradientOf(g, in)
		if grad == nil {
			grad = merged[in]
		}
		if grad == nil || grad.Producer == nil {
			continue // state, or a gradient without a name
		}
		w := waited{param: in, grad: grad, next: g.Value(r.Roles().New[in.Name]), made: at[grad.Producer.Name()]}
		cast := func(n *onnx.Node, input int) bool { return input == 0 && (n.Is("Cast") || traits.IsView(n)) }
		for _, n := range step.ReadersOf(grad, nil, cast) {
			w.read = max(w.read, at[n.Name()])
		}
		if w.made > last.made {
			last = w
		}
		list = append(list, w)
	}
	return list, last
}

// once leaves one parameter of those that have a gradient together.
func once(list []waited) (out []waited) {
	seen := map[*onnx.Value]bool{}
	for _, w := range list {
		if !seen[w.grad] {
			seen[w.grad] = true
			out = append(out, w)
		}
	}
	return out
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
	var late []waited
	for _, w := range list {
		switch {
		case w.grad.IsOutput():
			rep.Skipped = append(rep.Skipped, rewrite.Skip{What: w.grad.Name, Why: "it is a graph output: remove it with --drop-output '*.grad'"})
		case w.read > last.made && w.made < last.made:
			late = append(late, w)
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

// whyLate says why gradients wait for the last one, and how large they are as they wait.
func (r *File) whyLate(late []waited, last *onnx.Value) string {
	var bytes int64
	for _, w := range once(late) {
		bytes += r.waitingBytes(w.param)
	}
	waiting := units.Bytes(bytes) + " of gradients wait"
	switch {
	case r.needs(late, last, false):
		return "the norm of all gradients is needed first; " + waiting + ": remat grad --clip-by parameter " +
			"(each gradient's own norm) or previous (that of the previous step) avoids this"
	case r.needs(late, last, true):
		return "all gradients have to be known to be finite first; " + waiting + ": --overflow parameter updates each at once"
	}
	return "earlier updates would raise the peak; " + waiting
}

// needs reports that a parameter's next value is computed from numbers of the last gradient,
// not just after it: if scaled, by what loss scaling found in it too.
func (r *File) needs(late []waited, last *onnx.Value, scaled bool) bool {
	found := r.Model.Graph.Value(precision.FoundOutput)
	behind := step.DependenciesBy(r.Model.Graph, func(v *onnx.Value, u onnx.Use) step.Dependency {
		if v == found && !scaled {
			return 0
		}
		return step.DependencyOf(v, u)
	}).Forward(step.Data, last)
	return slices.ContainsFunc(late, func(w waited) bool { return w.next != nil && behind.Has(w.next.Producer) })
}
