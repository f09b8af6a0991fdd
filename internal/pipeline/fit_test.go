package pipeline

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// parsedSource opens a model that is written as text.
func parsedSource(t *testing.T, text string) *Source {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	source, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// fitSource opens a forward model, a sample or one of the zoo's.
func fitSource(t *testing.T, name string) *Source {
	t.Helper()
	path := sample(name)
	if !strings.HasSuffix(name, ".onnx") {
		row, err := models.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		c := row.Default
		c.Batch, c.Seq, c.Seed = 0, 0, 3
		built, err := row.Build(c)
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(t.TempDir(), name+".onnx")
		if err := built.Save(path); err != nil {
			t.Fatal(err)
		}
	}
	source, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	return source
}

func fitOptions(out string, kind optim.Kind, dims map[string]int64) FitOptions {
	return FitOptions{
		Pipeline: Options{Dims: dims, Provider: ort.CPU, OptLevel: 1, Threads: 2},
		Derive:   DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX}, Update: optim.Defaults(kind)},
		Ahead:    2, Validate: true, Out: out,
	}
}

// trainedTotal runs a file as it was written, in a slab as its prediction says, and adds
// up what it takes.
func trainedTotal(t *testing.T, e *runtime.Engine, path string) int64 {
	t.Helper()
	m, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	roles, _ := FoundRoles(m, nil)
	p, err := Predict(e, m, roles, Options{Provider: ort.CPU, OptLevel: 1, Threads: 2, Dims: FixedDims(m)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.OpenFile(path, runtime.Options{Level: 1, Threads: 2, Provider: ort.CPU, Dims: FixedDims(m), LR: 1e-3})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	allocated := s.Memory().SessionBytes // so far
	if err := s.Place(p.Slab()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.MeasureConstants(); err != nil {
		t.Fatal(err)
	}
	got := s.Memory()
	return got.ParameterBytes + got.StateBytes + got.FeedBytes + got.SessionBytes - allocated + got.ReservedBytes
}

// TestFit: of exports and models of the zoo, for a memory between the plain graph's
// need and the least, a file is written that takes what was said, to the byte, and no
// more than was given.
func TestFit(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		model string
		kind  optim.Kind
		dims  map[string]int64
	}{
		{"gpt2-tiny", optim.AdamW, map[string]int64{"batch": 2, "seq": 64}},
		{"llama_tiny.dyn.onnx", optim.SGD, nil},
		{"bert_tiny.ts.onnx", optim.Lion, nil},
	} {
		t.Run(fmt.Sprint(c.model, " ", c.kind), func(t *testing.T) {
			source := fitSource(t, c.model)
			dims := c.dims
			if dims == nil {
				dims = map[string]int64{}
				for _, name := range FreeDims(source.Model) {
					dims[name] = 16
				}
				if b, err := findBatch(source.Model, runtime.Roles{}); err == nil && b.name != "" {
					dims[b.name] = 4
				}
			}
			dir := t.TempDir()
			plain, err := Fit(context.Background(), e, source, fitOptions(filepath.Join(dir, "plain", "train.onnx"), c.kind, dims))
			if err != nil {
				t.Fatal(err)
			}
			if got := trainedTotal(t, e, plain.Path); got != plain.Total.Bytes() || plain.Overhead != 0 || plain.Accumulate != 1 {
				t.Errorf("plain: measured %d, predicted %d; %+v", got, plain.Total.Bytes(), plain)
			}
			o := fitOptions(filepath.Join(dir, "fit", "train.onnx"), c.kind, dims)
			o.Memory = 1
			var unfit *FitError
			if _, err := Fit(context.Background(), e, source, o); !errors.As(err, &unfit) {
				t.Fatalf("a byte: %v", err)
			}
			if _, err := os.Stat(o.Out); err == nil {
				t.Error("a file was written that does not fit")
			}
			t.Logf("plain %d, %v", plain.Bytes, err)
			o.Memory = (plain.Bytes + unfit.Nearest.Bytes) / 2
			fitted, err := Fit(context.Background(), e, source, o)
			if err != nil {
				t.Fatal(err)
			}
			checkFitted(t, e, fitted)
		})
	}
}

// TestFitUnscaled: that a loss is not scaled in float16 is said with what the type costs; of
// one that is, of a term or of two, or in bfloat16, there is nothing to say.
func TestFitUnscaled(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		loss string
		half onnx.DType
		said bool
	}{
		{"  a = ReduceMean(h) {keepdims=0}\n  b = ReduceMean(k) {keepdims=0}\n  loss = Add(a, b)\n", onnx.Float16, false},
		{"  a = Add(h, k)\n  found_inf = Mul(a, a)\n  loss = ReduceMean(found_inf) {keepdims=0}\n", onnx.Float16, true},
		{"  a = Add(h, k)\n  found_inf = Mul(a, a)\n  loss = ReduceMean(found_inf) {keepdims=0}\n", onnx.BFloat16, false},
		{"  a = Add(h, k)\n  b = Mul(a, a)\n  loss = ReduceMean(b) {keepdims=0}\n", onnx.Float16, false},
	} {
		source := parsedSource(t, "model ir=8 opset=17\ngraph g {\n  in x float32[2,2]\n  init u float32[2,2] = [1,2,3,4]\n  init v float32[2,2] = [4,3,2,1]\n"+
			"  p = MatMul(x, u)\n  h = Tanh(p)\n  q = MatMul(x, v)\n  k = Tanh(q)\n"+c.loss+"  out loss float32[]\n}\n")
		o := fitOptions(filepath.Join(t.TempDir(), "train.onnx"), optim.SGD, nil)
		o.Pipeline.Precision = &precision.Options{To: c.half, Emulate: true}
		f, err := Fit(context.Background(), e, source, o)
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(f.Decisions, func(d Decision) bool {
			return strings.Contains(d.Costs, "the loss is not scaled: the graph already has")
		})
		if said != c.said {
			t.Errorf("%s, %s: %+v", c.loss, c.half, f.Decisions)
		}
		source.Close()
	}
}

// checkFitted holds a file to what was said of it.
func checkFitted(t *testing.T, e *runtime.Engine, f *Fitted) {
	t.Helper()
	t.Logf("memory %d: %d × %d, %d bytes, overhead %.3f, %+v", f.Memory, f.MicroBatch, f.Accumulate, f.Bytes, f.Overhead, f.Decisions)
	if got := trainedTotal(t, e, f.Path); got != f.Total.Bytes() || f.Bytes > f.Memory {
		t.Errorf("memory %d: measured %d, predicted %d, with what is beside %d", f.Memory, got, f.Total.Bytes(), f.Bytes)
	}
}

// TestFitSplits: where the batch does not fit, or costs more to compute again than to
// split, it is split, unless its loss is a sum, or the user says how many runs make an
// update.
func TestFitSplits(t *testing.T) {
	e := engine(t)
	source := fitSource(t, "gpt2-tiny")
	dir := t.TempDir()
	o := fitOptions(filepath.Join(dir, "a", "train.onnx"), optim.SGD, map[string]int64{"batch": 16, "seq": 64})
	o.Memory = 4 << 20
	split, err := Fit(context.Background(), e, source, o)
	if err != nil {
		t.Fatal(err)
	}
	checkFitted(t, e, split)
	if split.MicroBatch*split.Accumulate != 16 || split.Accumulate < 2 || split.Dims["batch"] != split.MicroBatch {
		t.Errorf("%d × %d, dimensions %v", split.MicroBatch, split.Accumulate, split.Dims)
	}
	o.Out, o.Derive.Update.Accumulate, o.Memory = filepath.Join(dir, "b", "train.onnx"), 2, 64<<20
	o.Pipeline.Dims = map[string]int64{"batch": 4, "seq": 32}
	said, err := Fit(context.Background(), e, source, o)
	if err != nil {
		t.Fatal(err)
	}
	checkFitted(t, e, said)
	if said.MicroBatch != 4 || said.Accumulate != 2 || said.Overhead != 0 {
		t.Errorf("%+v", said)
	}
	sum := onnx.NewModel("sum", 20)
	x := sum.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4, 4)))
	b := build.New(sum.Graph, nil, "test")
	loss := b.NodeNamed("", "Squeeze", "loss", build.In(b.Op("ReduceSum", build.In(x))), []string{"loss"})[0]
	loss.Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape())
	b.Flush()
	sum.Graph.AddOutput(loss)
	if why, err := wholeBatch(sum, nil, "loss"); err != nil || !strings.Contains(why, "sum") {
		t.Errorf("a sum is split: %q", why)
	}
	for weights, want := range map[string]string{"[0.5,2,1]": "the loss weighs classes, by ce", "[2,2,2]": ""} {
		m, err := onnx.Parse(strings.Replace(weighing, "WEIGHTS", weights, 1))
		if err != nil {
			t.Fatal(err)
		}
		if why, err := wholeBatch(m, nil, ""); err != nil || why != want {
			t.Errorf("weights %s: %q, want %q", weights, why, want)
		}
	}
	if why, err := wholeBatch(source.Model, nil, ""); err != nil || why != "" {
		t.Errorf("a mean is not split: %s", why)
	}
}

