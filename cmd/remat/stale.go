package main

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/report"
)

// stale compares the peak that the file at path promises with what is predicted
// of it now, and says so where the two differ; nil where the promise holds. The
// prediction may be missing, and is made only of a graph that has changed.
func (e *env) stale(path string, m *onnx.Model, predict func() *int64) (*report.StalePrediction, error) {
	promised, broken, err := pipeline.Broken(m, path)
	if err != nil || !broken {
		return nil, err
	}
	s := &report.StalePrediction{LivePeakBytes: promised, NowBytes: predict()}
	if s.NowBytes != nil && *s.NowBytes == promised {
		return nil, nil
	}
	fmt.Fprintf(e.stderr, "remat: %s: %s\n", path, s)
	return s, nil
}
