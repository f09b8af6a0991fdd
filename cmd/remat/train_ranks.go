package main

// Training by several ranks: in this process, one after the other, or as one of the
// processes that mpirun started. A rank does what a training alone does, and waits for
// the others at a few places, where an error of one is an error of all:
//
//	rank 0: folder, state, data, graph │ all: folder, state │ all: sessions │ steps
//
// Rank 0 prints, and writes what a run leaves. Others have their own states, in local
// training, in folders of their own within the run's.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/stage"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/mpi"
	"github.com/onnx-remat/remat/train"
)

func rankFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "ranks", Usage: "train as `N` ranks would under mpirun, one after the other in this process"},
		&cli.StringFlag{Name: "sync", Value: "step", Usage: "`step|shard|local=H`: ranks sum gradients every step; the same, with optimizer state and updates divided among them; or train alone for H steps and average"},
		&cli.IntFlag{Name: "pipeline", Usage: "cut the graph into `K` stages, one a rank, under mpirun or one after the other in this process; micro-batches are those of --accumulate"},
		&cli.StringFlag{Name: "pipeline-schedule", Value: ranks.OneForward, Usage: "with --pipeline: `1f1b|gpipe`, the order in which stages take micro-batches"},
		&cli.IntFlag{Name: "buckets", Usage: "with --sync step: cut the gradients into `K` buckets at layer boundaries, each of which is sent while the next is computed, and updated by a graph of its own"},
		&cli.Float64Flag{Name: "outer-lr", Value: 0.7, Usage: "with --sync local=H: the rate, `X`, of the step from one average to the next"},
		&cli.Float64Flag{Name: "outer-momentum", Value: 0.9, Usage: "with --sync local=H: its Nesterov momentum, `X`"},
	}
}

// mostRanks is far beyond what shares a step's batch.
const mostRanks = 1024

// A rankPlan says how ranks train together.
type rankPlan struct {
	pipeline.Ranks
	outer train.Outer
	sync  string // as typed
	lock  sync.Mutex
	// schedule is that of a pipeline, whose stages the ranks are; "" for none.
	schedule string
	// buckets is in how many parts gradients are exchanged; 0: at once, at the step's end.
	buckets int
}

// batches is how many ranks take micro-batches of their own.
func (r *rankPlan) batches() int {
	if r.schedule != "" {
		return 1
	}
	return r.Size
}

// fitted is what the graphs are made for.
func (r *rankPlan) fitted() pipeline.Ranks {
	if r.schedule != "" {
		return pipeline.Ranks{Size: 1}
	}
	return r.Ranks
}

// readRanks reads the flags of rankFlags; nil where nobody trains together. The world is
// that of the processes that mpirun started, nil without it.
func readRanks(c *cli.Context, w *mpi.World) (*rankPlan, error) {
	launched := 0
	if w != nil {
		launched = w.Size()
	}
	r := &rankPlan{sync: c.String("sync"), outer: train.Outer{LR: c.Float64("outer-lr"), Momentum: c.Float64("outer-momentum")}}
	var err error
	if r.Every, r.Shard, err = readSync(r.sync); err != nil {
		return nil, err
	}
	r.Size = c.Int("ranks")
	if err := r.readPipeline(c); err != nil {
		return nil, err
	}
	switch {
	case r.schedule != "" && launched > 0 && launched != r.Size:
		return nil, fmt.Errorf("--pipeline %d: %d ranks were started", r.Size, launched)
	case c.IsSet("ranks") && (r.Size < 1 || r.Size > mostRanks):
		return nil, fmt.Errorf("--ranks %d: want 1 to %d", r.Size, mostRanks)
	case launched > mostRanks:
		return nil, fmt.Errorf("%d ranks were started: want at most %d", launched, mostRanks)
	case launched > 0 && c.IsSet("ranks") && r.Size != launched:
		return nil, fmt.Errorf("--ranks %d: %d ranks were started: leave the flag out", r.Size, launched)
	case launched > 0:
		r.Size = launched
	}
	for _, flag := range []string{"outer-lr", "outer-momentum"} {
		x := c.Float64(flag)
		if math.IsNaN(x) || x < 0 || x > 1e6 || flag == "outer-momentum" && x >= 1 {
			return nil, fmt.Errorf("--%s %v: out of range", flag, x)
		}
		if c.IsSet(flag) && r.Every == 0 {
			return nil, fmt.Errorf("--%s: requires --sync local=H", flag)
		}
	}
	if err := r.readBuckets(c); err != nil {
		return nil, err
	}
	for _, flag := range []string{"buckets", "sync"} {
		if r.Size == 0 && c.IsSet(flag) {
			return nil, fmt.Errorf("--%s: requires --ranks N, or a start by mpirun", flag)
		}
	}
	if r.Size == 0 || r.Size == 1 && r.Every == 0 && !c.Bool("resume") {
		return nil, nil // one rank that sums its own gradients is one that trains alone
	}
	if steps := c.Int64("steps"); steps > 0 { // before any work; check has those of --epochs
		if err := r.wholeRounds(steps); err != nil {
			return nil, err
		}
	}
	return r, r.supported(c)
}

