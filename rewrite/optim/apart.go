package optim

// The update apart from the gradients, for who combines gradients between the two: the
// ranks of a training that are several processes.
//
//	graph of gradients   P.grad ─▶ P.acc.new = P.acc + P.grad     (Options.Sums)
//	graph of updates     P.acc ─▶ [clip] ─▶ P.m.new, P.v.new, P.new;  P.acc.new = 0·P.acc
//
// The two share the memory of P and P.acc. P.acc is the sum of any number n of gradients
// when updates run, whoever added them, and 1/n is fed as gradient_share. Together they
// compute what one graph that accumulates n runs does, in the same order.

import (
	"errors"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// ShareInput is the input of a graph of updates for one over the number of gradients in
// each sum, float32 [].
const ShareInput = "gradient_share"

// sum makes the next sums of gradients.
func (a *applier) sum(params []Param) {
	for _, p := range params {
		a.b.Scope = p.Value.Name
		kept := a.kept(p.Value)
		u := &updater{applier: a, p: p.Value, state: map[string]*onnx.Value{accState: kept}}
		u.nextOf(accState, "Add", build.In(kept, p.Grad))
	}
	a.b.Scope = ""
}

// Updates makes the graph that updates these parameters from sums of the gradients that
// another graph has, of the same operator set. Options.Accumulate counts for nothing.
func Updates(gradients *onnx.Model, params []*onnx.Value, o Options) (*onnx.Model, error) {
	if o.Kind == None {
		return nil, errors.New("without an optimizer there is no update")
	}
	m := onnx.NewModel("update", gradients.Opset(""))
	list := make([]Param, len(params))
	for i, p := range params {
		list[i].Value = m.Graph.AddInput(p.Name, p.Type)
	}
	o.Sums, o.KeepGrads, o.Types = false, false, nil
	a, err := begin(m, gradients, list, o)
	if err != nil {
		return nil, err
	}
	a.scalars(list)
	for _, p := range list {
		a.update(p)
	}
	_, err = a.finish(list)
	return m, err
}