// TestDividedByData: a mean over what is fed is said, one over the labels that count is not.
func TestDividedByData(t *testing.T) {
	const body = `model ir=10 opset=18
graph g {
  in x float32[batch,3]
  in y int64[batch]
  in mask float32[batch]
  init w float32[3,3] = [1,2,3,4,5,6,7,8,9]
  init ignored int64[] = -100
  init least float32[] = 1
  init none float32[] = 0
  z = MatMul(x, w)
  l = SoftmaxCrossEntropyLoss(z, y) {ignore_index=-100, reduction="none"}
  is = Equal(y, ignored)
  not = Not(is)
  counts = Cast(not) {to=1}
  countsToo = Where(is, none, least)
  ignoredOnes = Where(is, least, none)
  size = Size(y)
  long = Cast(size) {to=1}
  kept = Mul(l, mask)
  s = ReduceSum(kept) {keepdims=0}
  n = ReduceSum(OF) {keepdims=0}
  m = Max(n, least)
  mean = Div(s, BY) "mean"
  loss = Neg(mean)
  out loss float32[]
}
`
	for what, want := range map[string]string{"mask m": "the loss is divided by what the data give, by mean", "counts m": "", "counts n": "", "countsToo n": "", "ignoredOnes n": "the loss is divided by what the data give, by mean", "mask long": "", "l n": "the loss is divided by what the data give, by mean"} {
		of, by, _ := strings.Cut(what, " ")
		m, err := onnx.Parse(strings.NewReplacer("OF", of, "BY", by).Replace(body))
		if err != nil {
			t.Fatal(err)
		}
		for _, loss := range []string{"", "loss"} {
			if why := DividedByData(m.Graph, loss, -100); why != want {
				t.Errorf("%s: %q, want %q", what, why, want)
			}
		}
		if why := DividedByData(m.Graph, "loss", -1); of == "counts" && why == "" {
			t.Errorf("%s: nothing said of other labels", what)
		}
	}
}

