// Package rewrite holds the passes that turn a training graph into one that
// fits: each takes a model and leaves a model, and says what it was asked to
// do, what it did, and what it skipped and why.
//
//	clean.go      sums of scattered zeros, equal constants, constants too large to hold
//	recompute.go  clones behind barriers (barrier.go), as a planner.Program says
//	packed.go     constants of which kernels would keep copies of their own
//	dropout.go    masks stay read, or ONNX Runtime removes their Dropout
//	schedule.go   the file order that makes ONNX Runtime run a wanted order
//	controledge.go and data dependencies where no file order does
//	guard.go      barriers against fusions that the rewriting made possible
//	control       control dependencies: adding, lowering, lifting; erased shapes
//	batch.go      a model for a part of its batch
//
// Nothing here decides what to recompute: package planner does. The order of
// the passes is the command's (internal/pipeline).
package rewrite

import "fmt"

// A Report says what a pass did. Every rewrite says all three: requested,
// applied, skipped with the reason.
type Report struct {
	Pass      string `json:"pass"`
	Requested int    `json:"requested"`
	Applied   int    `json:"applied"`
	Skipped   []Skip `json:"skipped,omitempty"`
}

// A Skip is one thing that was asked for and not done.
type Skip struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

func (r *Report) skip(what, format string, args ...any) {
	r.Skipped = append(r.Skipped, Skip{what, fmt.Sprintf(format, args...)})
}

// String is the report on one line.
func (r Report) String() string {
	s := fmt.Sprintf("%s: requested %d, applied %d", r.Pass, r.Requested, r.Applied)
	if len(r.Skipped) > 0 {
		n := r.Requested - r.Applied // one reason may be that of several, and a remark that of none
		if n <= 0 && r.Requested == 0 {
			n = len(r.Skipped)
		}
		if n > 0 {
			s += fmt.Sprintf(", skipped %d", n)
		}
		s += fmt.Sprintf(" (%s: %s)", r.Skipped[0].What, r.Skipped[0].Why)
	}
	return s
}
