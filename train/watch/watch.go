// Package watch writes down what a training run tells of itself, in the run's folder:
//
//	log.jsonl    one line for each step that is logged, one for each validation
//	events/      the same for TensorBoard
//	report.html  the same as a page, made anew at each save and at the end
//
// A line is with the operating system before Step returns, so the log of a process
// that was killed has every step that a saved state has. What a resumed run does
// again is cut from the log first, and superseded in TensorBoard.
package watch

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/train"
)

// Names in the run's folder.
const (
	LogName    = "log.jsonl"
	EventsName = "events"
	PageName   = "report.html"
)

// betweenPages is the least time from one page to the next, but for the last one.
const betweenPages = 2 * time.Second

// Options say what is written.
type Options struct {
	// From is the step after which the run goes on; 0: it begins.
	From int64
	// Steps is how many there will be, 0: nobody knows.
	Steps int64
	// Every logs the first, each so many-th and the last step, and those that were
	// skipped; below 2: all.
	Every int64
	// Page is what report.html shows beside the steps; nil: no page.
	Page *report.Training
}

// A Run is the train.Watcher that writes all of it.
type Run struct {
	dir     string
	options Options
	log     *log
	events  *events
	paged   time.Time
	// validated is the step of the last validation that the log had before, 0 for none.
	validated int64
}

// Open makes the files of a run in its folder, which exists. Of a run that goes on
// they keep what was told up to Options.From.
func Open(dir string, o Options) (*Run, error) {
	r := &Run{dir: dir, options: o}
	path := filepath.Join(dir, LogName)
	if err := cut(path, o.From); err != nil {
		return nil, err
	}
	p := o.Page
	if p != nil {
		p.Steps, p.Every = o.Steps, o.Every
	}
	err := Read(path, func(s train.Record) error {
		if p != nil {
			p.Step(point(s))
		}
		return nil
	}, func(v train.Validation) error {
		r.validated = v.Step
		if p != nil {
			p.Validated(v.Step, v.Loss, v.Perplexity)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r.log, err = openLog(path); err != nil {
		return nil, err
	}
	if r.events, err = openEvents(filepath.Join(dir, EventsName), o.From+1); err != nil {
		return nil, errors.Join(err, r.log.close())
	}
	return r, nil
}

// Step writes a step, if it is one to be logged.
func (r *Run) Step(s train.Record) error {
	if n := r.options.Every; n > 1 && s.Step%n != 0 && s.Step != 1 && s.Step != r.options.Steps && !s.Skipped {
		return nil
	}
	if r.options.Page != nil {
		r.options.Page.Step(point(s))
	}
	if err := r.log.step(s); err != nil {
		return err
	}
	return r.events.step(s)
}

// Validated writes a validation, unless the log has it: a run whose steps were all done
// validates again when it is resumed.
func (r *Run) Validated(v train.Validation) error {
	if v.Step == r.validated && v.Step > 0 {
		return nil
	}
	if r.options.Page != nil {
		r.options.Page.Validated(v.Step, v.Loss, v.Perplexity)
	}
	if err := r.log.validated(v); err != nil {
		return err
	}
	return r.events.validated(v)
}

// Saved makes the page anew.
func (r *Run) Saved(string, int64) error {
	if r.options.Page == nil || time.Since(r.paged) < betweenPages {
		return nil
	}
	return r.page()
}

// End says how the run ended, before Close: "done", or what stopped it.
func (r *Run) End(outcome string, failed bool) {
	if r.options.Page != nil {
		r.options.Page.Outcome, r.options.Page.Failed = outcome, failed
	}
}

// Close makes the last page and closes the files.
func (r *Run) Close() error {
	err := errors.Join(r.log.close(), r.events.close())
	if r.options.Page != nil {
		err = errors.Join(err, r.page())
	}
	return err
}

func (r *Run) page() error {
	err := onnx.ReplaceFile(filepath.Join(r.dir, PageName), func(f *os.File) error { return r.options.Page.HTML(f) })
	r.paged = time.Now()
	return err
}

// point is a record as the page takes it.
func point(s train.Record) report.TrainingStep {
	scale := cmp.Or(s.LossScale, math.NaN())
	return report.TrainingStep{Step: s.Step, Loss: s.Loss, Rate: s.LR, Norm: s.GradientNorm, Tokens: s.Tokens, Seconds: s.Seconds,
		Live: s.LivePeakBytes, Reserved: s.ReservedBytes, Resident: s.RSSBytes, Scale: scale, Skipped: s.Skipped}
}

// cause names the file once.
func cause(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", path, onnx.PathCause(err))
}
