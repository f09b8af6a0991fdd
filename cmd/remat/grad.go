package main

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/rewrite/adapter"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/quantize"
)

func gradCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "grad", Usage: "derives the training graph of a forward model", ArgsUsage: "FWD.onnx",
		Description: "Each trained parameter P becomes an input, and P.grad an output; with an optimizer,\n" +
			"P.new. Weights in external files are referred to, inline ones are written next to OUT.\n\n" +
			"Example: remat grad gpt2.onnx -o train.onnx --optimizer adamw",
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the training graph to `TRAIN.onnx`"},
		}, derivationFlags(), optimizerFlags(optim.None)),
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
			d, err := deriveTraining(e, path, out, false, o)
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

// derivationFlags say how a training graph is derived.
func derivationFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "loss", Usage: "the output to differentiate, `NAME`; default: the only scalar float output, or the only one from which a gradient reaches a parameter"},
		&cli.StringSliceFlag{Name: "params", Usage: "`GLOB,…`: train only parameters that match"},
		&cli.StringSliceFlag{Name: "frozen", Usage: "`GLOB,…`: do not train parameters that match"},
		&cli.StringSliceFlag{Name: "lora", Usage: "`GLOB,…:r=8,alpha=16`: add low-rank pairs to these linear layers and train only them; may be repeated"},
		&cli.StringSliceFlag{Name: "stop", Usage: "`GLOB,…`: stop the gradient at values that match, as detach does"},
		&cli.BoolFlag{Name: "tie", Usage: "train a matrix and its transpose, or a copy, where the file holds both, as one parameter"},
		&cli.StringFlag{Name: "names", Usage: "`MAP.json`: maps the exporter's parameter names to yours"},
		&cli.StringFlag{Name: "quantize-frozen", Usage: "`int8|int4`: hold frozen weights in blocks of that type; widened where they are read"},
		&cli.StringFlag{Name: "dialect", Value: "onnx", Usage: "`onnx|ort`: operators that may be used"},
	}
}

func readGradOptions(e *env, c *cli.Context) (o pipeline.DeriveOptions, err error) {
	dialect, err := grad.ParseDialect(c.String("dialect"))
	if err != nil {
		return o, err
	}
	o.Grad = grad.Options{
		Loss: c.String("loss"), Params: splitList(c.StringSlice("params")), Frozen: splitList(c.StringSlice("frozen")),
		Stop: splitList(c.StringSlice("stop")), Dialect: dialect, Dims: e.dims, After: e.passed,
		Tie: c.Bool("tie"),
	}
	if o.Grad.Adapters, err = adapter.ParseSpecs(c.StringSlice("lora")); err != nil {
		return o, err
	}
	if o.Quantize, err = quantize.ParseKind(c.String("quantize-frozen")); err != nil {
		return o, err
	}
	if o.Names, err = readNames(c); err != nil {
		return o, err
	}
	o.Update, err = readOptimizer(c)
	return o, err
}

// readNames reads the file of --names, nil where none is given.
func readNames(c *cli.Context) (names map[string]string, err error) {
	if path := c.String("names"); path != "" {
		err = readJSON(path, &names)
	}
	return names, err
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
	Buffers        []string        `json:"buffers"`
	Decisions      []grad.Decision `json:"decisions"`
	Stops          []grad.Stop     `json:"stops"`
	Warnings       []string        `json:"warnings"`
	RandomNodes    int             `json:"random_nodes"`
	Quantized      *quantized      `json:"quantized"`
	// random says which operators draw, for people.
	random string
	// torch: one of PyTorch's exporters wrote the forward model, or a part of it.
	torch bool
}

// quantized is what --quantize-frozen did, in bytes before and after.
type quantized struct {
	Type      quantize.Kind `json:"type"`
	Weights   []string      `json:"weights"`
	FromBytes int64         `json:"from_bytes"`
	Bytes     int64         `json:"bytes"`
	Kept      []keptWeight  `json:"kept"`
}

