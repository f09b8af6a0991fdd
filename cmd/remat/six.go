package main

// The six standard variants of one forward model, with AdamW in the graph. Each
// is a file beside the model, because a graph refers to weights below it only.
//
//	baseline  half  checkpointing  accumulation ×4  half + checkpointing  all
//
// A step of a graph that accumulates is one micro-batch: feed it a quarter of
// the batch to see what accumulation saves.

import (
	"path/filepath"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	"github.com/onnx-remat/remat/runtime/ort"
)

const microBatches = 4

// sixVariants lists them; half asks for fp16, strategy "" leaves the derived
// graph as it is.
var sixVariants = []struct {
	label, suffix, strategy string
	half, accumulate        bool
}{
	{"baseline", "baseline", "", false, false},
	{"half precision", "half", "none", true, false},
	{"checkpointing", "checkpointing", "full", false, false},
	{"accumulation ×4", "accumulation", "", false, true},
	{"half + checkpointing", "half-checkpointing", "full", true, false},
	{"all", "all", "full", true, true},
}

// makeSix writes the variants of a forward model and returns files and labels.
func makeSix(e *env, forward string) (paths, labels []string, err error) {
	half, err := halfHere(e)
	if err != nil {
		return nil, nil, err
	}
	name := func(suffix string) string {
		return strings.TrimSuffix(forward, filepath.Ext(forward)) + "." + suffix + ".onnx"
	}
	for _, v := range sixVariants {
		out := name(v.suffix)
		if v.strategy == "" {
			if err := deriveSix(e, forward, out, v.accumulate); err != nil {
				return nil, nil, err
			}
		} else {
			source := name("baseline")
			if v.accumulate {
				source = name("accumulation")
			}
			o := planOptions{strategy: v.strategy, flow: e.flowOptions()}
			if v.half {
				o.flow.Precision = half
			}
			p, err := makePlan(e, source, o)
			if err == nil {
				err = writeGraph(e, p, source, out)
			}
			if err != nil {
				return nil, nil, err
			}
		}
		paths, labels = append(paths, out), append(labels, v.label)
	}
	return paths, labels, nil
}

func deriveSix(e *env, forward, out string, accumulate bool) error {
	o := gradOptions{
		grad:      grad.Options{Dims: e.dims, Dialect: grad.DialectONNX},
		optimizer: optimizerOptions{kind: string(optim.AdamW), Options: optim.Defaults(optim.AdamW)},
	}
	if accumulate {
		o.optimizer.Accumulate = microBatches
	}
	_, err := deriveTraining(e, forward, out, o)
	return err
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