// readPipeline reads the flags of a pipeline.
func (r *rankPlan) readPipeline(c *cli.Context) error {
	if !c.IsSet("pipeline") {
		if c.IsSet("pipeline-schedule") {
			return errors.New("--pipeline-schedule: requires --pipeline K")
		}
		return nil
	}
	k, schedule := c.Int("pipeline"), c.String("pipeline-schedule")
	if k < 2 || k > stage.MostStages {
		return fmt.Errorf("--pipeline %d: want 2 to %d", k, stage.MostStages)
	}
	if schedule != ranks.GPipe && schedule != ranks.OneForward {
		return fmt.Errorf("--pipeline-schedule %q: want %s or %s", schedule, ranks.OneForward, ranks.GPipe)
	}
	for _, flag := range []string{"ranks", "sync"} {
		if c.IsSet(flag) {
			return fmt.Errorf("--%s: the ranks are the stages of --pipeline: leave one of the two out", flag)
		}
	}
	if c.IsSet("val") {
		return errors.New("--val: no rank of a pipeline has the whole graph: use remat eval --state on what was saved")
	}
	if c.IsSet("memory") {
		return errors.New("--memory: not with --pipeline: remat split says what each stage takes")
	}
	r.Size, r.schedule = k, schedule
	return nil
}

// readSync reads step, shard, or local=H, and returns H, 0 for the others.
func readSync(text string) (every int64, shard bool, err error) {
	if text == train.SyncStep || text == syncShard {
		return 0, text == syncShard, nil
	}
	number, local := strings.CutPrefix(text, "local=")
	h, err := strconv.ParseInt(number, 10, 64)
	if !local || err != nil || h < 1 || h > 1<<31 {
		return 0, false, fmt.Errorf("--sync %q: want step, shard, or local=H with H steps from one average to the next", text)
	}
	return h, false, nil
}

// syncShard divides what SyncStep has every rank do.
const syncShard = "shard"

// agreed is what states say of how ranks agree: what they hold is the same however updates
// are divided.
func (r *rankPlan) agreed() string {
	if r.Shard {
		return train.SyncStep
	}
	return r.sync
}

// supported refuses what does not go with sums of gradients.
func (r *rankPlan) supported(c *cli.Context) error {
	if r.Every > 0 {
		return nil
	}
	scaled := c.String("precision") == "fp16"
	switch limited := c.IsSet("memory-limit"); {
	case scaled && r.schedule != "":
		return errors.New("--precision fp16: no stage of a pipeline has all gradients, to find an overflow: use bf16")
	case scaled && r.buckets > 0:
		return errors.New("--precision fp16: buckets are updated before all gradients are there, to find an overflow: use bf16, or leave --buckets out")
	case limited && r.schedule != "":
		return errors.New("--memory-limit bounds one session, and a stage of a pipeline has several: remat split says what each stage takes")
	case limited:
		return errors.New("--memory-limit bounds one session, and a rank that sums gradients has two: use --memory")
	}
	return nil
}

