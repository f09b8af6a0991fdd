package main

// A rank as a stage of a pipeline: the training graph is cut in memory, the same on every
// rank, and each opens its own two graphs, and its part of the updates.

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/rewrite/stage"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/train"
)

// openStage opens the graphs of this rank's stage; the forward one is the job's.
func (t *trainRun) openStage(src *pipeline.Source, job *train.Job, o remat.Options) (*subject, func(), error) {
	so := pipeline.SplitOptions{Pipeline: t.e.pipelineOptions(), Options: stage.Options{Stages: t.ranks.Size, Balance: stage.Memory}}
	so.Pipeline.Dims = o.Dims
	var err error
	if t.split, err = src.SplitStages(so); err != nil {
		return nil, nil, err
	}
	flows, names, err := pipeline.Flows(t.split)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", src.Path, err)
	}
	rank, stages := t.group.Rank(), t.ranks.Size
	p := &train.Pipeline{Stage: rank, Stages: stages, Flows: flows, Names: names, Ticks: ranks.Schedule(t.ranks.schedule, stages, job.Accumulate, flows)}
	if p.Shared, err = t.sharedParameters(src); err != nil {
		return nil, nil, err
	}
	open := &opening{t: t}
	for _, group := range []int{rank, 2*stages - 1 - rank} {
		g := t.split.Groups[group]
		if g == nil {
			open.close()
			return nil, nil, fmt.Errorf("%s: stage %d of %d trains nothing: use fewer stages", src.Path, rank, stages)
		}
		own := o
		own.Purpose, own.Feed = pipeline.StageFileName(g.Stage, g.Backward), feedsOf(o.Feed, g.Model)
		if _, err := open.add(src.With(g.Model), own); err != nil {
			return nil, nil, err
		}
	}
	job.Session, p.Backward = open.list[0].session, open.list[1].session
	t.beside = append(t.beside, open.list[1])
	job.Ranks.Pipeline = p
	return open.list[0], open.close, nil
}

// sharedParameters lists what a stage reads and another one updates.
func (t *trainRun) sharedParameters(src *pipeline.Source) ([]train.SharedParameter, error) {
	var list []train.SharedParameter
	for _, v := range src.Model.Graph.Inputs {
		if !t.split.Shared(v.Name) {
			continue
		}
		bytes, known := v.Type.Bytes()
		if !known {
			return nil, fmt.Errorf("%s: %q is shared by stages and has no size that is known", src.Path, v.Name)
		}
		list = append(list, train.SharedParameter{Name: v.Name, Owner: t.split.Owner[v.Name], Readers: t.split.Readers[v.Name], Bytes: bytes})
	}
	return list, nil
}
