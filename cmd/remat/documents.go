package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
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

// timelinePNG draws one timeline.
func timelinePNG(path, model string, t *report.Timeline) error {
	run := &report.Run{Model: model}
	run.SetTimeline(t)
	doc := &report.Compare{Models: []*report.Run{run}}
	return onnx.ReplaceFile(path, func(f *os.File) error { return doc.TimelinePNG(f) })
}

// machineFacts say on what a comparison was made.
func machineFacts(e *env) report.Facts {
	total, _ := remat.HostMemory()
	facts := report.Facts{
		{Key: "machine", Value: fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), units.Bytes(total))},
		{Key: "remat", Value: version},
	}
	if e.loaded != nil {
		facts = append(facts, report.Fact{Key: "ONNX Runtime", Value: e.loaded.Env.Version()})
	}
	return append(facts, report.Fact{Key: "optimization level", Value: fmt.Sprint(e.opt)})
}
