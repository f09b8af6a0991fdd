package main

// Where a training begins and ends: the state that it goes on from, and what is printed
// of one that is done, stopped or interrupted.

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/train"
	"github.com/onnx-remat/remat/train/data"
)

// lastState opens the state that a run goes on from, nil for a new one.
func (t *trainRun) lastState(folder *train.Folder) (*train.State, error) {
	switch {
	case !t.resume && folder.Holds():
		return nil, fmt.Errorf("%s: holds the states of a run: add --resume to go on, or name another folder", folder.Dir)
	case !t.resume:
		return nil, nil
	case !folder.Holds() && !t.first():
		return nil, fmt.Errorf("%s: no state of this rank to go on from: go on with the --ranks and --sync of before", folder.Dir)
	case !folder.Holds():
		return nil, noState(t.dir)
	}
	state, damaged, err := folder.Newest()
	if err != nil {
		return nil, err
	}
	for _, err := range damaged {
		fmt.Fprintf(t.e.stderr, "remat: %v: going on from %s (step %d)\n", err, filepath.Base(state.Path), state.Position.Step)
	}
	return state, nil
}

func noState(dir string) error {
	return fmt.Errorf("%s: no state to go on from: leave out --resume", dir)
}

// graphFlags are those of the command that say which graph a training runs on, and
// nothing else.
func graphFlags() []cli.Flag {
	var out []cli.Flag
	for _, f := range slices.Concat(dataFlags(), fitFlags()) {
		switch f.Names()[0] {
		case "batch", "memory", "strategy", "chunk-loss", "tile", "update-rows":
			out = append(out, f)
		}
	}
	return slices.Concat(out, updateFlags(), precisionFlags())
}

// sameGraph refuses flags that would make another graph than the one that a resumed run
// goes on with, by the recipe that the run left. Between ranks micro-batches are shared
// out anew, and no graph holds how many.
func (t *trainRun) sameGraph() error {
	path := filepath.Join(t.dir, recipeName)
	data, err := readRecipeFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r, err := parseRecipe(t.c.App, path, data)
	if err != nil {
		return err
	}
	was := r.of(t.c.Command.Name)
	for _, f := range append(graphFlags(), flagNamed(t.c.App.Flags, "dim")) {
		name := f.Names()[0]
		if !t.c.IsSet(name) || name == "accumulate" && t.ranks != nil {
			continue
		}
		set := flag.NewFlagSet(name, flag.ContinueOnError)
		if err := f.Apply(set); err != nil {
			return err
		}
		made := "without that flag"
		s, said := was[name]
		if said {
			if err := set.Parse(s.words()); err != nil {
				return err
			}
			made = "with " + strings.Join(s.words(), " ")
		}
		now := textOf(t.c, f)
		switch {
		case now == textOf(cli.NewContext(t.c.App, set, nil), f) && (said || name != "gradient-norm"): // which is neither, left out
		case name == "dim": // which other flags and the data settle too
			src, err := t.e.load(t.trainPath())
			if err == nil {
				err = checkDims(t.e.dims, src)
			}
			if err != nil {
				return err
			}
		default:
			return fmt.Errorf("--%s %s: the graph in %s was made %s, and a resumed run goes on with that graph: leave --%s out, or start another run", name, now, t.dir, made, name)
		}
	}
	return nil
}

// textOf is a flag's value as it would be typed.
func textOf(c *cli.Context, f cli.Flag) string {
	if list, ok := valueOf(c, f).([]string); ok {
		return strings.Join(list, ",")
	}
	return fmt.Sprint(valueOf(c, f))
}

// place gives the job its position: the beginning, or where the state stands, which must
// be of this graph, its updates, which may be the same graph, and these data.
func (t *trainRun) place(job *train.Job, src, updates *pipeline.Source, d *data.Data, state *train.State) error {
	graph, err := src.Identity()
	if err != nil {
		return err
	}
	both := graph
	if updates != src {
		identity, err := updates.Identity()
		if err != nil {
			return err
		}
		both += " " + identity
	}
	job.From = train.Start(both, d.Train, t.options.Seed)
	if job.From.Frozen, err = src.Frozen(); err != nil {
		return err
	}
	if t.ranks != nil {
		job.From.Ranks, job.From.Sync = t.ranks.batches(), t.ranks.agreed()
	}
	if state == nil {
		return nil
	}
	if err := state.Continues(job.From, d.Train); err != nil {
		return err
	}
	if err := t.sameModel(src, graph); err != nil {
		return err
	}
	p := state.Position
	if p.Step > job.Schedule.Steps || p.Step == job.Schedule.Steps && d.Val == nil {
		return fmt.Errorf("%s: the training stands at step %d of %d: nothing is left to do; more --steps go on", t.dir, p.Step, job.Schedule.Steps)
	}
	for _, n := range traits.Drawing(src.Model.Graph) {
		if !traits.Counts(n) {
			t.e.note("%s (%s) begins to draw its random numbers anew: the training differs from one that was not resumed", n.Label(), n.OpType())
			break
		}
	}
	if p, err = t.shared(p, job.Accumulate); err != nil {
		return err
	}
	job.From, t.options.Own, t.options.From = p, state.Values(), p.Progress()
	return nil
}