// steps is how many steps there are in a number of micro-batches of all ranks; with
// local training whole rounds of them.
func (r *rankPlan) steps(steps int64) int64 {
	if r.Every == 0 {
		return max(1, steps)
	}
	return max(r.Every, steps/r.Every*r.Every)
}

// check refuses a length that would leave ranks apart, and data that are too few.
func (r *rankPlan) check(steps int64, batches any) error {
	if err := r.wholeRounds(steps); err != nil {
		return err
	}
	if b, ok := batches.(train.Bounded); ok && b.Len() < int64(r.batches()) {
		return fmt.Errorf("%d ranks: the data are %d batches, and each rank takes another one: use fewer ranks or smaller batches", r.Size, b.Len())
	}
	return nil
}

// wholeRounds refuses a number of steps at whose end ranks that train apart would not agree.
func (r *rankPlan) wholeRounds(steps int64) error {
	if r.Every > 0 && steps%r.Every != 0 {
		return fmt.Errorf("--steps %d: want a multiple of the %d steps after which ranks average", steps, r.Every)
	}
	return nil
}

// asRank runs f as one of the ranks that a launcher started, or alone with nil. Rank 0
// speaks for all; another one has to say only what ends it apart from the others, which
// ends them too.
func asRank(e *env, f func(*mpi.World) error) error {
	if !mpi.Launched() {
		return f(nil)
	}
	w, err := mpi.Join()
	if err != nil {
		return err
	}
	if w.Size() == 1 {
		return errors.Join(f(nil), w.Close())
	}
	stderr, quiet := e.stderr, e.quiet
	if w.Rank() > 0 {
		e.stdout, e.stderr, e.quiet = io.Discard, io.Discard, true
	}
	err = f(w)
	var apart *apartError
	if !errors.As(err, &apart) {
		return errors.Join(err, w.Close())
	}
	if w.Rank() > 0 { // what ends all, rank 0 says meanwhile
		time.Sleep(time.Second)
		e.stderr, e.quiet = stderr, quiet
		err = fmt.Errorf("rank %d of %d: %w", w.Rank(), w.Size(), err)
	}
	w.Abort(e.exitCode(err))
	return err
}

// An apartError ended steps, which other ranks may not know.
type apartError struct{ error }

func (e *apartError) Unwrap() error { return e.error }

// first says that this rank prints, and writes what a run leaves.
func (t *trainRun) first() bool { return t.group == nil || t.group.Rank() == 0 }

// local says that the rank has states of its own.
func (t *trainRun) local() bool { return t.ranks != nil && t.ranks.Every > 0 }

// agree waits for the other ranks, if any, and has their errors too.
func (t *trainRun) agree(err error) error {
	if t.group == nil {
		return err
	}
	return t.group.Agree(err)
}

// inTurn runs f on the first rank, and then on the others.
func (t *trainRun) inTurn(f func() error) error {
	for _, now := range []bool{true, false} {
		var err error
		if t.first() == now {
			err = f()
		}
		if err = t.agree(err); err != nil || t.group == nil {
			return err
		}
	}
	return nil
}

// trainInside runs all ranks in this process.
func (t *trainRun) trainInside() error {
	if _, err := t.e.engine(); err != nil { // which all have
		return err
	}
	return ranks.Run(t.ranks.Size, func(g *ranks.Group) error {
		own := *t
		own.group = g
		own.options.Within = 0 // it is for a process with one session
		if g.Rank() > 0 {
			own.e = t.e.silent()
			defer own.e.close()
		}
		return own.train()
	})
}

