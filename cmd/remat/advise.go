package main

// remat advise: what a model needs, what is missing to a memory, and what helps, with
// the commands. Everything is predicted; nothing runs.

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/train/data"
)

func adviseCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "advise", Usage: "says what a training needs, and what would have it fit a memory", ArgsUsage: "M.onnx|NAME",
		Description: "The model is a built-in one, a forward model or a training graph. Everything is predicted;\n" +
			"nothing is written but --write. Exit code 1 where nothing fits.\n\n" +
			"Example: remat advise gpt2-tiny --batch 8 --memory 4MiB",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "memory", Usage: "the memory that there is, `SIZE`: of parameters, state, feeds, session, what the arena reserves, batches ahead"},
			&cli.Int64Flag{Name: "batch", Usage: "samples of an update, `N`"},
			&cli.Int64Flag{Name: "seq", Usage: "tokens a sample, `N`"},
			&cli.Int64Flag{Name: "layers", Usage: "layers of a built-in model, `N`"},
			&cli.Int64Flag{Name: "hidden", Usage: "width of a built-in model, `N`"},
			&cli.Int64Flag{Name: "heads", Usage: "attention heads of a built-in model, `N`"},
			&cli.Int64Flag{Name: "vocab", Usage: "tokens in the vocabulary of a built-in model, `N`"},
			&cli.StringFlag{Name: "write", Usage: "write what is recommended as a recipe for remat train, `F.yaml`"},
		}, adviseRankFlags(), updateFlags(), precisionFlags()),
		Action: func(c *cli.Context) error {
			a, err := readAdvice(e, c)
			if err != nil {
				return err
			}
			return a.run()
		},
	}
}

// An adviceRun is one run of the command.
type adviceRun struct {
	e       *env
	c       *cli.Context
	name    string // as it was typed
	row     *models.Row
	config  models.Config // of a built-in model
	options pipeline.AdviseOptions
	source  *pipeline.Source
	// training: the source has its gradients, so that nothing is derived.
	training   bool
	rankAdvice rankAdvice
}

func readAdvice(e *env, c *cli.Context) (*adviceRun, error) {
	name, err := argument(c, "model")
	if err != nil {
		return nil, err
	}
	a := &adviceRun{e: e, c: c, name: name}
	o := &a.options
	switch {
	case c.IsSet("memory"):
		o.Memory, err = readOptional(c, "memory")
	case e.deviceMemory > 0:
		o.Memory = e.deviceMemory
	default:
		err = errors.New("remat advise: how much memory is there? give --memory SIZE, such as 24GiB")
	}
	if err != nil {
		return nil, err
	}
	for _, flag := range append([]string{"batch", "seq"}, widths...) {
		if n := c.Int64(flag); c.IsSet(flag) && (n < 1 || n > mostSize) {
			return nil, fmt.Errorf("--%s %d: want at least 1, and at most %d", flag, n, mostSize)
		}
	}
	if a.rankAdvice, err = readRankAdvice(c); err != nil {
		return nil, err
	}
	if o.Derive, err = readUpdate(e, c); err != nil {
		return nil, err
	}
	if o.Derive.Update.Kind == optim.None {
		return nil, errors.New("--optimizer none: what is trained has an update: " + optim.List(optim.Kinds(), "or"))
	}
	if o.Norm = pipeline.NormNever; c.Bool("gradient-norm") {
		o.Norm = pipeline.NormAlways
	}
	o.Derive.Update.Norm = false // Norm says it
	o.Pipeline = e.pipelineOptions()
	o.Pipeline.Normalize = pipeline.Auto
	if o.Pipeline.Precision, err = readPrecision(e, c); err != nil {
		return nil, err
	}
	half, err := pipeline.ParseHalf(halfName)
	if err != nil {
		return nil, err
	}
	o.Half = &precision.Options{To: half, StashOnly: !e.onCUDA(), Provider: e.halfProvider()}
	if o.Derive.Update.Kind != optim.Lightest {
		o.Lighter = optim.Lightest
	}
	o.Ahead = batchesAhead
	return a, pipeline.CanWrite(nil, c.String("write"))
}

func (a *adviceRun) run() error {
	e := a.e
	e.leaveGarbage()
	dir, err := ort.TemporaryDir("remat-advise-")
	if err != nil {
		return err
	}
	defer func() { _ = ort.DropTemporary(dir) }()
	if err := a.load(dir); err != nil {
		return err
	}
	if err := pipeline.CanWrite(a.source.Files(), a.c.String("write")); err != nil {
		return err
	}
	engine, err := e.engine()
	if err != nil {
		return err
	}
	o := &a.options
	say, done := e.search(&o.Pipeline, "advising", 0)
	o.Say = say
	advice, err := pipeline.Advise(e.ctx, engine, a.source, *o)
	var together []report.AdviceRanks
	if err == nil {
		together, err = a.ranks(advice.Recommended)
	}
	done()
	if e.interrupted() != nil {
		return errInterrupted
	}
	if err != nil {
		return e.unclear(a.name, err)
	}
	doc := a.document(advice)
	doc.Ranks = together
	if out := a.c.String("write"); out != "" && advice.Recommended != nil {
		text, err := a.recipe(advice.Recommended)
		if err != nil {
			return err
		}
		if err := onnx.WriteFile(out, text); err != nil {
			return err
		}
	}
	if e.json {
		err = report.WriteJSON(e.stdout, doc)
	} else {
		err = doc.Text(e.stdout)
	}
	if err == nil && advice.Recommended == nil {
		err = &checkError{fmt.Errorf("%s: nothing fits in %s: the nearest takes %s", a.name, units.Bytes(advice.Memory), units.Bytes(advice.Nearest.Bytes))}
	}
	return err
}

