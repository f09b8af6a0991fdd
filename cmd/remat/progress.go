package main

// Progress on stderr: a bar where a terminal is, elsewhere a line now and then,
// nothing for what is quick.

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/units"
)

// silence is how long nothing is said where no terminal is.
const silence = 10 * time.Second

// A progress shows how far something has come, until Finish.
type progress struct {
	bar *progressbar.ProgressBar // on a terminal
	to  io.Writer                // elsewhere; nil: --quiet
	end chan struct{}
	all sync.WaitGroup
	// within is what this is a part of, which shows it: there is one bar at a time.
	within *progress
	closed func()

	mu          sync.Mutex
	what, where string
	done, total int
}

// progress begins to show what is done, in total steps; -1: nobody knows how
// many.
func (e *env) progress(total int, what string) *progress {
	p := &progress{what: what, total: total, end: make(chan struct{}), within: e.shown}
	e.shown, p.closed = p, func() { e.shown = p.within }
	switch {
	case e.quiet, p.within != nil:
	case isTerminal(e.stderr):
		p.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(e.stderr),
			progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish(), progressbar.OptionShowCount())
	default:
		p.to = e.stderr
		p.all.Go(func() { p.lines(time.NewTicker(silence)) })
	}
	return p
}

// lines prints a line at each tick.
func (p *progress) lines(t *time.Ticker) {
	defer t.Stop()
	for {
		select {
		case <-p.end:
			return
		case <-t.C:
			fmt.Fprintln(p.to, p.line())
		}
	}
}

// line says where the work stands.
func (p *progress) line() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.where != "":
		return p.what + ": " + p.where
	case p.total > 0:
		return fmt.Sprintf("%s: %d of %d", p.what, p.done, p.total)
	}
	return p.what + " …"
}

// Add notes that n more steps are done.
func (p *progress) Add(n int) {
	p.mu.Lock()
	p.done += n
	p.mu.Unlock()
	if p.bar != nil {
		p.bar.Add(n)
	}
}

// Say notes in words where the work stands.
func (p *progress) Say(where string) {
	p.mu.Lock()
	p.where = where
	p.mu.Unlock()
	if p.bar != nil {
		p.bar.Describe(p.what + ": " + where)
	}
	if p.within != nil {
		p.within.Say(where)
	}
}

// Finish ends it; nothing is printed afterwards.
func (p *progress) Finish() {
	close(p.end)
	p.all.Wait()
	p.closed()
	if p.bar != nil {
		p.bar.Finish()
	}
}

// planningText says how far planning has come.
func planningText(s pipeline.Progress) string {
	text := ""
	switch {
	case s.Form > 0:
		text = fmt.Sprintf("form %d of %d of the graph", s.Form, s.Forms)
	case s.Most > 0 && s.Tried > 0:
		text = fmt.Sprintf("%d of at most %d candidates", s.Tried, s.Most)
	case s.Tried == 0:
		return "writing the first candidate"
	default:
		text = units.Counted(s.Tried, "candidate")
	}
	if s.Best > 0 {
		text += ", best " + units.Bytes(s.Best)
	}
	return text
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
