package pipeline

// Splits of a batch into micro-batches, whose gradients are added up:
//
//	batch 8 = 8 × 1 run, 4 × 2 runs, 2 × 4 runs, 1 × 8 runs
//
// What a batch is has to be told from the inputs: the named dimension with which
// they begin, or the number, in a file of fixed shapes, which then takes micro-batches
// of that size only.
//
// The mean over micro-batches is that over the batch where the loss is itself a mean
// over its samples, and no sample's part of it depends on others. A loss that is a
// sum, and a batch that is normalized by its own statistics, are not split unless the
// user says so.

import (
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/runtime"
)

// A split is a batch in parts: samples of a run, 0 where the batch is not known, and
// runs of an update.
type split struct{ micro, runs int64 }

func (s split) text() string {
	if s.micro == 0 {
		return "the graph as it is"
	}
	if s.runs > 1 {
		return fmt.Sprintf("micro-batch %d × %d runs", s.micro, s.runs)
	}
	return fmt.Sprintf("batch %d", s.micro)
}

// A batchAxis is how the inputs of a model say their batch: by a name, or a number.
type batchAxis struct {
	name  string
	fixed int64
}

// with is dims with the batch's number.
func (b batchAxis) with(dims map[string]int64, micro int64) map[string]int64 {
	if b.name == "" || micro == 0 {
		return dims
	}
	out := map[string]int64{b.name: micro}
	for name, n := range dims {
		if name != b.name {
			out[name] = n
		}
	}
	return out
}

// size is the batch under dims, 0 where it is not known.
func (b batchAxis) size(dims map[string]int64) int64 {
	if b.name != "" {
		return dims[b.name]
	}
	return b.fixed
}

// findBatch finds the batch of a model as it was read: all that is fed begins with it.
func findBatch(m *onnx.Model, roles step.Roles) (batchAxis, error) {
	fed, err := fedInputs(m, roles)
	if err != nil {
		return batchAxis{}, err
	}
	names, sizes := map[string]bool{}, map[int64]bool{}
	for _, v := range fed {
		if len(v.Type.Shape) == 0 {
			return batchAxis{}, nil
		}
		first := v.Type.Shape[0]
		if n, ok := first.Int(); ok {
			sizes[n] = true
		} else if s := first.Symbols(); len(s) == 1 && first.String() == s[0] {
			names[s[0]] = true
		} else {
			return batchAxis{}, nil
		}
	}
	switch {
	case len(names) == 1 && len(sizes) == 0:
		return batchAxis{name: slices.Collect(maps.Keys(names))[0]}, nil
	case len(names) == 0 && len(sizes) == 1:
		return batchAxis{fixed: slices.Collect(maps.Keys(sizes))[0]}, nil
	}
	return batchAxis{}, nil
}

// FixedBatch says that all that a forward model is fed begins with one number, its batch,
// of which an update may take a multiple (FitOptions.Batch).
func FixedBatch(m *onnx.Model) bool {
	b, err := findBatch(m, step.Roles{})
	return err == nil && b.fixed > 0
}

// fedInputs are the inputs that data come in by: neither parameters nor state, nor
// scalars, such as an optimizer is told.
func fedInputs(m *onnx.Model, roles step.Roles) ([]*onnx.Value, error) {
	parameters, state, err := runtime.SortInputs(m, roles)
	if err != nil {
		return nil, err
	}
	kept := map[string]bool{}
	for _, name := range slices.Concat(parameters, state) {
		kept[name] = true
	}
	return slices.DeleteFunc(slices.Clone(m.Graph.Inputs), func(v *onnx.Value) bool {
		return v.Init != nil || kept[v.Name] || v.Type.Ranked && len(v.Type.Shape) == 0
	}), nil
}

// fedBytes is the size of a batch of a typed model, in bytes.
func fedBytes(m *onnx.Model, roles step.Roles) (total int64) {
	fed, err := fedInputs(m, roles)
	if err != nil {
		return 0
	}
	for _, in := range fed {
		total += in.Type.KnownBytes()
	}
	return total
}

// splits lists the ways in which the batch may be run, the largest micro-batch first.
func (f *fitting) splits() ([]split, error) {
	batch, runs := f.axis.size(f.o.Pipeline.Dims), f.o.Derive.Update.Accumulate
	switch {
	case f.training:
		return []split{{batch, step.Accumulation(f.source.Model.Graph)}}, nil
	case f.axis.fixed > 0 && f.o.Batch > 0 && f.o.Batch != f.axis.fixed && runs == 0:
		if f.o.Batch%f.axis.fixed != 0 {
			return nil, fmt.Errorf("%s: its batch is fixed to %d: an update takes a multiple of that, not %d; or export it with a free batch",
				f.source.Path, f.axis.fixed, f.o.Batch)
		}
		return []split{{f.axis.fixed, f.o.Batch / f.axis.fixed}}, nil
	case runs > 0:
		return []split{{batch, runs}}, nil
	case f.o.Memory == 0 || f.o.Whole || f.axis.name == "" || batch == 0:
		return []split{{batch, 1}}, nil
	}
	if !f.divisible {
		var err error
		if f.whole, err = wholeBatch(f.source.Model, f.o.Pipeline.Dims, f.o.Derive.Grad.Loss); err != nil {
			return nil, err
		}
		f.divisible = f.whole == ""
	}
	if !f.divisible {
		return []split{{batch, 1}}, nil
	}
	var list []split
	for micro := batch; micro >= 1; micro-- {
		if batch%micro == 0 {
			list = append(list, split{micro, batch / micro})
		}
	}
	return list, nil
}

// wholeBatch says why a batch is not to be split, "" where nothing speaks against it.
func wholeBatch(m *onnx.Model, dims map[string]int64, loss string) (string, error) {
	for _, n := range m.Graph.Nodes {
		if grad.NormalizesByBatch(n) {
			return fmt.Sprintf("%s normalizes by the statistics of the batch it sees", n.Label()), nil
		}
	}
	return NoMeanOfSamples(m, dims, loss)
}
