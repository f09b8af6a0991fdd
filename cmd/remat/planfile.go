package main

// A plan file is the planner's, with what is needed to prepare the same graph
// again: the source and its hash, normalization, dropped outputs, slices of
// the loss, dimensions. Both parts are checked on reading.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/precision"
)

// planSource is the part of a plan file that says what it was made from.
type planSource struct {
	// Path is relative to the plan file.
	Path      string `json:"path"`
	SHA256    string `json:"sha256"`
	Normalize string `json:"normalize"`
	pipeline.Divisions
	DropOutputs []string `json:"drop_outputs"`
	// Prepack is of the written file alone: the plan's nodes do not depend on it.
	Prepack pipeline.Prepacking `json:"prepack,omitempty"`
	// Outputs is what the plan's peak holds for.
	Outputs step.Outputs     `json:"outputs,omitempty"`
	Dims    map[string]int64 `json:"dims"`
	// Budget and BudgetTotal are as they were given.
	Budget      string `json:"budget,omitempty"`
	BudgetTotal string `json:"budget_total,omitempty"`
	// Overhead bounds what is computed again, as a share; nil does not.
	Overhead *float64 `json:"overhead,omitempty"`
	// Layers are the budgets of layers, as they were given.
	Layers []string `json:"layer_budgets,omitempty"`
	// Scheduled is peak_bytes_scheduled under OptLevel: the graph that is prepared
	// again is the form that was chosen, and would give another.
	Scheduled int64 `json:"peak_bytes_scheduled,omitempty"`
	OptLevel  int   `json:"opt_level"`
	// TimeLimited is time_limited of the plan's document.
	TimeLimited bool `json:"time_limited,omitempty"`
	// Precision is how values were made half, nil where they were not.
	Precision *precision.Options `json:"precision,omitempty"`
}

const sourceKey = "source"

// texts are budgets of layers as they were given.
func texts(budgets []pipeline.LayerBudget) (list []string) {
	for _, b := range budgets {
		list = append(list, b.String())
	}
	return list
}

// layerBudgets reads what texts wrote.
func (s planSource) layerBudgets() (list []pipeline.LayerBudget, err error) {
	for _, text := range s.Layers {
		b, ok, err := pipeline.ParseLayerBudget(text)
		if err != nil || !ok {
			return nil, fmt.Errorf("source: layer_budgets: %q: want GLOB=SIZE", text)
		}
		list = append(list, b)
	}
	return list, nil
}

// writePlan writes the plan by names, for rewrite --plan and for people.
func writePlan(p *planned, asked planOptions, out string) error {
	source := p.source.Path
	rel, err := filepath.Rel(filepath.Dir(out), source)
	if err != nil {
		rel = source
	}
	o := p.result.Variant.Again()
	src, err := json.Marshal(planSource{
		Path: filepath.ToSlash(rel), SHA256: p.source.Hash(), Normalize: string(o.Normalize), Divisions: o.Divisions,
		DropOutputs: o.DropOutputs, Prepack: o.Prepack, Outputs: o.Outputs, Dims: o.Dims, Budget: asked.budget, BudgetTotal: asked.total, Overhead: asked.overhead, Layers: texts(asked.pipeline.Layers), Precision: o.Precision,
		Scheduled: *p.document.PeakBytesScheduled, OptLevel: asked.pipeline.OptLevel,
		TimeLimited: p.document.TimeLimited,
	})
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if err := planner.WritePlan(&body, p.result.Problem(), p.result.Plan); err != nil {
		return err
	}
	// The source comes first: {"source": …, and then what the planner wrote.
	text := append([]byte("{\n \""+sourceKey+"\": "), src...)
	text = append(append(text, ','), body.Bytes()[1:]...)
	return onnx.WriteFile(out, text)
}

// readPlanFile splits a plan file into its source and the planner's part.
func readPlanFile(path string) (planSource, []byte, error) {
	var src planSource
	data, err := readFile(path)
	if err != nil {
		return src, nil, err
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return src, nil, fmt.Errorf("%s: not a plan (%w): remat plan -o writes one", path, err)
	}
	if raw, ok := parts[sourceKey]; ok {
		if err := json.Unmarshal(raw, &src); err != nil {
			return src, nil, fmt.Errorf("%s: source: %w", path, err)
		}
		if src.Prepack, err = pipeline.ParsePrepacking(string(src.Prepack)); err != nil {
			return src, nil, fmt.Errorf("%s: source: %w", path, err)
		}
		if src.Outputs, err = step.ParseOutputs(string(src.Outputs)); err != nil {
			return src, nil, fmt.Errorf("%s: source: outputs %w", path, err)
		}
		if src.Overhead != nil && !(*src.Overhead >= 0) {
			return src, nil, fmt.Errorf("%s: source: overhead %g: want a share that is not negative", path, *src.Overhead)
		}
		delete(parts, sourceKey)
	}
	rest, err := json.Marshal(parts)
	return src, rest, err
}

