package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
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
		}, dataFlags(), lengthFlags(), scalingFlags(), fitFlags(), watchFlags()),
		Action: func(c *cli.Context) error {
			t, err := readTraining(e, c)
			if err != nil {
				return err
			}
			return t.run()
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
	options  remat.Options // of the session
}

func readTraining(e *env, c *cli.Context) (t *trainRun, err error) {
	t = &trainRun{e: e, c: c, dir: c.String("o"), resume: c.Bool("resume"), epochs: c.Int64("epochs")}
	if !t.resume || c.Args().Present() {
		if t.path, err = argument(c, "model file"); err != nil {
			return nil, err
		}
	}
	if t.dir == "" {
		return nil, errors.New("remat train: missing -o DIR, the run's folder")
	}
	if e.rehearse {
		return nil, fmt.Errorf("remat train: not with --rehearse: %s", report.NoNumbers)
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
	t.options = remat.Options{
		Level: e.opt, Threads: e.threads, Provider: ort.Provider(e.provider), Device: e.device,
		MemoryLimit: t.fit.MemoryLimit, Within: t.fit.options.Memory, Seed: c.Uint64("seed"),
	}
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

// trainGarbage is how much garbage is let lie while steps run, in percent of what is in
// use: they make little of it, and the memory is theirs.
const trainGarbage = 25

// run trains, and prints what came of it.
func (t *trainRun) run() error {
	e := t.e
	folder, err := train.OpenFolder(t.dir, t.c.Int("keep"))
	if err != nil {
		return err
	}
	defer folder.Close()
	state, err := t.lastState(folder)
	if err != nil {
		return err
	}
	if state != nil {
		defer state.Close()
	}
	source, err := openData(e.ctx, e, t.data)
	if err != nil {
		return err
	}
	defer source.Close()
	decided, err := t.graph(source)
	if err != nil {
		return err
	}
	if t.path != "" {
		e.unload(t.path)
	}
	src, err := e.load(filepath.Join(t.dir, trainFile))
	if err != nil {
		return err
	}
	job, err := t.prepare(src, source, folder, state)
	if err != nil {
		return err
	}
	s, closeSessions, err := t.open(src, job)
	if err != nil {
		return trainError(err)
	}
	defer closeSessions()
	if state != nil {
		if err := state.Fits(s.session); err != nil {
			return err
		}
	}
	e.say("%s on %s, ONNX Runtime %s", src.Path, s.run.Provider, s.run.ORTVersion)
	w, err := e.watchers(t.c, t.dir, job.From.Step, job.Schedule.Steps, decided...)
	if err != nil {
		return err
	}
	job.Watcher = w
	s.countConstants()
	defer debug.SetGCPercent(debug.SetGCPercent(trainGarbage))
	e.loaded.Forget()
	src.Slim()
	debug.FreeOSMemory() // planning and opening are over: the memory is the steps'
	ort.Trim()
	e.finishing.Store(true)
	result, err := job.Run(e.ctx)
	w.ended(err)
	if closing := w.Close(); err == nil {
		err = closing
	}
	e.finishing.Store(false)
	if err != nil && !errors.Is(err, train.ErrInterrupted) {
		return trainError(err)
	}
	if printing := t.print(s, job, result); printing != nil {
		return printing
	}
	if err != nil {
		return &interruptedError{t.interrupted(job, result)}
	}
	return nil
}

// graph writes the file that runs, unless a run is resumed, which has one. It returns
// tables of what was decided.
func (t *trainRun) graph(source *data.Source) ([]report.Table, error) {
	if t.resume {
		return nil, nil
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
	if err != nil && t.batch > 0 && !t.c.IsSet("accumulate") && !training {
		// In a model whose batch is fixed an update may take several runs.
		sizes.Batch = 0
		if again, fixed := source.For(src.Model, sizes); fixed == nil {
			d, whole, err = again, t.batch, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.path, err)
	}
	if err := pipeline.CanWrite(src.Files(), filepath.Join(t.dir, trainFile)); err != nil {
		return nil, err
	}
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
			saves = report.Bytes(*d.Saves)
		}
		if d.Work != nil {
			work = report.Percent(*d.Work)
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
		t.note(note)
	}
	job := &train.Job{
		Accumulate: int(train.Accumulation(src.Model.Graph)), Batches: d.Train, Schedule: t.schedule,
		EvalEvery: t.c.Int64("eval-every"), SaveEvery: t.c.Int64("save-every"), Folder: folder,
	}
	if t.epochs > 0 {
		job.Schedule.Steps = max(1, d.Train.In(t.epochs)/int64(job.Accumulate))
	}
	if err := job.Schedule.Check(); err != nil {
		return nil, err
	}
	if d.Val != nil {
		job.Validation = d.Val
	}
	if p := pipeline.PrecisionOf(src.Model); p != nil {
		job.Traits.Half = p.Type
	}
	job.Traits.Clipped = t.c.Float64("clip-norm") > 0
	t.options.Dims = d.Dims
	if err := t.rated(src.Model.Graph); err != nil {
		return nil, fmt.Errorf("%s: %w", src.Path, err)
	}
	return job, t.place(job, src, d, state)
}

// rated refuses flags for a number that the graph does not ask for.
func (t *trainRun) rated(g *onnx.Graph) error {
	for input, flags := range map[string][]string{
		"lr":         {"lr", "schedule", "warmup", "min-lr"},
		"loss_scale": {"loss-scale", "loss-scale-growth", "loss-scale-backoff", "loss-scale-interval"},
	} {
		if v := g.Value(input); v != nil && v.IsInput() {
			continue
		}
		for _, flag := range flags {
			if t.c.IsSet(flag) {
				return fmt.Errorf("--%s: the graph has no input %s: leave the flag out", flag, input)
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
	s, err := openSubject(t.e, src.Path, o)
	if err != nil {
		return nil, nil, err
	}
	if len(s.session.Updated()) == 0 {
		s.close()
		return nil, nil, fmt.Errorf("%s: no parameter is updated: train its forward model, or derive with remat grad --optimizer", src.Path)
	}
	job.Session = s.session
	if job.Validation == nil {
		return s, s.close, nil
	}
	inside, err := t.openValidation(src, s, job)
	if err != nil {
		s.close()
		return nil, nil, fmt.Errorf("validation: %w", err)
	}
	return s, func() { inside.Close(); s.close() }, nil
}

// openValidation makes a session of the forward part that reads the parameters of the
// training session.
func (t *trainRun) openValidation(src *pipeline.Source, s *subject, job *train.Job) (*remat.Session, error) {
	m, err := src.Forward(s.roles)
	if err != nil {
		return nil, err
	}
	o := t.options
	o.Own, o.From, o.Share, o.Purpose = nil, remat.Progress{}, s.session, "validate"
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

// note prints what a person wants to know on stderr.
func (t *trainRun) note(line string) {
	if !t.e.quiet {
		fmt.Fprintf(t.e.stderr, "note: %s\n", line)
	}
}
