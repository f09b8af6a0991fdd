package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/crosscheck"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/runtime/predict"
)

func inspectCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "inspect", Usage: "shows what a graph consists of and where its memory goes", ArgsUsage: "M.onnx",
		Description: "--memory predicts the live bytes over a step without running it, for the graph that ONNX\n" +
			"Runtime, if installed, makes of the file at --opt.\n\n" +
			"Example: remat inspect train.onnx --memory",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "memory", Usage: "predicted live bytes by category, and what is live at the peak"},
			&cli.BoolFlag{Name: "cross-check", Usage: "read the file again with onnx-go and compare"},
			&cli.BoolFlag{Name: "text", Usage: "print the graph as text"},
			&cli.StringFlag{Name: "png", Usage: "with --memory: draw the timeline to `F.png`"},
			sizesFlag(),
			&cli.StringFlag{Name: "workspace", Usage: "with --memory and --provider cuda: count `SIZE` for each cuDNN workspace whose size is not known; default: 0"},
		},
		Action: func(c *cli.Context) error {
			path, err := argument(c, "model file")
			if err != nil {
				return err
			}
			if c.Bool("text") && e.json {
				return fmt.Errorf("remat inspect: --text prints no JSON: leave out --json")
			}
			if c.Bool("text") {
				src, err := e.load(path)
				if err != nil {
					return err
				}
				return onnx.Print(e.stdout, src.Model)
			}
			if c.String("png") != "" && !c.Bool("memory") {
				return fmt.Errorf("remat inspect: --png requires --memory")
			}
			if err := e.readWorkspace(c); err != nil {
				return err
			}
			if e.sizes, err = readBatch(e, c); err != nil {
				return err
			}
			src, err := e.load(path)
			if err != nil {
				return err
			}
			if err := pipeline.CanWrite(append(src.Files(), e.fed...), c.String("png")); err != nil {
				return err
			}
			return inspect(e, src, c.Bool("memory"), c.Bool("cross-check"), c.String("png"))
		},
	}
}

// readWorkspace reads --workspace.
func (e *env) readWorkspace(c *cli.Context) error {
	text := c.String("workspace")
	if text == "" {
		return nil
	}
	if !c.Bool("memory") || !e.onCUDA() {
		return fmt.Errorf("remat inspect: --workspace requires --memory and --provider cuda")
	}
	var err error
	e.workspace, err = readBytes("workspace", text, 0)
	return err
}

// inspection is the document of inspect --json.
type inspection struct {
	Model     string           `json:"model"`
	IRVersion int64            `json:"ir_version"`
	Opsets    map[string]int64 `json:"opsets"`
	Producer  string           `json:"producer"`
	Nodes     int              `json:"nodes"`
	dimensions
	Operators      map[string]int `json:"operators"`
	Inputs         []tensorInfo   `json:"inputs"`
	Outputs        []tensorInfo   `json:"outputs"`
	Parameters     int            `json:"parameters"`
	ParameterBytes int64          `json:"parameter_bytes"`
	// Trained are the parameters that the graph returns a gradient or a next value of,
	// Frozen the other floats of more than one element that it holds or is fed for
	// parameters.
	Trained report.ParameterSum `json:"trained"`
	Frozen  report.ParameterSum `json:"frozen"`
	// Layers names the value that each layer found ends in, LayerNames are what the
	// exporter calls them.
	Layers        []string   `json:"layers"`
	LayerNames    []string   `json:"layer_names"`
	ForwardNodes  int        `json:"forward_nodes"`
	BackwardNodes int        `json:"backward_nodes"`
	Roles         step.Roles `json:"roles"`
	// Requires says which runtime the file needs.
	Requires pipeline.Requires `json:"requires"`
	Metadata map[string]string `json:"metadata,omitempty"`
	// Stale is what the metadata predict though the file was changed since.
	Stale      *report.StalePrediction `json:"stale_prediction,omitempty"`
	Memory     *memoryInfo             `json:"memory,omitempty"`
	CrossCheck []string                `json:"cross_check,omitempty"`
}

type tensorInfo struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Role string `json:"role,omitempty"`
}

type memoryInfo struct {
	LivePeakBytes  int64    `json:"predicted_live_peak_bytes"`
	SessionBytes   int64    `json:"predicted_session_bytes"`
	ReservedBytes  int64    `json:"predicted_reserved_bytes"`
	ArenaBytes     int64    `json:"predicted_arena_reserved_bytes"`
	TotalPeakBytes int64    `json:"predicted_total_peak_bytes"`
	Exact          bool     `json:"exact"`
	Unknown        []string `json:"unknown,omitempty"`
	// Workspaces are nodes that borrow one for cuDNN, each counted as WorkspaceBytes.
	WorkspaceBytes int64    `json:"workspace_bytes,omitempty"`
	Workspaces     []string `json:"workspaces,omitempty"`
	// Rehearsed is what a rehearsal measures of the same, and what it predicted.
	Rehearsed *report.Memory `json:"rehearsed,omitempty"`
	Peak      *report.Peak   `json:"peak"`
	Phases    *report.Phases `json:"phases"`

	advice string // where sizes are unknown that a batch would tell
}

