package pipeline

// What a file is written from and beside: what may be overwritten, and where
// weights lie.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// CanWrite reports, before any work is done, why the files that a command is to
// write cannot be: their folder is missing, or they are among those that it
// reads, of which it would leave nothing. An empty name is none.
func CanWrite(reads []string, outs ...string) error {
	for i, out := range outs {
		if out == "" {
			continue
		}
		if err := onnx.Replaceable(out); err != nil {
			return err
		}
		if slices.ContainsFunc(reads, func(in string) bool { return sameFile(in, out) }) {
			return fmt.Errorf("%s: would overwrite an input file: choose another name", out)
		}
		if slices.ContainsFunc(outs[:i], func(other string) bool { return other != "" && filepath.Clean(other) == filepath.Clean(out) }) {
			return fmt.Errorf("%s: used for two outputs: choose different names", out)
		}
	}
	return nil
}

// sameFile reports that two names lead to one file that exists.
func sameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// weightFiles lists the files beside a model that hold its weights.
func weightFiles(m *onnx.Model, path string) []string {
	var files []string
	add := func(file string) {
		if file != "" {
			files = append(files, filepath.Join(filepath.Dir(path), filepath.FromSlash(file)))
		}
	}
	for _, v := range m.Graph.Initializers {
		if x, err := v.Init.External(); err == nil && v.Init.IsExternal() {
			add(x.Location)
		}
	}
	entries, _ := parameterEntries(m)
	for _, entry := range entries {
		file, _ := entry["file"].(string)
		add(file)
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// Beside is the name of the file that holds the weights of a model that is
// written as out; it must not take the place of a file that is read.
func Beside(out string, reads ...string) (string, error) {
	file := strings.TrimSuffix(out, filepath.Ext(out)) + ".safetensors"
	if filepath.Clean(file) == filepath.Clean(out) {
		return "", fmt.Errorf("%s: the weights need that name: end -o in .onnx", out)
	}
	if err := CanWrite(reads, file); err != nil {
		return "", fmt.Errorf("weights of %s: %w", out, err)
	}
	if err := safetensors.CanReplace(file, out); err != nil {
		return "", err
	}
	return file, nil
}

// Rebase keeps references to external data right when the written file lies in
// another folder than its source: that folder must hold the source's, because
// a model may only refer to files below it.
func Rebase(m *onnx.Model, source, out string) error {
	rel, err := between(out, source)
	if err != nil || rel == "." {
		return err
	}
	used, err := m.RebaseExternal(rel)
	if err != nil {
		return err
	}
	moved, err := moveParameters(m, func(location string) (string, error) {
		return filepath.ToSlash(filepath.Join(rel, location)), nil
	})
	if err != nil {
		return err
	}
	if (used || moved) && !filepath.IsLocal(rel) {
		return outOfReach(out, source)
	}
	return nil
}

// keepReferences returns what makes a model's references to data files what they are now.
func keepReferences(m *onnx.Model) (back func(), err error) {
	var locations []string
	if _, err := m.MoveExternal(func(location string) (string, error) {
		locations = append(locations, location)
		return location, nil
	}); err != nil {
		return nil, err
	}
	entries, has := m.Metadata(runtime.ParametersKey)
	return func() {
		next := 0
		m.MoveExternal(func(string) (string, error) {
			next++
			return locations[next-1], nil
		})
		if has {
			m.SetMetadata(runtime.ParametersKey, entries)
		}
	}, nil
}

// outOfReach says that a file that is written as out may not refer to the weights of
// its source.
func outOfReach(out, source string) error {
	return fmt.Errorf("%s: the weights of %s are neither in the output's folder nor below it: write the output next to that file", out, source)
}

// between is the way from the folder of one file to that of another.
func between(from, to string) (string, error) {
	a, err1 := filepath.Abs(filepath.Dir(from))
	b, err2 := filepath.Abs(filepath.Dir(to))
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	return filepath.Rel(a, b)
}
