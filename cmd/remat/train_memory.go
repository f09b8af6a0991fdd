package main

// The flags that say within how much memory a graph runs or is trained, and the
// decisions that remat train makes by them.

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/train/data"
	"github.com/onnx-remat/remat/train/watch"
)

// trainFile is the graph that runs, in the folder of a training.
const trainFile = "train.onnx"

// madeFiles are what a run has in its folder before its first step; tokens of a text stay for
// the next try.
func madeFiles() (names []string) {
	for _, graph := range []string{trainFile, pipeline.UpdateFile} {
		names = append(names, graph, strings.TrimSuffix(graph, ".onnx")+".safetensors")
	}
	return append(names, pipeline.WeightsFolder, recipeName, decidedName, watch.LogName, watch.EventsName)
}

func memoryLimitFlag() cli.Flag {
	return &cli.StringFlag{Name: "memory-limit", Usage: "refuse what goes beyond `SIZE`: of parameters, state, feeds, session and step together, on the CPU"}
}

// readMemoryLimit reads --memory-limit, 0 where it is not given.
func readMemoryLimit(e *env, c *cli.Context) (int64, error) {
	n, err := readOptional(c, "memory-limit")
	if err == nil && n > 0 && e.onCUDA() {
		err = errors.New("--memory-limit bounds the CPU's memory: add --provider cpu; with --rehearse, --device-memory bounds a GPU's")
	}
	return n, err
}

// readOptional reads a flag that takes a size, 0 where it is not given.
func readOptional(c *cli.Context, flag string) (int64, error) {
	if !c.IsSet(flag) {
		return 0, nil
	}
	return readBytes(flag, c.String(flag), 1)
}

// fitFlags are those of remat train that say what is derived and planned, and within
// how much memory.
func fitFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		&cli.StringFlag{Name: "memory", Usage: "choose everything so that training takes at most `SIZE`: parameters, state, feeds, session, what the arena reserves, batches ahead, validation"},
		memoryLimitFlag(),
		&cli.StringFlag{Name: "strategy", Usage: "`S`: " + strategies() + "; default: optimal with --memory, else none"},
	}, searchFlags(), updateFlags(), precisionFlags())
}

// fitSettings are what a user says about the file that is trained.
type fitSettings struct {
	// MemoryLimit is the hard bound in bytes, 0 for none.
	MemoryLimit int64
	options     pipeline.FitOptions
	// derives names the first flag of updateFlags that was given.
	derives string
	limit   time.Duration
}

// readFit reads the flags of fitFlags.
func readFit(e *env, c *cli.Context) (s fitSettings, err error) {
	if s.options.Memory, err = readOptional(c, "memory"); err != nil {
		return s, err
	}
	if s.MemoryLimit, err = readMemoryLimit(e, c); err != nil {
		return s, err
	}
	plan, err := readPlanOptions(e, c)
	if err != nil {
		return s, err
	}
	s.options.Pipeline, s.limit = plan.pipeline, plan.limit
	if c.IsSet("strategy") {
		s.options.Strategy = plan.strategy
	}
	if s.options.Derive, err = readUpdate(e, c); err != nil {
		return s, err
	}
	if c.IsSet("gradient-norm") {
		if s.options.Norm = pipeline.NormNever; c.Bool("gradient-norm") {
			s.options.Norm = pipeline.NormAlways
		}
	}
	s.derives = givenUpdate(c)
	return s, nil
}

// updateFlags say how a forward model becomes a training graph with its update.
func updateFlags() []cli.Flag {
	return slices.Concat(derivationFlags(), optimizerFlags(optim.AdamW))
}

// readUpdate reads them.
func readUpdate(e *env, c *cli.Context) (pipeline.DeriveOptions, error) {
	o, err := readGradOptions(e, c)
	if err == nil && c.IsSet("accumulate") && o.Update.Accumulate < 1 {
		err = fmt.Errorf("--accumulate %d: want at least 1", o.Update.Accumulate)
	}
	return o, err
}

// givenUpdate is the first of them that was given, "" for none.
func givenUpdate(c *cli.Context) string {
	for _, f := range updateFlags() {
		if name := f.Names()[0]; c.IsSet(name) {
			return name
		}
	}
	return ""
}

// hasUpdate refuses one for a training graph.
func hasUpdate(flag, name, do string) error {
	return fmt.Errorf("--%s: %s is a training graph and has its update: leave the flag out, or %s its forward model", flag, name, do)
}

