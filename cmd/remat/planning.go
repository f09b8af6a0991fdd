package main

// What plan and rewrite share: reading the flags, preparing the graph,
// planning under a budget that holds for the written file, and the document
// that describes the plan.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/report"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// planOptions are what a user says about a plan.
type planOptions struct {
	strategy string
	budget   string
	total    string
	flow     flow.Options
	// update: say what is updated in backward.
	update bool
	// costs names the file that flow.Costs are from.
	costs string
	// file is a plan to follow instead of a strategy.
	file string
	// limit ends the search for better plans, 0: never.
	limit time.Duration
}

func planFlags() []cli.Flag {
	return append(precisionFlags(), []cli.Flag{
		&cli.StringFlag{Name: "strategy", Usage: "`S`: none|sqrt|every=K|segments=K|layers=GLOB|full|selective|optimal; default: sqrt, or optimal with a budget"},
		&cli.StringFlag{Name: "budget", Usage: "bound on the predicted live peak of the written file, `2GiB|50%`"},
		&cli.StringFlag{Name: "budget-total", Usage: "bound on parameters, state, feeds, session and the arena's reservation together, `8GiB|60%`"},
		&cli.StringFlag{Name: "costs", Usage: "`PROFILE.json`: use times measured by run --profile --json instead of FLOPs"},
		&cli.StringFlag{Name: "roles", Usage: "`F.json`: name loss, grad and new instead of detecting them"},
		&cli.StringFlag{Name: "normalize", Value: "auto", Usage: "`auto|off|1|99`: pass a foreign graph through ONNX Runtime's optimizer first"},
		&cli.StringFlag{Name: "chunk-loss", Usage: "`off|auto|N`: compute the loss over N slices of the tokens; default: optimal chooses"},
		&cli.StringFlag{Name: "tile", Usage: "`off|auto|N`: compute attention scores and other wide products in N parts; default: optimal chooses"},
		&cli.StringFlag{Name: "prepack", Usage: "`auto|on|off`: whether kernels keep packed copies of constant weights; auto: only of those whose products have fewer than 16 rows"},
		&cli.BoolFlag{Name: "update-in-backward", Usage: "report which parameters are updated as soon as their gradient is ready, and why others are not"},
		&cli.StringFlag{Name: "update-rows", Usage: "`off|auto|N`: compute the updates of the largest parameters, gradients included, over N slices; default: optimal chooses"},
		timeLimitFlag(),
		&cli.StringSliceFlag{Name: "drop-output", Usage: "`GLOB`: remove matching outputs from the graph"},
	}...)
}

func timeLimitFlag() cli.Flag {
	return &cli.DurationFlag{Name: "time-limit", Usage: "stop searching after `DURATION`, such as 30s or 5m, and take the best plan so far"}
}

func readTimeLimit(c *cli.Context) (time.Duration, error) {
	limit := c.Duration("time-limit")
	if c.IsSet("time-limit") && limit <= 0 {
		return 0, fmt.Errorf("--time-limit %s: must be positive, such as 30s or 5m", limit)
	}
	return limit, nil
}

func readPlanOptions(e *env, c *cli.Context) (planOptions, error) {
	o := planOptions{strategy: c.String("strategy"), budget: c.String("budget"), total: c.String("budget-total"), update: c.Bool("update-in-backward")}
	for _, flag := range []string{"strategy", "budget", "budget-total"} {
		if c.IsSet(flag) && c.String(flag) == "" {
			return o, fmt.Errorf("--%s is empty: give a value, or leave it out", flag)
		}
	}
	if o.strategy == "" {
		o.strategy = "sqrt"
		if o.budget != "" || o.total != "" {
			o.strategy = "optimal"
		}
	}
	if _, _, err := planner.Find(o.strategy); err != nil {
		return o, err
	}
	o.flow = e.flowOptions()
	o.flow.Normalize, o.flow.DropOutputs = flow.Normalization(c.String("normalize")), splitList(c.StringSlice("drop-output"))
	var err error
	if o.limit, err = readTimeLimit(c); err != nil {
		return o, err
	}
	if o.flow.Chunk, err = parseParts("chunk-loss", c.String("chunk-loss")); err != nil {
		return o, err
	}
	if o.flow.Tile, err = parseParts("tile", c.String("tile")); err != nil {
		return o, err
	}
	if o.flow.Rows, err = parseParts("update-rows", c.String("update-rows")); err != nil {
		return o, err
	}
	if o.flow.Prepack, err = flow.ParsePrepacking(c.String("prepack")); err != nil {
		return o, err
	}
	o.flow.AsIs = c.IsSet("tile") || c.IsSet("chunk-loss") || c.IsSet("update-rows")
	if o.flow.Precision, err = readPrecision(e, c); err != nil {
		return o, err
	}
	if path := c.String("roles"); path != "" {
		if err := readJSON(path, &o.flow.Roles); err != nil {
			return o, err
		}
	}
	if path := c.String("costs"); path != "" {
		costs, err := readCosts(path)
		if err != nil {
			return o, err
		}
		o.flow.Costs, o.costs = costs, path
	}
	return o, nil
}

