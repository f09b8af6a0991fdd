package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/train"
)

func trainCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "train", Usage: "trains a model, and saves states from which training goes on", ArgsUsage: "TRAIN.onnx",
		Description: "A step is an update. -o is the folder of a run: its states, its log.\n\n" +
			"Example: remat train train.onnx --data batches.npz --steps 100 --lr 1e-3 -o run",
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "the run's folder, `DIR`"},
			&cli.BoolFlag{Name: "resume", Usage: "go on from the last state in DIR"},
			&cli.StringFlag{Name: "roles", Usage: "`F.json`: name loss, grad and new instead of detecting them"},
		}, append(lengthFlags(), watchFlags()...)...), trainDataFlags()...),
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
	return append([]cli.Flag{
		&cli.Int64Flag{Name: "steps", Usage: "how many steps in all, `N`, resumed ones included"},
		&cli.Float64Flag{Name: "lr", Value: 1e-3, Usage: "learning rate, `X`: the highest"},
		&cli.StringFlag{Name: "schedule", Value: "constant", Usage: "`constant|linear|cosine`: how the rate falls after the warm-up"},
		&cli.Int64Flag{Name: "warmup", Usage: "the rate rises from 0 in the first `N` steps"},
		&cli.Float64Flag{Name: "min-lr", Usage: "the least rate, `X`, to which linear and cosine fall"},
		&cli.Int64Flag{Name: "eval-every", Usage: "validate every `N` steps; 0: after the last one"},
		&cli.Int64Flag{Name: "save-every", Usage: "save a state every `N` steps; 0: after the last one"},
		&cli.IntFlag{Name: "keep", Value: 2, Usage: "how many states stay, `K`"},
	}, scalingFlags()...)
}

// A trainRun is what remat train was asked for.
type trainRun struct {
	e        *env
	c        *cli.Context
	path     string
	dir      string
	resume   bool
	schedule train.Schedule
	options  remat.Options
	keep     int
}

func readTraining(e *env, c *cli.Context) (*trainRun, error) {
	t := &trainRun{e: e, c: c, dir: c.String("o"), resume: c.Bool("resume"), keep: c.Int("keep")}
	var err error
	if t.path, err = argument(c, "model file"); err != nil {
		return nil, err
	}
	if t.dir == "" {
		return nil, errors.New("remat train: missing -o DIR, the run's folder")
	}
	if e.rehearse {
		return nil, fmt.Errorf("remat train: not with --rehearse: %s", report.NoNumbers)
	}
	t.schedule = train.Schedule{Kind: c.String("schedule"), LR: c.Float64("lr"), MinLR: c.Float64("min-lr"), Warmup: c.Int64("warmup"), Steps: c.Int64("steps")}
	if !c.IsSet("steps") {
		return nil, errors.New("remat train: how long? add --steps N")
	}
	if err := t.schedule.Check(); err != nil {
		return nil, err
	}
	for _, flag := range []string{"eval-every", "save-every"} {
		if c.Int64(flag) < 0 {
			return nil, fmt.Errorf("--%s %d: want a number of steps, or 0", flag, c.Int64(flag))
		}
	}
	if t.keep < 1 {
		return nil, fmt.Errorf("--keep %d: want at least 1", t.keep)
	}
	if err := readWatch(c); err != nil {
		return nil, err
	}
	if t.options, err = readSessionOptions(e, c); err != nil {
		return nil, err
	}
	t.options.Seed = c.Uint64("seed")
	return t, nil
}

// run trains, and prints what came of it.
func (t *trainRun) run() (err error) {
	e := t.e
	src, err := e.load(t.path)
	if err != nil {
		return err
	}
	batches, err := openBatches(t.c)
	if err != nil {
		return err
	}
	folder, err := train.OpenFolder(t.dir, t.keep)
	if err != nil {
		return err
	}
	defer folder.Close()
	from, state, err := t.start(folder, src, batches)
	if err != nil {
		return err
	}
	if state != nil {
		defer state.Close()
		t.options.Own, t.options.From = state.Values(), from.Progress()
	}
	if t.options.Feed, err = batches.At(int64(from.Runs)); err != nil {
		return err
	}
	s, err := openSubject(e, t.path, t.options)
	if err != nil {
		return err
	}
	defer s.close()
	if len(s.session.Updated()) == 0 {
		return fmt.Errorf("%s: no parameter is updated: derive a training graph with remat grad --optimizer", t.path)
	}
	if state != nil {
		if err := state.Fits(s.session); err != nil {
			return err
		}
	}
	if from.Step >= t.schedule.Steps {
		return fmt.Errorf("%s: the training stands at step %d: nothing is left of --steps %d", t.dir, from.Step, t.schedule.Steps)
	}
	e.say("%s on %s, ONNX Runtime %s", filepath.Base(t.path), s.run.Provider, s.run.ORTVersion)
	job := &train.Job{
		Session: s.session, Accumulate: train.Accumulation(src.Model.Graph), Batches: batches, Schedule: t.schedule,
		EvalEvery: t.c.Int64("eval-every"), SaveEvery: t.c.Int64("save-every"), Folder: folder, From: from,
	}
	if p := pipeline.PrecisionOf(src.Model); p != nil {
		job.Traits.Half = p.Type
	}
	w, err := e.watchers(t.c, t.dir, from.Step, t.schedule.Steps)
	if err != nil {
		return err
	}
	job.Watcher = w
	e.finishing.Store(true)
	result, err := job.Run(e.ctx)
	w.ended(err)
	if e := w.Close(); err == nil {
		err = e
	}
	e.finishing.Store(false)
	if err != nil && !errors.Is(err, train.ErrInterrupted) {
		return trainError(err)
	}
	doc := t.document(s, result, from)
	if e.json {
		if err := report.WriteJSON(e.stdout, doc); err != nil {
			return err
		}
	} else {
		doc.text(e)
	}
	if err != nil {
		return &interruptedError{fmt.Sprintf("interrupted after step %d of %d; %s holds it: go on with %s", result.Step, t.schedule.Steps, train.StatePath(t.dir), t.again())}
	}
	return nil
}

