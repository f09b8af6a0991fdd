package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/train"
	"github.com/onnx-remat/remat/train/data"
)

func evalCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "eval", Usage: "computes the mean loss and the perplexity of a model on data", ArgsUsage: "M.onnx",
		Description: "M is a forward model with its loss, or a training graph, whose forward pass is run. --state\n" +
			"takes the place of its parameters. Dropout is off, and BatchNormalization uses running statistics.\n\n" +
			"Example: remat eval model.onnx --state run/state.safetensors --text book.txt",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "state", Usage: "parameters from `STATE.safetensors`, as train and run --save write it"},
			&cli.StringFlag{Name: "names", Usage: "`MAP.json`: the map of names that was given to grad"},
			&cli.StringFlag{Name: "roles", Usage: "`F.json`: name the loss instead of detecting it"},
		}, evalDataFlags()...),
		Action: func(c *cli.Context) error { return evaluate(e, c) },
	}
}

// evaluated is the document of eval --json.
type evaluated struct {
	Loss       report.Float `json:"loss"`
	Perplexity report.Float `json:"perplexity"`
	Tokens     int64        `json:"tokens"`
	Batches    int64        `json:"batches"`
}

func evaluate(e *env, c *cli.Context) error {
	path, err := argument(c, "model file")
	if err != nil {
		return err
	}
	if err := e.refuseCommand("eval", "for memory rehearse the model with run"); err != nil {
		return err
	}
	names, err := readNames(c)
	if err != nil {
		return err
	}
	given, err := readRoles(c.String("roles"))
	if err != nil {
		return err
	}
	src, err := e.load(path)
	if err != nil {
		return err
	}
	if err := checkDims(e.dims, src); err != nil {
		return err
	}
	m, roles, err := forward(src, e.dims, given)
	if err != nil {
		return err
	}
	dataOptions, batch, err := readData(c, "")
	if err != nil {
		return err
	}
	dataOptions.Evaluate = true
	source, err := openData(e.ctx, e, dataOptions)
	if err != nil {
		return err
	}
	defer source.Close()
	d, err := source.For(m, data.Sizes{Dims: e.dims, Batch: batch})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, note := range d.Notes {
		e.note("%s", note)
	}
	feeds := map[string]remat.Tensor{}
	if state := c.String("state"); state != "" {
		f, err := safetensors.Open(state)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := train.Intact(f); err != nil {
			return err
		}
		if feeds, err = e.stateFeeds(m, path, roles, f, names); err != nil {
			return err
		}
	}
	if err := e.warnBatches(m, roles.Loss, d.Val); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	v, err := e.meanLoss(m, filepath.Base(path), d, feeds)
	if err != nil {
		return err
	}
	if v.NotFinite != "" {
		fmt.Fprintf(e.stderr, "remat: %s: %s\n", filepath.Base(path), v.NotFinite)
	}
	doc := evaluated{Loss: report.Float(v.Loss), Perplexity: report.Float(v.Perplexity), Tokens: v.Tokens, Batches: v.Batches}
	if e.json {
		return report.WriteJSON(e.stdout, doc)
	}
	counts := d.Val.Counts()
	e.say("%s: loss %.6g%s over %d %s in %d batches", filepath.Base(path), v.Loss, perplexityText(", perplexity %.6g", v.Perplexity, counts), v.Tokens, counts, v.Batches)
	return nil
}

// perplexityText is the perplexity for people, nothing where there is none.
func perplexityText(format string, perplexity float64, counts string) string {
	if !report.HasPerplexity(counts) {
		return ""
	}
	return fmt.Sprintf(format, perplexity)
}

// warnBatches says what of a loss depends on how the data are divided into batches.
func (e *env) warnBatches(m *onnx.Model, loss string, b *data.Batches) error {
	n := 0
	for _, node := range m.Graph.Nodes {
		if traits.ComputesStatistics(node) {
			n++
		}
	}
	if n > 0 {
		e.warn([]string{fmt.Sprintf("%d × BatchNormalization has no running statistics, and normalizes by each batch", n)})
	}
	if b.Len() > 1 {
		return e.warnMean(m, loss, b)
	}
	return nil
}

// stateFeeds are the values of a state for a forward pass, whose parameters become inputs; what
// the state holds for no parameter is said.
func (e *env) stateFeeds(m *onnx.Model, path string, roles step.Roles, f *safetensors.File, names map[string]string) (map[string]remat.Tensor, error) {
	var left []string
	if !roles.Training() {
		if err := unmerge(m, path, f, names); err != nil {
			return nil, err
		}
		left = unplaced(m.Graph, f, names, &pipeline.TrainedPairs{})
	}
	values, err := stateValues(m, roles, f, names)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path, err)
	}
	e.warn(left)
	return values, nil
}

