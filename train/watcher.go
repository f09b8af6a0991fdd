package train

// What a run tells of itself while it goes on. The loop calls one Watcher, from
// one goroutine, in the order in which things happen:
//
//	Step 1, Step 2, …, Validated k, Step k … Saved k, …, Close
//
// A step that is validated or saved has been told before, and is told to the end
// before it is saved: what a watcher writes in Step has left the program when Step
// returns. So a log never lacks a step that a state has.

// A Record is one step: an update, or an attempt that overflowed.
type Record struct {
	Step int64 // counted from 1 over the whole training, resumed runs included
	// Loss is the mean of the step's micro-batches.
	Loss float64
	LR   float64 // the rate of this step
	// GradientNorm is the norm of all gradients before clipping; NaN where the graph
	// does not return it, and of a step that is skipped.
	GradientNorm float64
	// Tokens are those of this step, and AllTokens of the whole training so far.
	Tokens, AllTokens int64
	// Seconds is the wall time from the end of the step before (or of what was done
	// between them: a validation, a state) to the end of this one.
	Seconds float64
	// RunSeconds is the part of it in which ONNX Runtime ran.
	RunSeconds float64
	// LivePeakBytes is the largest live peak of the step's runs, ReservedBytes what
	// the session's allocator has from the system, RSSBytes the process's resident
	// size, all at the end of the step.
	LivePeakBytes, ReservedBytes, RSSBytes int64
	// LossScale is the scale of this step; 0 where the graph has none. Skipped: a
	// gradient overflowed, and nothing was updated.
	LossScale float64
	Skipped   bool
	// SentBytes are those that the rank sent to others in this step; 0 for one alone.
	SentBytes int64
}

// A Validation is the mean loss over the validation data.
type Validation struct {
	Step       int64 // after which step; 0: before the first
	Loss       float64
	Perplexity float64 // exp(Loss)
	Tokens     int64
	Batches    int64
	Seconds    float64
	// NotFinite says which batch first has a loss that is NaN or infinite, "" for none.
	NotFinite string
}

// A Watcher is told what happens. An error ends the run, after its state was saved.
type Watcher interface {
	Step(Record) error
	Validated(Validation) error
	// Saved is called when the state of a step is in its place.
	Saved(path string, step int64) error
	Close() error
}

// Watchers tells several, in order; the first error counts, but all are closed.
type Watchers []Watcher
