package main

// Rehearsal: commands that run graphs measure them on ONNX Runtime's CUDA provider
// without a GPU. Sizes and counts are the provider's; there are no numbers, so
// what would print, write or compare some is left out or refused.

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/report"
	remat "github.com/onnx-remat/remat/runtime"
)

// readRehearsal reads --rehearse and --device-memory.
func (e *env) readRehearsal(c *cli.Context) error {
	if e.rehearse = c.Bool("rehearse"); e.rehearse && e.provider != "cuda" {
		return fmt.Errorf("--rehearse needs --provider cuda: it runs that provider without a GPU")
	}
	if !c.IsSet("device-memory") {
		return nil
	}
	text := c.String("device-memory")
	if predicts := c.Args().First() == "advise" && e.provider == "cuda"; !e.rehearse && !predicts {
		return fmt.Errorf("--device-memory %s needs --rehearse: a GPU has the memory that it has", text)
	}
	var err error
	e.deviceMemory, err = readBytes("device-memory", text, 1)
	return err
}

func (e *env) openRehearsal(library string) (*remat.Engine, error) {
	return remat.NewRehearsal(library, e.deviceMemory)
}

// refuseNumbers ends a rehearsal that is asked for what takes computed numbers.
func (e *env) refuseNumbers(c *cli.Context, flags ...string) error {
	for _, flag := range flags {
		if e.rehearse && c.IsSet(flag) {
			return fmt.Errorf("--%s: not with --rehearse: %s", flag, report.NoNumbers)
		}
	}
	return nil
}

// refuseCommand ends the rehearsal of a command that is nothing without numbers.
func (e *env) refuseCommand(command, instead string) error {
	if !e.rehearse {
		return nil
	}
	return fmt.Errorf("remat %s: not with --rehearse: %s; %s", command, report.NoNumbers, instead)
}

// rehearse runs one step and records what it asks of the device, of the last one
// that is not the first.
func (s *subject) rehearse(e *env) error {
	var cost report.Device
	for range max(s.parts, 1) {
		step, err := s.once(e)
		if err != nil {
			return err
		}
		add(&cost, step.Device)
		if len(s.run.Steps) == 0 {
			s.trace = step.Trace
		}
	}
	if len(s.run.Steps) > 0 {
		s.run.Device = &cost
	}
	s.run.Steps = append(s.run.Steps, report.Step{})
	return nil
}

func add(to *report.Device, c *remat.DeviceCost) {
	to.CopiesToHost += c.CopiesToHost
	to.BytesToHost += c.BytesToHost
	to.CopiesToDevice += c.CopiesToDevice
	to.BytesToDevice += c.BytesToDevice
	to.Synchronizations += c.Synchronizations
	to.Kernels += c.Kernels
}

// finishRehearsal counts what a step after the first asks of the device, which
// takes one more where there was only one, and the nodes that run on the host.
func (s *subject) finishRehearsal(e *env, complete bool) error {
	if complete && s.run.Device == nil {
		if err := s.rehearse(e); err != nil {
			return err
		}
		s.run.Steps = s.run.Steps[:len(s.run.Steps)-1]
	}
	p, err := s.session.Profile()
	if err != nil {
		return err
	}
	if s.profiled {
		s.top(p)
	}
	if s.run.Device == nil {
		return nil
	}
	n, err := s.session.Fallback(p)
	s.run.Device.FallbackNodes = &n
	return err
}

// rehearseFile runs a step of a file that is fed nothing, and returns its sizes.
func rehearseFile(e *env, path string) (*report.Memory, error) {
	o := e.sessionOptions()
	o.Purpose = "rehearse"
	s, err := openSubject(e, path, o)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := s.step(e); err != nil {
		return nil, err
	}
	if err := s.finish(e, true); err != nil {
		return nil, err
	}
	return &s.run.Memory, e.interrupted() // then not all of it was measured
}
