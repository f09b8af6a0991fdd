package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/adapter"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/train"
)

func applyCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "apply", Usage: "puts trained weights back into the forward model they came from", ArgsUsage: "STATE.safetensors FWD.onnx",
		Description: "Replaces each initializer by the tensor of STATE with its name, and transposes back matrices\n" +
			"that an exporter had transposed. Low-rank pairs of grad --lora are merged into their weights.\n" +
			"Optimizer state (P.m, P.v) is ignored.\n\n" +
			"Example: remat apply state.safetensors gpt2.onnx -o trained.onnx",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the model to `OUT.onnx`"},
			&cli.StringFlag{Name: "adapter", Usage: "write the low-rank pairs into the folder `DIR` as PEFT reads them; -o may be left out then"},
			&cli.StringFlag{Name: "strip-prefix", Usage: "with --adapter: cut `PREFIX` off the names of modules, such as model. of a wrapper that was exported"},
			&cli.StringFlag{Name: "names", Usage: "`MAP.json`: the map of names that was given to grad"},
		},
		Action: func(c *cli.Context) error {
			a, err := readApply(e, c)
			if err != nil {
				return err
			}
			return a.run()
		},
	}
}

// An application puts the values of a state file into a forward model; names are those
// that grad gave its initializers.
type application struct {
	e              *env
	state, forward string
	out, adapter   string // what to write, "" for nothing
	strip          string
	names          map[string]string
}

func readApply(e *env, c *cli.Context) (*application, error) {
	if c.Args().Len() != 2 {
		return nil, fmt.Errorf("remat apply: want STATE.safetensors and FWD.onnx, got %d arguments; see remat apply --help", c.Args().Len())
	}
	a := &application{
		e: e, state: c.Args().Get(0), forward: c.Args().Get(1), adapter: c.String("adapter"), strip: c.String("strip-prefix"),
	}
	var err error
	if a.out = c.String("o"); a.adapter == "" {
		if a.out, err = output(c); err != nil {
			return nil, err
		}
		if a.strip != "" {
			return nil, errors.New("--strip-prefix: is for --adapter DIR")
		}
	}
	a.names, err = readNames(c)
	return a, err
}

// applied is the document of apply --json.
type applied struct {
	Model    report.Text `json:"model"`
	Adapter  report.Text `json:"adapter"`
	Applied  []string    `json:"applied"`
	Adapters []string    `json:"adapters"`
	// Beside are those of the adapters that stand beside weights in codes.
	Beside []string `json:"beside"`
}

func (a *application) run() error {
	f, err := safetensors.Open(a.state)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := train.Intact(f); err != nil {
		return err
	}
	src, err := a.e.load(a.forward)
	if err != nil {
		return err
	}
	if err := checkDims(a.e.dims, src); err != nil {
		return err
	}
	m := src.Model
	if err := m.Check(); err != nil {
		return fmt.Errorf("%s: %w", a.forward, err)
	}
	signature := grad.ReadSignature(m)
	if err := unmerge(m, a.forward, f, a.names); err != nil {
		return err
	}
	pairs, err := pipeline.PairsOf(m, signature, f, a.names)
	if err != nil {
		return fmt.Errorf("%s: %w", a.state, err)
	}
	a.e.warn(unplaced(m.Graph, f, a.names, pairs))
	d := &applied{Model: report.Text(a.out), Adapter: report.Text(a.adapter), Applied: []string{}, Adapters: []string{}, Beside: []string{}}
	for _, p := range pairs.List {
		d.Adapters = append(d.Adapters, p.Layer.Name)
	}
	if a.adapter != "" {
		if err := a.writeAdapter(m, pairs, f); err != nil {
			return err
		}
	}
	of := len(m.Graph.Initializers)
	if a.out != "" {
		if err := a.writeModel(src, pairs, f, d); err != nil {
			return err
		}
	}
	return a.print(d, of)
}

func (a *application) print(d *applied, of int) error {
	if a.e.json {
		return report.WriteJSON(a.e.stdout, d)
	}
	from := filepath.Base(a.state)
	if a.adapter != "" {
		a.e.say("%s: low-rank pairs of %d layers from %s", a.adapter, len(d.Adapters), from)
	}
	if a.out == "" {
		return nil
	}
	var did []string
	if merged := len(d.Adapters) - len(d.Beside); merged > 0 {
		did = append(did, fmt.Sprintf("merged the low-rank pairs of %d layers", merged))
	}
	if len(d.Beside) > 0 {
		did = append(did, fmt.Sprintf("added the low-rank pairs of %d layers beside weights in codes", len(d.Beside)))
	}
	if len(d.Applied) > 0 || len(did) == 0 {
		did = slices.Insert(did, 0, fmt.Sprintf("%d of %d initializers", len(d.Applied), of))
	}
	did[0] += " from " + from
	a.e.say("%s: %s", a.out, strings.Join(did, ", and "))
	return nil
}

