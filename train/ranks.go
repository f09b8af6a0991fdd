package train

// Ranks: several trainings of one graph, on parts of one batch each, that agree.
//
//	every step       a step's runs add gradients up in state; the sums of all ranks are
//	                 added up in the order of the ranks; a second graph updates from the
//	                 result, unless gradients of a rank overflowed: then all drop theirs. Rank r's run n takes micro-batch n·N + r, so N ranks of K
//	                 runs do what one does that accumulates N·K runs. Divided, each
//	                 rank updates parameters of its own (shard.go).
//	every H steps    local SGD with an outer step (Douillard et al. 2023, "DiLoCo",
//	                 arXiv 2311.08105): each rank trains by itself, optimizer and all;
//	                 the parameters' mean difference from the last common point is the
//	                 gradient of an outer step with Nesterov momentum, PyTorch's SGD.
//
// What ranks agree on has the same bits on all of them. A rank keeps a chunk of the
// common point and of its momentum: the part of each parameter that it combines
// (internal/ranks). What a rank alone has, its own state holds: that of rank r is in
// the folder rankR of the run's.

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// Ranks say how a job agrees with those of other ranks. All ranks have the same.
type Ranks struct {
	Group *ranks.Group
	// Every is how many steps there are from one outer step to the next; 0: gradients
	// are summed every step, and Update updates.
	Every int64
	Outer Outer
	// Update is a session of the graph that updates from summed gradients, with the
	// parameters and sums of the job's session.
	Update *runtime.Session
	// Owned divides the updates among ranks; nil: all do the same.
	Owned *Owned
	// Pipeline: each rank runs a stage; nil: each runs all of the graph.
	Pipeline *Pipeline
	// Buckets: gradients are added up in parts, while others are computed; nil: at the
	// step's end.
	Buckets *Buckets

	// Slow, unless nil, is told of a rank that computes much longer than others, once.
	Slow func(rank int, factor float64)

	lag     lag
	seconds float32 // that this rank has computed since ranks agreed
	// chunks are what an outer step keeps, by the names that states have for them.
	chunks map[string][]float32
	names  []string // of chunks, in order
}

// An Outer is the optimizer of the common point.
type Outer struct{ LR, Momentum float64 }

// Names of chunks in states, by parameter.
func commonName(param string) string   { return commonPrefix + param }
func momentumName(param string) string { return momentumPrefix + param }

const commonPrefix, momentumPrefix = "remat.common/", "remat.momentum/"

// OfOuter reports that a state holds what an outer step keeps, under that name.
func OfOuter(name string) bool {
	return strings.HasPrefix(name, commonPrefix) || strings.HasPrefix(name, momentumPrefix)
}

// Begin makes the job ready to agree: from the beginning, or with what a state holds.
func (j *Job) Begin(kept map[string]runtime.Tensor) error {
	r := j.Ranks
	if r == nil || r.bucketed() { // whose sums are float32, or they would have no session
		return nil
	}
	for _, name := range r.exchanged(j.Session) {
		dtype, _, err := j.Session.ShapeOf(name)
		if err != nil {
			return err
		}
		if dtype != onnx.Float32 {
			return fmt.Errorf("%q is %s: ranks agree on float32 values only", name, dtype)
		}
	}
	if r.Owned != nil {
		return r.Owned.begin(j)
	}
	if r.Every == 0 {
		return nil
	}
	r.chunks, r.names = map[string][]float32{}, nil
	for _, name := range j.Session.Trained() {
		if err := r.keep(j.Session, name, kept); err != nil {
			return err
		}
	}
	return nil
}

// exchanged are the inputs that are combined: sums of gradients, or parameters.
func (r *Ranks) exchanged(s *runtime.Session) []string {
	if r.Every == 0 {
		return slices.DeleteFunc(s.Updated(), func(name string) bool { return slices.Contains(s.Roles.Buffers, name) })
	}
	return s.Trained()
}