// keptWeight is a frozen weight that stays as it is, with the reason.
type keptWeight struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// deriveTraining loads, derives the training graph and writes it; one that is to run as it is, with what
// the provider has kernels for.
func deriveTraining(e *env, path, out string, toRun bool, o pipeline.DeriveOptions) (*derivation, error) {
	src, err := e.loadFor(path, out)
	if err != nil {
		return nil, err
	}
	t, err := src.Derive(o)
	if err != nil {
		return nil, e.unclear(path, fmt.Errorf("%s: %w", path, err))
	}
	if toRun && e.onCUDA() {
		if err := pipeline.ForDevice(t.Model, o.Grad.Dims); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := t.Save(out); err != nil {
		return nil, err
	}
	return describeDerivation(t, out, o), nil
}

// describeDerivation is the document of a training graph that was written.
func describeDerivation(t *pipeline.Derivation, out string, o pipeline.DeriveOptions) *derivation {
	m, res := t.Model, t.Result
	d := &derivation{
		Model: out, Loss: res.Loss.Name, Nodes: len(m.Graph.Nodes), ForwardNodes: t.ForwardNodes,
		Optimizer: string(o.Update.Kind), Decisions: res.Decisions, Quantized: describeQuantized(t, o.Quantize),
		Frozen: []string{}, Buffers: []string{}, Stops: append([]grad.Stop{}, res.Stops...), Warnings: append([]string{}, res.Warnings...),
	}
	d.RandomNodes, d.random = drawing(m.Graph)
	d.torch = grad.FromPyTorch(m)
	for _, p := range res.Params {
		d.Parameters, d.ParameterBytes = append(d.Parameters, p.Name), d.ParameterBytes+p.Input.Type.KnownBytes()
	}
	for _, b := range res.Buffers {
		d.Buffers = append(d.Buffers, b.Name)
	}
	narrow := map[string]*quantize.Weight{}
	for _, w := range t.Quantized {
		narrow[w.Name] = w
	}
	for _, x := range res.Decisions {
		v, w := m.Graph.Value(x.Name), narrow[x.Name]
		switch {
		case x.Trained || v == nil && w == nil:
			continue
		case w != nil:
			d.FrozenBytes += w.Bytes()
		default:
			d.FrozenBytes += v.Type.KnownBytes()
		}
		d.Frozen = append(d.Frozen, x.Name)
	}
	return d
}

// describeQuantized sums up what became of frozen weights, nil where nobody asked.
func describeQuantized(t *pipeline.Derivation, kind quantize.Kind) *quantized {
	if kind == quantize.None {
		return nil
	}
	q := &quantized{Type: kind, Weights: []string{}, Kept: []keptWeight{}}
	for _, w := range t.Quantized {
		if w.Why != "" {
			q.Kept = append(q.Kept, keptWeight{w.Name, w.Why})
			continue
		}
		q.Weights, q.FromBytes, q.Bytes = append(q.Weights, w.Name), q.FromBytes+w.Was, q.Bytes+w.Bytes()
	}
	return q
}

// An unclearError says which flags answer the question of a pipeline.UnclearError.
type unclearError struct {
	asks  *pipeline.UnclearError
	typed string // the command line that takes them
	more  string // what else is to be done
}

func (e *unclearError) Unwrap() error { return e.asks }

func (e *unclearError) Error() string {
	folded := ""
	if slices.ContainsFunc(e.asks.Names, grad.ComputedAhead) {
		folded = "; a TorchScript export with do_constant_folding=False keeps the names of parameters, and says it"
	}
	return fmt.Sprintf("the file does not say whether these are weights or constants: %s; if weights: %s --params '*'; if constants: %s --frozen '%s'%s%s",
		some(e.asks.Names), e.typed, e.typed, strings.Join(e.asks.Names, ","), e.more, folded)
}

// unclear is an error about a model, with the flags that answer it where it asks which
// initializers are weights.
func (e *env) unclear(model string, err error) error {
	if asks, ok := errors.AsType[*pipeline.UnclearError](err); ok {
		unclear := &unclearError{asks: asks, typed: e.typed}
		if e.command != nil && !flagTable(e.command.Flags)["params"] { // of compare --six and demo
			unclear.typed = "remat grad " + model + " -o TRAIN.onnx"
			unclear.more = "; remat " + e.command.Name + " takes such a file"
		}
		return fmt.Errorf("%s: %w", model, unclear)
	}
	return err
}

// some lists the first names, and how many more there are.
func some(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// printDerivation says what was made on stdout, and what was decided and what is
// open on stderr.
func printDerivation(e *env, d *derivation) {
	frozen := ""
	if len(d.Frozen) > 0 {
		frozen = fmt.Sprintf(" (frozen: %d of %s)", len(d.Frozen), units.Bytes(d.FrozenBytes))
	}
	e.say("%s: loss %s, %d nodes (forward %d), %d parameters of %s%s, optimizer %s",
		d.Model, d.Loss, d.Nodes, d.ForwardNodes, len(d.Parameters), units.Bytes(d.ParameterBytes), frozen, d.Optimizer)
	printQuantized(e, d.Quantized)
	if !e.quiet {
		printDecisions(e, d)
	}
	e.warn(d.Warnings)
	if n := unsaid(d); n != "" {
		e.note("%s", n)
	}
}

// printDecisions says what was decided about what trains, stops and moves.
func printDecisions(e *env, d *derivation) {
	t := decisionTable(d.Decisions)
	_ = t.Text(e.stderr)
	if len(d.Stops) > 0 {
		var values []string
		for _, s := range d.Stops {
			values = append(values, s.Value)
		}
		fmt.Fprintf(e.stderr, "no gradient flows through %s\n", some(values))
	}
	if len(d.Buffers) > 0 {
		fmt.Fprintf(e.stderr, "running statistics that each step moves: %s\n", some(d.Buffers))
	}
	if d.RandomNodes > 0 {
		fmt.Fprintf(e.stderr, "random operators: %s; fix their numbers with remat run --seed N\n", d.random)
	}
}

// note says on stderr what a person wants to know.
func (e *env) note(format string, args ...any) {
	if !e.quiet {
		fmt.Fprintf(e.stderr, "note: "+format+"\n", args...)
	}
}

// warn says on stderr what a file leaves open about what is to be trained, with --quiet too:
// what is trained may not be what was meant.
func (e *env) warn(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintf(e.stderr, "warning: %s\n", w)
	}
}

// printQuantized says on stdout what frozen weights take now, and on stderr which stay.
func printQuantized(e *env, q *quantized) {
	if q == nil {
		return
	}
	e.say("%d frozen weights in %s: %s in place of %s", len(q.Weights), q.Type, units.Bytes(q.Bytes), units.Bytes(q.FromBytes))
	names := map[string][]string{}
	for _, k := range q.Kept {
		names[k.Why] = append(names[k.Why], k.Name)
	}
	for _, why := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(e.stderr, "not quantized, as %s: %s\n", why, some(names[why]))
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
	case d.torch && by(grad.FromName, grad.FromUse, grad.FromContent):
		return "a file without PyTorch's signature has no .detach(), requires_grad=False, torch.no_grad or padding_idx, and buffers in it look like parameters; what they hold: --frozen, --stop"
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
