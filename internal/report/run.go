package report

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
)

// Run is the document of `run --json`: one graph, executed. It is also a row
// of a comparison; a variant that did not get through has Error and what was
// measured up to then.
type Run struct {
	Model string `json:"model"`
	// Label is the name of the variant in tables and pictures; Model where
	// there is none.
	Label      Text   `json:"label"`
	Provider   string `json:"provider"`
	ORTVersion string `json:"ort_version"`
	Threads    int    `json:"threads"`
	OptLevel   int    `json:"opt_level"`
	// Outputs says how next values, and gradients with sums, left the steps: "bound", "rows" or
	// "returned"; absent where the graph has none.
	Outputs string `json:"outputs,omitempty"`
	// Rehearsed says that the step ran on ONNX Runtime's provider without a device:
	// sizes are the provider's, and no numbers were computed, so there are no
	// outputs, times or differences.
	Rehearsed bool `json:"rehearsed,omitempty"`
	// Precision says what half type the graph computes in, and how; "" for
	// none.
	Precision Text `json:"precision,omitempty"`
	// Stale is what the file's metadata predict though it was changed since; nil
	// where nothing is stale.
	Stale *StalePrediction `json:"stale_prediction,omitempty"`
	// Alone says that the graph found no memory beside the others, and ran after
	// them.
	Alone bool `json:"alone,omitempty"`
	// Remarks are what no figure says: a loss that is no number, a flag that changed
	// nothing.
	Remarks []Text `json:"remarks,omitempty"`
	// NoPrediction says why nothing was predicted, "" where something was.
	NoPrediction Text `json:"no_prediction,omitempty"`
	// Error says why the run ended early, out of memory for instance.
	Error  Text   `json:"error"`
	Memory Memory `json:"memory"`
	Steps  []Step `json:"steps"`
	// StepSeconds sums up Steps without the warm-up; Spread makes it.
	StepSeconds *Spread    `json:"step_seconds"`
	TopTime     []OpTime   `json:"top_time"`
	TopMemory   []OpMemory `json:"top_memory"`
	// Fragmentation is nil where the arena never grew beside free memory, and where the
	// step is not predicted.
	Fragmentation *Fragmentation `json:"fragmentation,omitempty"`
	// Monitor is nil unless the steps were watched.
	Monitor *Monitor `json:"monitor,omitempty"`
	// Profile is nil unless it was asked for by something.
	Profile *Profile `json:"profile,omitempty"`
	// NodeSeconds is the time of each node over all steps, nil without a profile.
	NodeSeconds map[string]float64 `json:"node_seconds,omitempty"`
	// LossOutput names the output in Steps that is the loss.
	LossOutput Text    `json:"loss_output"`
	Peak       *Peak   `json:"peak"`
	Phases     *Phases `json:"phases"`
	// LayerBudgets are those of the file's layers that have one, measured.
	LayerBudgets []LayerUse `json:"layer_budgets,omitempty"`
	// Load is nil where the stages were not measured, as beside other graphs.
	Load *Load `json:"load,omitempty"`
	// Device is what one step after the first costs beside memory; nil where
	// nothing counts it.
	Device *Device `json:"device,omitempty"`
	// Plan is what the graph was rewritten by.
	Plan     *Plan     `json:"plan"`
	Timeline *Timeline `json:"timeline,omitempty"`
}

// Memory holds the sizes of one run in bytes, as docs/cli.md defines them;
// nil is "does not apply" or "not measured".
type Memory struct {
	ParameterBytes int64  `json:"parameter_bytes"`
	StateBytes     int64  `json:"state_bytes"`
	FeedBytes      int64  `json:"feed_bytes"`
	OutputBytes    int64  `json:"output_bytes"`
	SessionBytes   *int64 `json:"session_bytes"`
	LivePeakBytes  *int64 `json:"live_peak_bytes"`
	TotalPeakBytes *int64 `json:"total_peak_bytes"`
	ArenaPeakBytes *int64 `json:"arena_peak_bytes"`
	// ReservedBytes is what the session's allocator takes from the system, its slab
	// included; ArenaReservedBytes what ONNX Runtime's own arena takes for the same step.
	ReservedBytes      *int64 `json:"reserved_bytes"`
	ArenaReservedBytes *int64 `json:"arena_reserved_bytes"`
	RSSPeakBytes       *int64 `json:"rss_peak_bytes"`
	// SlabBytes is the region of the process that steps ran in, and AstrayBytes what one
	// of them allocated that should have lain in it and did not; nil without one.
	SlabBytes              *int64 `json:"slab_bytes,omitempty"`
	AstrayBytes            *int64 `json:"astray_bytes,omitempty"`
	PredictedLivePeakBytes *int64 `json:"predicted_live_peak_bytes"`
	PredictedSessionBytes  *int64 `json:"predicted_session_bytes"`
	PredictedReservedBytes *int64 `json:"predicted_reserved_bytes"`
	// PredictedArenaReservedBytes is also what a written file says.
	PredictedArenaReservedBytes *int64 `json:"predicted_arena_reserved_bytes"`
}

