package main

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
)

// stale compares the peak that a file promises with what is predicted of it now,
// and says so where the two differ; nil where the promise holds. The prediction may
// be missing, and is made only of a graph that has changed.
func (e *env) stale(src *pipeline.Source, predict func() *int64) *report.StalePrediction {
	promised, broken := src.Broken()
	if !broken {
		return nil
	}
	s := &report.StalePrediction{LivePeakBytes: promised, NowBytes: predict()}
	if s.NowBytes != nil && *s.NowBytes == promised {
		return nil
	}
	fmt.Fprintf(e.stderr, "remat: %s: %s\n", src.Path, s)
	return s
}
