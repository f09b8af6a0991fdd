package report

import "encoding/json"

// Plan is the document of `plan --json`.
type Plan struct {
	Strategy string `json:"strategy"`
	// Outputs says how next values leave the step: "bound" or "returned"; absent where
	// the graph has none.
	Outputs            string   `json:"outputs,omitempty"`
	Boundaries         []string `json:"boundaries"`
	Kept               []string `json:"kept"`
	RecomputedNodes    int      `json:"recomputed_nodes"`
	FLOPs              int64    `json:"flops"`
	RecomputeFLOPs     int64    `json:"recompute_flops"`
	Overhead           Float    `json:"overhead"` // share of the plain step's FLOPs
	PeakBytesBefore    int64    `json:"peak_bytes_before"`
	PeakBytesScheduled *int64   `json:"peak_bytes_scheduled"` // the given file, only reordered
	PeakBytesAfter     int64    `json:"peak_bytes_after"`
	Saving             Float    `json:"saving"` // 1 - after/before
	TheorySaving       *Float   `json:"theory_saving"`
	LowerBoundBytes    *int64   `json:"lower_bound_bytes"`
	// SolverSeconds is the solver's time, PlanSeconds that of planning with
	// every file that was written and predicted on the way.
	SolverSeconds float64 `json:"solver_seconds"`
	PlanSeconds   float64 `json:"plan_seconds"`
	BudgetBytes   *int64  `json:"budget_bytes"`
	// OverheadLimit is the bound on Overhead, nil for none.
	OverheadLimit *Float `json:"overhead_limit,omitempty"`
	Feasible      bool   `json:"feasible"`
	// LayerBudgets say what the layers keep that have a budget of their own.
	LayerBudgets []LayerBudget `json:"layer_budgets,omitempty"`
	// Loss says how the loss is sliced, nil where it is whole.
	Loss *LossSlices `json:"loss_slices,omitempty"`
	// TimeLimited: a time limit ended the search for better plans.
	TimeLimited bool `json:"time_limited,omitempty"`
	// Total is what a step takes in total; nil where it cannot be predicted.
	Total *Total `json:"total"`

	// Layers is the plan drawn over the model, in the order of the forward.
	Layers []PlanLayer `json:"layers"`
	// Pareto holds other plans for the same graph.
	Pareto []ParetoPoint `json:"pareto"`
	// Notes says what was requested, applied and skipped, and why.
	Notes []Note `json:"notes"`
}

// A LayerBudget bounds what the layers that match a pattern keep for the backward pass: the
// forward values Kept, of KeptBytes. PlainBytes is what they keep where nothing is computed
// again.
type LayerBudget struct {
	Layers      string   `json:"layers"`
	BudgetBytes int64    `json:"budget_bytes"`
	KeptBytes   int64    `json:"kept_bytes"`
	PlainBytes  int64    `json:"plain_bytes"`
	Kept        []string `json:"kept"`
}

// A LayerUse is what the layers of a budget were measured to keep, beside the plan's bytes.
type LayerUse struct {
	Layers       Text  `json:"layers"`
	BudgetBytes  int64 `json:"budget_bytes"`
	PlannedBytes int64 `json:"planned_bytes"`
	KeptBytes    int64 `json:"kept_bytes"`
}

// LossSlices are the slices over which the loss is computed, and what one of them holds at
// most: logits, their softmax, their gradient.
type LossSlices struct {
	Slices         int   `json:"slices"`
	WorkspaceBytes int64 `json:"workspace_bytes"`
}

// Total is what has to be there for a step: TotalBytes is the sum of the six
// before it. ReservedBytes is the allocator's part of them: the live peak, what is unused
// of the slab, and what of the session lies in the allocator. ArenaReservedBytes is that
// where ONNX Runtime's arena takes the slab's place.
type Total struct {
	ParameterBytes int64  `json:"parameter_bytes"`
	StateBytes     int64  `json:"state_bytes"`
	FeedBytes      int64  `json:"feed_bytes"`
	SessionBytes   int64  `json:"session_bytes"`
	LivePeakBytes  int64  `json:"live_peak_bytes"`
	UnusedBytes    int64  `json:"unused_bytes"` // reserved beyond what is live
	TotalBytes     int64  `json:"total_bytes"`
	ReservedBytes  int64  `json:"reserved_bytes"`
	BudgetBytes    *int64 `json:"budget_bytes"`

	ArenaReservedBytes int64 `json:"arena_reserved_bytes"`
}

// PlanLayer is what the plan does in one layer: bytes of forward values that
// the backward needs, kept or made again.
type PlanLayer struct {
	Layer           string `json:"layer"`
	Value           string `json:"value"`    // that it ends in
	Boundary        bool   `json:"boundary"` // its output is a boundary
	KeptValues      int    `json:"kept_values"`
	KeptBytes       int64  `json:"kept_bytes"`
	RecomputedNodes int    `json:"recomputed_nodes"`
	RecomputedBytes int64  `json:"recomputed_bytes"`
}

// ParetoPoint is one plan among others: peak against overhead.
type ParetoPoint struct {
	Strategy  string `json:"strategy"`
	PeakBytes int64  `json:"peak_bytes"`
	Overhead  Float  `json:"overhead"`
	// Dominated: another point has no more of either, and less of one.
	Dominated bool `json:"dominated"`
	// Chosen: the point is the plan itself.
	Chosen bool `json:"chosen"`
}

// Note says what became of one request.
type Note struct {
	What      string `json:"what"`
	Requested int    `json:"requested"`
	Applied   int    `json:"applied"`
	Reason    Text   `json:"reason"` // why the rest was skipped
}

// MarkDominated sets Dominated on every point.
func MarkDominated(points []ParetoPoint) {
	for i := range points {
		p := &points[i]
		p.Dominated = false
		for _, q := range points {
			if q.PeakBytes <= p.PeakBytes && q.Overhead <= p.Overhead &&
				(q.PeakBytes < p.PeakBytes || q.Overhead < p.Overhead) {
				p.Dominated = true
			}
		}
	}
}

// MarshalJSON writes empty lists as [].
func (p Plan) MarshalJSON() ([]byte, error) {
	type plain Plan
	c := plain(p)
	c.Boundaries, c.Kept = list(c.Boundaries), list(c.Kept)
	c.Layers, c.Pareto, c.Notes = list(c.Layers), list(c.Pareto), list(c.Notes)
	return json.Marshal(c)
}