// keep makes the chunks of a parameter.
func (r *Ranks) keep(s *runtime.Session, name string, kept map[string]runtime.Tensor) error {
	return s.View(name, func(t runtime.Tensor) error {
		all, err := ranks.Floats(t.Data)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		from, to := ranks.Chunk(len(all), r.Group.Rank(), r.Group.Size())
		common, momentum := slices.Clone(all[from:to]), make([]float32, to-from)
		for key, chunk := range map[string][]float32{commonName(name): common, momentumName(name): momentum} {
			if err := take(chunk, key, kept); err != nil {
				return err
			}
			r.chunks[key] = chunk
		}
		r.names = append(r.names, commonName(name), momentumName(name))
		return nil
	})
}

// take copies what a state holds of a chunk; without a state it stays.
func take(chunk []float32, key string, kept map[string]runtime.Tensor) error {
	if kept == nil {
		return nil
	}
	t, ok := kept[key]
	values, err := ranks.Floats(t.Data)
	if !ok || err != nil || t.Type != onnx.Float32 || len(values) != len(chunk) {
		return fmt.Errorf("the state has no value of %d float32 elements for %q: it is that of another training", len(chunk), key)
	}
	copy(chunk, values)
	return nil
}

// Held is what ranks hold beside sessions, in bytes, on the host.
func (r *Ranks) Held() int64 {
	n := r.Group.Held()
	for _, chunk := range r.chunks {
		n += int64(len(chunk)) * 4
	}
	return n + r.Owned.held() + r.Pipeline.held() + r.Buckets.held()
}

// Elements are those of each value that is combined.
func (r *Ranks) Elements(s *runtime.Session) ([]int64, error) {
	var list []int64
	names, of := r.exchanged(s), Holder(s)
	if r.bucketed() {
		names, of = r.Buckets.Sums, r.Buckets.holder()
	}
	for _, name := range names {
		_, shape, err := of.ShapeOf(name)
		if err != nil {
			return nil, err
		}
		n, _ := onnx.Elements(shape)
		list = append(list, n)
	}
	return list, nil
}

// local says that ranks train by themselves between outer steps.
func (r *Ranks) local() bool { return r != nil && r.Every > 0 }

// together says that ranks update as one, every step.
func (r *Ranks) together() bool { return r != nil && r.Every == 0 }

// A word is what a rank tells the others of a step: its loss, its tokens, whether it was
// told to stop, whether its gradients overflowed, and how long it computed. It takes
// ranks.WordBytes.
type word struct {
	loss       float64
	tokens     int64
	stop       bool
	overflowed bool
	seconds    float32
}

// Bits of a word.
const (
	stopBit = 1 << iota
	overflowBit
)

// tell shares the words of all ranks and returns them as one: the mean of the losses,
// the sum of the tokens, whether any was told to stop or overflowed, the longest time.
func (r *Ranks) tell(own word) (word, error) {
	b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(own.loss))
	b = binary.LittleEndian.AppendUint64(b, uint64(own.tokens))
	bits := uint32(0)
	if own.stop {
		bits |= stopBit
	}
	if own.overflowed {
		bits |= overflowBit
	}
	b = binary.LittleEndian.AppendUint32(b, bits)
	all, err := r.Group.Share(binary.LittleEndian.AppendUint32(b, math.Float32bits(own.seconds)))
	if err != nil {
		return word{}, err
	}
	of, seconds := word{}, make([]float32, 0, len(all))
	for _, b := range all {
		of.loss += math.Float64frombits(binary.LittleEndian.Uint64(b))
		of.tokens += int64(binary.LittleEndian.Uint64(b[8:]))
		bits := binary.LittleEndian.Uint32(b[16:])
		of.stop, of.overflowed = of.stop || bits&stopBit != 0, of.overflowed || bits&overflowBit != 0
		seconds = append(seconds, math.Float32frombits(binary.LittleEndian.Uint32(b[20:])))
	}
	of.seconds = slices.Max(seconds)
	if rank, factor, slow := r.lag.add(seconds); slow && r.Slow != nil && !r.pipelined() {
		r.Slow(rank, factor)
	}
	if !r.pipelined() { // of which one stage has the loss
		of.loss /= float64(len(all))
	}
	return of, nil
}