// again is the command that goes on.
func (t *trainRun) again() string {
	if t.resume {
		return t.e.typed
	}
	return t.e.typed + " --resume"
}

// start says where the training begins: from nothing, or from the last state.
func (t *trainRun) start(folder *train.Folder, src *pipeline.Source, batches train.Batches) (train.Position, *train.State, error) {
	from := train.Position{Seed: t.options.Seed}
	var err error
	if from.Graph, err = src.Identity(); err != nil {
		return from, nil, err
	}
	if !t.resume {
		if folder.Holds() {
			return from, nil, fmt.Errorf("%s: holds the states of a run: add --resume to go on, or name another folder", t.dir)
		}
		return from, nil, nil
	}
	if !folder.Holds() {
		return from, nil, fmt.Errorf("%s: no state to go on from: leave out --resume", t.dir)
	}
	state, skipped, err := folder.Newest()
	if err != nil {
		return from, nil, err
	}
	for _, err := range skipped {
		fmt.Fprintf(t.e.stderr, "remat: %v: going on from %s (step %d)\n", err, filepath.Base(state.Path), state.Position.Step)
	}
	p := state.Position
	switch {
	case p.Graph != from.Graph:
		err = fmt.Errorf("%s: the state is of another graph than %s", state.Path, t.path)
	case p.Seed != from.Seed:
		err = fmt.Errorf("--seed %d: the run has the seed %d", from.Seed, p.Seed)
	}
	if err != nil {
		return from, nil, errors.Join(err, state.Close())
	}
	return p, state, nil
}

// trainError makes a loss that is no number a check that failed.
func trainError(err error) error {
	var bad *train.NotFiniteError
	if errors.As(err, &bad) {
		return &checkError{err}
	}
	return err
}

// trained is the document of train --json.
type trained struct {
	Steps        int64         `json:"steps"`
	Tokens       int64         `json:"tokens"`
	LossFirst    report.Float  `json:"loss_first"`
	LossLast     report.Float  `json:"loss_last"`
	ValLoss      *report.Float `json:"val_loss"`
	Perplexity   *report.Float `json:"perplexity"`
	Seconds      float64       `json:"seconds"`
	Speed        float64       `json:"tokens_per_second"`
	SkippedSteps int64         `json:"skipped_steps"`
	ResumedFrom  *int64        `json:"resumed_from"`
	State        report.Text   `json:"state"`
	Memory       report.Memory `json:"memory"`
}

func (t *trainRun) document(s *subject, r *train.Result, from train.Position) *trained {
	s.memory()
	d := &trained{
		Steps: r.Step, Tokens: r.Tokens, LossFirst: report.Float(r.LossFirst), LossLast: report.Float(r.LossLast),
		Seconds: r.Seconds, SkippedSteps: r.SkippedSteps, State: report.Text(r.State), Memory: s.run.Memory,
	}
	if r.Seconds > 0 {
		d.Speed = float64(r.NewTokens) / r.Seconds
	}
	if v := r.Validation; v != nil {
		d.ValLoss, d.Perplexity = (*report.Float)(&v.Loss), (*report.Float)(&v.Perplexity)
	}
	if t.resume {
		d.ResumedFrom = &from.Step
	}
	return d
}

func (d *trained) text(e *env) {
	e.say("%d steps, %d tokens, loss %.4f → %.4f, %.0f tokens/s", d.Steps, d.Tokens, float64(d.LossFirst), float64(d.LossLast), d.Speed)
	if d.ValLoss != nil {
		e.say("validation: loss %.4f, perplexity %.2f", float64(*d.ValLoss), float64(*d.Perplexity))
	}
	if d.State != "" {
		e.say("state: %s", string(d.State))
	}
}

// memory fills in what was measured, as far as it takes no second session.
func (s *subject) memory() {
	_ = s.session.MeasureRSS() // null where the system does not say
	m := s.session.Memory()
	to := &s.run.Memory
	to.ParameterBytes, to.StateBytes, to.FeedBytes, to.OutputBytes = m.ParameterBytes, m.StateBytes, m.FeedBytes, m.OutputBytes
	to.LivePeakBytes, to.RSSPeakBytes = &m.LivePeakBytes, m.RSSPeakBytes
	if s.run.OptLevel == 0 { // else what ONNX Runtime computes ahead is not counted
		to.SessionBytes, to.TotalPeakBytes = &m.SessionBytes, &m.TotalPeakBytes
	}
}

// An interruptedError says on one line where an interrupted command stands.
type interruptedError struct{ text string }

func (e *interruptedError) Error() string        { return e.text }
func (e *interruptedError) Is(target error) bool { return target == errInterrupted }

// readSessionOptions reads how a session runs, and what the graph's loss scale does.
func readSessionOptions(e *env, c *cli.Context) (remat.Options, error) {
	o := remat.Options{Level: e.opt, Threads: e.threads, Provider: ort.Provider(e.provider), Device: e.device, Dims: e.dims}
	var err error
	if o.LossScale, o.Scaling, err = readScaling(c); err != nil {
		return o, err
	}
	o.Roles, err = readRoles(c.String("roles"))
	return o, err
}