// adopt takes over how the plan's graph was prepared and checks that it is the
// same graph. It returns the flags, of those that set reports as given, that ask
// for another preparation: the graph then has other nodes than the plan names, so
// the plan's strategy has to be asked again.
func (s planSource) adopt(o *planOptions, set func(flag string) bool, graph *pipeline.Source, planPath string) (other []string, err error) {
	if s.SHA256 != "" && s.SHA256 != graph.Hash() {
		return nil, fmt.Errorf("%s: made for another graph than %s: plan again", planPath, graph.Path)
	}
	s.Normalize = cmp.Or(s.Normalize, string(o.pipeline.Normalize))
	f := &o.pipeline
	type part struct {
		flag string
		same bool
		take func()
	}
	parts := []part{
		{"normalize", s.Normalize == string(f.Normalize), func() { f.Normalize = pipeline.Normalization(s.Normalize) }},
		{"drop-output", slices.Equal(s.DropOutputs, f.DropOutputs), func() { f.DropOutputs = s.DropOutputs }},
		{"precision", samePrecision(s.Precision, f.Precision), func() { f.Precision = s.Precision }},
		// Slices that are outputs are other nodes; the other ways divide alike.
		{"outputs", (s.Outputs == step.Rows) == (f.Outputs == step.Rows), func() {}},
	}
	for i, to := range f.Divisions.Flags() {
		from := s.Divisions.Flags()[i]
		parts = append(parts, part{to.Flag, *from.Division == *to.Division, func() { *to.Division = *from.Division }})
	}
	for _, part := range parts {
		if !set(part.flag) || part.same {
			part.take()
		} else {
			other = append(other, "--"+part.flag)
		}
	}
	if !set("prepack") {
		f.Prepack = s.Prepack
	}
	if !set("outputs") {
		f.Outputs = s.Outputs
	}
	f.Dims, err = s.sizes(f.Dims, planPath)
	return other, err
}

// sizes are the plan's dimensions; those given must agree with them.
func (s planSource) sizes(given map[string]int64, planPath string) (map[string]int64, error) {
	for name, n := range s.Dims {
		if other, ok := given[name]; ok && other != n {
			return nil, fmt.Errorf("--dim %s=%d: %s was made for %s=%d: plan again with it, or leave --dim out", name, other, planPath, name, n)
		}
	}
	all := maps.Clone(given)
	if all == nil {
		all = map[string]int64{}
	}
	maps.Copy(all, s.Dims)
	return all, nil
}

// describe completes the document of the graph that followed the plan, so that it
// is the one that the plan's flags lead to.
func (s planSource) describe(p *planned, level int) {
	p.document.TimeLimited = s.TimeLimited
	if s.Scheduled > 0 && s.OptLevel == level {
		p.document.PeakBytesScheduled = &s.Scheduled
	}
}

// samePrecision reports that two choices of a half type, nil for none, ask for
// the same; what a strategy adds to them aside, and what planning chose.
func samePrecision(a, b *precision.Options) bool {
	if a == nil || b == nil {
		return a == b
	}
	overflow := a.Overflow == b.Overflow || a.Overflow.Auto() || b.Overflow.Auto()
	return a.To == b.To && overflow && a.StashOnly == b.StashOnly && a.Emulate == b.Emulate && a.Provider == b.Provider &&
		slices.Equal(a.KeepFP32, b.KeepFP32) && slices.Equal(a.Half, b.Half)
}

// askAgain turns options that follow a plan file into options that ask its
// strategy again, within its budget, and says why.
func (s planSource) askAgain(o *planOptions, body []byte, other []string) (rewrite.Report, error) {
	var plan struct {
		Strategy string            `json:"strategy"`
		Schedule []json.RawMessage `json:"schedule"`
	}
	if err := json.Unmarshal(body, &plan); err != nil {
		return rewrite.Report{}, fmt.Errorf("%s: not a plan (%w): remat plan -o writes one", o.file, err)
	}
	if _, _, err := planner.Find(plan.Strategy); err != nil || plan.Schedule == nil {
		return rewrite.Report{}, fmt.Errorf("%s: lists values of a graph prepared differently: leave out %s, or plan again with it", o.file, strings.Join(other, " and "))
	}
	if o.overhead != nil || len(o.pipeline.Layers) > 0 { // which optimal alone takes, and may keep with another's plan
		plan.Strategy = "optimal"
	}
	why := fmt.Sprintf("made without %s: planned again with its strategy, %s", strings.Join(other, " and "), plan.Strategy)
	skipped := rewrite.Report{Pass: "plan", Requested: 1, Skipped: []rewrite.Skip{{What: o.file, Why: why}}}
	o.file, o.strategy = "", plan.Strategy
	return skipped, nil
}

