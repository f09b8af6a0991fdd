package main

// --dim against what files say: each dimension must be free in one of the files,
// or fixed to that number when the file was written.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/onnx"
)

// checkDims refuses a dimension that no model has or had, and one that a model
// was fixed to another number of.
func checkDims(dims map[string]int64, path string, models ...*onnx.Model) error {
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		found := false
		for _, m := range models {
			n, fixed := flow.FixedDims(m)[name]
			free := slices.Contains(flow.FreeDims(m), name)
			if fixed && !free && n != dims[name] {
				return fmt.Errorf("--dim %s=%d: %s was written for %s=%d: make it again with --dim %s=%d, or leave --dim out",
					name, dims[name], modelName(m, path), name, n, name, dims[name])
			}
			found = found || fixed || free
		}
		if !found {
			return fmt.Errorf("--dim %s: no input of %s has that dimension; %s", name, path, dimsOf(models))
		}
	}
	return nil
}

// checkDimsOf is checkDims for files; one of them must have each dimension.
func checkDimsOf(dims map[string]int64, paths ...string) error {
	if len(dims) == 0 {
		return nil
	}
	var models []*onnx.Model
	for _, path := range paths {
		m, err := onnx.Load(path)
		if err != nil {
			return err
		}
		defer m.Close()
		models = append(models, m)
	}
	return checkDims(dims, strings.Join(paths, ", "), models...)
}

// modelName is where a model was read from, else what the caller calls it.
func modelName(m *onnx.Model, path string) string {
	if m.Path != "" {
		return m.Path
	}
	return path
}

// dimsOf says what dimensions the models' inputs have or had, and where there is
// none what shapes.
func dimsOf(models []*onnx.Model) string {
	var free, fixed, shapes []string
	for _, m := range models {
		free = append(free, flow.FreeDims(m)...)
		fixed = append(fixed, dimList(flow.FixedDims(m))...)
		for _, v := range m.Graph.Inputs {
			shapes = append(shapes, v.Name+" "+v.Type.String())
		}
	}
	distinct := func(list []string) string {
		slices.Sort(list)
		return strings.Join(slices.Compact(list), ", ")
	}
	switch {
	case len(free) > 0 && len(fixed) > 0:
		return "its inputs have " + distinct(free) + " free, and " + distinct(fixed) + " fixed"
	case len(free) > 0:
		return "its inputs have " + distinct(free)
	case len(fixed) > 0:
		return "it was written for " + distinct(fixed)
	case len(shapes) > 3:
		shapes = append(shapes[:3], "…")
	}
	return "its inputs have no free dimension: " + strings.Join(shapes, ", ")
}

// dimList writes dimensions as the flag takes them, sorted.
func dimList(dims map[string]int64) []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		list = append(list, fmt.Sprintf("%s=%d", name, dims[name]))
	}
	return list
}

// openSized opens a file that is to be planned for: every dimension needs a
// number, from dims or from the file. What dims fix is noted in the model.
func openSized(path string, dims map[string]int64) (*onnx.Model, error) {
	m, err := onnx.Load(path)
	if err != nil {
		return nil, err
	}
	if err := checkDims(dims, path, m); err != nil {
		m.Close()
		return nil, err
	}
	if err := sized(m, dims); err != nil {
		m.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// sized types a model as it was loaded, and notes the dimensions that dims fix.
func sized(m *onnx.Model, dims map[string]int64) error {
	if err := flow.NamelessDim(m); err != nil {
		return err
	}
	free := flow.FreeDims(m)
	if line := dimLine(m, free, dims); line != "" {
		return fmt.Errorf("planning needs a size for every dimension; missing: %s", line)
	}
	if err := flow.Type(m, dims); err != nil {
		return err
	}
	return flow.NoteDims(m, free, dims)
}

// dimLine names the free dimensions that dims leave open and a flag that gives
// all a number, for a person to change; "" where none is open. A dimension that
// leads an input is taken for a batch.
func dimLine(m *onnx.Model, free []string, dims map[string]int64) string {
	var open []string
	sizes := maps.Clone(dims)
	for _, name := range free {
		if _, given := dims[name]; given {
			continue
		}
		open = append(open, name)
		if sizes == nil {
			sizes = map[string]int64{}
		}
		sizes[name] = 128
		for _, v := range m.Graph.Inputs {
			if s := v.Type.Shape; len(s) > 0 && slices.Contains(s[0].Symbols(), name) {
				sizes[name] = 2
			}
		}
	}
	if len(open) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: give sizes, for example --dim %s", strings.Join(open, ", "), strings.Join(dimList(sizes), ","))
}
