package main

// What a person watches while a model trains: a line on stderr, and in the run's
// folder the log, TensorBoard's events, the page, and the recipe of the run.

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/train"
	"github.com/onnx-remat/remat/train/watch"
)

// Names in the run's folder; train/watch has the others.
const (
	recipeName = "recipe.yaml"
	// decidedName holds the tables of what was decided, for the page of a run that
	// goes on, as nothing is decided then.
	decidedName = "decided.json"
)

func watchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.Int64Flag{Name: "log-every", Value: 1, Usage: "log every `N`th step; the first, the last and skipped steps are logged in any case"},
	}
}

// readWatch checks the flags.
func readWatch(c *cli.Context) error {
	if n := c.Int64("log-every"); n < 1 {
		return fmt.Errorf("--log-every %d: want at least 1", n)
	}
	return nil
}

// watchers opens all that watches a run: dir is its folder, from the step after
// which it goes on, steps how many there are in all, counts what is counted of a batch,
// decided what was chosen for the run, if anything was. Close ends them; ended says how before.
func (e *env) watchers(c *cli.Context, dir string, from, steps int64, counts string, decided ...report.Table) (*watching, error) {
	text, err := e.effectiveRecipe(c, "resume")
	if err != nil {
		return nil, err
	}
	if err := onnx.WriteFile(filepath.Join(dir, recipeName), text); err != nil {
		return nil, err
	}
	if decided, err = keepDecided(filepath.Join(dir, decidedName), from, decided); err != nil {
		return nil, err
	}
	page := &report.Training{
		Title: "Training " + filepath.Base(cmp.Or(c.Args().First(), dir)), Command: e.typed, Facts: machineFacts(e),
		Decided: decided, Settings: settingsTable(c), Counts: counts,
	}
	files, err := watch.Open(dir, watch.Options{From: from, Steps: steps, Every: c.Int64("log-every"), Page: page})
	if err != nil {
		return nil, err
	}
	return &watching{files: files, line: newTrainingLine(e, from, steps, counts)}, nil
}

// keepDecided writes what was decided, or reads it where a run goes on.
func keepDecided(path string, from int64, decided []report.Table) ([]report.Table, error) {
	if len(decided) > 0 {
		return decided, writeJSONFile(path, decided)
	}
	if from == 0 { // of an earlier run
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return nil, nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err := readJSON(path, &decided); err != nil {
		return nil, err
	}
	for _, t := range decided {
		for _, r := range t.Rows {
			if len(r) != len(t.Columns) {
				return nil, fmt.Errorf("%s: a row of %d cells in a table of %d columns: remove the file to go on", path, len(r), len(t.Columns))
			}
		}
	}
	return decided, nil
}

// settingsTable lists the flags of a command: those given, then what others are by
// default.
func settingsTable(c *cli.Context) report.Table {
	t := report.Table{Columns: []string{"flag", "value", ""}}
	given, defaults := settingsOf(c)
	for _, s := range given {
		value := fmt.Sprint(s.value)
		if list, ok := s.value.([]string); ok {
			value = strings.Join(list, ", ")
		}
		t.Rows = append(t.Rows, []string{s.name, value, "given"})
	}
	for _, s := range defaults {
		t.Rows = append(t.Rows, []string{s.name, fmt.Sprint(s.value), "by default"})
	}
	return t
}

// watching is the train.Watcher of a run.
type watching struct {
	files *watch.Run
	line  *trainingLine
}

func (w *watching) Step(r train.Record) error {
	w.line.step(r)
	return w.files.Step(r)
}

func (w *watching) Validated(v train.Validation) error {
	w.line.validation = fmt.Sprintf(", validation %.4f", v.Loss)
	return w.files.Validated(v)
}

func (w *watching) Saved(path string, step int64) error { return w.files.Saved(path, step) }

// ended says what came of the run: nil is done.
func (w *watching) ended(err error) {
	switch {
	case err == nil:
		w.files.End("done", false)
	case errors.Is(err, train.ErrInterrupted):
		w.files.End("interrupted", false)
	default:
		w.files.End("stopped: "+err.Error(), true)
	}
}

func (w *watching) Close() error {
	w.line.bar.Finish()
	return w.files.Close()
}

// A trainingLine says where a run stands:
//
//	training: step 120 of 300, loss 3.4117, 850 tokens/s, 1.20 GiB, 3 min 10 s left
type trainingLine struct {
	bar         *progress
	from, steps int64
	start, said time.Time
	loss        float64 // smoothed, as single steps jump
	tokens      int64
	counts      string // what tokens are: labels of arrays, or samples, too
	validation  string
}

// betweenLines is the least time from one text to the next.
const betweenLines = 100 * time.Millisecond

func newTrainingLine(e *env, from, steps int64, counts string) *trainingLine {
	p := &trainingLine{bar: e.progress(int(steps), "training"), from: from, steps: steps, counts: counts, start: time.Now(), loss: math.NaN()}
	p.bar.Add(int(from))
	return p
}

func (p *trainingLine) step(r train.Record) {
	p.bar.Add(1)
	p.tokens += r.Tokens
	if p.loss = 0.9*p.loss + 0.1*r.Loss; math.IsNaN(p.loss) {
		p.loss = r.Loss
	}
	now := time.Now()
	if now.Sub(p.said) < betweenLines && r.Step != p.steps {
		return
	}
	p.said = now
	p.bar.Say(p.text(r, now.Sub(p.start).Seconds()))
}

// text is the line after a step, seconds after the start.
func (p *trainingLine) text(r train.Record, seconds float64) string {
	text := fmt.Sprintf("step %d of %d, loss %.4f%s", r.Step, p.steps, p.loss, p.validation)
	if p.tokens > 0 && seconds > 0 {
		text += fmt.Sprintf(", %s %s/s", units.Count(int64(math.Round(float64(p.tokens)/seconds))), p.counts)
	}
	if memory := max(r.RSSBytes, r.LivePeakBytes); memory > 0 {
		text += ", " + units.Bytes(memory)
	}
	if done := r.Step - p.from; done > 0 && r.Step < p.steps {
		left := seconds / float64(done) * float64(p.steps-r.Step)
		text += ", " + units.Seconds(left) + " left"
	}
	return text
}