// followPlan writes the file that a plan on disk leads to.
func followPlan(p *pipeline.Planner, path string) (*pipeline.File, error) {
	_, body, err := readPlanFile(path)
	if err != nil {
		return nil, err
	}
	plan, err := planner.ReadPlan(bytes.NewReader(body), p.Problem())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p.Apply(plan)
}

func explainCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "explain", Usage: "says why a plan keeps each value", ArgsUsage: "plan.json",
		Description: "The graph is the one that the plan was made from, unless --graph names another file.\n\n" +
			"Example: remat explain plan.json",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "graph", Usage: "`TRAIN.onnx`: the plan's graph, if it was moved"},
		},
		Action: func(c *cli.Context) error {
			path, err := argument(c, "plan file")
			if err != nil {
				return err
			}
			return explain(e, path, c.String("graph"))
		},
	}
}

func explain(e *env, path, graph string) error {
	src, _, err := readPlanFile(path)
	if err != nil {
		return err
	}
	if graph == "" {
		if src.Path == "" {
			return errors.New(path + ": does not name its graph: give --graph TRAIN.onnx")
		}
		if graph = filepath.FromSlash(src.Path); !filepath.IsAbs(graph) {
			graph = filepath.Join(filepath.Dir(path), graph)
		}
	}
	model, err := e.load(graph)
	if err != nil {
		return err
	}
	o := planOptions{strategy: "none", file: path, pipeline: e.pipelineOptions()}
	if _, err := src.adopt(&o, func(string) bool { return false }, model, path); err != nil {
		return err
	}
	p, err := makePlan(e, model, o)
	if err != nil {
		return err
	}
	reasons, err := planner.Explain(p.result.Problem(), p.result.Plan)
	if err != nil {
		return err
	}
	modules := pipeline.ModuleNames(p.result.Variant.Analysis)
	layer := func(r *planner.Reason) string {
		if n := p.result.Variant.Analysis.Values[r.Value].Producer; n != nil {
			return modules(n)
		}
		return ""
	}
	if e.json {
		return report.WriteJSON(e.stdout, map[string]any{"plan": path, "graph": graph, "kept": explained(reasons, layer)})
	}
	kept := p.result.Plan.Kept(p.result.Problem())
	e.say("%s for %s: %s kept, in %s", p.result.Plan.Strategy, filepath.Base(graph),
		units.Counted(len(kept), "value"), units.Counted(len(reasons), "buffer"))
	t := report.Table{Columns: []string{">bytes", "value", "layer", "~kept because"}}
	for i := range reasons {
		r := &reasons[i]
		t.Rows = append(t.Rows, []string{units.Bytes(r.Bytes), report.Shorten(r.Name, 200), report.Shorten(layer(r), 200), whyKept(r)})
	}
	return t.Text(e.stdout)
}

// whyKept is a reason for a person, in one line.
func whyKept(r *planner.Reason) string {
	work := units.Count(r.SavedFLOPs) + " FLOPs"
	var line string
	switch {
	case r.MustStay:
		line = "must stay: " + r.Why
	case r.Freed > 0:
		line = fmt.Sprintf("worth it: dropping it would take %s off the peak and cost %s", units.Bytes(r.Freed), work)
	case r.Freed < 0:
		line = fmt.Sprintf("needed: dropping it would add %s to the peak and cost %s", units.Bytes(-r.Freed), work)
	default:
		line = fmt.Sprintf("free: dropping it would not lower the peak and would cost %s", work)
	}
	if r.Boundary {
		line = "boundary; " + line
	}
	if n := len(r.Readers); n > 0 {
		line += "; read by " + report.Shorten(r.Readers[0], 40)
		if n > 1 {
			line += fmt.Sprintf(" and %d more", n-1)
		}
	}
	return line
}

// explained is a list of reasons for programs.
func explained(reasons []planner.Reason, layer func(*planner.Reason) string) []map[string]any {
	out := make([]map[string]any, len(reasons))
	for i, r := range reasons {
		out[i] = map[string]any{"value": r.Name, "layer": report.Text(layer(&reasons[i])), "bytes": r.Bytes, "boundary": r.Boundary, "must_stay": r.MustStay,
			"why": r.Why, "saved_flops": r.SavedFLOPs, "freed_bytes": r.Freed, "readers": r.Readers}
	}
	return out
}
