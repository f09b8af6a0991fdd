package flow

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

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/report"
	"github.com/onnx-remat/remat/rewrite"
)

// UpdatesInBackward reports which of the parameters that the file updates are
// updated before the last gradient is made, and why others are not.
func (r *Planned) UpdatesInBackward() rewrite.Report {
	rep := rewrite.Report{Pass: "update in backward"}
	at := map[string]int{}
	for i, n := range r.Prediction.Nodes {
		at[n.Name()] = i
	}
	size := map[string]int64{}
	for i, v := range r.Prediction.Values {
		size[v.Name] = r.Prediction.Graph.Values[i].Bytes
	}
	g := r.Prepared.Model.Graph
	type update struct {
		grad       *onnx.Value
		made, read int // places of who makes the gradient, and of its last reader
	}
	var list []update
	last, final := -1, (*onnx.Value)(nil)
	for _, in := range g.Inputs {
		if r.Analysis.Roles.New[in.Name] == "" {
			continue
		}
		grad := g.Value(in.Name + ".grad")
		if grad == nil || grad.Producer == nil {
			continue // state, or a gradient without a name
		}
		u := update{grad: grad, made: at[grad.Producer.Name()]}
		for _, use := range grad.Uses() {
			u.read = max(u.read, at[use.Node.Name()])
		}
		if u.made > last {
			last, final = u.made, grad
		}
		list = append(list, u)
	}
	if rep.Requested = len(list); rep.Requested == 0 {
		rep.Requested = 1
		rep.Skipped = []rewrite.Skip{{What: "updates", Why: "the graph has none of a gradient with a name: derive it with remat grad --optimizer"}}
		return rep
	}
	var waiting int64
	norm, after := false, following(g, final)
	for _, u := range list {
		late := u.read > last && u.made < last
		switch {
		case u.grad.IsOutput():
			rep.Skipped = append(rep.Skipped, rewrite.Skip{What: u.grad.Name, Why: "it is returned: --drop-output '*.grad' lets it go"})
		case late:
			waiting += size[u.grad.Name]
			norm = norm || slices.ContainsFunc(u.grad.Uses(), func(use onnx.Use) bool { return after[use.Node] })
			rep.Skipped = append(rep.Skipped, rewrite.Skip{What: u.grad.Name})
		default:
			rep.Applied++
		}
	}
	why, choices := "no order that holds less updates it earlier", ""
	if norm {
		why = "the norm of all gradients is needed first"
		choices = ": remat grad --clip-by parameter (the norm of each) or previous (that of the step before) lets them go"
	}
	for i := range rep.Skipped {
		if rep.Skipped[i].Why == "" {
			rep.Skipped[i].Why = fmt.Sprintf("%s; %s of gradients wait%s", why, report.Bytes(waiting), choices)
		}
	}
	return rep
}

// following are the nodes that need v, directly or not.
func following(g *onnx.Graph, v *onnx.Value) map[*onnx.Node]bool {
	after := map[*onnx.Node]bool{}
	for todo := []*onnx.Value{v}; len(todo) > 0; {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, u := range v.Uses() {
			if after[u.Node] {
				continue
			}
			after[u.Node] = true
			for _, o := range u.Node.Outputs {
				if o != nil {
					todo = append(todo, o)
				}
			}
		}
	}
	return after
}
