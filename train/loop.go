package train

// The loop. Between two runs of the graph it does nothing that takes time: the next
// batch was made while the last run computed, the rate is a number, the record is
// handed on.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/onnx-remat/remat/runtime"
)

// A Job is a training: what runs, on what, how long, and what is done between steps.
type Job struct {
	// Session runs the training graph. Job.Run feeds it, and sets its rate.
	Session *runtime.Session
	// Accumulate is how many runs of the graph make an update; see Accumulation.
	Accumulate int
	Batches    Batches
	Schedule   Schedule // with the number of steps

	// Evaluate, if any, is asked every EvalEvery steps and after the last one, even where
	// that was done before; 0: after the last one only. Validate sets it, to a pass over Validation.
	Evaluate   func(context.Context) (Validation, error)
	EvalEvery  int64
	Validation Bounded

	// Folder takes a state every SaveEvery steps and after the last one; nil: no
	// state is saved. 0: after the last one only.
	Folder    *Folder
	SaveEvery int64

	Watcher Watcher // nil: nobody watches
	Traits  Traits
	// Ranks, if any, is how the job agrees with those of other ranks; Batches are then
	// a Shard, and Begin was called.
	Ranks *Ranks
	// From is where the training stands: the position of the state that it goes on
	// from, or one with only what identifies it.
	From Position
}

// Validate makes the job validate in a session of the forward part that shares the
// parameters of Session.
func (j *Job) Validate(s *runtime.Session) {
	j.Evaluate = func(ctx context.Context) (Validation, error) {
		return Evaluate(ctx, s, j.Validation, j.Validation.Len())
	}
}

// A Result is what a training came to.
type Result struct {
	Position
	LossLast   float64     // of this process's last step, NaN without one
	Validation *Validation // the last one, nil without
	// Seconds and NewTokens are of this process, from the first step to the last.
	Seconds   float64
	NewTokens int64
	State     string // path of the last state, "" where none was saved
	StateStep int64
	// Syncs is how often ranks agreed, and Sent how many bytes this one sent to others.
	Syncs, Sent int64
	// Sending is how long it sent buckets of gradients, in seconds, and Overlapped the
	// share of that in which it did something else.
	Sending, Overlapped float64
}

// ErrInterrupted says that the context ended: the last complete step's state is saved.
var ErrInterrupted = errors.New("interrupted")

// training is a Job that runs.
type training struct {
	*Job
	at      Position
	result  *Result
	history trend
	// rss is the process's resident size when it was measured.
	rss      int64
	measured time.Time
	lost     int              // steps in a row that overflowed at the least loss scale
	none     bool             // all labels of a micro-batch of this step are ignored
	unread   string           // an input that holds a NaN in a micro-batch of this step
	before   runtime.Progress // where the session stood when this step began
	next     <-chan prepared
	stop     bool // the ranks agreed to stop
}

// Run trains until the last step. Where the context ends first, the step that runs is
// finished and its state saved, and the error is ErrInterrupted; a NotFiniteError
// says that the loss is no number. The result stands in any case.
func (j *Job) Run(ctx context.Context) (*Result, error) {
	t := &training{Job: j, at: j.From, result: &Result{Position: j.From, LossLast: math.NaN()}}
	if j.Folder != nil && j.Folder.last >= 0 {
		t.result.State, t.result.StateStep = StatePath(j.Folder.Dir), j.Folder.last
	}
	t.at.Version = positionVersion
	if err := j.check(); err != nil {
		return t.result, err
	}
	batches, stop := context.WithCancel(context.Background())
	defer stop()
	t.next = ahead(batches, j.Batches, int64(t.at.Runs))
	start := time.Now()
	sent := t.sent()
	err := t.run(ctx)
	t.result.Position, t.result.Seconds = t.at, time.Since(start).Seconds()
	if err == nil || errors.Is(err, ErrInterrupted) {
		err = errors.Join(err, t.total())
	}
	t.result.Sent = t.sent() - sent
	if t.Ranks != nil {
		t.result.Overlapped, t.result.Sending = t.Ranks.Buckets.overlapped()
	}
	return t.result, err
}