// Step is one execution. Outputs holds the scalar outputs by name. Both are nil
// in a rehearsal.
type Step struct {
	Seconds *float64         `json:"seconds"`
	Outputs map[string]Float `json:"outputs"`
	// LossScale is the scale of the step's loss, nil where the graph has none; Skipped
	// says that a gradient was not finite and the update left out.
	LossScale *Float `json:"loss_scale,omitempty"`
	Skipped   bool   `json:"skipped,omitempty"`
	// Memory is nil unless the steps were watched.
	Memory *StepMemory `json:"memory,omitempty"`
}

// Device counts what one step asks of a device: copies between it and the host,
// times that the host waits for it, nodes that run on the host on tensors that lie
// on the device, and kernels.
type Device struct {
	CopiesToHost     int64 `json:"copies_to_host"`
	BytesToHost      int64 `json:"bytes_to_host"`
	CopiesToDevice   int64 `json:"copies_to_device"`
	BytesToDevice    int64 `json:"bytes_to_device"`
	Synchronizations int64 `json:"synchronizations"`
	// FallbackNodes is nil where the nodes' placement was not seen.
	FallbackNodes *int64 `json:"fallback_nodes"`
	Kernels       int64  `json:"kernels"`
}

// OpTime is the time of one node in a step; Share is of the whole step.
type OpTime struct {
	Node    string  `json:"node"`
	Op      string  `json:"op"`
	Layer   Text    `json:"layer"`
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"`
}

// OpMemory is the size of what one node returns in a step; Share is of what all
// nodes return.
type OpMemory struct {
	Node  string  `json:"node"`
	Op    string  `json:"op"`
	Layer Text    `json:"layer"`
	Bytes int64   `json:"bytes"`
	Share float64 `json:"share"`
}

// Spread sums up a sample: median, quartiles and range, in seconds.
type Spread struct {
	Count    int     `json:"count"`
	Median   float64 `json:"median"`
	Quartile float64 `json:"lower_quartile"`
	Upper    float64 `json:"upper_quartile"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
}

// NewSpread sums up the samples; nil for none.
func NewSpread(samples []float64) *Spread {
	if len(samples) == 0 {
		return nil
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	return &Spread{
		Count:  len(s),
		Median: quantile(s, 0.5), Quartile: quantile(s, 0.25), Upper: quantile(s, 0.75),
		Low: s[0], High: s[len(s)-1],
	}
}

// quantile interpolates linearly between the sorted samples.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(math.Floor(at))
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// Name is what tables and pictures call the run.
func (r *Run) Name() string {
	if r.Label != "" {
		return string(r.Label)
	}
	return r.Model
}

// MedianSeconds is the median of a step's time; NaN where nothing was timed.
func (r *Run) MedianSeconds() float64 {
	if r.StepSeconds != nil {
		return r.StepSeconds.Median
	}
	var all []float64
	for _, s := range r.Steps {
		if s.Seconds != nil {
			all = append(all, *s.Seconds)
		}
	}
	if s := NewSpread(all); s != nil {
		return s.Median
	}
	return math.NaN()
}

// Losses is the loss of every step: the output LossOutput, else "loss", else
// the only scalar output. Nil where no step has one.
func (r *Run) Losses() []float64 {
	var losses []float64
	found := false
	for _, s := range r.Steps {
		x := math.NaN()
		if f, ok := stepLoss(s, string(r.LossOutput)); ok {
			x, found = float64(f), true
		}
		losses = append(losses, x)
	}
	if !found {
		return nil
	}
	return losses
}

func stepLoss(s Step, name string) (Float, bool) {
	name = cmp.Or(name, "loss")
	if f, ok := s.Outputs[name]; ok {
		return f, true
	}
	if len(s.Outputs) == 1 {
		for _, f := range s.Outputs {
			return f, true
		}
	}
	return 0, false
}

// SetTimeline keeps the timeline and fills Peak and Phases from it.
func (r *Run) SetTimeline(t *Timeline) {
	r.Timeline, r.Peak, r.Phases = t, t.Peak(), t.Phases()
}

// MarshalJSON writes empty lists as [].
func (r Run) MarshalJSON() ([]byte, error) {
	type plain Run
	p := plain(r)
	p.Steps, p.TopTime, p.TopMemory = list(p.Steps), list(p.TopTime), list(p.TopMemory)
	for i := range p.Steps {
		if p.Steps[i].Outputs == nil && !r.Rehearsed {
			p.Steps = slices.Clone(p.Steps)
			p.Steps[i].Outputs = map[string]Float{}
		}
	}
	return json.Marshal(plain(p))
}
