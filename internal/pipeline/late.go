package pipeline

// Updates behind what is computed again.
//
// An update in place writes over a parameter, so whoever reads the parameter runs
// first (rewrite/optim's Guard leads the update behind each reader, by data). That a
// layer is computed again adds readers, and a schedule may have one run after the
// update, where it may even be made to wait for the updated value; then nothing can
// lead the update behind it. So in a schedule each update comes after the last
// execution of each reader, and what reads the updated value after that:
//
//	… update, again(P), …   ─▶   … again(P), update, …

import (
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/planner"
)

// fewEdges is the share of a step's nodes that may run early in a schedule whose updates
// come late: a control edge takes four nodes of next to no time, and legalizing takes a
// hundred simulations of the step.
const fewEdges = 0.01

// updatesBehind returns the plan with each update behind every execution of what
// reads the value that it writes over, and what it costs; the plan itself where it is so
// already, or where a reader needs the updated value.
//
// What an update alone asks for stays where it was, and takes a control edge each to run
// there. Where those are many the schedule is legalized again, with the updates where they
// are now; it may hold less then, too.
func (v *Variant) updatesBehind(plan *planner.Plan) (*planner.Plan, planner.Verdict, error) {
	late, overtaken := plan, v.overtaken(plan)
	if len(overtaken) > 0 {
		if late = v.putOff(plan, overtaken); late == nil {
			late, overtaken = plan, nil
		}
	}
	is, err := planner.Judge(v.Problem(), late)
	if err != nil || len(overtaken) == 0 || float64(is.EarlyNodes) <= fewEdges*float64(len(late.Schedule)) {
		return late, is, err
	}
	legal := planner.Legalize(v.Problem(), late, func(op int) bool { return overtaken[v.Analysis.Nodes[op]] > 0 })
	if again := v.overtaken(legal); len(again) > 0 {
		legal = v.putOff(legal, again)
	}
	if legal != nil {
		next, err := planner.Judge(v.Problem(), legal)
		if err == nil && (next.Peak < is.Peak || next.Peak == is.Peak && next.EarlyNodes < is.EarlyNodes) {
			return legal, next, nil
		}
	}
	return late, is, nil
}

// putOff returns the plan with updates after the places given, nil where that is none.
func (v *Variant) putOff(plan *planner.Plan, until map[*onnx.Node]int) *planner.Plan {
	next := *plan
	next.Schedule = v.delayed(plan.Schedule, until)
	first := map[*onnx.Node]int{}
	for at, op := range slices.Backward(next.Schedule) {
		first[v.Analysis.Nodes[op]] = at
	}
	next.ControlEdges = slices.DeleteFunc(slices.Clone(plan.ControlEdges), func(a planner.ControlEdge) bool { // what waited for an update
		return first[v.Analysis.Nodes[a.Op]] < first[v.Analysis.Values[a.After].Producer]
	})
	if next.Check(v.Problem()) != nil {
		return nil
	}
	return &next
}

// overtaken lists the updates that a schedule runs before a reader of what they write
// over, with the place of the last such reader.
func (v *Variant) overtaken(plan *planner.Plan) map[*onnx.Node]int {
	place := map[*onnx.Node]int{} // of the last execution
	for at, op := range plan.Schedule {
		place[v.Analysis.Nodes[op]] = at
	}
	until := map[*onnx.Node]int{}
	for old, next := range nextValues(v.Model.Graph, v.Analysis.Roles) {
		update := next.Producer
		if last := lastReader(old, update, place); last > place[update] {
			until[update] = max(until[update], last)
		}
	}
	return until
}

// lastReader is the last place at which something other than the update reads x's
// memory, or may come to read it, -1 for nowhere.
func lastReader(x *onnx.Value, update *onnx.Node, place map[*onnx.Node]int) int {
	last := -1
	for _, n := range step.ReadersOf(x, update, traits.PutsOff) {
		if n != update {
			last = max(last, place[n])
		}
	}
	return last
}

// delayed returns the schedule with each node of until after the place that until
// says, and after it what reads that node's outputs.
func (v *Variant) delayed(schedule []int, until map[*onnx.Node]int) []int {
	out := make([]int, 0, len(schedule))
	waits := map[*onnx.Node]int{}
	var waiting []int
	for at, op := range schedule {
		n := v.Analysis.Nodes[op]
		place := until[n]
		for _, x := range slices.Concat(n.Inputs, n.Captures) {
			if x != nil && x.Producer != nil {
				place = max(place, waits[x.Producer])
			}
		}
		if place > at {
			waits[n] = place
			waiting = append(waiting, op)
			continue
		}
		out = append(out, op)
		waiting = slices.DeleteFunc(waiting, func(op int) bool {
			n := v.Analysis.Nodes[op]
			if waits[n] > at {
				return false
			}
			delete(waits, n)
			out = append(out, op)
			return true
		})
	}
	return append(out, waiting...)
}