func (j *Job) check() error {
	if j.Accumulate < 1 || j.EvalEvery < 0 || j.SaveEvery < 0 {
		return fmt.Errorf("train: accumulate %d, eval every %d, save every %d", j.Accumulate, j.EvalEvery, j.SaveEvery)
	}
	if p := j.Session.Progress(); p.Runs != j.From.Runs || p.Skipped != j.From.Skipped {
		return fmt.Errorf("train: the session stands at run %d, the training at run %d", p.Runs, j.From.Runs)
	}
	return j.Schedule.Check()
}

// run does the steps that are left, and whatever comes between them. A step that is
// done is saved where anything but itself ends the training.
func (t *training) run(ctx context.Context) error {
	saved := t.at.Step
	if saved == t.Schedule.Steps && t.Evaluate != nil { // of a training that is done, validation is left
		if err := t.validate(ctx); err != nil || t.result.Validation != nil {
			return err
		}
		return ErrInterrupted
	}
	for t.at.Step < t.Schedule.Steps && !t.ended(ctx) {
		rec, err := t.step(ctx)
		if err != nil {
			return err
		}
		err = t.tell(func(w Watcher) error { return w.Step(rec) })
		last := t.at.Step == t.Schedule.Steps
		if err == nil && ctx.Err() == nil && t.Evaluate != nil && (last || due(t.at.Step, t.EvalEvery)) {
			err = t.validate(ctx)
		}
		if err != nil && t.Ranks != nil && t.Ranks.Owned != nil {
			return err // others do not know, and would not give what a state needs
		}
		if last || err != nil || due(t.at.Step, t.SaveEvery) {
			if e := t.save(); e != nil {
				return errors.Join(err, e)
			}
			saved = t.at.Step
		}
		if err != nil {
			return err
		}
	}
	if saved != t.at.Step {
		if err := t.save(); err != nil {
			return err
		}
	}
	if v := t.result.Validation; t.at.Step < t.Schedule.Steps || t.Evaluate != nil && (v == nil || v.Step != t.at.Step) {
		return ErrInterrupted
	}
	return nil
}

// ended says that the training was told to stop, and may: ranks stop together.
func (t *training) ended(ctx context.Context) bool {
	if t.Ranks != nil {
		return t.stop
	}
	return ctx.Err() != nil
}

func due(step, every int64) bool { return every > 0 && step%every == 0 }

// step runs micro-batches until an update, or an overflow. The context ends no step; it
// tells ranks to stop together.
func (t *training) step(ctx context.Context) (Record, error) {
	start, sent := time.Now(), t.sent()
	rec := Record{Step: t.at.Step + 1, GradientNorm: math.NaN()}
	rec.LR = t.Schedule.Rate(rec.Step)
	t.Session.SetRate(rec.LR)
	t.none, t.unread, t.before = false, "", t.Session.Progress()
	run := t.accumulate
	switch {
	case t.Ranks.pipelined():
		run = t.pipe
	case t.Ranks.bucketed():
		run = t.forward
	}
	if err := run(&rec); err != nil {
		return rec, err
	}
	if t.Ranks != nil {
		if err := t.agree(ctx, &rec); err != nil {
			return rec, err
		}
		rec.SentBytes = t.sent() - sent
	}
	if t.at.Step++; t.at.Step == 1 {
		t.at.LossFirst = rec.Loss
	}
	t.at.Tokens += rec.Tokens
	rec.AllTokens = t.at.Tokens
	if rec.Skipped {
		t.at.SkippedSteps++
		rec.GradientNorm = math.NaN() // of gradients that overflowed
	}
	t.result.LossLast, t.result.NewTokens = rec.Loss, t.result.NewTokens+rec.Tokens
	if err := t.overflows(rec); err != nil {
		return rec, err
	}
	t.history.add(rec.Loss)
	t.measure(&rec)
	rec.Seconds = time.Since(start).Seconds()
	return rec, nil
}

