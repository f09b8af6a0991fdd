package planner

import "github.com/onnx-remat/remat/ortmodel"

// A Summary is what the command plan prints, as JSON. Sizes are in bytes,
// overhead and savings are shares.
type Summary struct {
	Strategy           string   `json:"strategy"`
	Boundaries         []string `json:"boundaries"`
	Kept               []string `json:"kept"`
	KeptBytes          int64    `json:"kept_bytes"`
	RecomputedNodes    int      `json:"recomputed_nodes"`
	FLOPs              int64    `json:"flops"`
	RecomputeFLOPs     int64    `json:"recompute_flops"`
	Overhead           float64  `json:"overhead"`
	PeakBytesBefore    int64    `json:"peak_bytes_before"`
	PeakBytesScheduled int64    `json:"peak_bytes_scheduled"`
	PeakBytesAfter     int64    `json:"peak_bytes_after"`
	Saving             float64  `json:"saving"`
	TheorySaving       *float64 `json:"theory_saving"`
	LowerBoundBytes    int64    `json:"lower_bound_bytes"`
	Layers             int      `json:"layers"`
	SolverSeconds      float64  `json:"solver_seconds"`
	BudgetBytes        *int64   `json:"budget_bytes"`
	Feasible           bool     `json:"feasible"`
	Notes              []string `json:"notes"`
}

// Summarize judges a plan and sets it beside the plain step. SolverSeconds
// and, where the caller knows better (from the written file), the peaks are
// for the caller to fill in.
func Summarize(p *Problem, pl *Plan, budget int64) (*Summary, error) {
	v, err := Judge(p, pl)
	if err != nil {
		return nil, err
	}
	plain, err := solveNone(p, Options{})
	if err != nil {
		return nil, err
	}
	scheduled, err := Judge(p, plain)
	if err != nil {
		return nil, err
	}
	ix := p.indexed()
	s := &Summary{
		Strategy: pl.Strategy, Boundaries: p.valueNames(pl.Boundaries), Kept: p.valueNames(pl.Kept(p)),
		RecomputedNodes: v.Recomputed, FLOPs: v.FLOPs, RecomputeFLOPs: v.RecomputeFLOPs, Overhead: v.Overhead,
		PeakBytesBefore: PeakAsGiven(p), PeakBytesScheduled: scheduled.Peak, PeakBytesAfter: v.Peak,
		LowerBoundBytes: LowerBound(p), Layers: p.LayerCount(), Feasible: budget <= 0 || v.Peak <= budget,
		Notes: append([]string{}, pl.Notes...),
	}
	if budget > 0 {
		s.BudgetBytes = &budget
	}
	if s.PeakBytesBefore > 0 {
		s.Saving = 1 - float64(s.PeakBytesAfter)/float64(s.PeakBytesBefore)
	}
	if s.Layers > 0 {
		theory := TheorySaving(s.Layers)
		s.TheorySaving = &theory
	}
	done := make(map[int]bool)
	for _, kept := range pl.Kept(p) {
		if r := ix.root[kept]; !done[r] && ix.producer[r] != ortmodel.None {
			done[r] = true
			s.KeptBytes += p.Graph.Values[r].Bytes
		}
	}
	return s, nil
}

// PeakAsGiven returns the peak of the graph as it stands in the file.
func PeakAsGiven(p *Problem) int64 {
	return ortmodel.NewSimulator(&p.Graph).Peak(ortmodel.Order(&p.Graph))
}