// sameModel refuses a model that the folder's graph, whose identity is given, was not
// made of.
func (t *trainRun) sameModel(src *pipeline.Source, graph string) error {
	if t.path == "" {
		return nil
	}
	if _, err := os.Stat(t.path); errors.Is(err, fs.ErrNotExist) {
		t.e.note("%s is not there any more: %s runs, which was made from it", t.path, src.Path)
		return nil
	}
	given, err := t.e.load(t.path)
	if err != nil {
		return err
	}
	same, err := given.Identity() // of a graph that is trained as it is
	if err != nil {
		return err
	}
	if made, ok := src.Model.Metadata(pipeline.SourceKey); ok && made != given.Hash() && same != graph {
		return fmt.Errorf("%s: was made from another model than %s: name that one, or none", src.Path, t.path)
	}
	return nil
}

// trainError makes a check that failed of what is no bad input: a loss that is no
// number, a step beyond the memory.
func trainError(err error) error {
	if _, ok := errors.AsType[*train.NotFiniteError](err); ok {
		return &checkError{err}
	}
	if beyondLimit(err) != nil {
		return &checkError{fmt.Errorf("%w%s", err, memoryHelp(err))}
	}
	return err
}

// trained is the document of train --json.
type trained struct {
	Steps        int64         `json:"steps"`
	Tokens       int64         `json:"tokens"`
	LossFirst    report.Float  `json:"loss_first"`
	LossLast     *report.Float `json:"loss_last"`
	ValLoss      *report.Float `json:"val_loss"`
	Perplexity   *report.Float `json:"perplexity"`
	Seconds      float64       `json:"seconds"`
	Speed        float64       `json:"tokens_per_second"`
	SkippedSteps int64         `json:"skipped_steps"`
	ResumedFrom  *int64        `json:"resumed_from"`
	State        report.Text   `json:"state"`
	Memory       report.Memory `json:"memory"`
	Ranks        *trainedRanks `json:"ranks"`
	EachRank     []rankMemory  `json:"each_rank"`
}

// print prints the document of a training, or what a person wants to read of it, on the
// first rank; others tell it what they took.
func (t *trainRun) print(s *subject, job *train.Job, r *train.Result) error {
	s.memory()
	t.addBeside(s)
	own, err := t.ranksDocument(job, r)
	if err != nil {
		return err
	}
	each, err := t.eachRank(s, own)
	if err != nil || !t.first() {
		return err
	}
	d := &trained{
		Ranks: own, EachRank: each,
		Steps: r.Step, Tokens: r.Tokens, LossFirst: report.Float(r.LossFirst),
		Seconds: r.Seconds, SkippedSteps: r.SkippedSteps, State: report.Text(r.State), Memory: s.run.Memory,
	}
	if r.NewTokens > 0 {
		d.LossLast = (*report.Float)(&r.LossLast)
		d.Speed = float64(r.NewTokens) / r.Seconds
	}
	if v := r.Validation; v != nil {
		d.ValLoss, d.Perplexity = (*report.Float)(&v.Loss), (*report.Float)(&v.Perplexity)
	}
	if t.resume {
		d.ResumedFrom = &job.From.Step
	}
	if t.e.json {
		return report.WriteJSON(t.e.stdout, d)
	}
	if d.LossLast == nil {
		t.e.say("%s and %d %s were done before", units.Counted(int(d.Steps), "step"), d.Tokens, t.counts)
	} else {
		t.e.say("%s, %d %s, loss %.4f to %.4f, %.0f %s/s", units.Counted(int(d.Steps), "step"), d.Tokens, t.counts, r.LossFirst, r.LossLast, d.Speed, t.counts)
	}
	if v := r.Validation; v != nil {
		t.e.say("validation: loss %.4f%s", v.Loss, perplexityText(", perplexity %.2f", v.Perplexity, t.counts))
	}
	if r.SkippedSteps > 0 {
		t.e.say("%d steps were skipped: gradients overflowed, and the loss scale was lowered", r.SkippedSteps)
	}
	if k := d.Ranks; k != nil {
		t.e.say("%d ranks, --sync %s: each sends about %s %s, and holds %s for it", k.Ranks, k.Sync, units.Bytes(k.SyncBytes), units.Counted(int(k.Syncs), "time"), units.Bytes(k.HeldBytes))
	}
	if k := d.Ranks; k != nil && k.Buckets != nil {
		t.e.say("%d buckets: %.2f s of sending, computing in %.0f %% of them", *k.Buckets, *k.SendSeconds, 100**k.Overlapped)
	}
	t.e.say("state: %s", r.State)
	return nil
}

// interrupted says where an interrupted training stands, and how to go on.
func (t *trainRun) interrupted(job *train.Job, r *train.Result) string {
	if r.Step == 0 {
		return "interrupted before the first step"
	}
	return fmt.Sprintf("interrupted after step %d of %d, which %s holds: go on with %s", r.Step, job.Schedule.Steps, train.StatePath(t.dir), commandLine([]string{"train", "-o", t.dir, "--resume"}))
}

// countConstants adds what ONNX Runtime computed ahead, before the steps have the memory:
// it may take a second session. Where that fails, what needs it stays null.
func (s *subject) countConstants() {
	s.counted = !s.ahead || s.session.MeasureConstants() == nil
	s.asked = true
}

// memory fills in what was measured.
func (s *subject) memory() {
	_ = s.session.MeasureRSS() // null where the system does not say
	s.noteMemory()
}

// An interruptedError says on one line where an interrupted command stands.
type interruptedError struct{ text string }

func (e *interruptedError) Error() string        { return e.text }
func (e *interruptedError) Is(target error) bool { return target == errInterrupted }
