package train

// A pipeline: each rank runs a stage of the graph, and what stages make of micro-batches
// goes from rank to rank (internal/ranks has the schedules).
//
//	batch ─▶ F0 ──▶ F1 ──▶ … loss      after all micro-batches:
//	          ▒      ▒                  sums of gradients ─▶ updates of the own parameters
//	sums ◀── B0 ◀── B1 ◀── …           ─▶ shared parameters to the stages that read them
//
// A step is a step of one process that accumulates as many runs: each stage adds gradients
// up in the order of the micro-batches, so the bits are the same. What is updated, and
// what states hold, is divided as in shard.go.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/runtime"
)

// A Pipeline is one rank's side of one. The job's session is that of the forward graph.
type Pipeline struct {
	Stage, Stages int
	// Backward shares the parameters of the forward session.
	Backward *runtime.Session
	// Flows go between graphs, Names are those of their values, or of inputs that batches
	// feed, and Ticks are the schedule of a step.
	Flows []ranks.Flow
	Names []string
	Ticks []ranks.Tick
	// Shared are parameters that stages read and others update, in one order on all.
	Shared []SharedParameter

	store map[slot][]byte
	free  [][][]byte // by flow
	slots int64      // bytes of all rooms that were made
}

// A SharedParameter goes from the rank that updates it to those that read it.
type SharedParameter struct {
	Name    string
	Owner   int
	Readers []int
	Bytes   int64
}

// slot is a flow of a micro-batch.
type slot struct{ flow, micro int }

// Take makes room.
func (p *Pipeline) Take(flow, micro int) {
	var room []byte
	if n := len(p.free[flow]); n > 0 {
		room, p.free[flow] = p.free[flow][n-1], p.free[flow][:n-1]
	} else {
		room = make([]byte, p.Flows[flow].Bytes)
		p.slots += int64(len(room))
	}
	p.store[slot{flow, micro}] = room
}

// Give lets another micro-batch have the room.
func (p *Pipeline) Give(flow, micro int) {
	at := slot{flow, micro}
	p.free[flow] = append(p.free[flow], p.store[at])
	delete(p.store, at)
}

// held is what the stage holds of micro-batches, in bytes.
func (p *Pipeline) held() int64 {
	if p == nil {
		return 0
	}
	return p.slots
}

// SyncBytes is what the rank sends in a step: its flows, and parameters that it shares.
func (p *Pipeline) SyncBytes(micro int) int64 {
	n := int64(micro) * ranks.PipeBytes(p.Flows, p.Stages, p.Stage)
	for _, s := range p.Shared {
		if s.Owner == p.Stage {
			n += s.Bytes * int64(len(s.others()))
		}
	}
	return n
}

// others are the readers that do not update it.
func (s *SharedParameter) others() []int {
	return slices.DeleteFunc(slices.Clone(s.Readers), func(r int) bool { return r == s.Owner })
}

// pipelined says that ranks are the stages of a pipeline.
func (r *Ranks) pipelined() bool { return r != nil && r.Pipeline != nil }

// pipe runs all micro-batches of a step through the stage.
func (t *training) pipe(rec *Record) error {
	p := t.Ranks.Pipeline
	p.store = map[slot][]byte{}
	if p.free == nil {
		p.free = make([][][]byte, len(p.Flows))
	}
	group := t.Ranks.Group
	for _, tick := range p.Ticks {
		if op := tick.Run[p.Stage]; op.Group >= 0 {
			if err := t.runStage(op, rec); err != nil {
				return fmt.Errorf("stage %d of %d: micro-batch %d: %w", p.Stage, p.Stages, op.Micro, err)
			}
		}
		for _, s := range tick.Sends {
			from := ranks.StageOf(p.Flows[s.Flow].From, p.Stages)
			if s.To != p.Stage && from != p.Stage {
				continue
			}
			if s.To == p.Stage {
				ranks.Sent(s, p.Flows, p.Stages, p.Stage, p)
			}
			if err := group.Pass(p.store[slot{s.Flow, s.Micro}], from, s.To); err != nil {
				return fmt.Errorf("stage %d of %d: %q: %w", p.Stage, p.Stages, p.Names[s.Flow], err)
			}
			if from == p.Stage {
				ranks.Sent(s, p.Flows, p.Stages, p.Stage, p)
			}
		}
	}
	rec.Loss /= float64(t.Accumulate)
	if p.Stage > 0 {
		rec.Tokens = 0 // which the first stage counts
	}
	return nil
}

// runStage runs a graph of the stage for a micro-batch.
func (t *training) runStage(op ranks.Op, rec *Record) error {
	p := t.Ranks.Pipeline
	s, batch := p.Backward, prepared{}
	if op.Group < p.Stages {
		s = t.Session
		var err error
		if batch, err = t.nextBatch(rec); err != nil {
			return err
		}
		if err := batch.setOn(s); err != nil {
			return err
		}
	}
	for i, f := range p.Flows {
		if slices.Contains(f.To, op.Group) {
			if err := s.SetBytes(p.Names[i], p.store[slot{i, op.Micro}]); err != nil {
				return err
			}
		}
	}
	out, err := t.runSession(s, rec)
	if err != nil {
		return err
	}
	if _, ok := out.Output(s.Roles.Loss); ok {
		loss, err := lossOf(s, out)
		if err != nil {
			return err
		}
		rec.Loss += loss
	}
	ranks.Ran(op, p.Flows, p.Stages, &filling{p, out, batch.values, &err})
	if err == nil {
		s.Release()
	}
	return err
}

// filling copies what a run made into the room that is made for it.
type filling struct {
	*Pipeline
	out *runtime.Step
	fed map[string]runtime.Tensor
	err *error
}

// Take makes room, and fills it.
func (f *filling) Take(flow, micro int) {
	f.Pipeline.Take(flow, micro)
	o, ok := f.out.Output(f.Names[flow])
	if !ok {
		o.Tensor, ok = f.fed[f.Names[flow]]
	}
	room := f.store[slot{flow, micro}]
	switch {
	case !ok:
		*f.err = fmt.Errorf("there is no %q", f.Names[flow])
	case o.Err != nil:
		*f.err = o.Err
	case copy(room, o.Data) != len(room) || len(o.Data) != len(room):
		*f.err = fmt.Errorf("%q has %d bytes, not %d", f.Names[flow], len(o.Data), len(room))
	}
}

// reader is the session of the stage that has a parameter of another one.
func (t *training) reader(name string) *runtime.Session {
	if _, _, err := t.Session.ShapeOf(name); err == nil {
		return t.Session
	}
	return t.Ranks.Pipeline.Backward
}

// updateStage updates what the stage owns, and hands on what others read.
func (t *training) updateStage(rec *Record) error {
	r := t.Ranks
	if err := t.exchangeSquares(rec); err != nil {
		return err
	}
	if err := t.update(rec); err != nil {
		return err
	}
	for _, s := range r.Pipeline.Shared {
		for _, to := range s.others() {
			if r.Group.Rank() != s.Owner && r.Group.Rank() != to {
				continue
			}
			of := r.Update
			if r.Group.Rank() == to {
				of = t.reader(s.Name)
			}
			err := of.Edit(s.Name, func(v runtime.Tensor) error { return r.Group.Pass(v.Data, s.Owner, to) })
			if err != nil {
				return fmt.Errorf("%q: %w", s.Name, err)
			}
		}
	}
	return nil
}
