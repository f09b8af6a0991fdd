package pipeline

// What ranks take that train a model together, by prediction: the memory of each, to the
// byte, and what it sends. No machine is asked.

import (
	"context"

	"github.com/onnx-remat/remat/runtime"
)

// RanksAdvice is what one rank of some takes.
type RanksAdvice struct {
	Ranks
	// Fitted is what fits with least work, or else what comes closest; nil where Remark
	// says why such ranks cannot train this.
	*Fitted
	Fits   bool
	Remark string
}

// AdviseRanks says what each rank takes, for several ways to agree. Nothing is written.
func AdviseRanks(ctx context.Context, e *runtime.Engine, source *Source, o FitOptions, ways []Ranks) ([]RanksAdvice, error) {
	o.Out, o.Quick = "", true
	f := NewFitter(ctx, e, source)
	training, err := source.Training(o.Pipeline.Dims, o.Pipeline.Roles)
	if err != nil {
		return nil, err
	}
	var list []RanksAdvice
	for _, way := range ways {
		a := RanksAdvice{Ranks: way}
		switch {
		case way.sums() && training:
			a.Remark = "the graph updates within a run"
		case way.sums() && o.Pipeline.Precision != nil:
			a.Remark = "ranks sum float32 gradients"
		default:
			o.Ranks = way
			if a.Fitted, err = f.nearest(o); err != nil {
				return nil, err
			}
			a.Fits = o.Memory == 0 || a.Bytes <= o.Memory
		}
		list = append(list, a)
	}
	return list, ctx.Err()
}
