package pipeline

import (
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime/ort"
)

// normalizing is a training graph of a sample that normalizes over the batch.
func normalizing(t *testing.T, kind optim.Kind) *onnx.Model {
	t.Helper()
	source, err := Load(sample("resnet18_like.ts.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	d, err := source.Derive(DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX}, Update: optim.Defaults(kind)})
	if err != nil {
		t.Fatal(err)
	}
	return d.Model
}

// TestStatisticsOnCUDA: a network that normalizes over the batch is planned for CUDA by
// every strategy, predicted as given, and what is written has no normalization that CUDA
// refuses, not even where the given file would hold less. For the CPU it stays.
func TestStatisticsOnCUDA(t *testing.T) {
	for _, cuda := range []bool{true, false} {
		for _, strategy := range []string{"none", "full", "optimal"} {
			p, err := NewPlanner(engine(t), normalizing(t, optim.SGD), Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, CUDA: cuda})
			if err != nil {
				t.Fatal(err)
			}
			f, err := p.Plan(strategy, 0)
			if err != nil {
				t.Fatal(err)
			}
			if p.Before.LivePeak == 0 || !p.Before.Exact() && !cuda {
				t.Errorf("%s: not predicted as given: %v", strategy, p.Before.Unknown)
			}
			if has := slices.ContainsFunc(f.Model.Graph.Nodes, traits.ComputesStatistics); has == cuda {
				t.Errorf("%s, for CUDA %v: has a normalization by the batch's statistics: %v", strategy, cuda, has)
			}
		}
	}
}