// load opens the model, and finds the numbers of its free dimensions.
func (a *adviceRun) load(dir string) error {
	row, builtIn, err := builtInModel(a.name)
	if err != nil {
		return err
	}
	if builtIn {
		a.row = &row
		return a.loadBuiltIn(dir)
	}
	for _, flag := range widths {
		if a.c.IsSet(flag) {
			return fmt.Errorf("--%s applies only to built-in models, not to %s", flag, a.name)
		}
	}
	src, err := a.e.load(a.name)
	if err != nil {
		return err
	}
	a.source = src
	if err := checkDims(a.e.dims, src); err != nil {
		return err
	}
	if a.training, err = src.Training(a.e.dims, nil); err != nil {
		return err
	}
	batch := a.c.Int64("batch")
	free := pipeline.FreeDims(src.Model)
	if !slices.ContainsFunc(free, func(name string) bool { return freeDim([]string{name}, batchNames) != "" }) && batch > 0 && !a.training {
		a.options.Batch, batch = batch, 0 // a multiple of what the file takes
	}
	dims, err := sizedDims(src, a.e.dims, batch, a.c.Int64("seq"))
	if err != nil {
		return err
	}
	a.options.Pipeline.Dims = dims
	for _, name := range free {
		if dims[name] == 0 {
			return fmt.Errorf("%s: no size for its dimension %s: add --batch N, --seq N or --dim %s=N", a.name, name, name)
		}
	}
	if flag := givenUpdate(a.c); a.training && flag != "" {
		return hasUpdate(flag, a.name, "advise on")
	}
	return nil
}

// loadBuiltIn makes a model of the zoo, without its weights, whose batch is free.
func (a *adviceRun) loadBuiltIn(dir string) error {
	if len(a.e.dims) > 0 {
		return fmt.Errorf("--dim: %s takes --batch and --seq", a.name)
	}
	c, err := modelConfig(a.c, *a.row)
	if err != nil {
		return err
	}
	batch := c.Batch
	c.Batch = 0
	built, err := a.row.Build(c)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, a.name+".onnx")
	if err := built.SaveHollow(path); err != nil {
		return err
	}
	if a.source, err = a.e.load(path); err != nil {
		return err
	}
	a.source.Path = a.name
	a.config = c
	a.options.Pipeline.Dims = map[string]int64{"batch": batch}
	return nil
}

// document is the advice as it is printed.
func (a *adviceRun) document(v *pipeline.Advice) *report.Advice {
	n := &v.Need
	d := &report.Advice{
		Model: a.name, Provider: "cpu", Predicted: true, Memory: v.Memory, Largest: v.Largest,
		Short: max(0, n.Total.Bytes()-v.Memory),
		Need: report.AdviceNeed{
			ParameterBytes: n.Total.Parameters, GradientBytes: n.Gradients, StateBytes: n.Total.State, ActivationBytes: n.Activations,
			TotalBytes: n.Total.Bytes(), TemporaryBytes: n.Temporaries, FeedBytes: n.Total.Feeds, SessionBytes: n.Total.Session,
			LivePeakBytes: n.Total.Live, Trained: n.Trained, Frozen: n.Frozen,
		},
		Recommended: a.taken(v.Recommended),
	}
	if a.e.onCUDA() {
		d.Provider = "cuda"
	}
	d.Need.OtherBytes = d.Need.TotalBytes - d.Need.ParameterBytes - d.Need.GradientBytes - d.Need.StateBytes - d.Need.ActivationBytes
	if v.Recommended == nil {
		d.Nearest = a.taken(v.Nearest)
	}
	for i := range v.Measures {
		m := &v.Measures[i]
		r := report.AdviceMeasure{Name: m.Name, Did: report.Text(m.Did), Remark: report.Text(m.Remark)}
		if r.AloneTotal = m.Alone; m.Alone != nil {
			r.AloneSaves = new(n.Total.Bytes() - *m.Alone)
		}
		if t := m.With; t != nil {
			r.Total, r.Overhead, r.Fits, r.With = &t.Bytes, new(report.Float(t.Work())), t.Fits, t.Changes
			r.Commands = a.commands(t)
		}
		d.Measures = append(d.Measures, r)
	}
	return d
}

// data is the flag that gives training its data: text where the model takes tokens, else arrays.
func (a *adviceRun) data() string {
	if data.TakesText(a.source.Model, data.Sizes{Dims: a.e.dims}) {
		return " --text FILE"
	}
	return " --data FILE.npz"
}

// taken describes what is recommended, or comes closest; nil for neither.
func (a *adviceRun) taken(t *pipeline.Taken) *report.AdviceTaken {
	if t == nil {
		return nil
	}
	d := &report.AdviceTaken{
		Commands: a.commands(t), Total: t.Bytes, Overhead: report.Float(t.Work()), MicroBatch: t.MicroBatch, Accumulate: t.Accumulate, Changes: t.Changes,
	}
	if t.Fits {
		d.Train = report.Text(a.train(t) + a.data() + " --steps N")
	}
	if !t.Total.Exact {
		d.Approximate = "not all of it could be predicted: it takes at least this"
	}
	for _, x := range t.Decisions {
		d.Measures = append(d.Measures, x.Measure+": "+x.Did)
	}
	return d
}
