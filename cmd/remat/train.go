package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/rewrite/stage"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/mpi"
	"github.com/onnx-remat/remat/train"
	"github.com/onnx-remat/remat/train/data"
)

func trainCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "train", Usage: "trains a model on text or arrays, within a memory", ArgsUsage: "M.onnx",
		Description: "M is a forward model with its loss, or a training graph. A step is an update. -o is the\n" +
			"folder of the run: the graph that runs, its states, its log, its report.\n\n" +
			"Example: remat train model.onnx --text book.txt --steps 20 --lr 3e-4 --memory 4GiB -o run",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "the run's folder, `DIR`"},
			&cli.BoolFlag{Name: "resume", Usage: "go on from the last state in DIR"},
			&cli.StringFlag{Name: "roles", Usage: "`F.json`: name loss, grad and new instead of detecting them"},
		}, dataFlags(), lengthFlags(), scalingFlags(), fitFlags(), rankFlags(), watchFlags()),
		Action: func(c *cli.Context) error {
			return asRank(e, func(w *mpi.World) error {
				t, err := readTraining(e, c, w)
				if err != nil {
					return err
				}
				return t.run()
			})
		},
	}
}

// lengthFlags say how long, how fast, and what happens between steps.
func lengthFlags() []cli.Flag {
	return []cli.Flag{
		&cli.Int64Flag{Name: "steps", Usage: "steps in all, `N`, those before --resume included"},
		&cli.Int64Flag{Name: "epochs", Usage: "instead of --steps: pass over the data `N` times"},
		&cli.Float64Flag{Name: "lr", Value: 1e-3, Usage: "learning rate, `X`: the highest"},
		&cli.StringFlag{Name: "schedule", Value: "constant", Usage: "`constant|linear|cosine`: how the rate falls after the warm-up"},
		&cli.Int64Flag{Name: "warmup", Usage: "the rate rises from 0 over the first `N` steps"},
		&cli.Float64Flag{Name: "min-lr", Usage: "the rate, `X`, to which linear and cosine fall"},
		&cli.Int64Flag{Name: "eval-every", Usage: "validate every `N` steps; 0: after the last one"},
		&cli.Int64Flag{Name: "save-every", Usage: "save a state every `N` steps; 0: after the last one"},
		&cli.IntFlag{Name: "keep", Value: 2, Usage: "how many states stay, `K`"},
	}
}

// A trainRun is a training that was asked for.
type trainRun struct {
	e        *env
	c        *cli.Context
	path     string // of the model, "" where a resumed run leaves it out
	dir      string
	resume   bool
	epochs   int64
	schedule train.Schedule
	fit      fitSettings
	data     data.Options
	batch    int64
	counts   string        // what is counted of a batch, as data.Batches.Counts
	options  remat.Options // of the session
	// ranks say how ranks train together, and group is this one's side; nil: it is
	// alone. beside are the sessions that update from sums of gradients, if any, and
	// shard says how that is divided.
	ranks  *rankPlan
	group  *ranks.Group
	beside []*subject
	shard  *pipeline.Shard
	// split are the stages of a pipeline, nil without one.
	split *stage.Split
	// slab is what the graphs of a step in buckets leave for each other, predicted.
	slab int64
}

func readTraining(e *env, c *cli.Context, w *mpi.World) (t *trainRun, err error) {
	t = &trainRun{e: e, c: c, dir: c.String("o"), resume: c.Bool("resume"), epochs: c.Int64("epochs")}
	if !t.resume || c.Args().Present() {
		if t.path, err = argument(c, "model file"); err != nil {
			return nil, err
		}
	}
	if t.dir == "" {
		return nil, errors.New("remat train: missing -o DIR, the run's folder")
	}
	if err = e.refuseCommand("train", "for a step's memory rehearse what remat grad and rewrite write, with run"); err != nil {
		return nil, err
	}
	if err := t.readLength(); err != nil {
		return nil, err
	}
	if err := readWatch(c); err != nil {
		return nil, err
	}
	if t.fit, err = readFit(e, c); err != nil {
		return nil, err
	}
	if t.data, t.batch, err = readData(c, t.dir); err != nil {
		return nil, err
	}
	if t.ranks, err = readRanks(c, w); err != nil {
		return nil, err
	}
	if t.ranks != nil {
		t.fit.options.Ranks = t.ranks.fitted()
		if t.bucketed() {
			t.fit.options.Norm = pipeline.NormNever
		}
	}
	if t.ranks != nil && w != nil {
		t.group = ranks.NewGroup(w)
	}
	t.options = e.sessionOptions()
	t.options.Dims = nil // data say them
	t.options.MemoryLimit, t.options.Within, t.options.Seed = t.fit.MemoryLimit, t.fit.options.Memory, c.Uint64("seed")
	t.options.LossScale, t.options.Scaling, err = readScaling(c)
	return t, err
}

