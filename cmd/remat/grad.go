package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/report"
	"github.com/onnx-remat/remat/rewrite/grad"
	remat "github.com/onnx-remat/remat/runtime"
)

func gradCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "grad", Usage: "derives the training graph of a forward model", ArgsUsage: "FWD.onnx",
		Description: "Each trained parameter P becomes an input, and P.grad an output; with an optimizer,\n" +
			"P.new. Weights in external files are referred to, inline ones are written next to OUT.\n\n" +
			"Example: remat grad gpt2.onnx -o train.onnx --optimizer adamw",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the training graph to `TRAIN.onnx`"},
			&cli.StringFlag{Name: "loss", Usage: "the output to differentiate, `NAME`; default: the only scalar float output"},
			&cli.StringSliceFlag{Name: "params", Usage: "`GLOB,…`: train only parameters that match"},
			&cli.StringSliceFlag{Name: "frozen", Usage: "`GLOB,…`: do not train parameters that match"},
			&cli.StringSliceFlag{Name: "stop", Usage: "`GLOB,…`: stop the gradient at values that match, as detach does"},
			&cli.StringFlag{Name: "names", Usage: "`MAP.json`: maps the exporter's parameter names to yours"},
			&cli.StringFlag{Name: "dialect", Value: "onnx", Usage: "`onnx|ort`: operators that may be used"},
		}, optimizerFlags()...),
		Action: func(c *cli.Context) error {
			path, err := argument(c, "forward model")
			if err != nil {
				return err
			}
			out, err := output(c)
			if err != nil {
				return err
			}
			o, err := readGradOptions(e, c)
			if err != nil {
				return err
			}
			d, err := deriveTraining(e, path, out, o)
			if err != nil {
				return err
			}
			if e.json {
				return report.WriteJSON(e.stdout, d)
			}
			printDerivation(e, d)
			return nil
		},
	}
}

type gradOptions struct {
	grad      grad.Options
	names     map[string]string
	optimizer optimizerOptions
}

func readGradOptions(e *env, c *cli.Context) (gradOptions, error) {
	dialect, err := grad.ParseDialect(c.String("dialect"))
	if err != nil {
		return gradOptions{}, err
	}
	o := gradOptions{grad: grad.Options{
		Loss: c.String("loss"), Params: splitList(c.StringSlice("params")), Frozen: splitList(c.StringSlice("frozen")),
		Stop: splitList(c.StringSlice("stop")), Dialect: dialect, Dims: e.dims, After: e.passed,
	}}
	if path := c.String("names"); path != "" {
		if err := readJSON(path, &o.names); err != nil {
			return o, err
		}
	}
	o.optimizer, err = readOptimizer(c)
	return o, err
}

// derivation is the document of grad --json.
type derivation struct {
	Model          string          `json:"model"`
	Loss           string          `json:"loss"`
	Nodes          int             `json:"nodes"`
	ForwardNodes   int             `json:"forward_nodes"`
	Parameters     []string        `json:"parameters"`
	ParameterBytes int64           `json:"parameter_bytes"`
	Optimizer      string          `json:"optimizer"`
	Frozen         []string        `json:"frozen"`
	FrozenBytes    int64           `json:"frozen_bytes"`
	Decisions      []grad.Decision `json:"decisions"`
	Stops          []grad.Stop     `json:"stops"`
	Warnings       []string        `json:"warnings"`
	RandomNodes    int             `json:"random_nodes"`
	// random says which operators draw, producer which exporter wrote the forward
	// model, for people.
	random, producer string
}