// parseParts reads off, auto or a number of parts.
func parseParts(flag, value string) (int, error) {
	switch value {
	case "off", "":
		return 0, nil
	case "auto":
		return flow.AutoChunk, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 2 {
		return 0, fmt.Errorf("--%s %q: want off, auto or a number of parts (at least 2)", flag, value)
	}
	return n, nil
}

// flowOptions are the global options as the pipeline wants them.
func (e *env) flowOptions() flow.Options {
	return flow.Options{Dims: e.dims, Provider: ort.CPU, Threads: e.threads, OptLevel: e.opt, CUDA: e.provider == "cuda", After: e.passed}
}

// readFile reads a small file whole; errors name it once.
func readFile(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	var at *os.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: no such file", path)
	case errors.As(err, &at):
		return nil, fmt.Errorf("%s: %w", path, at.Err)
	}
	return data, err
}

// readJSON reads a file that a user wrote.
func readJSON(path string, into any) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: invalid JSON: %w", path, err)
	}
	return nil
}

// engine loads ONNX Runtime, once.
func (e *env) engine() (*remat.Engine, error) {
	if e.loaded == nil {
		engine, err := remat.New(e.ort)
		if err != nil {
			return nil, err
		}
		e.loaded = engine
		e.watchSessions(engine)
		e.closers = append(e.closers, func() { engine.Close() })
	}
	return e.loaded, nil
}

// A planned graph is a plan with what it was made from and what it promises.
type planned struct {
	given    *onnx.Model
	prepared *flow.Prepared
	result   *flow.Planned
	document report.Plan
	// limited says that --time-limit ended planning, "" where it did not.
	limited string
}

// makePlan loads, prepares and plans. With the error of a budget that cannot be met
// comes what is closest to it.
func makePlan(e *env, path string, o planOptions) (*planned, error) {
	engine, err := e.engine()
	if err != nil {
		return nil, err
	}
	given, err := openSized(path, o.flow.Dims)
	if err != nil {
		return nil, err
	}
	e.closers = append(e.closers, func() { given.Close() })
	if err := flow.Known(given, o.flow.Dims); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	bar := e.progress(-1, "planning")
	defer bar.Finish()
	o.flow.Progress = func(s flow.Progress) { bar.Say(planningText(s)) }
	ctx := e.ctx
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	o.flow.Stop = func() bool { return ctx.Err() != nil }
	planner, err := flow.NewPlanner(engine, given, o.flow)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := e.dumpProblem(planner.Problem()); err != nil {
		return nil, err
	}
	if o.flow.Costs != nil {
		if err := checkCosts(given, planner, o.flow.Costs, o.costs); err != nil {
			return nil, err
		}
	}
	budget, err := readBudget(o, planner)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var result *flow.Planned
	if o.file != "" {
		result, err = followPlan(planner, o.file)
	} else {
		result, err = planner.PlanWithin(o.strategy, budget)
	}
	var unmet *checkError
	if err != nil {
		if err = infeasible(fmt.Errorf("%s: %w", path, err)); !errors.As(err, &unmet) || result == nil {
			return nil, err
		}
	}
	if err := e.interrupted(); err != nil {
		return nil, err
	}
	took := time.Since(start)
	old, err2 := e.stale(path, given, func() *int64 { return &planner.Before.LivePeak })
	if err2 != nil {
		return nil, err2
	}
	if o.update {
		result.Reports = append(result.Reports, result.UpdatesInBackward())
	}
	p := &planned{given: given, prepared: result.Prepared, result: result}
	candidates, limited := planner.Limited()
	if limited {
		p.limited = fmt.Sprintf("stopped after %s: best of %d candidates so far; a longer --time-limit may find a better plan", o.limit, candidates)
		noted := *result.Plan
		noted.Notes = append(slices.Clone(noted.Notes), p.limited)
		result.Plan = &noted
	}
	p.document = planDocument(o, planner, result, budget)
	if old != nil {
		p.document.Notes = append(p.document.Notes, report.Note{What: "prediction", Reason: report.Text(old.String())})
	}
	p.document.TimeLimited = limited
	p.document.SolverSeconds, p.document.PlanSeconds = planner.Solving.Seconds(), took.Seconds()
	return p, err
}

