package main

// A rank whose gradients come in buckets: the graph that sums them is cut in memory, the
// same on every rank, and each bucket has a backward graph and a graph of updates.

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/stage"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/train"
)

// readBuckets reads --buckets.
func (r *rankPlan) readBuckets(c *cli.Context) error {
	if !c.IsSet("buckets") {
		return nil
	}
	r.buckets = c.Int("buckets")
	switch {
	case r.buckets < 2 || r.buckets > stage.MostStages:
		return fmt.Errorf("--buckets %d: want 2 to %d", r.buckets, stage.MostStages)
	case r.sync != train.SyncStep || r.schedule != "":
		return errors.New("--buckets: requires --sync step: with shard, local=H and --pipeline no rank updates from all gradients of a step")
	case c.IsSet("accumulate") && c.Int64("accumulate") > 1:
		return errors.New("--buckets: gradients are sent as they are computed, and with --accumulate only the last ones could be: leave one of the two out")
	case c.IsSet("memory"):
		return errors.New("--memory: not with --buckets, whose graphs are cut after planning: leave one of the two out; train --json says what a rank takes")
	case c.Bool("gradient-norm") || c.IsSet("clip-norm") && c.String("clip-by") != string(optim.ClipParameter):
		return errors.New("--buckets: updates begin before all gradients are there, so none can read the norm of all: leave --gradient-norm out, and clip by parameter (--clip-by parameter)")
	}
	return nil
}

// bucketed says that the rank's gradients come in buckets.
func (t *trainRun) bucketed() bool { return t.ranks != nil && t.ranks.buckets > 0 }

// openBuckets opens the graphs of a step in buckets, and those that update; the first one
// is the job's.
func (t *trainRun) openBuckets(src *pipeline.Source, job *train.Job, o remat.Options) (*subject, func(), error) {
	if job.Accumulate > 1 {
		return nil, nil, fmt.Errorf("%s: a rank runs it %d times a step, and --buckets sends gradients after each: leave that out", src.Path, job.Accumulate)
	}
	updates, err := t.e.load(t.updatePath())
	if err != nil {
		return nil, nil, err
	}
	cut := t.e.pipelineOptions()
	cut.Dims = o.Dims
	made, err := src.BucketsOf(updates.Model, t.ranks.buckets, cut)
	if err != nil {
		return nil, nil, fmt.Errorf("--buckets %d cuts the graph into stages: %w", t.ranks.buckets, err)
	}
	t.slab = made.Bytes
	b := &train.Buckets{Slab: make([]byte, made.Bytes), Sums: made.Sums, Values: ownedValues(made.Values)}
	rooms := map[string]remat.Tensor{}
	for name, r := range made.Rooms {
		bytes, _ := r.Bytes()
		dims, _ := r.Shape.Ints()
		rooms[name] = remat.Tensor{Type: r.DType, Shape: dims, Data: b.Slab[r.Offset : r.Offset+bytes]}
	}
	open := &opening{t: t}
	for _, g := range made.Graphs {
		own := o
		own.Purpose, own.Rooms, own.Feed = g.Name, rooms, feedsOf(o.Feed, g.Model)
		s, err := open.add(src.With(g.Model), own)
		if err != nil {
			return nil, nil, err
		}
		b.Graphs = append(b.Graphs, train.BucketSession{Session: s, Sums: g.Sums})
	}
	own := t.updateOptions(job)
	own.Rooms = rooms
	for i, g := range made.Graphs {
		if g.Update == nil {
			continue
		}
		if b.Graphs[i].Update, err = open.add(updates.With(g.Update), own); err != nil {
			return nil, nil, err
		}
	}
	job.Session, job.Ranks.Buckets = b.Graphs[0].Session, b
	t.beside = append(t.beside, open.list[1:]...)
	if t.first() {
		t.sayBuckets(open.list, made)
	}
	return open.list[0], open.close, nil
}

// sayBuckets says what a rank takes in buckets, by prediction: what was said of the graph
// that was cut is another rank's.
func (t *trainRun) sayBuckets(list []*subject, made *pipeline.Buckets) {
	var parameters, state, feeds int64
	none := int64(0)
	live, session := &none, &none
	for _, s := range list {
		m, p := s.session.Memory(), &s.run.Memory
		parameters, state, feeds = parameters+m.ParameterBytes, state+m.StateBytes, feeds+m.FeedBytes
		live, session = both(live, p.PredictedLivePeakBytes, larger), both(session, p.PredictedSessionBytes, total)
	}
	if live == nil || session == nil {
		t.e.say("in %d buckets: a graph cannot be predicted", t.ranks.buckets)
		return
	}
	held := made.Bytes + ranks.Scratch(t.ranks.Size)
	t.e.say("in %d buckets it takes %s: parameters %s, state %s, feeds %s, sessions %s, live peak %s, what graphs leave for each other and ranks exchange %s",
		t.ranks.buckets, units.Bytes(parameters+state+feeds+*session+*live+held), units.Bytes(parameters), units.Bytes(state), units.Bytes(feeds),
		units.Bytes(*session), units.Bytes(*live), units.Bytes(held))
}

// An opening opens sessions that share what they have with those before.
type opening struct {
	t    *trainRun
	list []*subject
}

// add opens one more; where that fails, all are closed.
func (p *opening) add(src *pipeline.Source, o remat.Options) (*remat.Session, error) {
	o.Share = nil
	if n := len(p.list); n > 0 {
		o.Share = p.list[n-1].session
	}
	engine, err := p.t.e.engine()
	if err != nil {
		return nil, err
	}
	s, err := openSource(p.t.e, src, o, engine.Open, nil)
	if err != nil {
		p.close()
		return nil, err
	}
	p.list = append(p.list, s)
	return s.session, nil
}

func (p *opening) close() {
	for _, s := range slices.Backward(p.list) {
		s.close()
	}
}

// feedsOf are the feeds that a graph takes.
func feedsOf(feed map[string]remat.Tensor, m *onnx.Model) map[string]remat.Tensor {
	own := maps.Clone(feed)
	maps.DeleteFunc(own, func(name string, _ remat.Tensor) bool {
		v := m.Graph.Value(name)
		return v == nil || !v.IsInput()
	})
	return own
}

// ownedValues are values with owners, as sessions have them.
func ownedValues(list []pipeline.OwnedValue) (out []train.OwnedValue) {
	for _, v := range list {
		dims, _ := v.Shape.Ints()
		out = append(out, train.OwnedValue{Name: v.Name, Owner: v.Owner, DType: v.DType, Shape: dims})
	}
	return out
}

// updateOptions are those of a session that updates from sums.
func (t *trainRun) updateOptions(job *train.Job) remat.Options {
	o := t.options
	o.Dims, o.Share, o.Purpose = nil, job.Session, "update"
	share := 1 / float64(t.ranks.batches()*job.Accumulate)
	o.Feed = map[string]remat.Tensor{optim.ShareInput: remat.FromFloat32s([]float32{float32(share)})}
	o.From = remat.Progress{Runs: int(job.From.Step - job.From.SkippedSteps)}
	return o
}
