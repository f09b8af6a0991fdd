package train

// A step whose gradients come in buckets, each from a graph of its own:
//
//	compute   F0 F1 F2B2     B1      update 2  B0      update 1            update 0
//	send                sum 2 over ranks │ sum 1 over ranks  │ sum 0 over ranks
//
// While the ranks add up one bucket, each computes the next one, or updates from the one
// before. So two buckets are alive at a time, in one slab with what goes from graph to
// graph. Sums are added in the order of the ranks, so the bits are those of ranks that add
// up all gradients at the step's end.
//
// Weakness: nothing is computed while the last bucket is sent but the update of the one
// before.

import (
	"slices"
	"time"

	"github.com/onnx-remat/remat/runtime"
)

// Buckets are the sessions of a step in buckets, in the order in which they run; the job's
// session is the first one. Nobody accumulates: a rank runs each once a step.
type Buckets struct {
	Graphs []BucketSession
	// Slab is where sessions write what others read.
	Slab []byte
	// Values are all that updates change, as states have them, Owner being the bucket.
	Values []OwnedValue
	// Sums are those of gradients, whose values states do not depend on: they are zero
	// between steps.
	Sums []string

	sending, overlap time.Duration
}

// A BucketSession is one of them: with the sums that it makes and the session that updates
// from these, nil for a graph that only goes forward.
type BucketSession struct {
	*runtime.Session
	Sums   []string
	Update *runtime.Session
}

// bucketed says that gradients are exchanged in buckets.
func (r *Ranks) bucketed() bool { return r != nil && r.Buckets != nil }

// held is what the graphs leave for each other, in bytes.
func (b *Buckets) held() int64 {
	if b == nil {
		return 0
	}
	return int64(len(b.Slab))
}

// overlapped is the share of the time of sending in which the rank did something else, and
// that time.
func (b *Buckets) overlapped() (share, seconds float64) {
	if b == nil || b.sending <= 0 {
		return 0, 0
	}
	return b.overlap.Seconds() / b.sending.Seconds(), b.sending.Seconds()
}

// forward runs the graphs of a step up to the first that makes a bucket, which is the one
// that has the loss.
func (t *training) forward(rec *Record) error {
	b := t.Ranks.Buckets
	batch, err := t.nextBatch(rec)
	if err != nil {
		return err
	}
	for _, g := range b.Graphs {
		if err := batch.setOn(g.Session); err != nil {
			return err
		}
	}
	for i := range b.first() + 1 {
		if err := t.runBucket(&b.Graphs[i], rec); err != nil {
			return err
		}
	}
	return nil
}

// first is the first graph that makes a bucket.
func (b *Buckets) first() int {
	return slices.IndexFunc(b.Graphs, func(g BucketSession) bool { return g.Update != nil })
}

// runBucket runs a graph, which leaves in the slab what others read.
func (t *training) runBucket(g *BucketSession, rec *Record) error {
	if err := clearFloats(g.Session, g.Sums); err != nil {
		return err
	}
	out, err := t.runSession(g.Session, rec)
	if err != nil {
		return err
	}
	if _, ok := out.Output(g.Roles.Loss); ok {
		if rec.Loss, err = lossOf(g.Session, out); err != nil {
			return err
		}
	}
	g.Release()
	return nil
}

// backward runs the other graphs, and updates from each bucket once the ranks have added it
// up.
func (t *training) backward(rec *Record) error {
	b := t.Ranks.Buckets
	told := rec.RunSeconds
	first := b.first()
	sent := &b.Graphs[first] // what is being added up
	done := t.send(sent)
	wait := func() error {
		start := time.Now()
		sent := <-done
		b.sending += sent.took
		if sent.beside {
			b.overlap += max(0, sent.took-time.Since(start)) // each by itself: waking up late counts once
		}
		return sent.err
	}
	for i := first + 1; i < len(b.Graphs); i++ {
		g := &b.Graphs[i]
		err := t.runBucket(g, rec)
		if e := wait(); err == nil { // in any case: memory is not to go while it is sent
			err = e
		}
		if err != nil {
			return err
		}
		before := sent
		sent, done = g, t.send(g)
		if err := t.updateBucket(before, rec); err != nil {
			<-done
			return err
		}
	}
	if err := wait(); err != nil {
		return err
	}
	if err := t.updateBucket(sent, rec); err != nil {
		return err
	}
	t.Ranks.seconds = float32(rec.RunSeconds - told)
	return nil
}

// A sending is how a bucket was added up, how long that took, and whether this rank went on
// beside it.
type sending struct {
	err    error
	took   time.Duration
	beside bool
}

// send has the ranks add up a bucket: beside what this rank goes on with, where messages
// may be, else before that.
func (t *training) send(g *BucketSession) chan sending {
	done := make(chan sending, 1)
	add := func() {
		start := time.Now()
		err := t.Ranks.combine(g.Session, g.Sums, sumOfAll)
		done <- sending{err, time.Since(start), t.Ranks.Group.Beside()}
	}
	if t.Ranks.Group.Beside() {
		go add()
		return done
	}
	add()
	return done
}

// updateBucket runs the updates of a bucket.
func (t *training) updateBucket(g *BucketSession, rec *Record) error {
	g.Update.SetRate(rec.LR)
	_, err := t.runSession(g.Update, rec)
	if err == nil {
		g.Update.Release()
	}
	return err
}

// holder is what the job's states are written of.
func (b *Buckets) holder() Holder {
	var updates, sessions []*runtime.Session
	for _, g := range b.Graphs {
		updates, sessions = append(updates, g.Update), append(sessions, g.Session)
	}
	return &bucketValues{valuesOf{b.Graphs[0].Session, ownedNames(b.Values), append(updates, sessions...)}, b.Sums}
}

// bucketValues are the values of all buckets, of which sums are zero between steps.
type bucketValues struct {
	valuesOf
	sums []string
}

func (h *bucketValues) View(name string, f func(runtime.Tensor) error) error {
	if !slices.Contains(h.sums, name) {
		return h.valuesOf.View(name, f)
	}
	return h.of(name).Edit(name, func(t runtime.Tensor) error {
		clear(t.Data)
		return f(t)
	})
}