// writeAdapter writes the pairs as PEFT reads them.
func (a *application) writeAdapter(m *onnx.Model, pairs *pipeline.TrainedPairs, f *safetensors.File) error {
	if len(pairs.List) == 0 {
		return fmt.Errorf("--adapter: %s holds no low-rank pairs: train a graph of remat grad --lora", a.state)
	}
	if err := pairs.Write(a.adapter, a.strip); err != nil {
		return err
	}
	var others []string
	for _, v := range m.Graph.Initializers {
		if _, ok, err := stateOf(f, v, a.names); err == nil && ok {
			others = append(others, v.Name)
		}
	}
	if len(others) > 0 {
		a.e.note("not in %s, as these are no pairs: %s; -o writes a model with all that was trained", a.adapter, some(others))
	}
	return nil
}

// writeModel writes the forward model with the values of the state, and notes the names of
// what it holds.
func (a *application) writeModel(src *pipeline.Source, pairs *pipeline.TrainedPairs, f *safetensors.File, d *applied) error {
	m, reads := src.Model, append(slices.Clone(src.DataFiles()), a.state)
	if err := pipeline.CanWrite(reads, a.out); err != nil {
		return err
	}
	weights, weightsErr := pipeline.Beside(a.out, reads...)
	taken, external, err := takeValues(m.Graph, f, a.names)
	if err != nil {
		return fmt.Errorf("%s: %w", a.state, err)
	}
	if len(taken)+len(pairs.List) == 0 {
		return fmt.Errorf("%s: no tensor matches an initializer of %s: give the --names that grad was given", a.state, filepath.Base(a.forward))
	}
	if err := a.putBeside(m, pairs, d); err != nil {
		return err
	}
	for _, p := range pairs.List {
		if p.Layer.Codes() {
			continue
		}
		apart := external[p.Layer.Weight.Name] != nil || p.Layer.Weight.Init.IsExternal()
		w, err := adapter.Merge(m.Graph, p.Layer.Linear, p.Trained)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Layer.Name, err)
		}
		if apart {
			external[w.Name] = w.Init
		}
	}
	if err := pipeline.Rebase(m, a.forward, a.out); err != nil {
		return err
	}
	d.Applied = taken
	return onnx.Together(func(files *onnx.Outputs) error {
		if len(external) > 0 {
			if weightsErr != nil {
				return weightsErr
			}
			if err := externalize(m, external, weights, files); err != nil {
				return err
			}
		}
		return m.SaveWith(files, a.out)
	})
}

// putBeside adds the pairs of weights in codes to the model.
func (a *application) putBeside(m *onnx.Model, pairs *pipeline.TrainedPairs, d *applied) error {
	var types *infer.Result
	for _, p := range pairs.List {
		if !p.Layer.Codes() {
			continue
		}
		if types == nil {
			var err error
			if types, err = infer.Model(m, infer.Options{Dims: a.e.dims}); err != nil {
				return err
			}
		}
		if err := adapter.Beside(m.Graph, types, p.Layer.Linear, p.Layer.Name, p.Trained); err != nil {
			return fmt.Errorf("%s: %w", p.Layer.Name, err)
		}
		d.Beside = append(d.Beside, p.Layer.Name)
	}
	return nil
}

// takeValues gives initializers the values of the state's tensors, and returns
// the names of those it found, and of them the ones whose values lay outside the
// model's file.
func takeValues(g *onnx.Graph, f *safetensors.File, names map[string]string) (taken []string, external map[string]*onnx.Tensor, err error) {
	taken, external = []string{}, map[string]*onnx.Tensor{}
	for _, v := range g.Initializers {
		data, ok, err := stateOf(f, v, names)
		if err != nil {
			return nil, nil, err
		}
		if !ok {
			continue
		}
		t := onnx.NewTensor(v.Init.DType(), v.Init.Dims(), data)
		if v.Init.IsExternal() {
			external[v.Name] = t
		}
		t.Proto.Name = new(v.Name)
		v.Init = t
		taken = append(taken, v.Name)
	}
	return taken, external, nil
}