// deriveTraining loads, differentiates, adds the optimizer, orders the file
// and writes it.
func deriveTraining(e *env, path, out string, o gradOptions) (*derivation, error) {
	m, err := onnx.Load(path)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	if err := canWrite(weightFiles(m, path), out); err != nil {
		return nil, err
	}
	fail := func(err error) (*derivation, error) { return nil, fmt.Errorf("%s: %w", path, err) }
	if err := m.Check(); err != nil {
		return fail(err)
	}
	if err := checkDims(e.dims, path, m); err != nil {
		return nil, err
	}
	o.grad.Signature = grad.ReadSignature(m)
	if err := flow.NoteDims(m, flow.FreeDims(m), e.dims); err != nil {
		return fail(err)
	}
	if err := renameInitializers(m.Graph, o.names); err != nil {
		return fail(err)
	}
	o.grad.Signature.Rename(o.names)
	if err := notTraining(m); err != nil {
		return fail(err)
	}
	forward := len(m.Graph.Nodes)
	weights, weightsErr := beside(out, m, path)
	res, err := grad.Differentiate(m, o.grad)
	if err != nil {
		return fail(err)
	}
	if err := needDecisions(res, o, e.typed); err != nil {
		return fail(err)
	}
	if err := addOptimizer(m, res, o); err != nil {
		return fail(err)
	}
	if err := e.passed("optimizer", m); err != nil {
		return fail(err)
	}
	hash, err := flow.Hash(path)
	if err != nil {
		return nil, err
	}
	m.SetMetadata(flow.VersionKey, version)
	m.SetMetadata(flow.SourceKey, hash)
	if err := flow.Order(m, flow.Options{Dims: o.grad.Dims, After: o.grad.After}); err != nil {
		return fail(err)
	}
	if err := flow.SetRequires(m); err != nil {
		return nil, err
	}
	if err := rebase(m, path, out); err != nil {
		return nil, err
	}
	if err := placeParameters(m, res, path, out, func() (string, error) { return weights, weightsErr }); err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return fail(err)
	}
	if err := m.Save(out); err != nil {
		return nil, err
	}
	d := &derivation{
		Model: out, Loss: res.Loss.Name, Nodes: len(m.Graph.Nodes), ForwardNodes: forward,
		Optimizer: o.optimizer.kind, Decisions: res.Decisions,
		Frozen: []string{}, Stops: append([]grad.Stop{}, res.Stops...), Warnings: append([]string{}, res.Warnings...),
	}
	d.RandomNodes, d.random = drawing(m.Graph)
	d.producer = m.Proto.GetProducerName()
	for _, p := range res.Params {
		bytes, _ := p.Input.Type.Bytes()
		d.Parameters, d.ParameterBytes = append(d.Parameters, p.Name), d.ParameterBytes+bytes
	}
	for _, x := range res.Decisions {
		if v := m.Graph.Value(x.Name); !x.Trained && v != nil {
			bytes, _ := v.Type.Bytes()
			d.Frozen, d.FrozenBytes = append(d.Frozen, x.Name), d.FrozenBytes+bytes
		}
	}
	return d, nil
}

// renameInitializers gives parameters the user's names.
func renameInitializers(g *onnx.Graph, names map[string]string) error {
	order := slices.Sorted(maps.Keys(names))
	values := make([]*onnx.Value, len(order))
	for i, from := range order {
		if values[i] = g.Value(from); values[i] == nil || values[i].Init == nil {
			return fmt.Errorf("--names: the model has no initializer %q", from)
		}
	}
	for i, from := range order { // out of the way first: names may be exchanged
		if names[from] != from {
			g.Rename(values[i], g.FreshValueName(from+".old"))
		}
	}
	for i, from := range order {
		if to := names[from]; to != from {
			if to == "" {
				return fmt.Errorf("--names: %q has no new name", from)
			}
			if g.FreshValueName(to) != to {
				return fmt.Errorf("--names: %q is already used in the model", to)
			}
			g.Rename(values[i], to)
		}
	}
	return nil
}

// notTraining refuses a graph that says of itself that it trains.
func notTraining(m *onnx.Model) error {
	var roles analysis.Roles
	if text, ok := m.Metadata(analysis.RolesKey); ok && json.Unmarshal([]byte(text), &roles) == nil && len(roles.Grad)+len(roles.New) > 0 {
		return errors.New("already a training graph: pass it to remat plan or remat rewrite, or derive from the forward model")
	}
	return nil
}

// An unclearError asks whether initializers are weights that an optimizer may
// change.
type unclearError struct {
	names []string
	typed string // the command line
}

func (e *unclearError) Error() string {
	return fmt.Sprintf("the file does not say whether these are weights or constants: %s; if weights: %s --params '*'; if constants: %s --frozen '%s'",
		some(e.names), e.typed, e.typed, strings.Join(e.names, ","))
}

