package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/optim"
)

func rewriteCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "rewrite", Usage: "writes the graph that follows a plan", ArgsUsage: "TRAIN.onnx",
		Description: "Takes --plan, or the flags of plan. Says what was done, and why anything was skipped.\n\n" +
			"Example: remat rewrite train.onnx --strategy full -o small.onnx",
		Flags: append(planFlags(),
			&cli.StringFlag{Name: "o", Usage: "write the graph to `OUT.onnx`"},
			&cli.StringFlag{Name: "bundle", Usage: "instead of -o: make the folder `DIR` from which the runtime of --for trains"},
			&cli.StringFlag{Name: "for", Usage: "with --bundle: `RUNTIME`, " + pipeline.TargetNames("|")},
			&cli.StringFlag{Name: "updates", Value: string(optim.None), Usage: "with --bundle, where the graph returns gradients: write separate graphs that update the parameters by `OPTIMIZER`, one at a time"},
			&cli.StringFlag{Name: "plan", Usage: "`plan.json`: follow this plan instead of --strategy"},
		),
		Action: func(c *cli.Context) error { return rewriteFile(e, c) },
	}
}

// rewriteFile plans, or follows a plan, and writes the file or the bundle.
func rewriteFile(e *env, c *cli.Context) error {
	path, err := argument(c, "training graph")
	if err != nil {
		return err
	}
	o, err := readPlanOptions(e, c)
	if err != nil {
		return err
	}
	target, err := readTarget(c, &o)
	if err != nil {
		return err
	}
	updates, err := readUpdates(c, target)
	if err != nil {
		return err
	}
	out := c.String("bundle")
	if target == nil {
		if out, err = output(c); err != nil {
			return err
		}
	}
	if o.file = c.String("plan"); c.IsSet("plan") {
		if err := planAlone(c); err != nil {
			return err
		}
	}
	source, err := e.load(path)
	if err != nil {
		return err
	}
	reads := append(slices.Clone(source.DataFiles()), o.file, o.costs)
	var again []rewrite.Report
	var src planSource
	if o.file != "" {
		if src, again, err = o.follow(source, c.IsSet); err != nil {
			return err
		}
	}
	if target != nil {
		err = onnx.Vacant(out)
	} else {
		err = pipeline.CanWrite(append(reads, e.fed...), out)
	}
	if err != nil {
		return err
	}
	p, err := makePlan(e, source, o)
	if err != nil {
		return err
	}
	if o.file != "" {
		src.describe(p, e.opt)
	}
	for _, r := range again {
		p.result.Reports = slices.Insert(p.result.Reports, 0, r)
		p.document.Notes = slices.Insert(p.document.Notes, 0, pipeline.Note(r))
	}
	if target != nil {
		err = p.bundle(e, out, target, updates)
	} else {
		err = p.save(out)
	}
	if err != nil {
		return err
	}
	e.remarkPlan(out, p)
	if e.json {
		return report.WriteJSON(e.stdout, p.document)
	}
	p.say(e, out)
	return nil
}

// follow takes what the file of --plan says into the options, and reports what of it is asked
// for anew.
func (o *planOptions) follow(source *pipeline.Source, given func(flag string) bool) (src planSource, again []rewrite.Report, err error) {
	src, body, err := readPlanFile(o.file)
	if err != nil {
		return src, nil, err
	}
	o.budget, o.total, o.overhead = src.Budget, src.BudgetTotal, src.Overhead
	if o.pipeline.Layers, err = src.layerBudgets(); err != nil {
		return src, nil, fmt.Errorf("%s: %w", o.file, err)
	}
	other, err := src.adopt(o, given, source, o.file)
	if err != nil || len(other) == 0 {
		return src, nil, err
	}
	r, err := src.askAgain(o, body, other)
	return src, []rewrite.Report{r}, err
}

// say tells what was done, and what it comes to.
func (p *planned) say(e *env, out string) {
	for _, line := range p.result.Applied() {
		e.say("%s", line)
	}
	if line := p.result.Rounding(); line != "" {
		e.say("%s", line)
	}
	if p.limited != "" {
		e.say("plan: %s", p.limited)
	}
	e.say("%s: live peak %s as given, %s as written (%s), %s more work",
		out, units.Bytes(p.document.PeakBytesBefore), units.Bytes(p.document.PeakBytesAfter),
		units.Saved(float64(p.document.Saving)), units.Percent(float64(p.document.Overhead)))
}

// bundle writes a planned file as a folder for a runtime.
func (p *planned) bundle(e *env, dir string, t *pipeline.Target, updates optim.Kind) error {
	engine, err := e.engine()
	if err != nil {
		return err
	}
	return p.result.Bundle(engine, p.source, dir, t, p.document, updates)
}

// readUpdates reads --updates, of a bundle for a target.
func readUpdates(c *cli.Context, t *pipeline.Target) (optim.Kind, error) {
	kind, err := optim.ParseKind(c.String("updates"))
	switch {
	case err != nil:
		return kind, fmt.Errorf("--updates: %w", err)
	case kind == optim.None:
		return kind, nil
	case t == nil:
		return kind, errors.New("remat rewrite: --updates needs --bundle DIR, where its graphs are written")
	}
	if err := t.CanUpdateApart(kind); err != nil {
		return kind, fmt.Errorf("--updates: %w", err)
	}
	return kind, nil
}

// readTarget reads --bundle and --for, nil without, and asks for what the target wants.
func readTarget(c *cli.Context, o *planOptions) (*pipeline.Target, error) {
	dir, name := c.String("bundle"), c.String("for")
	switch {
	case !c.IsSet("bundle") && !c.IsSet("for"):
		return nil, nil
	case dir == "":
		return nil, errors.New("remat rewrite: --for needs --bundle DIR, the folder to make")
	case name == "":
		return nil, fmt.Errorf("remat rewrite: --bundle needs --for, one of %s", pipeline.TargetNames(", "))
	case c.IsSet("o"):
		return nil, errors.New("remat rewrite: -o and --bundle: give one of them")
	}
	t, err := pipeline.FindTarget(name)
	if err != nil {
		return nil, fmt.Errorf("--for %w", err)
	}
	if o.pipeline.CUDA {
		return nil, errors.New("--bundle: the manifest's options are those of the CPU: leave out --provider cuda")
	}
	if t.WebGPU && c.IsSet("plan") {
		return nil, fmt.Errorf("--plan: lists values of a graph in float64, which --for %s leaves out: give --strategy or a budget instead", t.Name)
	}
	if err := t.Ask(&o.pipeline); err != nil {
		return nil, fmt.Errorf("--outputs: %w", err)
	}
	return t, nil
}

// planAlone refuses flags that ask for another plan than the file's.
func planAlone(c *cli.Context) error {
	for _, flag := range []string{"strategy", "budget", "budget-total", "costs", "time-limit"} {
		if c.IsSet(flag) {
			return fmt.Errorf("remat rewrite: --plan already decides this: leave out --%s, or plan again with it", flag)
		}
	}
	if c.String("plan") == "" {
		return fmt.Errorf("remat rewrite: --plan is empty: name the plan.json to follow")
	}
	return nil
}

// save writes the rewritten graph with its metadata.
func (p *planned) save(out string) error { return p.result.Save(p.source, out, p.document) }

// planFile plans for a file and writes the rewritten one.
func planFile(e *env, path, out string, o planOptions) (*planned, error) {
	src, err := e.load(path)
	if err != nil {
		return nil, err
	}
	p, err := makePlan(e, src, o)
	if err == nil {
		err = p.save(out)
	}
	return p, err
}
