package main

// What the layers keep that a file has budgets of, measured: of the buffers that hold what
// the plan keeps of them, the most bytes that were allocated at one time.

import (
	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/predict"
)

// A keptBuffers is a budget of layers with the values, by name, that own the buffers of
// what these keep.
type keptBuffers struct {
	report.LayerBudget
	owners map[string]bool
}

// keptBuffersOf reads the budgets of layers in a file's metadata, and finds the buffers in
// what is predicted of it.
func keptBuffersOf(m *onnx.Model, p *predict.Prediction) (list []keptBuffers) {
	for _, b := range pipeline.LayerBudgetsIn(m) {
		k := keptBuffers{b, map[string]bool{}}
		kept := map[string]bool{}
		for _, name := range b.Kept {
			kept[name] = true
		}
		for v, value := range p.Values {
			if value != nil && kept[value.Name] {
				k.owners[p.Values[p.Trace.Owner[v]].Name] = true
			}
		}
		list = append(list, k)
	}
	return list
}

// layerBudgets are the measured ones, nil where the step was not the predicted one.
func (s *subject) layerBudgets() (list []report.LayerUse) {
	if len(s.budgets) == 0 || len(s.trace) == 0 || s.run.Timeline == nil {
		return nil
	}
	events, agrees := named(s.trace, s.run.Timeline.Events)
	if !agrees {
		return nil
	}
	for _, b := range s.budgets {
		use := report.LayerUse{Layers: report.Text(b.Layers), BudgetBytes: b.BudgetBytes, PlannedBytes: b.KeptBytes}
		live := map[int]int64{}
		held := int64(0)
		for _, e := range events {
			switch {
			case e.Bytes > 0 && b.owners[e.Value]:
				live[e.Buffer] = e.Bytes
				held += e.Bytes
				use.KeptBytes = max(use.KeptBytes, held)
			case e.Bytes < 0:
				held -= live[e.Buffer]
				delete(live, e.Buffer)
			}
		}
		list = append(list, use)
	}
	return list
}
