package train

// What ends a training that has gone wrong: a loss that is no number, parameters that
// are none, gradients that overflow for ever. The error says what is the likeliest
// cause, by what was seen, and what to try.

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/onnx-remat/remat/runtime"
)

// A NotFiniteError says that training cannot go on from a step.
type NotFiniteError struct {
	Step int64
	// What is no number: "the loss is NaN".
	What string
	// Cause is the likeliest one, Try what to change, in one line each.
	Cause, Try string
	// State is the last good state, "" where none was saved, and StateStep its step.
	State     string
	StateStep int64
}

func (e *NotFiniteError) Error() string {
	text := fmt.Sprintf("step %d: %s; %s: %s", e.Step, e.What, e.Cause, e.Try)
	if e.State != "" {
		return text + fmt.Sprintf("; the last good state is %s (step %d)", e.State, e.StateStep)
	}
	return text + "; no good state was saved"
}

// Traits are what a graph's numbers depend on, for saying what went wrong.
type Traits struct {
	Half    string // "float16" or "bfloat16" where the graph computes in it, else ""
	Clipped bool   // gradients are clipped
}

// trend keeps the last losses, to tell a loss that climbed from one that jumped.
type trend struct {
	losses [8]float64
	count  int
	least  float64
}

func (h *trend) add(loss float64) {
	if h.count == 0 || loss < h.least {
		h.least = loss
	}
	h.losses[h.count%len(h.losses)] = loss
	h.count++
}

// climbed says that the last loss stands far above the least one.
func (h *trend) climbed() (from, to float64, ok bool) {
	if h.count == 0 {
		return 0, 0, false
	}
	to = h.losses[(h.count-1)%len(h.losses)]
	return h.least, to, to > 1.5*math.Abs(h.least)+1
}

// notFinite is the error of a loss that is no number. The parameters that it was
// computed with are those of the step before: a state of them is no good one, unless
// the loss is the mean of no label at all, or the batch holds the NaN.
func (t *training) notFinite(rec Record) error {
	unlabelled := t.none && math.IsNaN(rec.Loss)
	unread := math.IsNaN(rec.Loss) && t.unread != ""
	if t.Folder != nil && !unlabelled && !unread {
		path, step, err := t.Folder.Reject(t.at.Step)
		if err != nil {
			return err
		}
		t.result.State, t.result.StateStep = path, step
	}
	e := t.stopped(rec.Step, "the loss is "+number(rec.Loss), rec.LR)
	switch {
	case unread:
		e.Cause = fmt.Sprintf("input %q of its batch holds a NaN", t.unread)
		e.Try = "mend those samples, or leave them out"
	case unlabelled:
		e.Cause = "all labels of a micro-batch are ignored, so its loss is a mean over nothing"
		e.Try = "leave samples without labels out, or have more in a batch (--batch)"
	}
	return e
}

func (t *training) badState(bad *NotFiniteStateError) error {
	return t.stopped(t.at.Step, fmt.Sprintf("after the update %s", bad.Error()), t.Schedule.Rate(t.at.Step))
}

// stopped says what a value that is no number is likely to come from.
func (t *training) stopped(step int64, what string, lr float64) *NotFiniteError {
	e := &NotFiniteError{Step: step, What: what, State: t.result.State, StateStep: t.result.StateStep}
	from, to, climbed := t.history.climbed()
	clip := ""
	if !t.Traits.Clipped {
		clip = ", or train anew with clipped gradients (--clip-norm 1)"
	}
	switch {
	case step == 1 && t.Traits.Half == "float16":
		e.Cause = "a value of the forward pass is beyond float16 (65504), which no loss scale helps"
		e.Try = "use --precision bf16, or keep what overflows in float32 (--keep-fp32)"
	case step == 1:
		e.Cause = "it is so before any update, so the weights or the data hold it"
		e.Try = "look at the feeds and the weights with remat eval"
	case climbed:
		e.Cause = fmt.Sprintf("the loss rose from %.4g to %.4g before, so the updates are too large", from, to)
		e.Try = fmt.Sprintf("lower --lr (%.3g), warm up (--warmup)%s", lr, clip)
	case t.Traits.Half == "float16" && t.at.LossScale == 0:
		e.Cause = "the graph computes in float16 without a loss scale"
		e.Try = "use --precision bf16, or a graph with loss scaling"
	case t.Traits.Half == "float16":
		e.Cause = "a value of the forward pass is beyond float16 (65504), which no loss scale helps"
		e.Try = fmt.Sprintf("use --precision bf16, or keep what overflows in float32 (--keep-fp32), or lower --lr (%.3g)%s", lr, clip)
	default:
		e.Cause = "the last update was too large, or a batch holds what the model cannot read"
		e.Try = fmt.Sprintf("lower --lr (%.3g), warm up (--warmup)%s", lr, clip)
	}
	return e
}

// hopeless is how many steps in a row may overflow at the least scale.
const hopeless = 20

// overflows stops a training all of whose steps overflow, though the loss scale is as
// small as it gets.
func (t *training) overflows(rec Record) error {
	s := t.Session.Scaler()
	if !rec.Skipped || s == nil {
		t.lost = 0
		return nil
	}
	if s.Scale > s.Min {
		return nil
	}
	if t.lost++; t.lost < hopeless {
		return nil
	}
	e := t.stopped(rec.Step, fmt.Sprintf("the gradients overflow at a loss scale of %.3g, for %d steps", s.Scale, t.lost), rec.LR)
	e.Cause = "no scale is small enough for their size in float16"
	return e
}

// holdsNaN is an input that holds a NaN in a batch, the first by name; "" if none does.
func holdsNaN(batch map[string]runtime.Tensor) string {
	for _, name := range slices.Sorted(maps.Keys(batch)) {
		if v := batch[name]; v.Type.IsFloat() {
			if numbers, err := v.Float64s(); err == nil && slices.ContainsFunc(numbers, math.IsNaN) {
				return name
			}
		}
	}
	return ""
}

// number writes what is no number in words.
func number(x float64) string {
	if math.IsNaN(x) {
		return "NaN"
	}
	return "infinite"
}
