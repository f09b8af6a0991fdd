package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/report"
	remat "github.com/onnx-remat/remat/runtime"
)

// writeJSONFile writes a document as a whole or not at all.
func writeJSONFile(path string, doc any) error {
	return onnx.ReplaceFile(path, func(f *os.File) error {
		enc := json.NewEncoder(f)
		enc.SetIndent("", " ")
		return enc.Encode(doc)
	})
}

// canWrite reports, before any work is done, why the files that a command is to
// write cannot be: their folder is missing, or they are among those that it
// reads, of which it would leave nothing. An empty name is none.
func canWrite(reads []string, outs ...string) error {
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
	if text, ok := m.Metadata(remat.ParametersKey); ok {
		var places map[string]struct {
			File string `json:"file"`
		}
		if json.Unmarshal([]byte(text), &places) == nil {
			for _, p := range places {
				add(p.File)
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// filesOf are a model file and those that hold its weights; what cannot be read
// is said by who reads it.
func filesOf(paths ...string) []string {
	files := slices.Clone(paths)
	for _, path := range paths {
		if m, err := onnx.Load(path); err == nil {
			files = append(files, weightFiles(m, path)...)
			m.Close()
		}
	}
	return files
}

// beside is the name of the file that holds the weights of a model that is
// written; it must not take the place of weights that the source refers to.
func beside(out string, source *onnx.Model, path string, reads ...string) (string, error) {
	file := strings.TrimSuffix(out, filepath.Ext(out)) + ".safetensors"
	if filepath.Clean(file) == filepath.Clean(out) {
		return "", fmt.Errorf("%s: the weights need that name: end -o in .onnx", out)
	}
	if err := canWrite(append(weightFiles(source, path), reads...), file); err != nil {
		return "", fmt.Errorf("weights of %s: %w", out, err)
	}
	return file, nil
}

// timelinePNG draws one timeline.
func timelinePNG(path, model string, t *report.Timeline) error {
	run := &report.Run{Model: model}
	run.SetTimeline(t)
	doc := &report.Compare{Models: []*report.Run{run}}
	return onnx.ReplaceFile(path, func(f *os.File) error { return doc.TimelinePNG(f) })
}

// machineFacts say on what a comparison was made.
func machineFacts(e *env) report.Facts {
	total, _ := hostMemory()
	facts := report.Facts{
		{Key: "machine", Value: fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), report.Bytes(total))},
		{Key: "remat", Value: version},
	}
	if e.loaded != nil {
		facts = append(facts, report.Fact{Key: "ONNX Runtime", Value: e.loaded.Env.Version()})
	}
	return append(facts, report.Fact{Key: "optimization level", Value: fmt.Sprint(e.opt)})
}