// fit writes the file that is trained into a folder, and prints what was decided.
// Dims are numbers for all free dimensions; batch is what an update takes in a model
// whose own batch is fixed, else 0.
func (e *env) fit(src *pipeline.Source, dir string, s fitSettings, dims map[string]int64, batch int64, validate bool) (*pipeline.Fitted, error) {
	training, err := src.Training(dims, s.options.Pipeline.Roles)
	if err != nil {
		return nil, err
	}
	if s.derives != "" && training {
		return nil, hasUpdate(s.derives, src.Path, "train")
	}
	engine, err := e.engine()
	if err != nil {
		return nil, err
	}
	o := s.options
	say, done := e.search(&o.Pipeline, "planning", s.limit)
	o.Say = say
	o.Pipeline.Dims, o.Batch, o.Validate = dims, batch, validate
	o.Ahead = batchesAhead
	o.Out = filepath.Join(dir, trainFile)
	fitted, err := pipeline.Fit(e.ctx, engine, src, o)
	done()
	var unfit *pipeline.FitError
	switch {
	case e.interrupted() != nil:
		return nil, errInterrupted
	case errors.As(err, &unfit):
		return nil, &checkError{err}
	case err != nil:
		return nil, e.unclear(src.Path, err)
	}
	e.warn(fitted.Warnings)
	if !e.json {
		printFit(e, fitted)
	}
	return fitted, nil
}

// batchesAhead is how many batches lie beside the one that a step reads.
const batchesAhead = 2

// printFit says what was decided, and what it costs.
func printFit(e *env, f *pipeline.Fitted) {
	for _, d := range f.Decisions {
		line := fmt.Sprintf("%-13s %s", d.Measure, d.Did)
		if d.Saves != nil {
			line += ": saves " + units.Bytes(*d.Saves)
		}
		if d.Work != nil && *d.Work > 0 {
			line += ", " + units.Percent(*d.Work) + " more work"
		}
		if d.Costs != "" {
			line += "; costs " + d.Costs
		}
		e.say("%s", line)
	}
	var parts []string
	for _, p := range append(f.Total.Parts(), f.Beside...) {
		parts = append(parts, p.What+" "+units.Bytes(p.Bytes))
	}
	of := ""
	if f.Memory > 0 {
		of = " of " + units.Bytes(f.Memory)
	}
	takes := "takes"
	if !f.Total.Exact {
		takes = "takes at least, as not all sizes are known,"
	}
	e.say("%s %s %s%s: %s", f.Path, takes, units.Bytes(f.Bytes), of, strings.Join(parts, ", "))
	if f.OfData {
		e.say("sizes that data alone tells are those of the first batch; another may take more or less")
	}
}

// firstBatchSizes finds sizes that data alone tells by the first batch, which is read when they
// are first asked for; what it does not tell stays unknown.
func (e *env) firstBatchSizes(batches *data.Batches) pipeline.Sizes {
	var find pipeline.Sizes
	return func(m *onnx.Model, roles step.Roles, dims map[string]int64) (map[string]onnx.Shape, error) {
		if find == nil {
			batch, err := batches.At(0)
			if err != nil {
				return nil, err
			}
			feeds := map[string]remat.Tensor{}
			for name, t := range batch {
				t.Data = bytes.Clone(t.Data) // the batches' own
				feeds[name] = t
			}
			if find = pipeline.SizesFor(e.loaded, remat.Options{Feeds: feeds}, false); find == nil {
				return nil, nil
			}
		}
		shapes, err := find(m, roles, dims)
		if _, ok := errors.AsType[*remat.FeedError](err); ok {
			return nil, nil
		}
		return shapes, err
	}
}

// beyondLimit is the error that --memory-limit ended something with, nil for another.
func beyondLimit(err error) *remat.MemoryError {
	if memory, ok := errors.AsType[*remat.MemoryError](err); ok && memory.Limit > 0 {
		return memory
	}
	return nil
}

// memoryHelp says what takes less than --memory-limit allows.
func memoryHelp(err error) string {
	memory := beyondLimit(err)
	if memory == nil {
		return ""
	}
	if memory.Asked == 0 {
		return fmt.Sprintf("; less state (--optimizer %s), fewer trained parameters (--frozen) or a smaller model take less", optim.Lightest)
	}
	return fmt.Sprintf("; remat rewrite --budget-total %[1]d or remat train --memory %[1]d plans a step that takes no more", memory.Limit)
}