// readLength reads the flags of lengthFlags.
func (t *trainRun) readLength() error {
	c := t.c
	t.schedule = train.Schedule{
		Kind: c.String("schedule"), LR: c.Float64("lr"), MinLR: c.Float64("min-lr"), Warmup: c.Int64("warmup"), Steps: c.Int64("steps"),
	}
	for _, flag := range []string{"eval-every", "save-every"} {
		if c.Int64(flag) < 0 {
			return fmt.Errorf("--%s %d: want a number of steps, or 0", flag, c.Int64(flag))
		}
	}
	if c.Int("keep") < 1 {
		return fmt.Errorf("--keep %d: want at least 1", c.Int("keep"))
	}
	if c.IsSet("eval-every") && c.String("val") == "" {
		return errors.New("--eval-every: there is nothing to validate on: add --val FILE or --val 5%")
	}
	switch {
	case c.IsSet("steps") && c.IsSet("epochs"):
		return errors.New("--steps and --epochs exclude each other: give one")
	case c.IsSet("epochs") && t.epochs < 1:
		return fmt.Errorf("--epochs %d: want at least 1", t.epochs)
	case c.IsSet("epochs"):
		if t.epochs > 1<<31 {
			return fmt.Errorf("--epochs %d: out of range", t.epochs)
		}
		long := t.schedule // its steps are not known yet
		long.Steps = 1 << 62
		return long.Check()
	case !c.IsSet("steps"):
		return errors.New("remat train: how long? give --steps N or --epochs N")
	}
	return t.schedule.Check()
}

// run trains, by as many ranks as were asked for.
func (t *trainRun) run() error {
	if t.group == nil { // else it leaves the other processes first, which takes a while
		defer t.e.finishing.Store(false)
	}
	if t.onlyRank() {
		t.ranks = nil
	}
	if t.ranks != nil && t.group == nil {
		return t.trainInside()
	}
	return t.train()
}

// train trains, as one rank or alone, and prints what came of it.
func (t *trainRun) train() error {
	b, err := t.begin()
	if b != nil {
		defer b.close()
	}
	if err != nil {
		return err
	}
	e, job := t.e, b.job
	w, err := t.watch(b)
	if err := t.agree(err); err != nil {
		t.undo(b.folder)
		return err
	}
	b.subject.countConstants()
	for _, s := range t.beside {
		s.countConstants()
	}
	b.source.Slim()
	defer e.leaveToSteps()()
	t.e.finishing.Store(true)
	result, err := job.Run(e.ctx)
	if err != nil && !errors.Is(err, train.ErrInterrupted) {
		err = &apartError{trainError(err)}
	}
	if w != nil {
		w.ended(err)
		if closing := w.Close(); err == nil {
			err = closing
		}
	}
	if err != nil && !errors.Is(err, train.ErrInterrupted) {
		return err
	}
	if printing := t.print(b.subject, job, result); printing != nil {
		return printing
	}
	if err != nil {
		return &interruptedError{t.interrupted(job, result)}
	}
	return nil
}

// watch opens what watches the run: nothing but on the first rank.
func (t *trainRun) watch(b *begun) (*watching, error) {
	if !t.first() {
		return nil, nil
	}
	t.e.say("%s on %s, ONNX Runtime %s", b.source.Path, b.subject.run.Provider, b.subject.run.ORTVersion)
	w, err := t.e.watchers(t.c, t.dir, b.job.From.Step, b.job.Schedule.Steps, t.counts, b.decided...)
	if err == nil {
		b.job.Watcher = w
	}
	return w, err
}

