package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	remat "github.com/onnx-remat/remat/runtime"
)

func runCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "run", Usage: "executes a graph and measures it", ArgsUsage: "M.onnx",
		Description: "Inputs that are not fed are random by the seed; token ids stay within the vocabulary.\n" +
			"With --steps, each P.new is fed back into P.\n\n" +
			"Example: remat run train.onnx --feeds batch.npz --steps 10 --save state.safetensors",
		Flags: append(append(feedFlags(), append(profileFlags(), monitorFlags()...)...),
			&cli.StringFlag{Name: "out", Usage: "write the last step's outputs to `OUT.npz`, one key per name"},
			&cli.StringFlag{Name: "save", Usage: "write parameters and state after the last step to `STATE.safetensors`"},
			&cli.StringFlag{Name: "trace", Usage: "write the allocation timeline of the first step to `T.json`"},
			&cli.StringFlag{Name: "format", Value: plainTrace, Usage: "of --trace, `plain|chrome`: events as JSON, or a trace for chrome://tracing and Perfetto"},
			&cli.BoolFlag{Name: "profile", Usage: "list the top 10 operators by time and by memory"},
		),
		Action: func(c *cli.Context) error {
			path, err := argument(c, "model file")
			if err != nil {
				return err
			}
			feeds, err := readFeeds(e, c)
			if err != nil {
				return err
			}
			if err := e.refuseNumbers(c, "out", "save"); err != nil {
				return err
			}
			if err := readTraceFormat(c.String("format"), c.String("trace"), c.IsSet("format")); err != nil {
				return err
			}
			feeds.Trace, feeds.Profile = c.String("trace") != "", c.Bool("profile")
			wish, err := readProfileWish(c)
			if err != nil {
				return err
			}
			watch, err := readMonitor(e, c)
			if err != nil {
				return err
			}
			return runModel(e, path, feeds, runOptions{
				steps: c.Int("steps"), profile: wish, monitor: watch, out: c.String("out"), save: c.String("save"), trace: c.String("trace"), format: c.String("format"),
			})
		},
	}
}

type runOptions struct {
	steps            int
	out, save, trace string
	format           string // of the trace
	profile          profileWish
	monitor          monitorOptions
}

func runModel(e *env, path string, feeds remat.Options, o runOptions) error {
	sources, err := e.loadAll(path)
	if err != nil {
		return err
	}
	if err := pipeline.CanWrite(append(filesOf(sources), e.fed...), o.out, o.save, o.trace); err != nil {
		return err
	}
	s, err := openAlone(e, path, feeds)
	if err != nil {
		return err
	}
	defer s.close()
	if o.save != "" {
		if err := pipeline.CanSave(s.session, o.save); err != nil {
			return err
		}
	}
	e.say("%s on %s, ONNX Runtime %s", filepath.Base(path), s.run.Provider, s.run.ORTVersion)
	e.measuring.Store(true)
	defer e.leaveToSteps()()
	bar := e.progress(o.steps, "steps")
	var stopped error
	for i := 0; i < o.steps; i++ {
		if stopped = s.step(e); stopped != nil {
			break
		}
		s.watch(o.monitor, i, o.steps)
		bar.Add(1)
	}
	bar.Finish()
	if stopped != nil && (!errors.Is(stopped, errInterrupted) || len(s.run.Steps) == 0) {
		return stopped
	}
	if stopped == nil {
		if err := writeResults(s, o); err != nil {
			return err
		}
	}
	if feeds.Profile && !s.run.Rehearsed {
		if err := s.profile(); err != nil {
			return err
		}
		s.sumUp(s.measured, o.profile)
	}
	grows := s.judge(o.monitor)
	if err := s.finish(e, stopped == nil); err != nil {
		return err
	}
	if o.trace != "" && stopped == nil {
		if err := writeTrace(s, o.trace, o.format); err != nil {
			return err
		}
	}
	if err := printRun(e, s.run); err != nil {
		return err
	}
	if stopped == nil && o.monitor.fail {
		return grows
	}
	return stopped
}

// printRun prints the document, or what a person wants to read of it.
func printRun(e *env, run *report.Run) error {
	if e.json {
		doc := *run
		doc.Timeline = nil
		return report.WriteJSON(e.stdout, doc)
	}
	return run.Text(e.stdout)
}

// writeResults writes the state and the outputs that were asked for, and the one where the
// other cannot be written.
func writeResults(s *subject, o runOptions) error {
	var saved error
	if o.save != "" {
		saved = pipeline.SaveState(s.session, o.save)
	}
	if err := writeOutputs(s, o.out); saved == nil {
		return err
	}
	return saved
}

// writeOutputs writes the last step's outputs to an archive, "" for none.
func writeOutputs(s *subject, path string) error {
	if path == "" {
		return nil
	}
	out := map[string]remat.Tensor{}
	outputs, err := s.session.Last()
	if err != nil {
		return err
	}
	for _, v := range outputs {
		if v.Err != nil {
			return fmt.Errorf("output %q: %w", v.Name, v.Err)
		}
		out[v.Name] = v.Tensor
	}
	return remat.WriteNPZ(path, out)
}
