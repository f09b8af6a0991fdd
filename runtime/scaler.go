package runtime

// The scale of the loss in float16 training, as PyTorch's GradScaler and Apex
// keep it (Micikevicius et al., Mixed Precision Training, 2018): a step whose
// gradients are not finite is skipped by the graph itself, which says so in
// found_inf; the scale falls, and after many good steps in a row it rises.

import (
	"cmp"

	"github.com/onnx-remat/remat/onnx"
)

// Names of the input and the output.
const (
	lossScaleInput = "loss_scale"
	foundInfOutput = "found_inf"
)

// A Scaling says how the scale of the loss changes. Zero fields have the
// defaults that stand beside them.
type Scaling struct {
	Backoff float64 // factor after an overflow: 0.5
	Growth  float64 // factor after Interval good steps: 2
	// Interval is how many good steps in a row make the scale grow: 2000;
	// negative: it never grows.
	Interval int
	// Max and Min bound the scale: 2^24 and 2^-24.
	Max, Min float64
}

// DefaultLossScale is the scale of the first step.
const DefaultLossScale = 65536

// A Scaler keeps the scale of the loss from step to step.
type Scaler struct {
	Scaling
	// Scale is that of the next step; Skipped counts the steps that
	// overflowed, Good those in a row that did not.
	Scale         float64
	Skipped, Good int
}

// NewScaler starts at a scale; 0 is DefaultLossScale.
func NewScaler(start float64, s Scaling) *Scaler {
	or := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	or(&start, DefaultLossScale)
	or(&s.Backoff, 0.5)
	or(&s.Growth, 2)
	or(&s.Max, 1<<24)
	or(&s.Min, 1.0/(1<<24))
	s.Interval = cmp.Or(s.Interval, 2000)
	return &Scaler{Scaling: s, Scale: start}
}

// Update notes how a step ended.
func (s *Scaler) Update(overflow bool) {
	if overflow {
		s.Skipped++
		s.Good = 0
		s.Scale = max(s.Scale*s.Backoff, s.Min)
		return
	}
	if s.Good++; s.Good == s.Interval {
		s.Good = 0
		s.Scale = min(s.Scale*s.Growth, s.Max)
	}
}

// newScaler is the session's scaler, nil where the graph has no loss scaling.
func newScaler(g *onnx.Graph, o *Options) *Scaler {
	in, out := g.Value(lossScaleInput), g.Value(foundInfOutput)
	if in == nil || !in.IsInput() || out == nil || !out.IsOutput() || out.Type.DType != onnx.Bool {
		return nil
	}
	return NewScaler(o.LossScale, o.Scaling)
}

// Scaler is what keeps the session's loss scale, nil where the graph has none.
func (s *Session) Scaler() *Scaler { return s.scaler }

// number is the number of the step for the optimizer: steps that were skipped
// do not count, so that bias correction and accumulation go on as if they had
// not been.
func (s *Session) number() int {
	if s.scaler == nil {
		return s.steps
	}
	return s.steps - s.scaler.Skipped
}

// rescale sets the scale of the next step by what this one found.
func (s *Session) rescale(step *Step) {
	if s.scaler == nil {
		return
	}
	step.LossScale = s.scaler.Scale
	if o, ok := step.Output(foundInfOutput); ok && len(o.Data) == 1 {
		step.Skipped = o.Data[0] != 0
		s.scaler.Update(step.Skipped)
		s.options.LossScale = s.scaler.Scale
	}
}
