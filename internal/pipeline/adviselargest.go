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
	taken := func(n int64) (*Taken, error) { // nil for a size that the model cannot have
		if err := v.ctx.Err(); err != nil {
			return nil, err
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
			return nil, v.ctx.Err()
		}
		return t, nil
	}
	total := func(n int64) (int64, error) {
		t, err := taken(n)
		if t == nil {
			return math.MaxInt64, err
		}
		return t.Bytes, nil
	}
	known := map[int64]int64{batch: math.MaxInt64}
	first, err := taken(batch)
	if err != nil {
		return err
	}
	if first != nil {
		// A batch of none takes what no batch changes: from there a line leads to the limit.
		known[0], known[batch] = first.Total.Parameters+first.Total.State, first.Bytes
	}
	if t := v.advice.Recommended; t != nil && t.Accumulate <= 1 && t.Fits && known[batch] > v.o.Memory {
		known[batch] = t.Bytes
	}
	lo, _, _, err := LargestWithin(known, v.o.Memory, mostBatch, total)
	v.advice.Largest = &lo
	return err
}
