package planner

import "github.com/onnx-remat/remat/ortmodel"

// The judge: what a plan costs, whoever proposed it. It spells the plan out
// with its barriers, lets package ortmodel choose the file order, and counts
// the buffers of the order in which ONNX Runtime will really run that file.

// A Verdict is what a plan costs.
type Verdict struct {
	// Peak is the largest number of bytes that the step holds at a moment, in
	// the order that ONNX Runtime runs, buffers shared as it shares them.
	Peak int64
	// WantedPeak is the same had ONNX Runtime run the plan's own order.
	WantedPeak int64
	// FLOPs is the work of the step, RecomputeFLOPs what of it is repeated,
	// and Overhead their share of the plain step's work.
	FLOPs, RecomputeFLOPs int64
	Overhead              float64
	// Recomputed counts repeated executions.
	Recomputed int
	// Conflicts counts pairs of nodes whose order could not be had.
	Conflicts int
}

// Judge returns what a plan costs.
func Judge(p *Problem, pl *Plan) (Verdict, error) {
	prog, err := Expand(p, pl)
	if err != nil {
		return Verdict{}, err
	}
	var v Verdict
	g, _ := prog.Graph(p)
	wanted := make([]int, len(g.Nodes))
	for i := range wanted {
		wanted[i] = i
	}
	sim := ortmodel.NewSimulator(g)
	v.WantedPeak = sim.Peak(wanted)
	file, conflicts := ortmodel.FileOrder(g, wanted)
	v.Conflicts = conflicts
	real := ortmodel.Order(ortmodel.Permute(g, file))
	for i := range real {
		real[i] = file[real[i]]
	}
	v.Peak = sim.Peak(real)
	v.RecomputeFLOPs = pl.RecomputeFLOPs(p)
	v.FLOPs = p.FLOPs() + v.RecomputeFLOPs
	v.Overhead = overhead(p, v.RecomputeFLOPs)
	v.Recomputed = len(pl.Schedule) - len(p.Ops)
	return v, nil
}

func overhead(p *Problem, again int64) float64 {
	if plain := p.FLOPs(); plain > 0 {
		return float64(again) / float64(plain)
	}
	return 0
}
