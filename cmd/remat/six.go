package main

// The six standard variants of one forward model, with AdamW in the graph. Each
// is a file beside the model, because a graph refers to weights below it only.
//
//	baseline  half  checkpointing  accumulation ×N  half + checkpointing  all
//
// A step that accumulates is the same batch in N micro-batches: their gradients together
// are the batch's. N is 4, or what divides the batch. Where nothing does, the row's label
// says so and stderr why, and a step is one micro-batch as large as the batch.

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// microBatches are the parts that a batch is divided in, where they divide it.
const microBatches = 4

// partsOf is in how many parts a batch is divided: the most up to microBatches, else the
// fewest; 1 where it cannot be.
func partsOf(batch int64) int64 {
	for n := int64(microBatches); n > 1; n-- {
		if batch > 0 && batch%n == 0 {
			return n
		}
	}
	for n := int64(microBatches) + 1; n <= batch; n++ {
		if batch%n == 0 {
			return n
		}
	}
	return 1
}

// sixVariants lists them; half asks for fp16, strategy "" leaves the derived
// graph as it is.
var sixVariants = []struct {
	label, suffix, strategy string
	half, accumulate        bool
}{
	{"baseline", "baseline", "", false, false},
	{"half precision", "half", "none", true, false},
	{"checkpointing", "checkpointing", "full", false, false},
	{"accumulation", "accumulation", "", false, true},
	{"half + checkpointing", "half-checkpointing", "full", true, false},
	{"all", "all", "full", true, true},
}

// A six is the files of the variants, their labels, and in how many parts each
// takes the batch.
type six struct {
	paths, labels []string
	parts         []int
}

// makeSix writes the variants of a forward model.
func makeSix(e *env, forward string, feeds remat.Options) (*six, error) {
	half, err := halfHere(e)
	if err != nil {
		return nil, err
	}
	name := func(suffix string) string {
		return strings.TrimSuffix(forward, filepath.Ext(forward)) + "." + suffix + ".onnx"
	}
	micro, undivided := name("micro-batch"), ""
	src, err := e.load(forward)
	if err != nil {
		return nil, err
	}
	if err := pipeline.NotTraining(src.Model); err != nil {
		return nil, fmt.Errorf("%s: %w", forward, err)
	}
	dims, parts, err := writeMicroBatch(src, micro, feeds)
	var batch *rewrite.BatchError
	runs := parts // of an update
	switch {
	case errors.As(err, &batch):
		micro, parts, runs, undivided = forward, 1, microBatches, " of whole batches"
		fmt.Fprintf(e.stderr, "remat: accumulation%s: %v\n", undivided, err)
	case err != nil:
		return nil, err
	}
	defer func() { e.dims = nil }() // every derived graph has its numbers
	s := &six{}
	for _, v := range sixVariants {
		out, label, of, n := name(v.suffix), v.label, forward, 1
		e.dims = dims
		if v.accumulate {
			of, n = micro, parts
			if v.strategy == "" {
				label = fmt.Sprintf("%s ×%d%s", label, runs, undivided)
			} else {
				label += undivided
			}
			if parts > 1 {
				e.dims = nil // nor has the micro-batch any left
			}
		}
		if v.strategy == "" {
			o := pipeline.DeriveOptions{Grad: grad.Options{Dims: e.dims}, Update: optim.Defaults(optim.AdamW)}
			if v.accumulate {
				o.Update.Accumulate = int64(runs)
			}
			if _, err := deriveTraining(e, of, out, true, o); err != nil {
				return nil, err
			}
		} else {
			e.dims = nil
			source := name("baseline")
			if v.accumulate {
				source = name("accumulation")
			}
			o := planOptions{strategy: v.strategy, pipeline: e.pipelineOptions()}
			if v.half {
				o.pipeline.Precision = half
			}
			if _, err := planFile(e, source, out, o); err != nil {
				return nil, err
			}
		}
		s.paths, s.labels, s.parts = append(s.paths, out), append(s.labels, label), append(s.parts, n)
	}
	return s, nil
}

// writeMicroBatch writes the model for a part of the batch, and returns the numbers of
// the free dimensions, as --dim or feeds say, and how many parts there are.
func writeMicroBatch(src *pipeline.Source, out string, feeds remat.Options) (dims map[string]int64, parts int, err error) {
	for n := int64(microBatches); ; {
		m, err := src.Model.Clone()
		if err != nil {
			return nil, 0, err
		}
		if dims, err = remat.DimsOf(m, feeds); err != nil {
			return nil, 0, err
		}
		_, err = rewrite.DivideBatch(m, dims, n)
		if batch, ok := errors.AsType[*rewrite.BatchError](err); ok && partsOf(batch.Batch) > 1 {
			n = partsOf(batch.Batch)
			continue
		}
		if err != nil {
			return dims, 0, err
		}
		m.Graph.AnnotateTypes()
		return dims, int(n), m.Save(out)
	}
}

// microData cuts what a graph was fed into parts along the leading axis, for
// each input that a graph for one part has with that extent divided.
func microData(whole *remat.Session, model *onnx.Model, given remat.Options, parts int) (map[string]remat.Tensor, error) {
	data := map[string]remat.Tensor{}
	for _, v := range model.Graph.Inputs {
		t, ok := given.Data[v.Name]
		if !ok {
			var err error
			if t, ok, err = whole.Input(v.Name); err != nil {
				return nil, err
			}
			if ok {
				t.Shape = append([]int64{1}, t.Shape...)
			}
		}
		if !ok || len(t.Shape) < 2 || len(v.Type.Shape)+1 != len(t.Shape) {
			continue
		}
		if n, known := v.Type.Shape[0].Int(); known && n*int64(parts) == t.Shape[1] {
			shape := append([]int64{t.Shape[0] * int64(parts), n}, t.Shape[2:]...)
			data[v.Name] = remat.Tensor{Type: t.Type, Shape: shape, Data: t.Data}
		}
	}
	return data, nil
}

// halfHere is fp16 as this machine can run it: emulated on CPU.
func halfHere(e *env) (*precision.Options, error) {
	engine, err := e.engine()
	if err != nil {
		return nil, err
	}
	provider, err := engine.Provider(ort.Provider(e.provider), e.device)
	if err != nil {
		return nil, err
	}
	if provider == ort.CUDA {
		return &precision.Options{To: onnx.Float16, Provider: kernels.CUDA}, nil
	}
	return &precision.Options{To: onnx.Float16, Emulate: true, Provider: kernels.CPU}, nil
}