// agree ends a step of a rank: what it ran, rec has. The context is the training's.
func (t *training) agree(ctx context.Context, rec *Record) error {
	r := t.Ranks
	r.seconds += float32(rec.RunSeconds)
	if r.local() && !due(rec.Step, r.Every) {
		return nil
	}
	all, err := r.tell(word{rec.Loss, rec.Tokens, ctx.Err() != nil, rec.Skipped, r.seconds})
	if err != nil {
		return err
	}
	r.seconds = 0
	t.result.Syncs++
	if t.stop = all.stop; r.local() {
		return r.combine(t.Session, r.exchanged(t.Session), r.outerStep)
	}
	rec.Loss, rec.Tokens = all.loss, all.tokens
	if math.IsNaN(all.loss) || math.IsInf(all.loss, 0) {
		return t.notFinite(*rec)
	}
	if t.settle(rec, all.overflowed); rec.Skipped {
		return r.drop(t.Session)
	}
	switch {
	case r.pipelined():
		return t.updateStage(rec)
	case r.bucketed():
		return t.backward(rec)
	case r.Owned != nil:
		return t.updateOwn(rec)
	}
	if err := r.combine(t.Session, r.exchanged(t.Session), sumOfAll); err != nil {
		return err
	}
	return t.update(rec)
}

// settle ends a step whose gradients are summed: all ranks skip it where one overflowed,
// and go on with the same scale of the loss.
func (t *training) settle(rec *Record, overflowed bool) {
	t.Session.Settle(t.before, overflowed, t.Accumulate*t.Ranks.Group.Size())
	rec.Skipped, rec.LossScale = overflowed, t.before.LossScale
	t.stand()
}

// drop forgets the gradients of a step that is skipped.
func (r *Ranks) drop(s *runtime.Session) error {
	err := clearFloats(s, r.exchanged(s))
	if err == nil && r.Owned != nil {
		err = r.Owned.forget(s)
	}
	return err
}

// update runs the graph of updates.
func (t *training) update(rec *Record) error {
	t.Ranks.Update.SetRate(rec.LR)
	out, err := t.runSession(t.Ranks.Update, rec)
	if err == nil {
		t.read(out, rec)
	}
	return err
}

// sumOfAll is the fold of every value into the sum over all ranks.
func sumOfAll(string) ranks.Fold { return ranks.Sum }

// combine combines values of a session with those of the other ranks, one by one.
func (r *Ranks) combine(s *runtime.Session, names []string, fold func(name string) ranks.Fold) error {
	for _, name := range names {
		err := editFloats(s, name, func(values []float32) error { return r.Group.Combine(values, fold(name)) })
		if err != nil {
			return fmt.Errorf("rank %d of %d: %q: %w", r.Group.Rank(), r.Group.Size(), name, err)
		}
	}
	return nil
}

// outerStep makes the next common point of a parameter's chunk:
//
//	d = mean(common - p)    m = momentum·m + d    common = common - lr·(d + momentum·m)
func (r *Ranks) outerStep(name string) ranks.Fold {
	common, momentum := r.chunks[commonName(name)], r.chunks[momentumName(name)]
	lr, mu := float32(r.Outer.LR), float32(r.Outer.Momentum)
	return func(parts [][]float32, own, at int) {
		share := 1 / float32(len(parts))
		for i := range parts[own] {
			c, m := &common[at+i], &momentum[at+i]
			sum := float32(0)
			for _, p := range parts {
				sum += *c - p[i]
			}
			d := float32(sum * share)
			*m = float32(float32(mu**m) + d)
			*c -= float32(lr * float32(d+float32(mu**m)))
			parts[own][i] = *c
		}
	}
}

// sent is how many bytes the rank has sent.
func (t *training) sent() int64 {
	if t.Ranks == nil {
		return 0
	}
	return t.Ranks.Group.Sent()
}

// total makes the result's tokens those of all ranks, where each has counted its own.
func (t *training) total() error {
	if !t.Ranks.local() {
		return nil
	}
	for _, n := range []*int64{&t.result.Tokens, &t.result.NewTokens} {
		all, err := t.Ranks.tell(word{tokens: *n})
		if err != nil {
			return err
		}
		*n = all.tokens
	}
	return nil
}

