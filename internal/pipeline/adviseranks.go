package pipeline

// What ranks take that train a model together, by prediction: the memory of each, to the
// byte, and what it sends. No machine is asked.

import (
	"context"
	"fmt"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/stage"
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
	// Micro is how many micro-batches a step of a pipeline has, 0 for other ways.
	Micro int64
}

// microBatches is how many micro-batches a step has for each stage, in what is advised.
const microBatches = 4

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
		case (way.sums() || way.Stages) && training:
			a.Remark = "the graph updates within a run"
		case way.Stages && o.Pipeline.Precision.Scales():
			a.Remark = "no stage has all gradients, to find an overflow of float16"
		case way.Stages:
			a.Micro = microBatches * int64(way.Size)
			o.Ranks = Ranks{Size: 1}
			if a.Fitted, err = f.stages(o, way.Size, a.Micro); err != nil {
				a.Remark, err = err.Error(), nil
			}
		default:
			o.Ranks = way
			if a.Fitted, err = f.nearest(o); err != nil {
				return nil, err
			}
		}
		a.Fits = a.Fitted != nil && (o.Memory == 0 || a.Bytes <= o.Memory)
		list = append(list, a)
	}
	return list, ctx.Err()
}

// stages is what the stage of a pipeline takes and sends that takes most, with 1F1B.
func (r *Fitter) stages(o FitOptions, size int, micro int64) (*Fitted, error) {
	f := &fitting{Fitter: r, o: o}
	if err := f.look(); err != nil {
		return nil, err
	}
	of := split{f.axis.size(o.Pipeline.Dims), micro}
	norm := o.Norm != NormNever
	a := &stepGraph{made: of, dims: f.axis.with(o.Pipeline.Dims, of.micro), norm: norm}
	var err error
	if a.source, a.derived, err = f.stepSource(of, o.Derive, norm); err != nil {
		return nil, err
	}
	defer f.adopt(a.source)
	given, err := a.source.Sized(a.dims)
	if err != nil {
		return nil, err
	}
	if err := f.makeUpdates(a); err != nil {
		return nil, err
	}
	so := SplitOptions{Pipeline: o.Pipeline, Options: stage.Options{Stages: size, Balance: stage.Memory}, Micro: micro}
	so.Pipeline.Dims = a.dims
	cut, err := a.source.SplitStages(so)
	if err != nil {
		return nil, err
	}
	doc, err := describeStages(f.engine, a.source, cut, so)
	if err != nil {
		return nil, err
	}
	most := &Fitted{}
	for i, s := range doc.Stages {
		all, sends, err := f.stage(a, given, cut, &s, i)
		if err != nil {
			return nil, err
		}
		most.Bytes = max(most.Bytes, all)
		most.Sync = max(most.Sync, sends+micro*s.SentBytes)
	}
	return most, nil
}

// stage is what a stage takes with its part of the updates, and sends beside its flows.
func (f *fitting) stage(a *stepGraph, given *onnx.Model, cut *stage.Split, s *Stage, rank int) (all, sends int64, err error) {
	own, err := ShardOf(given, a.updates, cut.Owner, rank, cut.Stages)
	if err != nil {
		return 0, 0, err
	}
	peak := s.Peaks[ranks.OneForward].TotalBytes
	if peak == nil || s.Forward == nil || s.Backward == nil {
		return 0, 0, fmt.Errorf("stage %d cannot be predicted", rank)
	}
	u, err := f.updatingPart(given, own)
	if err != nil {
		return 0, 0, err
	}
	running := max(*s.Forward.LivePeakBytes+*s.Forward.UnusedBytes, *s.Backward.LivePeakBytes+*s.Backward.UnusedBytes)
	sends = ranks.ShareBytes(ranks.WordBytes, cut.Stages) + own.SquareBytes(rank, cut.Stages)
	for name, readers := range cut.Readers {
		if owner, ok := cut.Owner[name]; ok && owner == rank {
			bytes := given.Graph.Value(name).Type.KnownBytes()
			for _, r := range readers {
				if r != rank {
					sends += bytes
				}
			}
		}
	}
	return *peak + u.state + u.session + own.Held(rank) + max(0, u.between-running), sends, nil
}