// onlyRank says that the one rank that there is updates within its runs, like one that
// trains alone; it may go on for others, whose graph sums gradients.
func (t *trainRun) onlyRank() bool {
	if t.ranks == nil || t.ranks.Size > 1 || t.ranks.Every > 0 {
		return false
	}
	src, err := t.e.load(t.trainPath())
	if err != nil {
		return true // which training says
	}
	s, err := pipeline.SummedOf(src.Model)
	return s == nil && err == nil
}

// silent is the same environment for who prints nothing.
func (e *env) silent() *env {
	return &env{
		ctx: e.ctx, stdout: io.Discard, out: &keeper{to: io.Discard}, stderr: io.Discard, ort: e.ort, provider: e.provider, device: e.device,
		threads: e.threads, opt: e.opt, dims: e.dims, quiet: true, debug: e.debug, workspace: e.workspace,
		loaded: e.loaded, typed: e.typed, recipe: e.recipe, rates: e.rates, startRSS: e.startRSS,
	}
}

// commonState opens the state that all ranks have and that is the last of them, nil for
// a new run. Each rank's own was opened where it has one.
func (t *trainRun) commonState(folder *train.Folder, own *train.State) (*train.State, error) {
	if t.group == nil || !t.resume {
		return own, nil
	}
	step := int64(math.MaxInt64)
	if own != nil {
		step = own.Position.Step
	}
	all, err := t.group.Share(binary.LittleEndian.AppendUint64(nil, uint64(step)))
	if err != nil {
		return own, err
	}
	for _, b := range all {
		step = min(step, int64(binary.LittleEndian.Uint64(b)))
	}
	if own != nil && own.Position.Step == step {
		return own, nil
	}
	if own != nil {
		if err := own.Close(); err != nil {
			return nil, err
		}
	}
	return folder.At(step)
}

// openFolder opens the folder in which the rank writes; one that writes nothing gets the
// run's, to read.
func (t *trainRun) openFolder() (*train.Folder, func(), error) {
	if !t.first() && !t.local() {
		return &train.Folder{Dir: t.dir}, func() {}, nil
	}
	rank, keep := 0, t.c.Int("keep")
	if t.group != nil {
		rank = t.group.Rank()
	}
	if t.local() {
		keep = max(keep, 2) // the states of two ranks may be one apart
	}
	f, err := train.OpenFolder(train.RankDir(t.dir, rank), keep)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { f.Close() }, nil
}

// join makes a job one of a rank.
func (t *trainRun) join(job *train.Job) {
	if t.ranks == nil {
		return
	}
	job.Ranks = &train.Ranks{Group: t.group, Every: t.ranks.Every, Outer: t.ranks.outer}
	if t.first() {
		job.Ranks.Slow = func(rank int, factor float64) {
			t.e.note("rank %d computes %.1f times as long as the median of %d ranks, and the others wait for it", rank, factor, t.ranks.Size)
		}
	}
	if t.ranks.schedule != "" {
		job.Batches = train.Shard(job.Batches, 0, 1, &t.ranks.lock)
		return
	}
	job.Batches = train.Shard(job.Batches, t.group.Rank(), t.ranks.Size, &t.ranks.lock)
	t.options.Draws = uint64(t.group.Rank()) * 0x9e3779b97f4a7c15
}

// shared makes a position that of as many ranks as there are now. What they hold is the
// same on each, and the next micro-batches are those after what all have used.
func (t *trainRun) shared(p train.Position, accumulate int) (train.Position, error) {
	if t.ranks == nil || t.ranks.Every > 0 || p.Ranks == t.ranks.batches() {
		return p, nil
	}
	used, size := p.Runs*p.Ranks, t.ranks.batches()
	if used%(size*accumulate) != 0 {
		return p, fmt.Errorf("%s: %d ranks have used %d micro-batches, which are no whole steps of %d ranks with %d: go on with a number that divides it", t.dir, p.Ranks, used, size, size*accumulate)
	}
	p.Runs, p.Skipped, p.Ranks = used/size, p.Skipped*p.Ranks/size, size
	return p, nil
}

// trainPath is the graph that runs.
func (t *trainRun) trainPath() string { return filepath.Join(t.dir, trainFile) }

