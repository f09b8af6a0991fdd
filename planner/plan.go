package planner

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// A Plan is a schedule of the whole step, recomputation included.
type Plan struct {
	// Strategy is the name of the solver and its argument, as asked for.
	Strategy string
	// Boundaries are the kept values between which segments are computed
	// again, in forward order; empty where the strategy knows none.
	Boundaries []int
	// Schedule lists the executions of operators (indexes into Problem.Ops).
	// Every operator appears; every appearance after an operator's first is a
	// recomputation, and a reader takes the latest earlier instance.
	Schedule []int
	// ControlEdges make operators wait for a value that their inputs do not lead
	// to, where the schedule could not be had otherwise.
	ControlEdges []ControlEdge
	// EraseShapes erases static shapes from the first recomputation on,
	// so that it plans no reuse there: a dead buffer that waits for the next
	// layer's value of its shape counts as live, and all shapes of a layer
	// would wait at once. Every buffer is then released at its last reader.
	EraseShapes bool
	// Notes are remarks for people, one line each.
	Notes []string
}

// Check reports whether the plan is a schedule of p: every operator appears,
// nothing is read before it is computed, and only recomputable operators
// appear twice.
func (pl *Plan) Check(p *Problem) error {
	ix := p.indexed()
	count := make([]int, len(p.Ops))
	controlEdges := make(map[int][]int)
	for _, a := range pl.ControlEdges {
		if a.Op < 0 || a.Op >= len(p.Ops) || a.After < 0 || a.After >= len(p.Values) || ix.producer[a.After] == ortmodel.None || !ix.guardable(a.Op) {
			return fmt.Errorf("plan: control edge %v: no such operator or value", a)
		}
		controlEdges[a.Op] = append(controlEdges[a.Op], ix.producer[a.After])
	}
	for pos, op := range pl.Schedule {
		if op < 0 || op >= len(p.Ops) {
			return fmt.Errorf("plan: position %d: op %d out of range", pos, op)
		}
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j != ortmodel.None && count[j] == 0 {
				return fmt.Errorf("plan: position %d: %q runs before %q, which it reads", pos, p.Ops[op].Name, p.Ops[j].Name)
			}
		}
		for _, after := range controlEdges[op] {
			if count[op] == 0 && count[after] == 0 {
				return fmt.Errorf("plan: position %d: %q runs before %q, which it must wait for", pos, p.Ops[op].Name, p.Ops[after].Name)
			}
		}
		if count[op]++; count[op] == 2 && !ix.canRepeat(op) {
			return fmt.Errorf("plan: %q cannot be recomputed: %s", p.Ops[op].Name, p.why(op))
		}
	}
	for op, n := range count {
		if n == 0 {
			return fmt.Errorf("plan: %q never runs", p.Ops[op].Name)
		}
	}
	for _, v := range pl.Boundaries {
		if v < 0 || v >= len(p.Values) {
			return fmt.Errorf("plan: boundary %d out of range", v)
		}
	}
	return nil
}

// why says why op runs only once.
func (p *Problem) why(op int) string {
	if p.Ops[op].Reason == "" && !p.Ops[op].Forward {
		return "it belongs to backward"
	}
	return p.Ops[op].Reason
}

// Recomputed returns how often each operator is computed again.
func (pl *Plan) Recomputed(p *Problem) []int {
	again := slices.Repeat([]int{-1}, len(p.Ops))
	for _, op := range pl.Schedule {
		again[op]++
	}
	return again
}

// RecomputeFLOPs returns the work added to the plain step, by the plan and by
// the form of the graph that it is for.
func (pl *Plan) RecomputeFLOPs(p *Problem) int64 {
	var sum int64
	for _, op := range pl.Schedule {
		sum += p.Ops[op].FLOPs
	}
	return sum - p.FLOPs() + p.Reread
}

// Kept returns the forward values whose first instance some backward operator
// (or recomputation) reads: what the plan holds from forward to backward.
// Fed values and initializers are not listed.
func (pl *Plan) Kept(p *Problem) []int {
	ix := p.indexed()
	count := make([]int, len(p.Ops))
	kept := make(map[int]bool)
	for _, op := range pl.Schedule {
		count[op]++
		if p.Ops[op].Forward && count[op] == 1 {
			continue
		}
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j != ortmodel.None && p.Ops[j].Forward && count[j] == 1 {
				kept[v] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(kept))
}
