package report

import (
	"fmt"
	"io"

	"github.com/onnx-remat/remat/internal/units"
)

// Text writes the plan as a person reads it.
func (p *Plan) Text(w io.Writer) error {
	return writeTables(w, p.summaryTable(), p.totalTable(), p.layersTable(), p.paretoTable(), p.notesTable())
}

func (p *Plan) summaryTable() Table {
	t := Table{Title: "plan: " + textOr(p.Strategy), Columns: []string{"", ">"}}
	t.add("live peak as given", units.Bytes(p.PeakBytesBefore))
	if p.PeakBytesScheduled != nil {
		t.add("only reordered", units.Bytes(*p.PeakBytesScheduled))
	}
	t.add("planned", units.Bytes(p.PeakBytesAfter))
	t.add("saving", units.Percent(float64(p.Saving)))
	if p.TheorySaving != nil {
		t.add("1 − 1/√L, of activations", floatOr(p.TheorySaving, units.Percent))
	}
	if b := p.LowerBoundBytes; b != nil {
		t.add("lower bound", units.Bytes(*b))
		if *b > 0 {
			t.add("above the lower bound", units.Percent(float64(p.PeakBytesAfter)/float64(*b)-1))
		}
	}
	if p.BudgetBytes != nil {
		t.add("budget", units.Bytes(*p.BudgetBytes))
	}
	for _, b := range p.LayerBudgets {
		t.add("kept of "+b.Layers, fmt.Sprintf("%s, budget %s, plain %s", units.Bytes(b.KeptBytes), units.Bytes(b.BudgetBytes), units.Bytes(b.PlainBytes)))
	}
	t.add("feasible", yesNo(&p.Feasible))
	t.add("boundaries", itoa(len(p.Boundaries)))
	t.add("kept values", itoa(len(p.Kept)))
	t.add("recomputed nodes", itoa(p.RecomputedNodes))
	t.add("FLOPs of the step", units.Count(p.FLOPs))
	t.add("FLOPs recomputed", units.Count(p.RecomputeFLOPs))
	t.add("overhead", units.Signed(float64(p.Overhead)))
	t.add("solver time", units.Seconds(p.SolverSeconds))
	t.add("planning time", units.Seconds(p.PlanSeconds))
	return t
}

// totalTable says what a step takes beside its live peak.
func (p *Plan) totalTable() Table {
	t := Table{Title: "total of a step", Columns: []string{"", ">"}}
	if p.Total == nil {
		return t
	}
	for _, row := range []struct {
		what  string
		bytes int64
	}{
		{"parameters", p.Total.ParameterBytes}, {"optimizer state", p.Total.StateBytes}, {"feeds", p.Total.FeedBytes},
		{"session", p.Total.SessionBytes}, {"live peak", p.Total.LivePeakBytes}, {"reserved beyond it", p.Total.UnusedBytes},
		{"total", p.Total.TotalBytes}, {"in ONNX Runtime's arena", p.Total.TotalBytes + p.Total.ArenaReservedBytes - p.Total.ReservedBytes},
	} {
		t.add(row.what, units.Bytes(row.bytes))
	}
	if p.Total.BudgetBytes != nil {
		t.add("budget", units.Bytes(*p.Total.BudgetBytes))
	}
	return t
}

func (p *Plan) layersTable() Table {
	t := Table{Title: "by layer", Columns: []string{"layer", ">kept", ">values", ">recomputed", ">nodes", "boundary"}}
	for _, l := range p.Layers {
		boundary := none
		if l.Boundary {
			boundary = "yes"
		}
		t.add(textOr(l.Layer), units.Bytes(l.KeptBytes), itoa(l.KeptValues), units.Bytes(l.RecomputedBytes), itoa(l.RecomputedNodes), boundary)
	}
	return t.compact()
}

func (p *Plan) paretoTable() Table {
	t := Table{Title: "peak against overhead", Columns: []string{"strategy", ">live peak", ">saving", ">overhead", "dominated"}}
	for _, q := range p.Pareto {
		dominated := none
		if q.Dominated {
			dominated = "yes"
		}
		saving := none
		if p.PeakBytesBefore > 0 {
			saving = units.Percent(1 - float64(q.PeakBytes)/float64(p.PeakBytesBefore))
		}
		t.add(textOr(q.Strategy), units.Bytes(q.PeakBytes), saving, units.Signed(float64(q.Overhead)), dominated)
	}
	return t.compact()
}

// passWords are the passes in words, where their names are the program's own.
var passWords = map[string]string{
	"batch": "step in micro-batches", "chunk": "loss in slices", "tile": "wide products in parts", "rows": "large updates by rows",
	"edge": "nodes held in place by control dependencies", "schedule": "nodes in order", "recompute": "nodes recomputed",
}

func (p *Plan) notesTable() Table {
	t := Table{Title: "requested and applied", Columns: []string{"what", ">requested", ">applied", "~reason"}}
	for _, n := range p.Notes {
		if n == (Note{What: n.What}) { // a pass that found nothing to do
			continue
		}
		requested, applied := itoa(n.Requested), itoa(n.Applied)
		if n.Requested == 0 && n.Applied == 0 && n.Reason != "" { // a remark, no pass
			requested, applied = none, none
		}
		what := textOr(n.What)
		if words := passWords[n.What]; words != "" {
			what = words
		}
		t.add(what, requested, applied, textOr(string(n.Reason)))
	}
	return t.compact()
}
