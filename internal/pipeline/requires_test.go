package pipeline

import (
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestWrittenFilesNeedNothingNew: whatever a sample is converted to for the CPU,
// the written file runs from ONNX Runtime 1.18 on, or wherever the training graph
// does that it was made from.
func TestWrittenFilesNeedNothingNew(t *testing.T) {
	paths, err := filepath.Glob(sample("*.onnx"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("found %d samples: %v", len(paths), err)
	}
	e := engine(t)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			given, _, dims := derived(t, path)
			allowed := max(kernels.Needs(given, kernels.CPU), 18)
			for _, c := range []*precision.Options{
				nil, {To: onnx.BFloat16}, {To: onnx.Float16, Emulate: true},
			} {
				p, err := NewPlanner(e, given, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Dims: dims, Precision: c})
				if err != nil {
					t.Fatal(err)
				}
				r, err := p.Plan("none", 0)
				if err != nil {
					t.Fatal(err)
				}
				m := r.Model
				if need := kernels.Needs(m, kernels.CPU); need > allowed {
					t.Errorf("%+v: needs %s, want at most %s", c, need, allowed)
				}
				for _, n := range m.Graph.Nodes {
					if since, ok := kernels.Since(n, m.Opset(n.Domain())); ok && since > allowed {
						t.Errorf("%+v: node %s (%s) needs %s", c, n.Label(), n.OpType(), since)
					}
				}
			}
		})
	}
}