// updatePath is the graph of updates, where the run has one.
func (t *trainRun) updatePath() string { return filepath.Join(t.dir, pipeline.UpdateFile) }

// openUpdates opens the session that updates from sums of gradients, where the graph
// has it apart.
func (t *trainRun) openUpdates(job *train.Job) (func(), error) {
	if t.ranks == nil || t.ranks.Every > 0 || t.bucketed() { // buckets are open
		return func() {}, nil
	}
	path, o := t.updatePath(), t.updateOptions(job)
	if t.ranks.Shard || t.split != nil {
		return t.openShard(job, path, o)
	}
	s, err := openSubject(t.e, path, o)
	if err != nil {
		return nil, err
	}
	job.Ranks.Update = s.session
	t.beside = append(t.beside, s)
	return s.close, nil
}

// openShard opens this rank's part of the updates.
func (t *trainRun) openShard(job *train.Job, path string, o remat.Options) (closing func(), err error) {
	src, err := t.e.load(path)
	if err != nil {
		return nil, err
	}
	sums, owner := job.Session.Model, map[string]int(nil)
	if t.split != nil {
		whole, err := t.e.load(t.trainPath())
		if err != nil {
			return nil, err
		}
		sums, owner, o.Share = whole.Model, t.split.Owner, job.Ranks.Pipeline.Backward
	}
	if t.shard, err = pipeline.ShardOf(sums, src.Model, owner, t.group.Rank(), t.ranks.Size); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	first := len(t.beside)
	open := func(m *onnx.Model) (*remat.Session, error) {
		s, err := openSource(t.e, src.With(m), o, t.e.loaded.Open, nil)
		if err != nil {
			return nil, err
		}
		t.beside = append(t.beside, s)
		return s.session, nil
	}
	closing = func() {
		for _, s := range t.beside[first:] {
			s.close()
		}
	}
	owned := &train.Owned{
		SquaresInput: optim.SquaresInput, SquaresOutput: optim.OwnSquares, Rows: t.shard.Rows,
		Params: t.shard.Params, Sums: t.shard.Sums, Owner: t.shard.Owner,
	}
	owned.Values = ownedValues(t.shard.Values)
	share := o.Feed
	if t.shard.Squares != nil {
		o.Feed, o.Purpose = nil, "squares"
		if owned.Squares, err = open(t.shard.Squares); err != nil {
			closing()
			return nil, err
		}
		rows := make([]float32, len(t.shard.Rows))
		share[optim.SquaresInput] = remat.FromFloat32s(rows, int64(len(rows)))
	}
	o.Feed, o.Purpose = share, "update"
	if job.Ranks.Update, err = open(t.shard.Update); err != nil {
		closing()
		return nil, err
	}
	job.Ranks.Owned = owned
	return closing, nil
}

// summed is what the graph says of its sums of gradients, which has to be what was asked.
func (t *trainRun) summed(src *pipeline.Source) (*pipeline.Summed, error) {
	s, err := pipeline.SummedOf(src.Model)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", src.Path, err)
	case s == nil && t.ranks != nil && t.ranks.Every == 0:
		return nil, fmt.Errorf("%s: the graph updates within a run, so ranks cannot sum its gradients: begin anew in another folder", src.Path)
	case s != nil && (t.ranks == nil || t.ranks.Every > 0):
		return nil, fmt.Errorf("%s: the graph sums the gradients of ranks: go on with --ranks N --sync step, or begin anew in another folder", src.Path)
	}
	return s, nil
}

