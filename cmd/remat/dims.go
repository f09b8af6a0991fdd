package main

// --dim against what files say: each dimension must be free in one of the files,
// or fixed to that number when the file was written.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/onnx"
)

// checkDims refuses a dimension that no model has or had, and one that a model
// was fixed to another number of.
func checkDims(dims map[string]int64, sources ...*pipeline.Source) error {
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		found := false
		for _, src := range sources {
			n, fixed := pipeline.FixedDims(src.Model)[name]
			free := slices.Contains(pipeline.FreeDims(src.Model), name)
			if fixed && !free && n != dims[name] {
				return fmt.Errorf("--dim %s=%d: %s was written for %s=%d: make it again with --dim %s=%d, or leave --dim out",
					name, dims[name], src.Path, name, n, name, dims[name])
			}
			found = found || fixed || free
		}
		if !found {
			var paths []string
			for _, src := range sources {
				paths = append(paths, src.Path)
			}
			return fmt.Errorf("--dim %s: no input of %s has that dimension; %s", name, strings.Join(paths, ", "), dimsOf(sources))
		}
	}
	return nil
}

// dimsOf says what dimensions the models' inputs have or had, and where there is
// none what shapes.
func dimsOf(sources []*pipeline.Source) string {
	var free, fixed, shapes []string
	for _, src := range sources {
		m := src.Model
		free = append(free, pipeline.FreeDims(m)...)
		fixed = append(fixed, dimList(pipeline.FixedDims(m))...)
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

// sized is the model of a file that is to be planned for; where numbers are missing,
// the error has a flag that gives them.
func sized(src *pipeline.Source, dims map[string]int64) (*onnx.Model, error) {
	if err := checkDims(dims, src); err != nil {
		return nil, err
	}
	if err := allSized(src, dims, dims); err != nil {
		return nil, err
	}
	return src.Sized(dims)
}

// allSized refuses dimensions without a number, with a flag that gives them.
func allSized(src *pipeline.Source, dims, typed map[string]int64) error {
	if open := dimLine(src.Model, pipeline.FreeDims(src.Model), dims, typed); open != "" {
		return fmt.Errorf("%s: planning needs a size for every dimension; missing: %s", src.Path, open)
	}
	return nil
}

// dimLine names the free dimensions that dims leave open and a flag that gives these and
// the typed ones a number, for a person to change; "" where none is open. A dimension
// that leads an input is taken for a batch.
func dimLine(m *onnx.Model, free []string, dims, typed map[string]int64) string {
	var open []string
	sizes := maps.Clone(typed)
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