// A begun training has all that steps need.
type begun struct {
	source  *pipeline.Source
	job     *train.Job
	subject *subject
	decided []report.Table
	folder  *train.Folder
	closers []func()
}

// close gives everything back, last first.
func (b *begun) close() {
	for _, f := range slices.Backward(b.closers) {
		f()
	}
}

func (b *begun) later(f func()) { b.closers = append(b.closers, f) }

// begin opens everything: the folder, the state, the data, the graph, the sessions. What
// was opened is closed in any case.
func (t *trainRun) begin() (*begun, error) {
	b := &begun{}
	var folder *train.Folder
	var state *train.State
	var source *data.Source
	err := t.inTurn(func() (err error) {
		if err = t.e.canRun(); err != nil {
			return err
		}
		var closing func()
		if folder, closing, err = t.openFolder(); err != nil {
			return err
		}
		b.later(closing)
		if t.first() || t.local() {
			if state, err = t.lastState(folder); err != nil {
				return err
			}
		}
		if source, err = openData(t.e.ctx, t.e, t.data); err != nil {
			return err
		}
		b.later(func() { source.Close() })
		if t.first() {
			b.decided, err = t.graph(source)
		}
		return err
	})
	if err == nil {
		state, err = t.commonState(folder, state)
		err = t.agree(err)
	}
	if state != nil {
		b.later(func() { state.Close() })
	}
	if err == nil {
		err = t.agree(t.openAll(b, source, folder, state))
	}
	if b.folder = folder; err != nil {
		t.undo(folder)
	}
	return b, err
}

// undo takes away what a run that does not come to its first step wrote.
func (t *trainRun) undo(folder *train.Folder) {
	if folder != nil && t.first() && !t.resume {
		folder.Undo(madeFiles()...)
	}
}

// openAll makes the job and its sessions.
func (t *trainRun) openAll(b *begun, source *data.Source, folder *train.Folder, state *train.State) (err error) {
	if t.path != "" && t.first() {
		t.e.unload(t.path)
	}
	if b.source, err = t.e.load(t.trainPath()); err != nil {
		return err
	}
	if b.job, err = t.prepare(b.source, source, folder, state); err != nil {
		return err
	}
	s, closing, err := t.open(b.source, b.job)
	if err != nil {
		return trainError(err)
	}
	b.later(closing)
	b.subject = s
	if closing, err = t.openUpdates(b.job); err != nil {
		return trainError(err)
	}
	b.later(closing)
	var kept map[string]remat.Tensor
	if state != nil {
		kept = state.Values()
	}
	if err := b.job.Begin(kept); err != nil {
		return err
	}
	if state != nil {
		return state.Fits(b.job.Holder())
	}
	return nil
}

// graph writes the file that runs, unless a run is resumed, which has one. It returns
// tables of what was decided.
func (t *trainRun) graph(source *data.Source) ([]report.Table, error) {
	if t.resume {
		return nil, t.sameGraph()
	}
	e := t.e
	src, err := e.load(t.path)
	if err != nil {
		return nil, err
	}
	if err := checkDims(e.dims, src); err != nil {
		return nil, err
	}
	sizes := data.Sizes{Dims: e.dims, Batch: t.batch, Roles: t.fit.options.Pipeline.Roles}
	d, err := source.For(src.Model, sizes)
	whole := int64(0)
	training, terr := src.Training(e.dims, sizes.Roles)
	if terr != nil {
		return nil, terr
	}
	if err != nil && t.batch > 0 && !t.c.IsSet("accumulate") && !training && pipeline.FixedBatch(src.Model) {
		whole, sizes.Batch = t.batch, 0 // an update takes several runs
		d, err = source.For(src.Model, sizes)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	if err := pipeline.CanWrite(src.Files(), t.trainPath()); err != nil {
		return nil, err
	}
	if d.Val != nil && d.Val.Len() > 1 {
		m, _, err := forward(src, e.dims, sizes.Roles)
		if err == nil {
			err = e.warnMean(m, t.fit.options.Derive.Grad.Loss, d.Val)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.path, err)
		}
	}
	t.fit.options.Pipeline.Sizes = e.firstBatchSizes(d.Train)
	fitted, err := e.fit(src, t.dir, t.fit, d.Dims, whole, d.Val != nil)
	if err != nil {
		return nil, err
	}
	return []report.Table{decidedTable(fitted)}, nil
}

