package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/crosscheck"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/report"
	"github.com/onnx-remat/remat/runtime/predict"
)

func inspectCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "inspect", Usage: "says what a graph is made of and where its memory goes", ArgsUsage: "M.onnx",
		Description: "--memory predicts the live bytes over a step without running it; with ONNX Runtime at\n" +
			"hand, for the graph that it makes of the file at --opt.\n\n" +
			"Example: remat inspect train.onnx --memory",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "memory", Usage: "predicted live bytes by category, and what is live at the peak"},
			&cli.BoolFlag{Name: "cross-check", Usage: "read the file once more, with onnx-go, and compare"},
			&cli.BoolFlag{Name: "text", Usage: "print the graph as text"},
			&cli.StringFlag{Name: "png", Usage: "draw the timeline to `F.png`, with --memory"},
		},
		Action: func(c *cli.Context) error {
			path, err := argument(c, "model file")
			if err != nil {
				return err
			}
			if c.Bool("text") && e.json {
				return fmt.Errorf("remat inspect: --text is no document: leave out --json")
			}
			if c.Bool("text") {
				m, err := onnx.Load(path)
				if err != nil {
					return err
				}
				defer m.Close()
				return onnx.Print(e.stdout, m)
			}
			if c.String("png") != "" && !c.Bool("memory") {
				return fmt.Errorf("remat inspect: --png draws the timeline of --memory: give both")
			}
			if err := canWrite(filesOf(path), c.String("png")); err != nil {
				return err
			}
			return inspect(e, path, c.Bool("memory"), c.Bool("cross-check"), c.String("png"))
		},
	}
}

// inspection is the document of inspect --json.
type inspection struct {
	Model          string           `json:"model"`
	IRVersion      int64            `json:"ir_version"`
	Opsets         map[string]int64 `json:"opsets"`
	Producer       string           `json:"producer"`
	Nodes          int              `json:"nodes"`
	Operators      map[string]int   `json:"operators"`
	Inputs         []tensorInfo     `json:"inputs"`
	Outputs        []tensorInfo     `json:"outputs"`
	Parameters     int              `json:"parameters"`
	ParameterBytes int64            `json:"parameter_bytes"`
	// Layers names the value that each layer found ends in.
	Layers        []string       `json:"layers"`
	ForwardNodes  int            `json:"forward_nodes"`
	BackwardNodes int            `json:"backward_nodes"`
	Roles         analysis.Roles `json:"roles"`
	// Requires says which runtime the file needs.
	Requires flow.Requires     `json:"requires"`
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
	LivePeakBytes  int64          `json:"predicted_live_peak_bytes"`
	SessionBytes   int64          `json:"predicted_session_bytes"`
	ReservedBytes  int64          `json:"predicted_reserved_bytes"`
	TotalPeakBytes int64          `json:"predicted_total_peak_bytes"`
	Exact          bool           `json:"exact"`
	Unknown        []string       `json:"unknown,omitempty"`
	Peak           *report.Peak   `json:"peak"`
	Phases         *report.Phases `json:"phases"`
}

