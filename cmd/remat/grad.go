package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
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
			"P.new. Weights in external files are referred to, inline ones are written beside OUT.\n\n" +
			"Example: remat grad gpt2.onnx -o train.onnx --optimizer adamw",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "writes the training graph to `TRAIN.onnx`"},
			&cli.StringFlag{Name: "loss", Usage: "the output to differentiate, `NAME`; left out, the only scalar float output"},
			&cli.StringSliceFlag{Name: "params", Usage: "`GLOB,…`: train only parameters that match"},
			&cli.StringSliceFlag{Name: "frozen", Usage: "`GLOB,…`: do not train parameters that match"},
			&cli.StringSliceFlag{Name: "stop", Usage: "`GLOB,…`: let no gradient flow through values that match, as detach does"},
			&cli.StringFlag{Name: "names", Usage: "`MAP.json`: an object from the exporter's parameter names to yours"},
			&cli.StringFlag{Name: "dialect", Value: "onnx", Usage: "`onnx|ort`: operators that may be written"},
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
	Decisions      []grad.Decision `json:"decisions"`
	Stops          []grad.Stop     `json:"stops"`
	Warnings       []string        `json:"warnings"`
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
	forward, folded := len(m.Graph.Nodes), foldedParameters(m)
	weights, weightsErr := beside(out, m, path)
	res, err := grad.Differentiate(m, o.grad)
	if err != nil {
		return fail(err)
	}
	if err := needDecisions(res, o, folded); err != nil {
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
		Stops: append([]grad.Stop{}, res.Stops...), Warnings: append([]string{}, res.Warnings...),
	}
	for _, p := range res.Params {
		bytes, _ := p.Input.Type.Bytes()
		d.Parameters, d.ParameterBytes = append(d.Parameters, p.Name), d.ParameterBytes+bytes
	}
	return d, nil
}

// renameInitializers gives parameters the user's names.
func renameInitializers(g *onnx.Graph, names map[string]string) error {
	order := slices.Sorted(maps.Keys(names))
	values := make([]*onnx.Value, len(order))
	for i, from := range order {
		if values[i] = g.Value(from); values[i] == nil || values[i].Init == nil {
			return fmt.Errorf("--names: %q is no initializer of the model", from)
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
				return fmt.Errorf("--names: %q is given no name", from)
			}
			if g.FreshValueName(to) != to {
				return fmt.Errorf("--names: %q is taken in the model", to)
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
		return errors.New("is a training graph already: give it to remat plan or remat rewrite, or derive from the forward model")
	}
	return nil
}

// An unclearError asks whether initializers are weights that an optimizer may
// change.
type unclearError struct {
	names []string
	// folded says of what parameters an exporter made one of them ahead.
	folded map[string]string
}

func (e *unclearError) Error() string {
	names, folded := slices.Clone(e.names[:min(3, len(e.names))]), false
	for i, name := range names {
		if from := e.folded[name]; from != "" {
			names[i], folded = name+", folded from "+from, true
		}
	}
	text := fmt.Sprintf("used only elementwise, perhaps masks or tables: %s: say with --params or --frozen whether to train them",
		strings.Join(names, "; "))
	if folded {
		text += ", or export with optimize=False, which leaves parameters whole"
	}
	return text
}

// foldedParameters says which parameters PyTorch's exporter computed an
// initializer from: it notes the names of all values that went in, of which those
// of parameters hold a point.
func foldedParameters(m *onnx.Model) map[string]string {
	folded := map[string]string{}
	for _, v := range m.Graph.Proto.GetValueInfo() {
		for _, note := range v.GetMetadataProps() {
			if !strings.HasSuffix(note.GetKey(), ".folded_from") {
				continue
			}
			var names []string
			for _, name := range strings.Split(strings.Trim(note.GetValue(), "[]"), ",") {
				if name = strings.Trim(strings.TrimSpace(name), "'\""); strings.Contains(name, ".") {
					names = append(names, name)
				}
			}
			folded[v.GetName()] = strings.Join(names, " and ")
		}
	}
	return folded
}

// needDecisions asks for an explicit choice where an optimizer would change
// something that may be no weight.
func needDecisions(res *grad.Result, o gradOptions, folded map[string]string) error {
	if o.optimizer.kind == "none" || len(o.grad.Params) > 0 || len(o.grad.Frozen) > 0 {
		return nil
	}
	var unclear []string
	for _, d := range res.Decisions {
		if d.Open {
			unclear = append(unclear, d.Name)
		}
	}
	if len(unclear) > 0 {
		return &unclearError{unclear, folded}
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
				return fmt.Errorf("%s: the weights lie in %s, outside the folder it is written to: write it beside %s", out, filepath.Dir(source), filepath.Base(source))
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

func printDerivation(e *env, d *derivation) {
	e.say("%s: loss %s, %d nodes (forward %d), %d parameters of %s, optimizer %s",
		d.Model, d.Loss, d.Nodes, d.ForwardNodes, len(d.Parameters), report.Bytes(d.ParameterBytes), d.Optimizer)
	for _, x := range d.Decisions {
		if x.Trained && !x.Open {
			continue
		}
		what := "frozen"
		if x.Trained {
			what = "trained"
		}
		e.say("  %-8s %s: %s", what, x.Name, x.Reason)
	}
	for _, w := range d.Warnings {
		e.say("warning: %s", w)
	}
}