// weighing is a model whose loss weighs its classes.
const weighing = `model ir=10 opset=18
graph g {
  in x float32[batch,3]
  in y int64[batch]
  init w float32[3,3] = [1,2,3,4,5,6,7,8,9]
  init c float32[3] = WEIGHTS
  z = MatMul(x, w)
  loss = SoftmaxCrossEntropyLoss(z, y, c) "ce"
  out loss float32[]
}
`

// TestFitLeavesTheOriginal: weights that lie in another folder are copied, a training
// graph that is given is planned as it is, and a model that is fixed takes its own
// batch in multiples.
func TestFitLeavesTheOriginal(t *testing.T) {
	e := engine(t)
	dir := t.TempDir()
	row, err := models.Find("gpt2-tiny")
	if err != nil {
		t.Fatal(err)
	}
	built, err := row.Build(row.Default)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "g.onnx")
	if err := built.Save(path); err != nil {
		t.Fatal(err)
	}
	source, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	o := fitOptions(filepath.Join(dir, "run", "train.onnx"), optim.SGD, nil)
	o.Batch = 3 * row.Default.Batch
	fitted, err := Fit(context.Background(), e, source, o)
	if err != nil {
		t.Fatal(err)
	}
	if fitted.MicroBatch != row.Default.Batch || fitted.Accumulate != 3 {
		t.Errorf("%d × %d", fitted.MicroBatch, fitted.Accumulate)
	}
	want, err := os.ReadFile(filepath.Join(dir, "g.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "run", "weights", "g.safetensors")); err != nil || string(got) != string(want) {
		t.Errorf("the weights' copy: %d bytes of %d, %v", len(got), len(want), err)
	}
	if o.Batch = 3*row.Default.Batch + 1; row.Default.Batch > 1 {
		if _, err := Fit(context.Background(), e, source, o); err == nil || !strings.Contains(err.Error(), "multiple") {
			t.Errorf("a batch that is no multiple: %v", err)
		}
	}
	given, err := Load(fitted.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	again, err := Fit(context.Background(), e, given, fitOptions(filepath.Join(dir, "again", "train.onnx"), optim.None, nil))
	if err != nil {
		t.Fatal(err)
	}
	if again.Accumulate != 3 || again.Total != fitted.Total {
		t.Errorf("%d runs, %+v, not %+v", again.Accumulate, again.Total, fitted.Total)
	}
	if a, err := Load(again.Path); err != nil || a.promised == 0 || a.broken || a.Close() != nil {
		t.Errorf("the graph was not left as it was: %v", err)
	}
	m, err := onnx.Load(again.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if v := m.Graph.Value(optim.NormOutput); v == nil || !v.IsOutput() {
		t.Error("no norm of the gradients")
	}
}

// TestFitMergedGradients: parameters whose equal gradients are merged, as those of two layers whose
// sum is taken, count each, and their gradient once.
func TestFitMergedGradients(t *testing.T) {
	e := engine(t)
	for _, half := range []bool{false, true} {
		source := parsedSource(t, "model ir=8 opset=17\ngraph g {\n  in x float32[2,2]\n  init u float32[2,2] = [1,2,3,4]\n  init v float32[2,2] = [4,3,2,1]\n  init a float32[2] = [1,2]\n  init b float32[2] = [3,4]\n"+
			"  p = MatMul(x, u)\n  h = Add(p, a)\n  q = MatMul(x, v)\n  k = Add(q, b)\n  l = Add(h, k)\n  y = Tanh(l)\n  loss = ReduceMean(y) {keepdims=0}\n  out loss float32[]\n}\n")
		o := fitOptions(filepath.Join(t.TempDir(), "train.onnx"), optim.AdamW, nil)
		o.Derive.Grad.Params = []string{"u", "v", "a", "b"}
		want := "2 of 4 parameters updated in backward, as soon as their gradient is complete; earlier updates would raise the peak; 16 B of gradients wait"
		if half {
			o.Pipeline.Precision = &precision.Options{To: onnx.Float16}
			want = "of 4 parameters updated in backward, as soon as their gradient is complete; all gradients have to be known to be finite first"
		}
		f, err := Fit(context.Background(), e, source, o)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(f.Decisions[0].Did, want) {
			t.Errorf("half %t: %s, want %s", half, f.Decisions[0].Did, want)
		}
	}
}

// TestFitLeftWhole: parts that were asked for and divide nothing are said to, and why.
func TestFitLeftWhole(t *testing.T) {
	e := engine(t)
	source := parsedSource(t, "model ir=8 opset=17\ngraph g {\n  in x float32[2,2]\n  init u float32[2] = [1,2]\n  p = Mul(x, u)\n  y = Tanh(p)\n  loss = ReduceMean(y) {keepdims=0}\n  out loss float32[]\n}\n")
	o := fitOptions(filepath.Join(t.TempDir(), "train.onnx"), optim.SGD, nil)
	o.Derive.Grad.Params = []string{"u"}
	o.Pipeline.Chunk, o.Pipeline.Tile = auto, Parts(2)
	f, err := Fit(context.Background(), e, source, o)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"--chunk-loss divides nothing: loss: no matrix product leads to the loss", "--tile divides nothing: products: none is 2 times as large as its larger factor"}
	if !slices.Equal(f.Warnings, want) {
		t.Errorf("%q, want %q", f.Warnings, want)
	}
}
