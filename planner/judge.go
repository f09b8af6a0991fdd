package planner

// The judge: what a plan costs, whoever proposed it. It spells the plan out
// with its barriers and counts the buffers of the plan's own order, which is
// the one that the written file runs, with control edges where it takes some.

// A Verdict is what a plan costs.
type Verdict struct {
	// Peak is the largest number of bytes that the step holds at a moment, in
	// the plan's order, buffers shared as ONNX Runtime shares them.
	Peak int64
	// FLOPs is the work of the step, RecomputeFLOPs what of it is repeated,
	// and Overhead their share of the plain step's work.
	FLOPs, RecomputeFLOPs int64
	Overhead              float64
	// Recomputed counts repeated executions.
	Recomputed int
	// EarlyNodes counts the stretches that ONNX Runtime would run later; the file
	// brings each in by a control edge.
	EarlyNodes int
}

// Judge returns what a plan costs.
func Judge(p *Problem, pl *Plan) (Verdict, error) {
	s, err := p.count(pl)
	if err != nil {
		return Verdict{}, err
	}
	v := Verdict{Peak: s.peak, EarlyNodes: len(s.early), RecomputeFLOPs: pl.RecomputeFLOPs(p)}
	v.FLOPs = p.FLOPs() + v.RecomputeFLOPs
	v.Overhead = overhead(p, v.RecomputeFLOPs)
	v.Recomputed = len(pl.Schedule) - len(p.Ops)
	return v, nil
}

// Overhead is the share of the plain step's work that is done on top of it.
func (pl *Plan) Overhead(p *Problem) float64 { return overhead(p, pl.RecomputeFLOPs(p)) }

func overhead(p *Problem, again int64) float64 {
	if plain := p.FLOPs(); plain > 0 {
		return float64(again) / float64(plain)
	}
	return 0
}
