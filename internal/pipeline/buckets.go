package pipeline

// A step in buckets of gradients: the graph is cut in stages (package rewrite/stage), which
// one rank runs one after the other. The backward graph of a stage makes the sums of one
// bucket, and updates of their own follow:
//
//	F0 ─▶ … ─▶ FK-1 BK-1 ─▶ BK-2 ─▶ … ─▶ B0
//	                  └ sums K-1 ─▶ updates K-1, once BK-2 has run
//
// The last stage's two graphs are one, so that nothing is kept between them.
// What goes from graph to graph, and the sums, lie in one slab, each while it is needed: a
// value from the graph that makes it to the last one that reads it, a sum until the next
// backward graph has run, so two buckets are alive at a time. Graphs write and read there
// in place: an output that others read gets an input, which nothing reads, whose next value
// it is.

import (
	"errors"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/stage"
)

// Buckets are the graphs of a step, and where they leave what others read.
type Buckets struct {
	Graphs []BucketGraph // in the order in which they run
	// Rooms are the places in the slab by the names of inputs; Bytes is its size.
	Rooms map[string]Room
	Bytes int64
	// Values are all that updates change, in the order of the whole graph of updates;
	// Owner is the bucket.
	Values []OwnedValue
	// Sums are those of gradients, by the names of inputs, in the order of Values.
	Sums []string
}

// A BucketGraph is one of them. One that goes backward has the number of its bucket, the
// sums that it makes, and the graph that updates from these; Bucket is -1 in others.
type BucketGraph struct {
	Model  *onnx.Model
	Name   string
	Bucket int
	Sums   []string
	Update *onnx.Model

	group int // of the stages
	out   []*stage.Value
}

// A Room is the place of a value.
type Room struct {
	Offset int64
	onnx.Type
}

// roomAlign is what rooms begin at multiples of.
const roomAlign = 64

// BucketsOf cuts a graph that sums gradients, with its graph of updates.
func (s *Source) BucketsOf(updates *onnx.Model, count int, o Options) (*Buckets, error) {
	if optim.AllSquares(updates) != nil {
		return nil, errors.New("one norm of all gradients is asked for, which is there once all are: leave --clip-norm and --gradient-norm out, or --buckets")
	}
	split, err := s.SplitStages(SplitOptions{Pipeline: o, Options: stage.Options{Stages: count, Balance: stage.Memory, Joined: true}})
	if err != nil {
		return nil, err
	}
	whole, err := s.Sized(o.Dims)
	if err != nil {
		return nil, err
	}
	b := &Buckets{Rooms: map[string]Room{}}
	for at, g := range split.Groups {
		switch {
		case at == count && g == nil:
			continue // joined
		case g == nil:
			return nil, fmt.Errorf("%s: bucket %d of %d has no parameter: use fewer buckets", s.Path, min(at, 2*count-1-at), count)
		}
		bg := BucketGraph{Model: g.Model, Name: StageFileName(g.Stage, g.Backward), Bucket: -1, group: at, out: g.Out}
		if g.Backward || at == count-1 {
			shard, err := ShardOf(whole, updates, split.Owner, g.Stage, count)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.Path, err)
			}
			bg.Bucket, bg.Update, b.Values = g.Stage, shard.Update, shard.Values
			b.Sums = shard.Sums
			for i, sum := range shard.Sums {
				if shard.Owner[i] == g.Stage {
					bg.Sums = append(bg.Sums, sum)
				}
			}
		}
		b.Graphs = append(b.Graphs, bg)
	}
	return b, b.place()
}

// place gives values and sums their rooms.
func (b *Buckets) place() error {
	var requests []ortmodel.Request
	var names [][]string // that share a room, by allocation
	ends := make([][]int, len(b.Graphs)+1)
	take := func(until int, bytes int64, of ...string) {
		ends[min(until, len(ends)-1)] = append(ends[min(until, len(ends)-1)], len(names))
		requests = append(requests, ortmodel.Request{ID: len(names), Bytes: bytes, Alloc: true})
		names = append(names, of)
	}
	placeOf := func(group int) int {
		return slices.IndexFunc(b.Graphs, func(g BucketGraph) bool { return g.group == group })
	}
	for at := range b.Graphs {
		g := &b.Graphs[at]
		for _, v := range g.out {
			in, err := room(g.Model, v)
			if err != nil {
				return err
			}
			b.Rooms[in], b.Rooms[v.Name] = Room{0, v.Type}, Room{0, v.Type}
			take(placeOf(v.To[len(v.To)-1]), v.Bytes, in, v.Name)
		}
		for _, sum := range g.Sums {
			v := g.Model.Graph.Value(sum)
			if v == nil || !v.IsInput() {
				return fmt.Errorf("%q is not summed in the bucket that updates from it", sum)
			}
			bytes, ok := v.Type.Bytes()
			if !ok {
				return fmt.Errorf("%q has no size that is known: %s", sum, v.Type)
			}
			b.Rooms[sum] = Room{0, v.Type}
			take(at+1, bytes, sum)
		}
		for _, id := range ends[at] {
			requests = append(requests, ortmodel.Request{ID: id})
		}
	}
	slab := ortmodel.SlabSetup{Align: roomAlign}.Pack(requests)
	for i, of := range names {
		for _, name := range of {
			b.Rooms[name] = Room{slab.Offset[i], b.Rooms[name].Type}
		}
	}
	b.Bytes = slab.Size
	return nil
}

// room adds the input whose next value an output is.
func room(m *onnx.Model, v *stage.Value) (string, error) {
	roles, _, err := step.RolesOf(m, nil)
	if err != nil {
		return "", err
	}
	in := m.Graph.AddInput(m.Graph.FreshValueName(v.Name+".room"), v.Type)
	if roles.New == nil {
		roles.New = map[string]string{}
	}
	roles.New[in.Name] = v.Name
	return in.Name, roles.Write(m)
}