// keyOf is what a state calls an initializer.
func keyOf(name string, names map[string]string) string {
	if to, ok := names[name]; ok {
		return to
	}
	return name
}

// unmerge takes apart again in a model what its exporter merged, where the state has a value of
// each part or says that it is as it was.
func unmerge(m *onnx.Model, path string, f *safetensors.File, names map[string]string) error {
	apart, err := step.ParseApart(f.Metadata[step.ApartKey])
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	err = grad.Unmerge(m, func(name string) bool {
		key := keyOf(name, names)
		_, ok := f.Lookup(key)
		return ok || slices.Contains(apart, key)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// unplaced says what was trained and has no initializer in a forward model: what a state
// holds beside values of a parameter's (P.m), of the step's, which are scalars, of an outer
// step's, and of pairs.
func unplaced(g *onnx.Graph, f *safetensors.File, names map[string]string, pairs *pipeline.TrainedPairs) []string {
	placed := map[string]bool{}
	for _, v := range g.Initializers {
		placed[keyOf(v.Name, names)] = true
	}
	for _, v := range g.Inputs { // eval feeds these
		placed[v.Name] = true
	}
	for _, p := range pairs.List {
		placed[p.Layer.Name+adapter.SuffixA], placed[p.Layer.Name+adapter.SuffixB] = true, true
	}
	state := map[string]bool{}
	for _, t := range f.Tensors {
		for _, name := range optim.StateOf(t.Name) {
			state[name] = true
		}
	}
	var missed []string
	for _, t := range f.Tensors {
		if !placed[t.Name] && !state[t.Name] && !train.OfOuter(t.Name) && len(t.Shape) > 0 {
			missed = append(missed, t.Name)
		}
	}
	if len(missed) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s holds values for which the model has no initializer of that name, and they are left out: %s", filepath.Base(f.Path), some(missed))}
}

// stateOf returns a state's value for an initializer, in its type and shape, by the name
// that names gives it; ok is false where the state has none.
func stateOf(f *safetensors.File, v *onnx.Value, names map[string]string) (data []byte, ok bool, err error) {
	info, ok := f.Lookup(keyOf(v.Name, names))
	if !ok {
		return nil, false, nil
	}
	data, err = fitted(f, info, v)
	return data, true, err
}

// fitted returns the tensor's data in the shape of the initializer.
func fitted(f *safetensors.File, info safetensors.Info, v *onnx.Value) ([]byte, error) {
	data := f.Bytes(info)
	want, d := v.Init.Dims(), v.Init.DType()
	switch {
	case remat.Rounds(info.DType, d): // trained in float32, of a model in half
		t, err := remat.Tensor{Type: info.DType, Shape: info.Shape, Data: data}.RoundedTo(d)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", info.Name, err)
		}
		data = t.Data
	case info.DType != d:
		return nil, fmt.Errorf("tensor %q is %s, the model's is %s", info.Name, info.DType, d)
	}
	switch {
	case slices.Equal(info.Shape, want):
		return data, nil
	case len(want) == 2 && len(info.Shape) == 2 && want[0] == info.Shape[1] && want[1] == info.Shape[0]:
		return transposed(data, info.Shape, int(d.Size())), nil
	}
	return nil, fmt.Errorf("tensor %q has shape %v, the model's %v", info.Name, info.Shape, want)
}

// transposed swaps the axes of a dense matrix of elements of that many bytes.
func transposed(data []byte, shape []int64, size int) []byte {
	rows, cols := int(shape[0]), int(shape[1])
	out := make([]byte, len(data))
	for i := range rows {
		for j := range cols {
			copy(out[(j*rows+i)*size:][:size], data[(i*cols+j)*size:][:size])
		}
	}
	return out
}

// externalize writes tensors into a file beside the model, to be put into its place with it, and
// refers to it.
func externalize(m *onnx.Model, tensors map[string]*onnx.Tensor, path string, files *onnx.Outputs) error {
	var names []string
	for _, v := range m.Graph.Initializers {
		if tensors[v.Name] != nil {
			names = append(names, v.Name)
		}
	}
	layout, err := pipeline.WriteTensors(files, path, names, tensors, safetensors.Beside())
	if err != nil {
		return err
	}
	for _, t := range layout.Tensors {
		v := m.Graph.Value(t.Name)
		v.Init = onnx.ExternalTensor(t.Name, t.DType, t.Shape, filepath.Base(path), t.Offset, t.Bytes)
	}
	return nil
}