// decidedTable is what fitting decided, for the report of the run.
func decidedTable(f *pipeline.Fitted) report.Table {
	t := report.Table{Columns: []string{"measure", "", ">saves", ">work", "costs"}}
	for _, d := range f.Decisions {
		saves, work := "", ""
		if d.Saves != nil {
			saves = units.Bytes(*d.Saves)
		}
		if d.Work != nil {
			work = units.Percent(*d.Work)
		}
		t.Rows = append(t.Rows, []string{d.Measure, d.Did, saves, work, d.Costs})
	}
	return t
}

// prepare makes the job of a graph: what it is fed, how long, from where.
func (t *trainRun) prepare(src *pipeline.Source, source *data.Source, folder *train.Folder, state *train.State) (*train.Job, error) {
	d, err := source.For(src.Model, data.Sizes{Dims: t.e.dims})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Path, err)
	}
	for _, note := range d.Notes {
		t.e.note("%s", note)
	}
	t.counts = d.Train.Counts()
	job := &train.Job{
		Accumulate: int(train.Accumulation(src.Model.Graph)), Batches: d.Train, Schedule: t.schedule,
		EvalEvery: t.c.Int64("eval-every"), SaveEvery: t.c.Int64("save-every"),
	}
	if t.first() || t.local() {
		job.Folder = folder
	}
	summed, err := t.summed(src)
	if err != nil {
		return nil, err
	}
	if summed != nil {
		job.Accumulate = int(summed.Accumulate)
	}
	if err := t.length(job, d); err != nil {
		return nil, err
	}
	if t.first() {
		t.warnUneven(job, d)
	}
	if d.Val != nil && t.first() {
		job.Validation = d.Val
	}
	if p := pipeline.PrecisionOf(src.Model); p != nil {
		job.Traits.Half = p.Type
	}
	job.Traits.Clipped = t.c.Float64("clip-norm") > 0
	t.options.Dims = d.Dims
	updates := src
	if summed != nil {
		if updates, err = t.e.load(t.updatePath()); err != nil {
			return nil, err
		}
	}
	if err := t.rated(src, updates); err != nil {
		return nil, err
	}
	if err := t.place(job, src, updates, d, state); err != nil {
		return nil, err
	}
	t.join(job)
	return job, nil
}

// warnUneven warns where the micro-batches of an update, of which the first are looked at, have
// different numbers of labels that count: each weighs the same.
func (t *trainRun) warnUneven(job *train.Job, d *data.Data) {
	runs := job.Accumulate
	if t.ranks != nil && !t.local() {
		runs *= t.ranks.batches()
	}
	if runs < 2 {
		return
	}
	if uneven, _ := unevenLabels(d.Train, int64(min(max(runs, 8), 64)), t.counts); uneven != "" {
		t.e.warn([]string{fmt.Sprintf("%s of a micro-batch count, and each micro-batch weighs the same: an update by the mean of %d runs is not that of one batch of all their samples",
			uneven, runs)})
	}
}

// unevenLabels says how many labels the first batches have that count, where these are not equally many,
// and of how many inputs such numbers are known. what labels are called where one input holds them.
func unevenLabels(b *data.Batches, batches int64, what string) (text string, inputs int) {
	type span struct{ least, most int64 }
	counts := map[string]span{}
	for i := range batches {
		batch, err := b.At(i)
		if err != nil {
			return "", 0 // which its step says
		}
		for input, n := range b.Compared(batch) {
			if s, ok := counts[input]; ok {
				counts[input] = span{min(s.least, n), max(s.most, n)}
			} else {
				counts[input] = span{n, n}
			}
		}
	}
	var uneven []string
	for _, input := range slices.Sorted(maps.Keys(counts)) {
		if s := counts[input]; s.least < s.most {
			of := what
			if len(counts) > 1 {
				of = "labels in " + input
			}
			uneven = append(uneven, fmt.Sprintf("%d to %d %s", s.least, s.most, of))
		}
	}
	return strings.Join(uneven, " and "), len(counts)
}

