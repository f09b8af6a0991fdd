package main

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
)

func applyCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "apply", Usage: "puts trained weights back into the forward model they came from", ArgsUsage: "STATE.safetensors FWD.onnx",
		Description: "Replaces each initializer by the tensor of STATE with its name, and transposes back matrices\n" +
			"that an exporter had transposed. Optimizer state (P.m, P.v) is ignored.\n\n" +
			"Example: remat apply state.safetensors gpt2.onnx -o trained.onnx",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the model to `OUT.onnx`"},
			&cli.StringFlag{Name: "names", Usage: "`MAP.json`: the map of names that was given to grad"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 2 {
				return fmt.Errorf("remat apply: want STATE.safetensors and FWD.onnx, got %d arguments; see remat apply --help", c.Args().Len())
			}
			out, err := output(c)
			if err != nil {
				return err
			}
			names, err := readNames(c)
			if err != nil {
				return err
			}
			return applyState(e, c.Args().Get(0), c.Args().Get(1), out, names)
		},
	}
}

// applyState writes the forward model with the values of a state file; names are
// those that grad gave its initializers.
func applyState(e *env, state, forward, out string, names map[string]string) error {
	f, err := safetensors.Open(state)
	if err != nil {
		return err
	}
	defer f.Close()
	src, err := e.load(forward)
	if err != nil {
		return err
	}
	reads := append(slices.Clone(src.DataFiles()), state)
	if err := pipeline.CanWrite(reads, out); err != nil {
		return err
	}
	if err := checkDims(e.dims, src); err != nil {
		return err
	}
	weights, weightsErr := pipeline.Beside(out, reads...)
	m := src.Model
	if err := m.Check(); err != nil {
		return fmt.Errorf("%s: %w", forward, err)
	}
	grad.Unmerge(m)
	taken, external, err := takeValues(m.Graph, f, names)
	if err != nil {
		return fmt.Errorf("%s: %w", state, err)
	}
	if len(taken) == 0 {
		return fmt.Errorf("%s: no tensor matches an initializer of %s: give the --names that grad was given", state, filepath.Base(forward))
	}
	if err := pipeline.Rebase(m, forward, out); err != nil {
		return err
	}
	if len(external) > 0 {
		if weightsErr != nil {
			return weightsErr
		}
		if err := externalize(m, external, weights); err != nil {
			return err
		}
	}
	if err := m.Save(out); err != nil {
		return err
	}
	if e.json {
		return report.WriteJSON(e.stdout, map[string]any{"model": out, "applied": taken})
	}
	e.say("%s: %d of %d initializers from %s", out, len(taken), len(m.Graph.Initializers), filepath.Base(state))
	return nil
}

// takeValues gives initializers the values of the state's tensors, and returns
// the names of those it found, and of them the ones whose values lay outside the
// model's file.
func takeValues(g *onnx.Graph, f *safetensors.File, names map[string]string) (taken []string, external map[string]*onnx.Tensor, err error) {
	external = map[string]*onnx.Tensor{}
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
		name := v.Name
		t.Proto.Name = &name
		v.Init = t
		taken = append(taken, v.Name)
	}
	return taken, external, nil
}

// stateOf returns a state's value for an initializer, in its type and shape, by the name
// that names gives it; ok is false where the state has none.
func stateOf(f *safetensors.File, v *onnx.Value, names map[string]string) (data []byte, ok bool, err error) {
	key := v.Name
	if to, ok := names[v.Name]; ok {
		key = to
	}
	info, ok := f.Lookup(key)
	if !ok {
		return nil, false, nil
	}
	data, err = fitted(f, info, v)
	return data, true, err
}

// fitted returns the tensor's data in the shape of the initializer.
func fitted(f *safetensors.File, info safetensors.Info, v *onnx.Value) ([]byte, error) {
	data := f.Bytes(info)
	want := v.Init.Dims()
	if info.DType != v.Init.DType() {
		return nil, fmt.Errorf("tensor %q is %s, the model's is %s", info.Name, info.DType, v.Init.DType())
	}
	switch {
	case slices.Equal(info.Shape, want):
		return data, nil
	case len(want) == 2 && len(info.Shape) == 2 && want[0] == info.Shape[1] && want[1] == info.Shape[0]:
		return transposed(data, info.Shape, int(info.DType.Size())), nil
	}
	return nil, fmt.Errorf("tensor %q has shape %v, the model's %v", info.Name, info.Shape, want)
}

// transposed swaps the axes of a dense matrix of elements of that many bytes.
func transposed(data []byte, shape []int64, size int) []byte {
	rows, cols := int(shape[0]), int(shape[1])
	out := make([]byte, len(data))
	for i := 0; i < rows; i++ {
		for j := 0; j < cols; j++ {
			copy(out[(j*rows+i)*size:][:size], data[(i*cols+j)*size:][:size])
		}
	}
	return out
}

// externalize writes tensors into a file beside the model and refers to it.
func externalize(m *onnx.Model, tensors map[string]*onnx.Tensor, path string) error {
	var names []string
	for _, v := range m.Graph.Initializers {
		if tensors[v.Name] != nil {
			names = append(names, v.Name)
		}
	}
	layout, err := pipeline.WriteTensors(path, names, tensors)
	if err != nil {
		return err
	}
	for _, t := range layout.Tensors {
		v := m.Graph.Value(t.Name)
		v.Init = onnx.ExternalTensor(t.Name, t.DType, t.Shape, filepath.Base(path), t.Offset, t.Bytes)
	}
	return nil
}