// meanLoss runs a forward model over all batches, with feeds beside what these hold.
func (e *env) meanLoss(m *onnx.Model, name string, d *data.Data, feeds map[string]remat.Tensor) (train.Validation, error) {
	none := train.Validation{}
	first, err := d.Val.At(0)
	if err != nil {
		return none, err
	}
	maps.Copy(feeds, first)
	engine, err := e.engine()
	if err != nil {
		return none, err
	}
	if e.onCUDA() {
		if err := pipeline.ForDevice(m, d.Dims); err != nil {
			return none, fmt.Errorf("%s: %w", name, err)
		}
	}
	o := e.sessionOptions()
	o.Purpose, o.Dims, o.Feed = "evaluate", d.Dims, feeds
	s, err := engine.Open(m, o)
	if err != nil {
		return none, fmt.Errorf("%s: %w", name, err)
	}
	defer s.Close()
	v, err := train.Evaluate(e.ctx, s, d.Val, d.Val.Len())
	if e.ctx.Err() != nil {
		return none, errInterrupted
	}
	return v, err
}

// warnMean says where the mean over several batches is not the mean over all labels.
func (e *env) warnMean(m *onnx.Model, loss string, b *data.Batches) (err error) {
	why := pipeline.DividedByData(m.Graph, loss, b.Ignored())
	if why == "" {
		if why, err = pipeline.NoMeanOfSamples(m, e.dims, loss); err != nil {
			return err
		}
	}
	if why == "" {
		beside, err := pipeline.BesideLabels(m, loss)
		if err != nil {
			return err
		}
		if _, inputs := unevenLabels(b, min(b.Len(), 1), b.Counts()); inputs > 1 {
			beside = "each batch weighs the same"
		}
		if beside != "" { // else a batch weighs as its labels do
			if uneven, _ := unevenLabels(b, min(b.Len(), 64), b.Counts()); uneven != "" {
				why = uneven + " of a batch count, and " + beside
			}
		}
	}
	if why != "" {
		e.warn([]string{fmt.Sprintf("%s: the mean and the perplexity are averages over batches of %d; another --batch gives other numbers", why, b.Batch())})
	}
	return nil
}

// forward is the forward pass of a forward model or a training graph, with the roles of
// that.
func forward(src *pipeline.Source, dims map[string]int64, given *step.Roles) (*onnx.Model, step.Roles, error) {
	typed, err := src.Typed(dims)
	if err != nil {
		return nil, step.Roles{}, err
	}
	roles, _ := pipeline.FoundRoles(typed, given)
	m, err := src.Forward(roles)
	return m, roles, err
}

// stateValues are the values of a state for the parameters of a forward pass:
// initializers become inputs. Matrices that an exporter had transposed are transposed
// back. What a training graph trains has to be there.
func stateValues(m *onnx.Model, roles step.Roles, f *safetensors.File, names map[string]string) (map[string]remat.Tensor, error) {
	if _, pairs := f.Metadata[step.AdaptersKey]; pairs {
		if _, has := m.Metadata(step.AdaptersKey); !has {
			return nil, errors.New("it holds low-rank pairs, and the model is not the graph that trains them: put them into the model that grad was given with remat apply, or evaluate the training graph")
		}
	}
	values := map[string]remat.Tensor{}
	var lifted []*onnx.Value
	for _, v := range m.Graph.Initializers {
		data, ok, err := stateOf(f, v, names)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		values[v.Name] = remat.Tensor{Type: v.Init.DType(), Shape: v.Init.Dims(), Data: data}
		lifted = append(lifted, v)
	}
	m.Graph.LiftInitializers(lifted)
	missing := ""
	for _, v := range m.Graph.Inputs {
		if values[v.Name].Data != nil {
			continue
		}
		info, ok := f.Lookup(v.Name)
		switch {
		case ok:
			values[v.Name] = remat.Tensor{Type: info.DType, Shape: info.Shape, Data: f.Bytes(info)}
		case roles.New[v.Name] != "" && missing == "":
			missing = v.Name
		}
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("no tensor matches a parameter of the model: give the --names that grad was given, or the state of this model")
	}
	if missing != "" {
		return nil, fmt.Errorf("no value for %q, which a step of the graph changes: it is the state of another graph", missing)
	}
	return values, nil
}
