package main

// run --monitor: what is live, reserved and resident after each step, and whether any
// of it grows.

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/metrics"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/report"
	remat "github.com/onnx-remat/remat/runtime"
)

func monitorFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "monitor", Usage: "note the memory after each step, and say whether it grows"},
		&cli.BoolFlag{Name: "fail-on-leak", Usage: "with --monitor: exit code 1 if it grows"},
	}
}

// monitorOptions say what is watched.
type monitorOptions struct {
	on, fail bool
	// each sees the subject after each step; tests put leaks there.
	each func(*subject)
}

func readMonitor(e *env, c *cli.Context) (monitorOptions, error) {
	o := monitorOptions{on: c.Bool("monitor"), fail: c.Bool("fail-on-leak")}
	if o.fail && !o.on {
		return o, errors.New("--fail-on-leak says what a verdict means: give --monitor too")
	}
	if o.on && e.rehearse {
		return o, errors.New("--monitor: a rehearsal has no process of its own to watch: leave --rehearse out")
	}
	return o, nil
}

// samples is how often at most what is held is looked at: Go's collector runs before.
const samples = 64

// watch notes the memory after step i of so many.
func (s *subject) watch(o monitorOptions, i, steps int) {
	if !o.on || len(s.run.Steps) == 0 {
		return
	}
	if o.each != nil {
		o.each(s)
	}
	now := s.session.Now()
	m := &report.StepMemory{LivePeak: now.LivePeak, LiveAfter: now.Live, Reserved: now.Reserved}
	m.Resident, _ = remat.RSS()
	if i%max(1, steps/samples) == 0 {
		runtime.GC()
		m.Held = held()
	}
	s.run.Steps[len(s.run.Steps)-1].Memory = m
}

// held is the process's resident size less what Go's heap has of it beyond live
// objects, in bytes.
func held() int64 {
	resident, err := remat.RSS()
	if err != nil {
		return 0
	}
	list := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
	metrics.Read(list)
	for _, s := range list {
		if s.Value.Kind() == metrics.KindUint64 {
			resident -= int64(s.Value.Uint64())
		}
	}
	return max(resident, 0)
}

// judge makes the verdict; the error says that memory grows.
func (s *subject) judge(o monitorOptions) error {
	if !o.on {
		return nil
	}
	var steps []report.StepMemory
	for _, st := range s.run.Steps {
		if st.Memory != nil {
			steps = append(steps, *st.Memory)
		}
	}
	s.run.Monitor = report.NewMonitor(steps)
	if !s.run.Monitor.Grows {
		return nil
	}
	return &checkError{fmt.Errorf("%s: %s", filepath.Base(s.path), s.run.Monitor.Verdict)}
}
