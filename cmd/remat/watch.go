package main

// What -d check and -d dump see, the graph after each pass, and what -d sessions
// sees.
//
// A dump is DIR/001-PASS.onnx and so on, in the order in which passes ran. A
// strategy that tries several plans writes several files, so recompute, updates
// and schedule may come more than once. Values in external data files are
// referred to as in the model, whose folder it is not: the files are for looking
// at, not for running.

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// passed checks and writes the model as a pass left it, where a switch asks for
// that.
func (e *env) passed(pass string, m *onnx.Model) error {
	if e.debug["check"] != "" {
		if err := m.Check(); err != nil {
			return fmt.Errorf("after pass %s: %w", pass, err)
		}
	}
	dir := e.debug["dump"]
	if dir == "" {
		return nil
	}
	data, err := m.Encode()
	if err != nil {
		return fmt.Errorf("-d dump: pass %s: %w", pass, err)
	}
	e.dumped++
	return writeInto(dir, fmt.Sprintf("%03d-%s.onnx", e.dumped, passFile.Replace(pass)), data)
}

// passFile makes a pass's name one of a file.
var passFile = strings.NewReplacer("/", "-", " ", "-")

// watchSessions reports sessions on stderr, if -d sessions asks for it.
func (e *env) watchSessions(engine *remat.Engine) {
	if e.debug["sessions"] == "" {
		return
	}
	count := 0
	engine.Env.WatchSessions(func(o ort.SessionOptions, took time.Duration) {
		count++
		fmt.Fprintf(e.stderr, "session %d: %s, level %d, %.3f s\n", count, cmp.Or(o.Purpose, "run"), o.Level, took.Seconds())
	})
	e.closers = append(e.closers, func() { engine.Env.WatchSessions(nil) })
}

// dumpProblem writes the planning problem beside the graphs.
func (e *env) dumpProblem(p *planner.Problem) error {
	dir := e.debug["dump"]
	if dir == "" {
		return nil
	}
	var text strings.Builder
	if err := planner.WriteProblem(&text, p); err != nil {
		return fmt.Errorf("-d dump: problem: %w", err)
	}
	return writeInto(dir, "problem.json", []byte(text.String()))
}

func writeInto(dir, name string, data []byte) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("-d dump: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
		return fmt.Errorf("-d dump: %w", err)
	}
	return nil
}