// infeasible makes a budget that cannot be met the failure of a check.
func infeasible(err error) error {
	var live *planner.InfeasibleError
	var total *flow.TotalError
	switch {
	case errors.As(err, &live):
		return &checkError{fmt.Errorf("%w: raise --budget to at least %s", err, report.BytesUp(live.Least))}
	case errors.As(err, &total):
		return &checkError{fmt.Errorf("%w: raise --budget-total to at least %s", err, report.BytesUp(total.Least.Bytes()))}
	}
	return err
}

// readBudget turns --budget and --budget-total into bounds; a share is of what
// the given file takes as it stands.
func readBudget(o planOptions, p *flow.Planner) (flow.Budget, error) {
	var b flow.Budget
	if o.budget != "" {
		size, err := report.ParseSize(o.budget)
		if err != nil {
			return b, fmt.Errorf("--budget: %w", err)
		}
		if b.Live = size.Of(p.Before.LivePeak); b.Live == 0 {
			return b, noBudget("--budget", o.budget)
		}
	}
	if o.total != "" {
		size, err := report.ParseSize(o.total)
		if err != nil {
			return b, fmt.Errorf("--budget-total: %w", err)
		}
		b.Total = size.Bytes
		if size.IsShare {
			b.Total = size.Of(flow.TotalOf(p.Before).Bytes())
		}
		if b.Total == 0 {
			return b, noBudget("--budget-total", o.total)
		}
	}
	return b, nil
}

func noBudget(flag, value string) error {
	return &checkError{fmt.Errorf("%s %s: cannot be met: less than one byte; give a size such as 2GiB or 50%%", flag, value)}
}

// planDocument is the document of plan --json.
func planDocument(o planOptions, p *flow.Planner, r *flow.Planned, budget flow.Budget) report.Plan {
	pr := r.Problem
	d := report.Plan{
		Strategy: r.Plan.Strategy, RecomputedNodes: r.Verdict.Recomputed,
		FLOPs: pr.FLOPs(), RecomputeFLOPs: r.Verdict.RecomputeFLOPs, Overhead: report.Float(r.Verdict.Overhead),
		PeakBytesBefore: p.Before.LivePeak, PeakBytesScheduled: &p.Scheduled, PeakBytesAfter: r.Peak,
		LowerBoundBytes: &r.LowerBound, Feasible: budget.Keeps(r.Prediction),
		Layers: r.Layers(), Total: totalDocument(r, budget.Total),
	}
	if counted := r.Analysis.Counted; counted != nil { // the overhead is one of time, the operations stay what they are
		d.FLOPs, d.RecomputeFLOPs = 0, 0
		for op, again := range r.Plan.Recomputed(pr) {
			d.FLOPs += counted[op]
			d.RecomputeFLOPs += int64(again) * counted[op]
		}
	}
	if d.PeakBytesBefore > 0 {
		d.Saving = report.Float(1 - float64(r.Peak)/float64(d.PeakBytesBefore))
	}
	if budget.Live > 0 {
		d.BudgetBytes = &budget.Live
	}
	if layers := pr.LayerCount(); layers > 0 {
		theory := report.Float(planner.TheorySaving(layers))
		d.TheorySaving = &theory
	}
	for _, v := range r.Plan.Boundaries {
		d.Boundaries = append(d.Boundaries, pr.Values[v].Name)
	}
	for _, v := range r.Plan.Kept(pr) {
		d.Kept = append(d.Kept, pr.Values[v].Name)
	}
	for _, n := range r.Plan.Notes {
		d.Notes = append(d.Notes, report.Note{What: "plan", Reason: report.Text(n)})
	}
	for _, rep := range r.Reports {
		d.Notes = append(d.Notes, note(rep.Pass, rep.Requested, rep.Applied, rep.Skipped))
	}
	if line := roundingLine(r.Reports, &r.Prepared.Options); line != "" {
		d.Notes = append(d.Notes, report.Note{What: "rounding", Reason: report.Text(line)})
	}
	return d
}

// totalDocument says what a step of the written file takes, all told; nil where
// the arena's use cannot be predicted.
func totalDocument(r *flow.Planned, budget int64) *report.Total {
	if r.Prediction == nil || !r.Prediction.Exact() {
		return nil
	}
	t := flow.TotalOf(r.Prediction)
	d := &report.Total{
		ParameterBytes: t.Parameters, StateBytes: t.State, FeedBytes: t.Feeds, SessionBytes: t.Session,
		LivePeakBytes: t.Live, UnusedBytes: t.Unused, TotalBytes: t.Bytes(), ReservedBytes: t.Reserved,
	}
	if budget > 0 {
		d.BudgetBytes = &budget
	}
	return d
}

// foundRoles is the roles entry of a written file.
func foundRoles(r analysis.Roles) remat.Roles {
	return remat.Roles{Loss: r.Loss, Grad: r.Grad, New: r.New}
}