// accumulate runs the graph until an update is due, or gradients overflow.
func (t *training) accumulate(rec *Record) error {
	runs, sum := 0, 0.0
	for ended := false; !ended; {
		batch, err := t.nextBatch(rec)
		if err != nil {
			return err
		}
		if err := t.Session.Feed(batch.values); err != nil {
			return fmt.Errorf("step %d: %w", rec.Step, err)
		}
		out, err := t.runSession(t.Session, rec)
		if err != nil {
			return err
		}
		runs++
		rec.Skipped, rec.LossScale = rec.Skipped || out.Skipped, out.LossScale
		loss, err := lossOf(t.Session, out)
		if err != nil {
			return err
		}
		sum += loss
		t.read(out, rec)
		if math.IsNaN(loss) && t.unread == "" {
			t.unread = holdsNaN(batch.values)
		}
		if (math.IsNaN(loss) || math.IsInf(loss, 0)) && !t.Ranks.together() { // who find it together
			rec.Loss = loss
			return t.notFinite(*rec)
		}
		if t.Ranks.together() { // all of which run as often, and say then how it ended
			ended = runs == t.Accumulate
			continue
		}
		t.stand()
		ended = rec.Skipped || (t.at.Runs-t.at.Skipped)%t.Accumulate == 0
	}
	rec.Loss = sum / float64(runs)
	return nil
}

// stand notes where the session stands.
func (t *training) stand() {
	p := t.Session.Progress()
	t.at.Runs, t.at.Skipped, t.at.Good, t.at.LossScale = p.Runs, p.Skipped, p.Good, p.LossScale
}

// nextBatch is the next micro-batch, whose labels count for its step.
func (t *training) nextBatch(rec *Record) (prepared, error) {
	batch, ok := <-t.next
	if !ok || batch.err != nil {
		return batch, fmt.Errorf("step %d: %w", rec.Step, batch.err)
	}
	rec.Tokens += batch.tokens
	t.none = t.none || batch.tokens == 0
	return batch, nil
}

// runSession runs a session that is part of a step. An update may lie in the midst of the run,
// so one that has begun is finished.
func (t *training) runSession(s *runtime.Session, rec *Record) (*runtime.Step, error) {
	out, err := s.Step(context.Background())
	if err != nil {
		return nil, err
	}
	rec.RunSeconds += out.Seconds
	rec.LivePeakBytes = max(rec.LivePeakBytes, out.LivePeakBytes)
	return out, nil
}

// Names under which graphs return the norm of all gradients; the second is the state of
// clipping by the step before.
var normOutputs = []string{"gradient_norm", "clip_norm.new"}

// read takes the norm of the gradients from the outputs.
func (t *training) read(out *runtime.Step, rec *Record) {
	for _, name := range normOutputs {
		if o, ok := out.Output(name); ok && o.Err == nil {
			if v, ok := o.Scalar(); ok {
				rec.GradientNorm = v
				return
			}
		}
	}
}

// measureAgain is how old the process's size in a record may be: asking for it takes
// time that short steps would notice.
const measureAgain = 100 * time.Millisecond

// measure notes what the process holds.
func (t *training) measure(rec *Record) {
	rec.ReservedBytes = t.Session.Reserved()
	if now := time.Now(); now.Sub(t.measured) >= measureAgain {
		t.measured = now
		t.rss, _ = runtime.RSS() // 0 where the system does not say
	}
	rec.RSSBytes = t.rss
}

func (t *training) validate(ctx context.Context) error {
	v, err := t.Evaluate(ctx)
	if err != nil && ctx.Err() != nil {
		return nil // interrupted
	}
	if err != nil {
		return fmt.Errorf("validation after step %d: %w", t.at.Step, err)
	}
	v.Step = t.at.Step
	t.result.Validation = &v
	return t.tell(func(w Watcher) error { return w.Validated(v) })
}

func (t *training) save() error {
	if t.Folder == nil && t.Ranks != nil && t.Ranks.Owned != nil {
		return t.Ranks.Owned.give()
	}
	if t.Folder == nil {
		return nil
	}
	path, err := t.Folder.Save(t.Holder(), t.at)
	if err == nil {
		err = t.Ranks.saved()
	}
	if bad, ok := errors.AsType[*NotFiniteStateError](err); ok {
		return t.badState(bad)
	}
	if err != nil {
		return fmt.Errorf("step %d: the state cannot be saved: %w", t.at.Step, err)
	}
	t.result.State, t.result.StateStep = path, t.at.Step
	return t.tell(func(w Watcher) error { return w.Saved(path, t.at.Step) })
}

func (t *training) tell(f func(Watcher) error) error {
	if t.Watcher == nil {
		return nil
	}
	return f(t.Watcher)
}