// some lists the first names, and how many more there are.
func some(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// needDecisions asks for an explicit choice where an optimizer would change
// something that may be no weight.
func needDecisions(res *grad.Result, o gradOptions, typed string) error {
	if o.optimizer.kind == "none" || len(o.grad.Params) > 0 || len(o.grad.Frozen) > 0 {
		return nil
	}
	var open []string
	for _, d := range res.Decisions {
		if d.Open {
			open = append(open, d.Name)
		}
	}
	if len(open) > 0 {
		return &unclearError{open, typed}
	}
	return nil
}

// placeParameters records where each parameter's values lie: external ones in
// their own file, inline ones streamed into OUT.safetensors, which beside names.
func placeParameters(m *onnx.Model, res *grad.Result, source, out string, beside func() (string, error)) error {
	places := map[string]map[string]any{}
	if text, ok := m.Metadata(remat.ParametersKey); ok {
		if err := json.Unmarshal([]byte(text), &places); err != nil {
			return fmt.Errorf("metadata %s: %w", remat.ParametersKey, err)
		}
	}
	dir, err := between(out, source)
	if err != nil {
		return err
	}
	var inline []grad.Param
	for _, p := range res.Params {
		switch {
		case p.Data == nil:
		case p.Data.IsExternal():
			x, err := p.Data.External()
			if err != nil {
				return err
			}
			size, err := p.Data.ByteSize()
			if err != nil {
				return err
			}
			file := filepath.ToSlash(filepath.Join(dir, x.Location))
			if strings.HasPrefix(file, "../") {
				return fmt.Errorf("%s: its weights are in %s, outside the output's folder: write the output next to %s", out, filepath.Dir(source), filepath.Base(source))
			}
			places[p.Name] = map[string]any{"file": file, "offset": x.Offset, "bytes": size}
		default:
			inline = append(inline, p)
		}
	}
	if len(inline) > 0 {
		file, err := beside()
		if err == nil {
			err = writeInline(inline, file, places)
		}
		if err != nil {
			return err
		}
	}
	return flow.SetJSON(m, remat.ParametersKey, places)
}

func writeInline(params []grad.Param, path string, places map[string]map[string]any) error {
	var names []string
	data := map[string]*onnx.Tensor{}
	for _, p := range params {
		names = append(names, p.Name)
		data[p.Name] = p.Data
	}
	layout, err := writeTensors(path, names, data)
	if err != nil {
		return err
	}
	for _, t := range layout.Tensors {
		places[t.Name] = map[string]any{"file": filepath.Base(path), "offset": t.Offset, "bytes": t.Bytes}
	}
	return nil
}

// writeTensors writes tensors into one safetensors file, in the order of names.
func writeTensors(path string, names []string, tensors map[string]*onnx.Tensor) (*safetensors.Layout, error) {
	infos := make([]safetensors.Info, len(names))
	for i, name := range names {
		t := tensors[name]
		infos[i] = safetensors.Info{Name: name, DType: t.DType(), Shape: t.Dims()}
	}
	layout, err := safetensors.Plan(infos, map[string]string{"format": "pt"})
	if err != nil {
		return nil, err
	}
	return layout, layout.Write(path, func(t safetensors.Info, w io.Writer) error {
		data, err := tensors[t.Name].Bytes()
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
}

// printDerivation says what was made on stdout, and what was decided and what is
// open on stderr.
func printDerivation(e *env, d *derivation) {
	frozen := ""
	if len(d.Frozen) > 0 {
		frozen = fmt.Sprintf(" (frozen: %d of %s)", len(d.Frozen), report.Bytes(d.FrozenBytes))
	}
	e.say("%s: loss %s, %d nodes (forward %d), %d parameters of %s%s, optimizer %s",
		d.Model, d.Loss, d.Nodes, d.ForwardNodes, len(d.Parameters), report.Bytes(d.ParameterBytes), frozen, d.Optimizer)
	if e.quiet {
		return
	}
	t := decisionTable(d.Decisions)
	_ = t.Text(e.stderr)
	if len(d.Stops) > 0 {
		var values []string
		for _, s := range d.Stops {
			values = append(values, s.Value)
		}
		fmt.Fprintf(e.stderr, "no gradient flows through %s\n", some(values))
	}
	if d.RandomNodes > 0 {
		fmt.Fprintf(e.stderr, "random operators: %s; fix their numbers with remat run --seed N\n", d.random)
	}
	for _, w := range d.Warnings {
		fmt.Fprintf(e.stderr, "warning: %s\n", w)
	}
	if n := unsaid(d); n != "" {
		fmt.Fprintf(e.stderr, "note: %s\n", n)
	}
}

// unsaid is what no file of PyTorch's exporters says of what trains, "" where the
// user said it.
func unsaid(d *derivation) string {
	by := func(sources ...grad.Source) bool {
		return slices.ContainsFunc(d.Decisions, func(x grad.Decision) bool { return x.Trained && slices.Contains(sources, x.Source) })
	}
	switch {
	case !by(grad.FromOptions, grad.FromParameters, grad.FromName, grad.FromUse, grad.FromContent):
		return "requires_grad=False and torch.no_grad are in no file; what they hold: --frozen, --stop"
	case d.producer == "pytorch" && by(grad.FromName, grad.FromUse, grad.FromContent):
		return "a file without PyTorch's signature has no .detach(), requires_grad=False or torch.no_grad; what they hold: --frozen, --stop"
	}
	return ""
}

var digits = regexp.MustCompile(`\d+`)

// decisionTable lists what was decided, less what the options say and what is a
// parameter without a doubt. Names that differ in numbers only share a row.
func decisionTable(decisions []grad.Decision) report.Table {
	t := report.Table{Columns: []string{"initializer", ">how many", "shape", "", "because"}}
	type group struct{ name, shape, what, reason string }
	var order []group
	names := map[group][]string{}
	for _, d := range decisions {
		if d.Source == grad.FromOptions || d.Trained && d.Source != grad.FromName && !d.Open {
			continue
		}
		what := "frozen"
		if d.Trained {
			what = "trained"
		}
		g := group{digits.ReplaceAllString(d.Name, "*"), d.Shape, what, d.Reason}
		if names[g] == nil {
			order = append(order, g)
		}
		names[g] = append(names[g], d.Name)
	}
	for _, g := range order {
		name := g.name
		if len(names[g]) == 1 {
			name = names[g][0]
		}
		t.Rows = append(t.Rows, []string{name, fmt.Sprint(len(names[g])), g.shape, g.what, g.reason})
	}
	return t
}
