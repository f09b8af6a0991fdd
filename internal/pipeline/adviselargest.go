package pipeline

// The largest batch of a run that fits.

import (
	"math"
)

// mostBatch bounds the search for the largest batch.
const mostBatch = 1 << 20

// largest finds the largest batch of a run.
func (v *adviser) largest() error {
	if v.training || v.axis.name == "" || v.beyond() && v.advice.Recommended == nil {
		return nil
	}
	o := v.o.FitOptions
	if t := v.advice.Recommended; t != nil {
		o.Derive, o.Pipeline.Precision = t.Options.Derive, t.Options.Pipeline.Precision
	}
	batch := v.axis.size(o.Pipeline.Dims)
	o.Pipeline.Chunk = auto
	o.Whole, o.Derive.Update.Accumulate = true, v.o.Derive.Update.Accumulate
	total := func(n int64) (int64, error) {
		if err := v.ctx.Err(); err != nil {
			return 0, err
		}
		at := o
		at.Pipeline.Dims = v.axis.with(o.Pipeline.Dims, n)
		t, err := v.written(at, "full")
		clear(v.shown)
		if t == nil && err == nil {
			at.Pipeline.Chunk = Division{}
			t, err = v.written(at, "full")
		}
		if err != nil {
			return math.MaxInt64, nil // a size that the model cannot have
		}
		return t.Bytes, nil
	}
	first, err := total(batch)
	if err != nil {
		return err
	}
	// A batch of none takes what no batch changes: from there a line leads to the limit.
	known := map[int64]int64{0: v.base.Total.Parameters + v.base.Total.State, batch: first}
	if t := v.advice.Recommended; t != nil && t.Accumulate <= 1 && t.Fits && first > v.o.Memory {
		known[batch] = t.Bytes
	}
	lo, _, _, err := LargestWithin(known, v.o.Memory, mostBatch, total)
	v.advice.Largest = &lo
	return err
}