// trainedRanks is what train --json says of ranks, null for one alone.
type trainedRanks struct {
	Ranks int    `json:"ranks"`
	Rank  int    `json:"rank"`
	Sync  string `json:"sync"`
	// Syncs is how often this run of the program has agreed, SyncBytes what a rank sends
	// for that each time, by the model, and BytesSent what it sent.
	Syncs     int64 `json:"syncs"`
	SyncBytes int64 `json:"sync_bytes"`
	BytesSent int64 `json:"bytes_sent"`
	// HeldBytes is what ranks exchange and keep beside sessions.
	HeldBytes          int64 `json:"held_bytes"`
	PredictedHeldBytes int64 `json:"predicted_held_bytes"`
	// Buckets is in how many parts gradients are sent, null for one; SendSeconds is how long
	// that took, and Overlapped the share of it in which the rank computed.
	Buckets     *int     `json:"buckets"`
	SendSeconds *float64 `json:"send_seconds"`
	Overlapped  *float64 `json:"overlapped"`
}

// ranksDocument describes the rank.
func (t *trainRun) ranksDocument(job *train.Job, r *train.Result) (*trainedRanks, error) {
	if t.ranks == nil {
		return nil, nil
	}
	elements, err := job.Ranks.Elements(job.Session)
	if err != nil {
		return nil, err
	}
	rank, size := t.group.Rank(), t.ranks.Size
	d := &trainedRanks{
		Ranks: size, Rank: rank, Sync: t.ranks.sync,
		Syncs: r.Syncs, SyncBytes: ranks.SyncBytes(elements, rank, size), BytesSent: r.Sent,
		HeldBytes: job.Ranks.Held(), PredictedHeldBytes: ranks.HeldBytes(elements, rank, size, t.local()),
	}
	if b := job.Ranks.Buckets; b != nil {
		d.Buckets, d.SendSeconds, d.Overlapped = &t.ranks.buckets, &r.Sending, &r.Overlapped
		d.PredictedHeldBytes += t.slab
	}
	if p := job.Ranks.Pipeline; p != nil {
		d.Sync = "pipeline " + t.ranks.schedule
		d.SyncBytes = p.SyncBytes(job.Accumulate) + ranks.ShareBytes(ranks.WordBytes, size) + t.shard.SquareBytes(rank, size)
		d.PredictedHeldBytes = ranks.StoreBytes(p.Ticks, p.Flows, p.Stages, rank) + t.shard.Held(rank)
	} else if t.shard != nil {
		d.SyncBytes, d.PredictedHeldBytes = t.shard.SyncBytes(elements, rank, size), ranks.Scratch(size)+t.shard.Held(rank)
	}
	return d, nil
}

// addBeside adds what sessions beside the step's take to a run's memory.
func (t *trainRun) addBeside(s *subject) {
	to := &s.run.Memory
	for _, beside := range t.beside {
		beside.memory()
		add := &beside.run.Memory
		to.ParameterBytes += add.ParameterBytes
		to.StateBytes += add.StateBytes
		to.FeedBytes += add.FeedBytes
		to.LivePeakBytes = both(to.LivePeakBytes, add.LivePeakBytes, larger)
		to.SessionBytes = both(to.SessionBytes, add.SessionBytes, total)
		to.PredictedLivePeakBytes = both(to.PredictedLivePeakBytes, add.PredictedLivePeakBytes, larger)
		to.PredictedSessionBytes = both(to.PredictedSessionBytes, add.PredictedSessionBytes, total)
		to.PredictedReservedBytes = both(to.PredictedReservedBytes, add.PredictedReservedBytes, larger)
		to.PredictedArenaReservedBytes = both(to.PredictedArenaReservedBytes, add.PredictedArenaReservedBytes, larger)
	}
	if len(t.beside) == 0 {
		return
	}
	if to.TotalPeakBytes = nil; to.SessionBytes != nil && to.LivePeakBytes != nil {
		to.TotalPeakBytes = new(to.ParameterBytes + to.StateBytes + to.FeedBytes + *to.SessionBytes + *to.LivePeakBytes)
	}
}

// both is f of two figures, nil where one is not known.
func both(a, b *int64, f func(a, b int64) int64) *int64 {
	if a == nil || b == nil {
		return nil
	}
	v := f(*a, *b)
	return &v
}

func larger(a, b int64) int64 { return max(a, b) }
func total(a, b int64) int64  { return a + b }
