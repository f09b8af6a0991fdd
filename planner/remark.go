package planner

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/ortmodel"
)

// What a plan by segments says where it lowers no peak: which bytes are in the
// way, and what it lowers all the same.

// remark adds a note to a plan whose peak is that of the plain order, or that
// computes nothing again.
func (ix *index) remark(plan *Plan) {
	base := ix.plain().order
	plain := newLiveSim(ix)
	before, leftBefore := plain.run(base), plain.leftBehind(base)
	sim := newLiveSim(ix)
	sim.eraseShapes = plan.EraseShapes
	after, left := sim.run(plan.Schedule), sim.leftBehind(plan.Schedule)
	returned := plain.returnedAtPeak()
	switch {
	case len(plan.Schedule) == len(base):
		plan.Notes = append(plan.Notes, fmt.Sprintf(
			"no recomputation: dropping a value between boundaries lowers neither the peak nor the %s that forward keeps for backward", units.Bytes(leftBefore)))
	case after < before:
		return
	default:
		kept := units.Distinct(leftBefore, left)
		plan.Notes = append(plan.Notes, fmt.Sprintf(
			"recomputation does not lower the peak of %s: %s; what forward keeps for backward changes from %s to %s",
			units.Bytes(before), atPeak(returned, before), kept[0], kept[1]))
		return
	}
	if 2*returned >= before {
		plan.Notes[len(plan.Notes)-1] += "; " + atPeak(returned, before)
	}
}

func atPeak(returned, peak int64) string {
	if 2*returned >= peak {
		return fmt.Sprintf("%s of it are outputs of the step, which updating in backward would free", units.Bytes(returned))
	}
	return "it is reached inside one segment, or in the last one, whose values are still live when its gradients start"
}

// returnedAtPeak is the size of the step's outputs at the peak of the schedule
// that was run last.
func (s *liveSim) returnedAtPeak() int64 {
	var sum int64
	for i := range s.insts {
		b := &s.insts[i]
		if b.birth < 0 || int(b.birth) > s.peakAt {
			continue
		}
		if val := &s.ix.p.Graph.Values[b.value]; val.Kind == ortmodel.Output {
			sum += val.Bytes
		}
	}
	return sum
}

// leftBehind returns the bytes that are live when forward has made the last
// value that backward reads, in the schedule that was run last.
func (s *liveSim) leftBehind(schedule []int) int64 {
	ix := s.ix
	end, ran := 0, make([]bool, len(ix.reads))
	for pos, op := range schedule {
		if !ran[op] && ix.p.Ops[op].Forward && slices.ContainsFunc(ix.outs[op], ix.readByBackward) {
			end = pos
		}
		ran[op] = true
	}
	var live int64
	for pos := range min(end+1, len(schedule)) {
		live += s.delta[pos] - s.freed[pos]
	}
	return live
}

// readByBackward reports a value that a backward operator reads.
func (ix *index) readByBackward(v int) bool {
	return slices.ContainsFunc(ix.readers[v], func(op int) bool { return !ix.p.Ops[op].Forward })
}