// saved waits until all ranks that save have done so: the states of two ranks are then
// never more than one apart.
func (r *Ranks) saved() error {
	if !r.local() {
		return nil
	}
	_, err := r.Group.Share([]byte{1})
	return err
}

// A Holder is what a state is written of: the inputs that a graph updates, by name.
type Holder interface {
	Updated() []string
	ShapeOf(name string) (onnx.DType, []int64, error)
	View(name string, f func(runtime.Tensor) error) error
	Metadata(key string) (string, bool)
}

// Holder is what the job's states are written of.
func (j *Job) Holder() Holder {
	switch r := j.Ranks; {
	case r != nil && r.Owned != nil:
		return r.Owned.holder(j)
	case r.bucketed():
		return r.Buckets.holder()
	case r.together():
		// Each rank has running statistics of its own, in the session that sums gradients.
		names := slices.Concat(r.Update.Updated(), j.Session.Roles.Buffers)
		return &valuesOf{r.Update, names, []*runtime.Session{r.Update, j.Session}}
	case r.local():
		return &withChunks{j.Session, r}
	}
	return j.Session
}

// valuesOf are values that several sessions, of which some may be nil, update.
type valuesOf struct {
	*runtime.Session // whose metadata counts
	names            []string
	sessions         []*runtime.Session
}

func (h *valuesOf) Updated() []string { return h.names }

func (h *valuesOf) of(name string) *runtime.Session { return moves(name, h.sessions...) }

func (h *valuesOf) ShapeOf(name string) (onnx.DType, []int64, error) {
	return h.of(name).ShapeOf(name)
}

func (h *valuesOf) View(name string, f func(runtime.Tensor) error) error {
	return h.of(name).View(name, f)
}

// moves is the first of the sessions, which may be nil, that has a next value of a name;
// of none it is the last.
func moves(name string, sessions ...*runtime.Session) *runtime.Session {
	for _, s := range sessions {
		if s != nil && s.Roles.New[name] != "" {
			return s
		}
	}
	return sessions[len(sessions)-1]
}

// withChunks are a session's values and those of the outer step.
type withChunks struct {
	*runtime.Session
	ranks *Ranks
}

func (h *withChunks) Updated() []string { return slices.Concat(h.Session.Updated(), h.ranks.names) }

func (h *withChunks) ShapeOf(name string) (onnx.DType, []int64, error) {
	if chunk, ok := h.ranks.chunks[name]; ok {
		return onnx.Float32, []int64{int64(len(chunk))}, nil
	}
	return h.Session.ShapeOf(name)
}

func (h *withChunks) View(name string, f func(runtime.Tensor) error) error {
	chunk, ok := h.ranks.chunks[name]
	if !ok {
		return h.Session.View(name, f)
	}
	return f(runtime.Tensor{Type: onnx.Float32, Shape: []int64{int64(len(chunk))}, Data: ranks.Bytes(chunk)})
}

// RankDir is where a rank keeps its states: the run's folder is the first rank's.
func RankDir(dir string, rank int) string {
	if rank == 0 {
		return dir
	}
	return filepath.Join(dir, fmt.Sprintf("rank%d", rank))
}

// Shard are the batches of one rank: its number n is number n·size + rank of all. It has
// their lock where other ranks in the process read them too, else nil.
func Shard(b Batches, rank, size int, lock sync.Locker) Batches {
	return &shard{b, int64(rank), int64(size), lock}
}

type shard struct {
	Batches
	rank, size int64
	lock       sync.Locker
}

func (s *shard) At(n int64) (map[string]runtime.Tensor, error) {
	if s.lock != nil {
		s.lock.Lock()
		defer s.lock.Unlock()
	}
	return s.Batches.At(n*s.size + s.rank)
}

// Tokens are counted as the batches count them.
func (s *shard) Tokens(batch map[string]runtime.Tensor) int64 { return Tokens(s.Batches, batch) }