// length sets how many steps the job has.
func (t *trainRun) length(job *train.Job, d *data.Data) error {
	runs, ranks := int64(job.Accumulate), t.ranks
	if ranks != nil {
		runs *= int64(ranks.batches())
	}
	if t.epochs > 0 {
		job.Schedule.Steps = max(1, d.Train.In(t.epochs)/runs)
		if ranks != nil {
			job.Schedule.Steps = ranks.steps(job.Schedule.Steps)
		}
	}
	if err := job.Schedule.Check(); err != nil || ranks == nil {
		return err
	}
	return ranks.check(job.Schedule.Steps, d.Train)
}

// rated refuses flags for a number that no graph asks for: the one that makes gradients, or
// the one that updates, which may be the same.
func (t *trainRun) rated(src, updates *pipeline.Source) error {
	for _, number := range []struct {
		of    *pipeline.Source
		input string
		flags []string
	}{
		{updates, "lr", []string{"lr", "schedule", "warmup", "min-lr"}},
		{src, "loss_scale", []string{"loss-scale", "loss-scale-growth", "loss-scale-backoff", "loss-scale-interval"}},
	} {
		if v := number.of.Model.Graph.Value(number.input); v != nil && v.IsInput() {
			continue
		}
		for _, flag := range number.flags {
			if t.c.IsSet(flag) {
				return fmt.Errorf("%s: --%s: the graph has no input %s: leave the flag out", number.of.Path, flag, number.input)
			}
		}
	}
	return nil
}

// open makes the sessions: the one that trains, and beside it the one that validates.
func (t *trainRun) open(src *pipeline.Source, job *train.Job) (*subject, func(), error) {
	first, err := job.Batches.At(int64(job.From.Runs))
	if err != nil {
		return nil, nil, err
	}
	o := t.options
	o.Feed = first
	if t.ranks != nil && t.ranks.schedule != "" {
		return t.openStage(src, job, o)
	}
	if t.bucketed() {
		s, closing, err := t.openBuckets(src, job, o)
		if err != nil || job.Validation == nil {
			return s, closing, err
		}
		roles, _, err := step.RolesOf(src.Model, t.options.Roles)
		if err != nil {
			closing()
			return nil, nil, err
		}
		last := t.beside[len(t.beside)-1].session // which shares with all
		return t.validated(src, s, roles, last, job, closing)
	}
	s, err := openSubject(t.e, src.Path, o)
	if err != nil {
		return nil, nil, err
	}
	if !s.session.Roles.Updates() {
		s.close()
		return nil, nil, fmt.Errorf("%s: no parameter is updated: train its forward model, or derive with remat grad --optimizer", src.Path)
	}
	job.Session = s.session
	if job.Validation == nil {
		return s, s.close, nil
	}
	return t.validated(src, s, s.roles, s.session, job, s.close)
}

// validated adds the session that validates to those that train, of which one shares all
// parameters.
func (t *trainRun) validated(src *pipeline.Source, s *subject, roles step.Roles, share *remat.Session, job *train.Job, closing func()) (*subject, func(), error) {
	inside, err := t.openValidation(src, roles, share, job)
	if err != nil {
		closing()
		return nil, nil, fmt.Errorf("validation: %w", err)
	}
	return s, func() { inside.Close(); closing() }, nil
}

// openValidation makes a session of the forward part that reads the parameters of a
// session.
func (t *trainRun) openValidation(src *pipeline.Source, roles step.Roles, share *remat.Session, job *train.Job) (*remat.Session, error) {
	m, err := src.Forward(roles)
	if err != nil {
		return nil, err
	}
	o := t.options
	o.Own, o.From, o.Share, o.Purpose = nil, remat.Progress{}, share, "validate"
	if o.Feed, err = job.Validation.At(0); err != nil {
		return nil, err
	}
	inside, err := t.e.loaded.Open(m, o)
	if err != nil {
		return nil, err
	}
	job.Validate(inside)
	return inside, nil
}