// inspect loads a model and prints what it is, and as asked what a step of it holds
// and whether onnx-go reads the same.
func inspect(e *env, src *pipeline.Source, memory, crossCheck bool, png string) error {
	path, m := src.Path, src.Model
	if err := checkDims(e.dims, src); err != nil {
		return err
	}
	dims := dimensionsOf(m, e.dims)
	if err := pipeline.Type(m, e.dims); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if memory {
		if err := pipeline.Known(m, e.dims); err != nil {
			return fmt.Errorf("%s: %w%s", path, err, forwardHint(m, err))
		}
	}
	a, err := analysis.Analyze(m, analysis.Options{Dims: e.dims})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d := describe(m, path, a)
	d.dimensions = dims
	if memory {
		if err := inspectMemory(e, m, a, d, png); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if d.Memory != nil && e.rehearse {
		if d.Memory.Rehearsed, err = rehearseFile(e, path); err != nil {
			return err
		}
	}
	if d.Stale = e.stale(src, func() *int64 { return predictedPeak(e, m, a, d) }); d.Stale != nil {
		delete(d.Metadata, pipeline.PeakKey)
		delete(d.Metadata, pipeline.ReservedKey)
	}
	var differs error
	if crossCheck {
		r, err := crosscheck.File(path)
		if err != nil {
			return err
		}
		d.CrossCheck = crossCheckLines(r)
		if !r.Agree() {
			differs = &checkError{fmt.Errorf("%s: %v", path, r)}
		}
	}
	if e.json {
		err = report.WriteJSON(e.stdout, d)
	} else {
		err = printInspection(e, d)
	}
	return errors.Join(err, differs)
}

// dimensions are those of a file's inputs.
type dimensions struct {
	// Free have no number, Fixed are those that have one: by --dim, or because the
	// file was written for it.
	Free  []string         `json:"free_dimensions"`
	Fixed map[string]int64 `json:"dimensions"`

	open string // what dimLine says
}

// dimensionsOf lists the dimensions of a model as it was loaded: typing it fills in
// those that are given.
func dimensionsOf(m *onnx.Model, given map[string]int64) dimensions {
	d := dimensions{Free: []string{}, Fixed: pipeline.FixedDims(m)}
	free := pipeline.FreeDims(m)
	for _, name := range free {
		if n, ok := given[name]; ok {
			d.Fixed[name] = n
		} else {
			d.Free = append(d.Free, name)
		}
	}
	d.open = dimLine(m, free, given, given)
	return d
}

// crossCheckLines are what onnx-go's reading differs in, one line each.
func crossCheckLines(r *crosscheck.Result) []string {
	lines := []string{r.String()}
	for _, l := range r.Differences {
		lines = append(lines, "differs: "+l)
	}
	for _, l := range r.NotCompared {
		lines = append(lines, "not compared: "+l)
	}
	return lines
}

// describe fills in what the graph and its analysis say.
func describe(m *onnx.Model, path string, a *analysis.Analysis) *inspection {
	g := m.Graph
	d := &inspection{
		Model: path, IRVersion: m.Proto.GetIrVersion(), Producer: m.Proto.GetProducerName(), Nodes: len(g.Nodes),
		Opsets: map[string]int64{}, Operators: map[string]int{}, Roles: a.Roles, Requires: pipeline.RequiresOf(m), Metadata: map[string]string{},
	}
	for _, o := range m.Proto.GetOpsetImport() {
		d.Opsets[o.GetDomain()] = o.GetVersion()
	}
	for _, kv := range m.Proto.GetMetadataProps() {
		d.Metadata[kv.GetKey()] = kv.GetValue()
	}
	for _, n := range g.Nodes {
		d.Operators[strings.TrimPrefix(n.Domain()+"."+n.OpType(), ".")]++
	}
	for _, op := range a.Problem.Ops {
		if op.Forward {
			d.ForwardNodes++
		} else {
			d.BackwardNodes++
		}
	}
	for _, v := range g.Inputs {
		role := "" // an input that nothing reads has none
		if i, ok := a.Index[v]; ok && i >= 0 {
			role = a.Problem.Values[i].Role.String()
		}
		d.Inputs = append(d.Inputs, tensorInfo{v.Name, v.Type.String(), role})
		if role == "parameter" {
			d.Parameters, d.ParameterBytes = d.Parameters+1, d.ParameterBytes+v.Type.KnownBytes()
			if a.Roles.Trains(v.Name) {
				pipeline.CountParameter(&d.Trained, v)
			} else {
				pipeline.CountParameter(&d.Frozen, v)
			}
		}
	}
	for _, v := range g.Initializers {
		bytes, known := step.ConstantBytes(v)
		if !known || v.IsInput() {
			continue
		}
		if !step.Copied(v) {
			d.ParameterBytes += bytes
		}
		if pipeline.IsWeight(v) {
			d.Parameters++
			if n, _ := v.Init.Elements(); n > 1 {
				pipeline.CountParameter(&d.Frozen, v)
			}
		}
	}
	for _, v := range g.Outputs {
		role := ""
		if v.Name == a.Roles.Loss {
			role = "loss"
		}
		if in := inputOf(a.Roles.Grad, v.Name); in != "" {
			role = "gradient of " + in
		}
		if in := inputOf(a.Roles.New, v.Name); in != "" {
			role = "next " + in
		}
		d.Outputs = append(d.Outputs, tensorInfo{v.Name, v.Type.String(), role})
	}
	d.LayerNames = append([]string{}, a.Problem.LayerNames...)
	for i := range a.Problem.LayerCount() {
		d.Layers = append(d.Layers, a.Problem.Values[a.Problem.LayerEnd(i)].Name)
	}
	return d
}

// inputOf returns the input that pairs give an output, the first by name of
// several, "" for none.
func inputOf(pairs map[string]string, output string) string {
	for _, in := range slices.Sorted(maps.Keys(pairs)) {
		if pairs[in] == output {
			return in
		}
	}
	return ""
}

// predictedPeak is the live peak of the step in bytes; nil where it cannot be
// predicted to the byte.
func predictedPeak(e *env, m *onnx.Model, a *analysis.Analysis, d *inspection) *int64 {
	if d.Memory == nil {
		p, err := predictStep(e, m, a)
		if err != nil || !p.Exact() {
			return nil
		}
		return &p.LivePeak
	}
	if !d.Memory.Exact {
		return nil
	}
	return &d.Memory.LivePeakBytes
}

// forwardHint says where to look instead where a forward model holds an operator that nothing is known of: such
// as lists of tensors, which PyTorch's exporter writes, are gone from the training graph.
func forwardHint(m *onnx.Model, err error) string {
	var unknown *infer.UnknownOpError
	if roles, _, wrong := step.RolesOf(m, nil); wrong != nil || roles.Training() || !errors.As(err, &unknown) {
		return ""
	}
	return ": look at the training graph that remat grad derives, where it may be gone"
}

// inspectMemory predicts the step, describes it, and draws it if asked.
func inspectMemory(e *env, m *onnx.Model, a *analysis.Analysis, d *inspection, png string) error {
	p, err := predictStep(e, m, a)
	if err != nil {
		return err
	}
	t := pipeline.Timeline(p, pipeline.ModuleNames(a))
	d.Memory = &memoryInfo{
		LivePeakBytes: p.LivePeak, SessionBytes: p.Session.Bytes(), ReservedBytes: p.Reserved(), ArenaBytes: p.Arena().Reserved, TotalPeakBytes: p.TotalPeak,
		Exact: p.Exact(), Unknown: p.Unknown, Workspaces: p.Workspaces, WorkspaceBytes: e.workspace, Peak: t.Peak(), Phases: t.Phases(),
	}
	if e.sizes == nil && pipeline.AsksForData(m, a.Roles) {
		d.Memory.advice = batchTells
	}
	if png != "" {
		return timelinePNG(png, d.Model, t)
	}
	return nil
}

// predictStep predicts the step. Without ONNX Runtime at hand it predicts
// the file as it stands, at optimization level 0.
func predictStep(e *env, m *onnx.Model, a *analysis.Analysis) (*predict.Prediction, error) {
	engine, err := e.engine()
	if err != nil {
		fmt.Fprintf(e.stderr, "remat: %v; predicting for --opt 0\n", err)
	}
	return pipeline.Predict(engine, m, a.Roles, e.pipelineOptions(), nil)
}

func printInspection(e *env, d *inspection) error {
	e.say("%s: %d nodes, IR %d, opset %d, by %s", report.Shorten(d.Model, 100), d.Nodes, d.IRVersion, d.Opsets[""], report.Shorten(d.Producer, 40))
	if d.open != "" {
		e.say("no size for %s; without it, the sizes below are lower bounds", d.open)
	}
	if len(d.Fixed) > 0 {
		e.say("for %s", strings.Join(dimList(d.Fixed), ", "))
	}
	if d.Memory != nil {
		printPeak(e, d.Memory)
	}
	e.say("needs ONNX Runtime %s or newer", d.Requires.ONNXRuntime)
	e.say("parameters: %s", d.parameters())
	e.say("forward %d nodes, backward %d nodes, layers found: %d%s", d.ForwardNodes, d.BackwardNodes, len(d.Layers), d.layers())
	if d.Roles.Loss != "" {
		e.say("loss: %s, gradients: %d, updated: %d", report.Shorten(d.Roles.Loss, 60), len(d.Roles.Grad), len(d.Roles.New))
	}
	e.say("operators: %s", strings.Join(d.operators(), ", "))
	e.say("")
	var tables []report.Table
	if d.Memory != nil {
		run := &report.Run{Peak: d.Memory.Peak, Phases: d.Memory.Phases}
		tables = run.PeakTables()
	}
	for _, t := range append(tables, tensorTable("inputs", d.Inputs), tensorTable("outputs", d.Outputs)) {
		if err := t.Text(e.stdout); err != nil {
			return err
		}
	}
	for _, line := range d.CrossCheck {
		e.say("cross-check: %s", line)
	}
	return nil
}

// parameters counts those that train and the others apart, with their elements.
func (d *inspection) parameters() string {
	if d.Trained.Count == 0 {
		return fmt.Sprintf("%d (%s)", d.Parameters, units.Bytes(d.ParameterBytes))
	}
	return fmt.Sprintf("%s, %s", sumText(d.Trained, "trained"), sumText(d.Frozen, "frozen"))
}

func sumText(s report.ParameterSum, what string) string {
	if s.Count == 0 {
		return "none " + what
	}
	return fmt.Sprintf("%d %s (%s elements, %s)", s.Count, what, grouped(s.Elements), units.Bytes(s.Bytes))
}

// grouped writes a number with commas between thousands.
func grouped(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// layers names the first and the last layer.
func (d *inspection) layers() string {
	switch n := len(d.LayerNames); n {
	case 0:
		return ""
	case 1:
		return " (" + report.Shorten(d.LayerNames[0], 50) + ")"
	default:
		return fmt.Sprintf(" (%s … %s)", report.Shorten(d.LayerNames[0], 50), report.Shorten(d.LayerNames[n-1], 50))
	}
}

// operators lists the types of operators with their numbers, the most frequent
// first.
func (d *inspection) operators() []string {
	ops := slices.Sorted(maps.Keys(d.Operators))
	slices.SortStableFunc(ops, func(a, b string) int { return cmp.Compare(d.Operators[b], d.Operators[a]) })
	for i, op := range ops {
		ops[i] = fmt.Sprintf("%s %d", report.Shorten(op, 60), d.Operators[op])
	}
	return ops
}

// mostTensors is how many inputs or outputs are listed; --json has all.
const mostTensors = 12

func tensorTable(what string, list []tensorInfo) report.Table {
	t := report.Table{Title: fmt.Sprintf("%s: %d", what, len(list)), Columns: []string{"", "", "", ""}}
	for i, v := range list {
		if i == mostTensors {
			t.Note = fmt.Sprintf("… and %d more", len(list)-i)
			break
		}
		role, of := v.Role, ""
		if at := strings.LastIndexByte(role, ' '); at >= 0 { // gradient of P, next P
			role, of = role[:at], role[at+1:]
		}
		t.Rows = append(t.Rows, []string{report.Shorten(v.Name, 200), report.Shorten(v.Type, 60), role, report.Shorten(of, 200)})
	}
	return t
}

// printPeak states the peak: what a reader came for.
func printPeak(e *env, m *memoryInfo) {
	exact := "to the byte"
	if !m.Exact {
		exact = "at least; not known: " + m.Unknown[0] + m.advice
	}
	e.say("predicted live peak: %s (%s), total %s, session %s, reserved %s (%s in ONNX Runtime's arena)", units.Bytes(m.LivePeakBytes), exact,
		units.Bytes(m.TotalPeakBytes), units.Bytes(m.SessionBytes), units.Bytes(m.ReservedBytes), units.Bytes(m.ArenaBytes))
	if n := len(m.Workspaces); n > 0 {
		e.say("cuDNN workspaces whose size is not known, as no GPU was asked: %d, %s counted for each (--workspace)", n, units.Bytes(m.WorkspaceBytes))
	}
	if r := m.Rehearsed; r != nil {
		e.say("rehearsed live peak: %s, total %s, reserved %s (%s)", units.Bytes(*r.LivePeakBytes), units.Bytes(*r.TotalPeakBytes),
			units.Bytes(*r.ReservedBytes), report.NoNumbers)
	}
}