// inspect loads a model and prints what it is, and as asked what a step of it holds
// and whether onnx-go reads the same.
func inspect(e *env, path string, memory, crossCheck bool, png string) error {
	if err := e.checkDimsOf(path); err != nil {
		return err
	}
	m, _, err := flow.Open(path, e.dims)
	if err != nil {
		return err
	}
	defer m.Close()
	if memory {
		if err := flow.Known(m, e.dims); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	a, err := analysis.Analyze(m, analysis.Options{Dims: e.dims})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	d := describe(m, path, a)
	if memory {
		if err := inspectMemory(e, m, a, d, png); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if d.Stale, err = e.stale(path, m, func() *int64 { return predictedPeak(e, m, a, d) }); err != nil {
		return err
	}
	if d.Stale != nil {
		delete(d.Metadata, flow.PeakKey)
		delete(d.Metadata, flow.ReservedKey)
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
		printInspection(e, d)
	}
	return errors.Join(err, differs)
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
		Opsets: map[string]int64{}, Operators: map[string]int{}, Roles: a.Roles, Requires: flow.RequiresOf(m), Metadata: map[string]string{},
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
			bytes, _ := v.Type.Bytes()
			d.Parameters, d.ParameterBytes = d.Parameters+1, d.ParameterBytes+bytes
		}
	}
	for _, v := range g.Initializers {
		if bytes, ok := v.Type.Bytes(); ok && v.Type.DType.IsFloat() && !v.IsInput() {
			d.Parameters, d.ParameterBytes = d.Parameters+1, d.ParameterBytes+bytes
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
	for i := range a.Problem.LayerCount() {
		d.Layers = append(d.Layers, a.Problem.Values[a.Problem.Layers[i+1]].Name)
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

// inspectMemory predicts the step, describes it, and draws it if asked.
func inspectMemory(e *env, m *onnx.Model, a *analysis.Analysis, d *inspection, png string) error {
	p, err := predictStep(e, m, a)
	if err != nil {
		return err
	}
	t := flow.Timeline(p, flow.LayerNames(a))
	d.Memory = &memoryInfo{
		LivePeakBytes: p.LivePeak, SessionBytes: p.Session.Bytes(), ReservedBytes: p.Arena().Reserved, TotalPeakBytes: p.TotalPeak,
		Exact: p.Exact(), Unknown: p.Unknown, Peak: t.Peak(), Phases: t.Phases(),
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
	if e.provider == "cuda" { // half types have kernels there: the file runs as it is written
		engine = nil
	}
	return flow.Predict(engine, m, a.Roles, flow.Options{Dims: e.dims, Threads: e.threads, OptLevel: e.opt, CUDA: e.provider == "cuda"}, nil)
}

func printInspection(e *env, d *inspection) {
	e.say("%s: %d nodes, IR %d, opset %d, by %s", d.Model, d.Nodes, d.IRVersion, d.Opsets[""], d.Producer)
	e.say("needs ONNX Runtime %s or newer", d.Requires.ONNXRuntime)
	e.say("parameters: %d, %s", d.Parameters, report.Bytes(d.ParameterBytes))
	e.say("forward %d nodes, backward %d nodes, layers found: %d", d.ForwardNodes, d.BackwardNodes, len(d.Layers))
	if d.Roles.Loss != "" {
		e.say("loss: %s, gradients: %d, updated: %d", d.Roles.Loss, len(d.Roles.Grad), len(d.Roles.New))
	}
	ops := make([]string, 0, len(d.Operators))
	for op := range d.Operators {
		ops = append(ops, op)
	}
	sort.Slice(ops, func(i, j int) bool {
		if d.Operators[ops[i]] != d.Operators[ops[j]] {
			return d.Operators[ops[i]] > d.Operators[ops[j]]
		}
		return ops[i] < ops[j]
	})
	for i, op := range ops {
		ops[i] = fmt.Sprintf("%s %d", op, d.Operators[op])
	}
	e.say("operators: %s", strings.Join(ops, ", "))
	printTensors(e, "inputs", d.Inputs)
	printTensors(e, "outputs", d.Outputs)
	if d.Memory != nil {
		printMemory(e, d.Memory)
	}
	for _, line := range d.CrossCheck {
		e.say("cross-check: %s", line)
	}
}

// printTensors lists at most a dozen; --json has all.
func printTensors(e *env, what string, list []tensorInfo) {
	e.say("%s: %d", what, len(list))
	for i, t := range list {
		if i == 12 {
			e.say("  … and %d more", len(list)-i)
			return
		}
		e.say("  %-40s %-28s %s", t.Name, t.Type, t.Role)
	}
}

func printMemory(e *env, m *memoryInfo) {
	exact := "to the byte"
	if !m.Exact {
		exact = "at least; not known: " + m.Unknown[0]
	}
	e.say("predicted live peak: %s (%s), total %s, session %s, reserved %s", report.Bytes(m.LivePeakBytes), exact,
		report.Bytes(m.TotalPeakBytes), report.Bytes(m.SessionBytes), report.Bytes(m.ReservedBytes))
	if m.Peak == nil {
		return
	}
	e.say("at the peak, while %s (%s) runs:", m.Peak.Node, m.Peak.Op)
	for _, c := range report.AllCategories {
		if n := m.Peak.Sizes.Of(c); n > 0 {
			e.say("  %-12s %s", c, report.Bytes(n))
		}
	}
	e.say("largest values alive then:")
	for i, v := range m.Peak.Live {
		if i == 12 {
			e.say("  … and %d more", len(m.Peak.Live)-i)
			break
		}
		e.say("  %12s  %-12s %s (made by %s)", report.Bytes(v.Bytes), v.Category, v.Value, v.Node)
	}
}
