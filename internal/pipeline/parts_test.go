package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// trainingGraph derives the training graph of a model of the zoo, weights from
// a seed.
func trainingGraph(t testing.TB, name string, change func(*models.Config)) *onnx.Model {
	t.Helper()
	row, err := models.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	c := row.Default
	change(&c)
	built, err := row.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := built.Describe(); err != nil {
		t.Fatal(err)
	}
	if _, err := grad.Differentiate(built.Model, grad.Options{}); err != nil {
		t.Fatal(err)
	}
	built.Model.SetMetadata(VersionKey, "test")
	return built.Model
}

// wideGPT is small, but its logits and attention scores are wide, as a real
// one's are.
func wideGPT(c *models.Config) {
	c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 3, 48, 4, 1500, 96, 2
}

// TestParts computes the loss over slices and attention in parts: the file
// reaches its predicted peak to the byte at every level, the peak falls, parts
// of attention change no bit, slices of the loss no more than rounding.
func TestParts(t *testing.T) {
	e := engine(t)
	m := trainingGraph(t, "gpt2", wideGPT)
	for _, level := range []int{0, 1, 99} {
		plain := runPlanned(t, e, m, Options{OptLevel: level}, "none")
		for _, c := range []struct {
			strategy    string
			chunk, tile Division
			tolerance   float64
		}{
			{"full", Division{}, auto, 0},
			{"none", auto, Division{}, 1e-5},
			{"full", Parts(4), Parts(2), 1e-5},
			{"sqrt", auto, auto, 1e-5},
		} {
			t.Run(fmt.Sprintf("%s chunk %v tile %v at %d", c.strategy, c.chunk, c.tile, level), func(t *testing.T) {
				got := runPlanned(t, e, m, Options{OptLevel: level, Divisions: Divisions{Chunk: c.chunk, Tile: c.tile}}, c.strategy)
				if got.peaks[0] >= plain.peaks[0] {
					t.Errorf("live peak %d, not below the plain graph's %d", got.peaks[0], plain.peaks[0])
				}
				alikeOutputs(t, plain, got, c.tolerance)
			})
		}
	}
}

// TestWorkspaceOfLoss: what the slices of the loss hold at one time, of all that the step
// allocates, is within what was asked for, whatever is computed again, with as few slices
// as that takes; and a workspace that is too small says what the least is.
func TestWorkspaceOfLoss(t *testing.T) {
	const vocab, rows = 1500, 2 * 96
	e := engine(t)
	m := trainingGraph(t, "gpt2", wideGPT)
	if err := Order(m, Options{Provider: ort.CPU, Threads: 1}); err != nil { // as grad writes it
		t.Fatal(err)
	}
	plan := func(bytes int64, strategy string) (*File, error) {
		p, err := NewPlanner(e, m, Options{Provider: ort.CPU, Threads: 1, AsIs: true, Divisions: Divisions{Chunk: Division{Mode: WithinBytes, Bytes: bytes}}})
		if err != nil {
			return nil, err
		}
		return p.Plan(strategy, 0)
	}
	before := 0
	for _, bytes := range []int64{2 << 20, 1 << 20, 300 << 10, 64 << 10} {
		for _, strategy := range []string{"none", "full", "least"} {
			f, err := plan(bytes, strategy)
			if err != nil {
				t.Fatal(err)
			}
			one := int64(4 * vocab * rows / f.Variant.Divided.Loss)
			slices, held, most := map[int]bool{}, int64(0), int64(0)
			for _, ev := range Timeline(f.Prediction, nil).Events {
				if ev.Bytes == one { // no other value is as large
					slices[ev.Buffer] = true
				}
				if slices[ev.Buffer] {
					held += ev.Bytes
					most = max(most, held)
				}
			}
			if most == 0 || most > bytes {
				t.Errorf("%s: %d slices hold %d bytes, %d asked for", strategy, f.Variant.Divided.Loss, most, bytes)
			}
			if 8*one < bytes {
				t.Errorf("%s: %d slices of %d bytes each for a workspace of %d", strategy, f.Variant.Divided.Loss, one, bytes)
			}
			if strategy == "none" && f.Variant.Divided.Loss <= before {
				t.Errorf("%d slices within %d bytes, %d within more", f.Variant.Divided.Loss, bytes, before)
			}
			before = f.Variant.Divided.Loss
		}
	}
	var small *WorkspaceError
	if _, err := plan(1000, "none"); !errors.As(err, &small) || small.Parts != rows || small.Least < 4*vocab {
		t.Errorf("1000 bytes: %v", err)
	}
	if f, err := plan(1<<30, "none"); err != nil || f.Variant.Divided.Loss != 0 {
		t.Errorf("1 GiB: in slices, or %v", err)
	}
}

// TestMicroBatches: a step over slices of its batch has the outputs of the whole but for
// rounding, holds less, and reaches its predicted peak, whatever is computed again.
func TestMicroBatches(t *testing.T) {
	for _, kind := range []string{"encoder", "gpt2"} {
		t.Run(kind, func(t *testing.T) { testMicroBatches(t, kind) })
	}
}

func testMicroBatches(t *testing.T, kind string) {
	e := engine(t)
	m := trainingGraph(t, kind, func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Seq, c.Batch = 2, 32, 2, 48, 4
		if kind == "gpt2" {
			c.Vocab = 300
		}
	})
	forms := []Divisions{{Batch: Parts(4)}}
	if kind == "gpt2" {
		forms = append(forms, Divisions{Batch: Parts(4), Chunk: Parts(3)})
	}
	for _, level := range []int{0, 99} {
		plain := runPlanned(t, e, m, Options{OptLevel: level}, "none")
		before := plain.peaks[0]
		for _, form := range forms {
			what := fmt.Sprintf("micro-batches %v, loss %v at %d", form.Batch, form.Chunk, level)
			var none result
			for _, strategy := range []string{"none", "full", "least"} {
				got := runPlanned(t, e, m, Options{OptLevel: level, AsIs: true, Divisions: form}, strategy)
				if none.outputs == nil {
					none = got
				}
				if 2*got.peaks[0] >= plain.peaks[0] {
					t.Errorf("%s, %s: live peak %d, more than half of the whole step's %d", what, strategy, got.peaks[0], plain.peaks[0])
				}
				for name, want := range plain.outputs {
					if !bytes.Equal(none.outputs[name], got.outputs[name]) {
						t.Errorf("%s, %s: output %s is not that of the plain plan to the bit", what, strategy, name)
					}
					if strings.HasSuffix(name, "key.bias.grad") {
						continue // zero but for rounding: a softmax takes no notice of it
					}
					if d := farthest(want, got.outputs[name]); !(d <= 1e-5) {
						t.Errorf("%s, %s: output %s differs by %g of its largest magnitude", what, strategy, name, d)
					}
				}
			}
			if none.peaks[0] >= before {
				t.Errorf("%s: live peak %d, not less than the %d of what is divided less", what, none.peaks[0], before)
			}
			before = none.peaks[0]
		}
	}
}

// TestMicroBatchesOfFreeDims: a step that was derived while its dimensions were free computes
// shapes, and is divided all the same once they have numbers.
func TestMicroBatchesOfFreeDims(t *testing.T) {
	e := engine(t)
	m := trainingOf(t, `model ir=10 opset=20
graph g {
  in x float32[batch,seq,4]
  in y float32[batch,seq,2]
  init w float32[4,8] = [`+strings.TrimSuffix(strings.Repeat("0.25,-0.5,0.125,0.5,", 8), ",")+`]
  init b float32[8] = [1,2,3,4,5,6,7,8]
  init v float32[8,2] = [`+strings.TrimSuffix(strings.Repeat("0.5,-0.25,0.75,1,", 4), ",")+`]
  init c float32[2] = [1,-1]
  p = MatMul(x, w)
  h = Add(p, b)
  a = Tanh(h)
  q = MatMul(a, v)
  z = Add(q, c)
  d = Sub(z, y)
  s = Mul(d, d)
  loss = ReduceMean(s) {keepdims=0}
  out loss float32[]
}
`)
	m.SetMetadata(VersionKey, "test")
	if !slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return n.Is("Shape") && n.In(0).Name == "a" }) {
		t.Fatal("the step computes no shape of what it divides")
	}
	dims := map[string]int64{"batch": 4, "seq": 48}
	plain := runPlanned(t, e, m, Options{Dims: dims}, "none")
	got := runPlanned(t, e, m, Options{Dims: dims, AsIs: true, Divisions: Divisions{Batch: Parts(4)}}, "none")
	if got.peaks[0] >= plain.peaks[0] {
		t.Errorf("live peak %d, not less than the whole step's %d", got.peaks[0], plain.peaks[0])
	}
	alikeOutputs(t, plain, got, 1e-5)
}

// TestMicroBatchesOfAnyAxis: samples that lie along another axis than the first of the first feed are
// divided there, and an axis of something else is not, where that would be little of the step.
func TestMicroBatchesOfAnyAxis(t *testing.T) {
	e := engine(t)
	for name, c := range map[string]struct {
		body string
		why  string // why it stays whole
	}{
		"the time first": {body: `in x float32[6,4,8]
  in y float32[6,4,2]
  p = MatMul(x, w)
  m = ReduceMean(p, first)
  h = Sub(p, m)
  a = Tanh(h)
  z = MatMul(a, v)`},
		"the time first, one label each": {body: `in x float32[6,4,8]
  in y float32[4,2]
  p = MatMul(x, w)
  a = Tanh(p)
  m = ReduceMean(a, first) {keepdims=0}
  z = MatMul(m, v)`},
		"the time first, a sum over labels, and weights that are arranged": {body: `in x float32[6,4,8]
  in l int64[4]
  init eighth float32[] = 0.125
  w1 = Add(w, eighth)
  w2 = Add(w1, eighth)
  w3 = Add(w2, eighth)
  w4 = Add(w3, eighth)
  w5 = Add(w4, eighth)
  w6 = Add(w5, eighth)
  w7 = Add(w6, eighth)
  w8 = Add(w7, eighth)
  w9 = Add(w8, eighth)
  w10 = Add(w9, eighth)
  w11 = Add(w10, eighth)
  w12 = Add(w11, eighth)
  p = MatMul(x, w12)
  a = Tanh(p)
  m = ReduceMean(a, first) {keepdims=0}
  z = MatMul(m, v)
  c = Cast(l) {to=1}
  t = Tanh(c)
  k = Exp(t)
  n = ReduceSum(k) {keepdims=0}
  q = Div(k, n)
  u = Unsqueeze(q, second)
  y = Mul(z, u)`},
		"as many tokens as samples": {body: `in x float32[4,4,8]
  in y float32[4,4,2]
  in positions float32[4,8]
  init scale float32[8] = [1,2,3,4,5,6,7,8]
  placed = Mul(positions, scale)
  u = Add(x, placed)
  p = MatMul(u, w)
  m = ReduceMean(p, second)
  h = Sub(p, m)
  a = Tanh(h)
  z = MatMul(a, v)`},
		"a layer below a norm over samples": {body: `in x float32[64,8]
  in y float32[64,2]
  p = MatMul(x, w)
  m = ReduceMean(p, first)
  h = Sub(p, m)
  t = Transpose(h)
  k = ReduceSum(t, first) {keepdims=0}
  u = Unsqueeze(k, second)
  z = Mul(u, last)`, why: `reads "m" whole`},
		"a sample alone": {body: `in x float32[1,8]
  in y float32[1,2]
  p = MatMul(x, w)
  a = Tanh(p)
  z = MatMul(a, v)`, why: "no feed has a batch axis"},
		"a corner of a sample alone": {body: `in u float32[1,64]
  in x float32[1,8]
  in y float32[1,2]
  p = MatMul(x, w)
  a = Tanh(p)
  r = Exp(u)
  k = ReduceSum(r)
  q = MatMul(a, v)
  z = Mul(q, k)`, why: "no feed has a batch axis"},
		"a norm over samples": {body: `in x float32[4,8]
  in y float32[4,2]
  p = MatMul(x, w)
  m = ReduceMean(p, first)
  h = Sub(p, m)
  z = MatMul(h, v)`, why: `reads "m" whole`},
	} {
		t.Run(name, func(t *testing.T) {
			m := trainingOf(t, `model ir=10 opset=20
graph g {
  init w float32[8,16] = [`+strings.TrimSuffix(strings.Repeat("0.25,-0.5,0.125,0.5,", 32), ",")+`]
  init v float32[16,2] = [`+strings.TrimSuffix(strings.Repeat("0.5,-0.25,0.75,1,", 8), ",")+`]
  init first int64[1] = [0]
  init second int64[1] = [1]
  init last float32[2] = [1,-2]
  `+c.body+`
  d = Sub(z, y)
  s = Mul(d, d)
  loss = ReduceMean(s) {keepdims=0}
  out loss float32[]
}
`)
			m.SetMetadata(VersionKey, "test")
			o := Options{Provider: ort.CPU, Threads: 2, AsIs: true, Divisions: Divisions{Batch: Parts(4)}}
			if c.why != "" {
				r := inParts(t, e, m, o, "none")
				if text := fmt.Sprint(r.Reports); r.Variant.Divided.Batch != 0 || !strings.Contains(text, c.why) {
					t.Errorf("in %d micro-batches: %s", r.Variant.Divided.Batch, text)
				}
				return
			}
			if r := inParts(t, e, m, o, "none"); r.Variant.Divided.Batch < 2 {
				t.Errorf("left whole: %v", r.Reports)
			}
			plain, got := runPlanned(t, e, m, Options{}, "none"), runPlanned(t, e, m, o, "none")
			alikeOutputs(t, plain, got, 1e-5)
		})
	}
}

// TestMicroBatchesOfLookedUpRows: rows that are looked up among each sample's own, and labels that are
// constants, leave a step divisible, with its gradients, by sizes that are free, too; rows of other
// samples, and samples that are told from each other, do not.
func TestMicroBatchesOfLookedUpRows(t *testing.T) {
	e := engine(t)
	const rows = "in x float32[batch,6,8]\n  in y int64[batch]\n  p = MatMul(x, w)\n  a = Tanh(p)\n  n = Shape(a) {end=1}\n  all = Concat(minus, wide) {axis=0}\n  r = Reshape(a, all)\n" +
		"  n0 = Squeeze(n)\n  count = Range(zero, n0, one)\n  first = Mul(count, six)\n"
	const ends = "\n  z = MatMul(l, v)\n  loss = SoftmaxCrossEntropyLoss(z, y)"
	const flat = "in x float32[batch,8]\n  p = MatMul(x, w)\n  a = Tanh(p)\n  z = MatMul(a, v)\n  n = Shape(z) {end=1}\n"
	for name, c := range map[string]struct {
		body string
		why  string // why it stays whole
	}{
		"the last row of each sample":                       {body: rows + "  at = Add(first, five)\n  l = Gather(r, at)" + ends},
		"the last row of each sample, counted from the end": {body: rows + "  end = Squeeze(sizeOfAll)\n  sizeOfAll = Shape(r) {end=1}\n  at0 = Add(first, five)\n  at = Sub(at0, end)\n  l = Gather(r, at)" + ends},
		"the row that each sample finds":                    {body: rows + "  s = ReduceSum(a, last) {keepdims=0}\n  found = ArgMax(s) {axis=1, keepdims=0}\n  at = Add(found, first)\n  l = Gather(r, at)" + ends},
		"labels that are one for all":                       {body: flat + "  y = Expand(ones, n)\n  loss = SoftmaxCrossEntropyLoss(z, y)"},
		"labels that are one for all, in two terms":         {body: flat + "  y = Expand(ones, n)\n  yy = Sub(y, y)\n  k = Neg(z)\n  loss1 = SoftmaxCrossEntropyLoss(z, y)\n  loss2 = SoftmaxCrossEntropyLoss(k, yy)\n  loss = Add(loss1, loss2)"},
		"targets that are ones":                             {body: flat + "  all = Shape(z)\n  z0 = ConstantOfShape(all)\n  t = Cos(z0)\n  d = Sub(z, t)\n  e = Mul(d, d)\n  loss = ReduceMean(e) {keepdims=0}"},
		"the next sample's row":                             {body: rows + "  end = Squeeze(sizeOfAll)\n  sizeOfAll = Shape(r) {end=1}\n  at0 = Add(first, six)\n  at = Sub(at0, end)\n  l = Gather(r, at)" + ends, why: "gathers along the split axis"},
		"samples that are told from each other": {body: "in x float32[batch,8]\n  in u float32[batch,8]\n  p = MatMul(x, w)\n  q = MatMul(u, w)\n  qt = Transpose(q)\n  z = MatMul(p, qt)\n  n = Shape(z) {end=1}\n  n0 = Squeeze(n)\n" +
			"  y = Range(zero, n0, one)\n  loss = SoftmaxCrossEntropyLoss(z, y)", why: "both factors are split"},
	} {
		for batch, dims := range map[string]map[string]int64{"8": nil, "batch": {"batch": 8}} {
			t.Run(name+", "+batch, func(t *testing.T) {
				m := trainingOf(t, `model ir=10 opset=20
graph g {
  init w float32[8,16] = [`+strings.TrimSuffix(strings.Repeat("0.25,-0.5,0.125,0.5,", 32), ",")+`]
  init v float32[16,2] = [`+strings.TrimSuffix(strings.Repeat("0.5,-0.25,0.75,1,", 8), ",")+`]
  init minus int64[1] = [-1]
  init wide int64[1] = [16]
  init last int64[1] = [2]
  init zero int64[] = 0
  init one int64[] = 1
  init ones int64[1] = [1]
  init five int64[] = 5
  init six int64[] = 6
  `+strings.ReplaceAll(c.body, "[batch", "["+batch)+`
  out loss float32[]
}
`)
				m.SetMetadata(VersionKey, "test")
				o := Options{Provider: ort.CPU, Threads: 2, AsIs: true, Dims: dims, Divisions: Divisions{Batch: Parts(4)}}
				r := inParts(t, e, m, o, "none")
				if c.why != "" {
					if text := fmt.Sprint(r.Reports); r.Variant.Divided.Batch != 0 || !strings.Contains(text, c.why) {
						t.Errorf("in %d micro-batches: %s", r.Variant.Divided.Batch, text)
					}
					return
				}
				if r.Variant.Divided.Batch != 4 {
					t.Fatalf("in %d micro-batches: %v", r.Variant.Divided.Batch, r.Reports)
				}
				alikeOutputs(t, runPlanned(t, e, m, Options{Dims: dims}, "none"), runPlanned(t, e, m, o, "none"), 1e-5)
			})
		}
	}
}

// TestPartsInFloat16: the gradients of each slice are scaled in float16, not their sum, in which
// small ones are missing: here the loss is so small that without a scale all of a slice's are
// zeros. A file that is in parts already is not scaled, and says so, where that would be late.
func TestPartsInFloat16(t *testing.T) {
	e := engine(t)
	m := tinyLoss(t)
	half := Options{OptLevel: 1, Precision: &precision.Options{To: onnx.Float16, Provider: "cpu"}}
	want := runPlanned(t, e, m, Options{OptLevel: 1}, "none")
	for _, d := range []Divisions{{}, {Chunk: Parts(4)}, {Batch: Parts(4)}, {Batch: Parts(2), Chunk: Parts(2)}} {
		o := half
		o.Divisions = d
		got := runPlanned(t, e, m, o, "none")
		for name := range want.outputs {
			if d := farthest(want.outputs[name], got.outputs[name]); !(d <= 0.01) {
				t.Errorf("%+v: output %s differs by %g of its largest magnitude", o.Divisions, name, d)
			}
		}
	}
	parts := inParts(t, e, m, Options{OptLevel: 1, Provider: ort.CPU, Threads: 2, Divisions: Divisions{Batch: Parts(4)}}, "none")
	half.Provider, half.Threads = ort.CPU, 2
	if why := inParts(t, e, parts.Model, half, "none").unscaled(); !strings.Contains(why, "in parts already") {
		t.Errorf("in parts as given: the loss is not scaled since %q", why)
	}
}

// TestFloat16AfterTheOptimizer: ONNX Runtime's optimizer does not take from nodes what passes
// noted. What scales each slice stays in float32, where the first scale is a number, and a step
// that overflows leaves parameters as they are.
func TestFloat16AfterTheOptimizer(t *testing.T) {
	e := engine(t)
	half := Options{OptLevel: 1, Normalize: ORT99, Precision: &precision.Options{To: onnx.Float16, Provider: "cpu", Emulate: true}}
	m := squares(t, "1", optim.None)
	want := runPlanned(t, e, m, Options{OptLevel: 1}, "none")
	for _, d := range []Divisions{{}, {Batch: Parts(4)}} {
		o := half
		o.Divisions = d
		got := runPlanned(t, e, m, o, "none")
		for name := range want.outputs {
			if far := farthest(want.outputs[name], got.outputs[name]); !(far <= 0.05) {
				t.Errorf("%+v: output %s differs by %g of its largest magnitude", d, name, far)
			}
		}
	}
	m = squares(t, "100000", optim.AdamW)
	for _, o := range []Options{half, {OptLevel: 1, Precision: half.Precision}} {
		got := runPlanned(t, e, m, o, "none").outputs["w.new"]
		for i := 0; i+4 <= len(got); i += 4 {
			if x := float64(float32At(got[i:])); math.IsNaN(x) || math.IsInf(x, 0) {
				t.Fatalf("normalized %q: an overflow was not skipped: w.new is %v", o.Normalize, x)
			}
		}
	}
}

// TestForeignUpdatesAreNotScaled: an update that package optim did not write would not be skipped
// where a scale overflows.
func TestForeignUpdatesAreNotScaled(t *testing.T) {
	e := engine(t)
	half := Options{OptLevel: 1, Provider: ort.CPU, Threads: 2, Precision: &precision.Options{To: onnx.Float16, Provider: "cpu", Emulate: true}}
	m := squares(t, "1", optim.SGD)
	if why := inParts(t, e, m, half, "none").unscaled(); why != "" {
		t.Errorf("the loss is not scaled since %q", why)
	}
	for _, n := range m.Graph.Nodes {
		n.SetOrigin(onnx.Origin{})
	}
	if why := inParts(t, e, m, half, "none").unscaled(); !strings.Contains(why, `the update of "w" is not remat's`) {
		t.Errorf("a foreign update: the loss is not scaled since %q", why)
	}
}

// squares is a step of two products, whose loss is the mean of what they make, times a factor, and
// that times itself.
func squares(t *testing.T, factor string, kind optim.Kind) *onnx.Model {
	t.Helper()
	m := trainingOf(t, `model ir=10 opset=20
graph g {
  in x float32[8,16]
  init w float32[16,32] = [`+strings.TrimSuffix(strings.Repeat("0.25,-0.5,0.125,0.5,", 16*32/4), ",")+`]
  init v float32[32,8] = [`+strings.TrimSuffix(strings.Repeat("-0.25,0.5,0.25,0.125,", 32*8/4), ",")+`]
  init f float32[] = `+factor+`
  h = MatMul(x, w)
  a = Tanh(h)
  z = MatMul(a, v)
  u = Mul(z, f)
  y = Mul(u, u)
  loss = ReduceMean(y) {keepdims=0}
  out loss float32[]
}
`)
	if kind == optim.None {
		return m
	}
	var params []optim.Param
	for _, name := range []string{"w", "v"} {
		params = append(params, optim.Param{Value: m.Graph.Value(name), Grad: m.Graph.Value(name + ".grad")})
	}
	o := optim.Defaults(kind)
	o.KeepGrads = true
	if _, err := optim.Apply(m, params, o); err != nil {
		t.Fatal(err)
	}
	return m
}

// inParts is the file of the plan that a strategy makes.
func inParts(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, strategy string) *File {
	t.Helper()
	return plannedAs(t, e, m, o, func(p *Planner) (*File, error) { return p.Plan(strategy, 0) })
}

// trainingOf is the training graph of a forward graph in text.
func trainingOf(t *testing.T, text string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := grad.Differentiate(m, grad.Options{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// tinyLoss is a step of tokens x, whose loss is the mean over tokens that weigh little.
func tinyLoss(t *testing.T) *onnx.Model {
	t.Helper()
	m := trainingOf(t, `model ir=10 opset=20
graph g {
  in x float32[8,4,16]
  in l int64[8,4,1]
  in s float32[8,4,1]
  init w float32[16,32] = [`+strings.TrimSuffix(strings.Repeat("0.25,-0.5,0.125,0.5,", 16*32/4), ",")+`]
  init v float32[32,64] = [`+strings.TrimSuffix(strings.Repeat("-0.25,0.5,0.25,0.125,", 32*64/4), ",")+`]
  init tiny float32[] = 0.01
  init large float32[] = 50
  y = Mul(x, large)
  h = MatMul(y, w)
  a = Tanh(h)
  z = MatMul(a, v)
  p = LogSoftmax(z) {axis=-1}
  q = GatherElements(p, l) {axis=2}
  weight = Mul(s, tiny)
  d = Mul(q, weight)
  c = Mul(d, weight)
  loss = ReduceMean(c) {keepdims=0}
  out loss float32[]
}
`)
	m.SetMetadata(VersionKey, "test")
	return m
}

// TestLayersOfMicroBatches: each micro-batch has the layers of the whole graph, so a plan by
// layers keeps a boundary of each.
func TestLayersOfMicroBatches(t *testing.T) {
	for _, level := range []Normalization{Off, ORT99} {
		for _, kind := range []string{"encoder", "gpt2", "mlp"} {
			m := trainingGraph(t, kind, func(c *models.Config) { c.Layers, c.Batch = 6, 4 })
			prepare := func(d Divisions) *Variant {
				v, err := Prepare(engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Normalize: level, Divisions: d})
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			whole, v := prepare(Divisions{}).Problem(), prepare(Divisions{Batch: Parts(4)})
			p := v.Problem()
			if v.Divided.Batch != 4 || !slices.Equal(p.LayerNames, whole.LayerNames) || p.LayerCount() < 6 {
				t.Errorf("%s: layers %v of %d micro-batches, %v of the whole", kind, p.LayerNames, v.Divided.Batch, whole.LayerNames)
			}
			for _, cut := range p.Layers[1:] {
				if len(cut) != 4 {
					t.Errorf("%s: a layer ends in %d values", kind, len(cut))
				}
			}
			sizes := func(p *planner.Problem) map[int]int {
				of := map[int]int{}
				for op, l := range p.LayerOf() {
					if l >= 0 && p.Ops[op].FLOPs > 0 {
						of[l]++
					}
				}
				return of
			}
			of := sizes(p)
			for l, n := range sizes(whole) {
				if l > 0 && of[l] != 4*n { // feeds are sliced in the first
					t.Errorf("%s: layer %d has %d operators in 4 micro-batches, %d in the whole", kind, l, of[l], n)
				}
			}
			plan, err := planner.Solve(p, "full")
			if err != nil {
				t.Fatal(err)
			}
			if n := len(plan.Boundaries); n%4 != 0 || n < 4*(p.LayerCount()-1) {
				t.Errorf("%s: full keeps %d boundaries of %d layers", kind, n, p.LayerCount())
			}
			if level == Off {
				continue
			}
			r := plannedAs(t, engine(t), m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Divisions: Divisions{Batch: Parts(4)}}, func(p *Planner) (*File, error) { return p.Plan("full", 0) })
			written, err := onnx.Decode(encode(t, r.Model), "")
			if err == nil {
				err = Type(written, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			a, err := analysis.Analyze(written, analysis.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if q := a.Problem; !slices.Equal(q.LayerNames, whole.LayerNames) || len(q.Layers[1]) != 4 {
				t.Errorf("%s: layers %v in the written file", kind, q.LayerNames)
			}
			forward, predicted := 0, 0
			for i := range a.Problem.Ops {
				if a.Problem.Ops[i].Forward {
					forward++
				}
			}
			for k := range r.Prediction.Nodes {
				if r.Prediction.Forward(k) {
					predicted++
				}
			}
			if predicted != forward || 2*forward > len(a.Problem.Ops) {
				t.Errorf("%s: %d of %d nodes are forward, %d by the prediction", kind, forward, len(a.Problem.Ops), predicted)
			}
		}
	}
}

// withinWork is what optimal writes within a quarter more work, of a batch that is divided as asked;
// it holds what is predicted.
func withinWork(t *testing.T, e *runtime.Engine, m *onnx.Model, batch Division) *File {
	t.Helper()
	o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 2, Divisions: Divisions{Batch: batch}}
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.PlanWithin("optimal", Budget{Work: new(0.25)})
	if err != nil {
		t.Fatal(err)
	}
	if got := executeAt(t, e, r.Model, o, 2, nil, r.Roles()); got.peaks[0] != r.Peak {
		t.Errorf("live peak %d, predicted %d", got.peaks[0], r.Peak)
	}
	return r
}

// TestMicroBatchesAreChosen: optimal takes micro-batches by itself where they hold least within a
// bound on the work, and their file is as predicted.
func TestMicroBatchesAreChosen(t *testing.T) {
	e := engine(t)
	m := trainingGraph(t, "gpt2", func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 3, 192, 4, 4000, 256, 8
	})
	r := withinWork(t, e, m, Division{})
	if r.Variant.Divided.Batch < 2 {
		t.Errorf("divided: %+v", r.Variant.Divided)
	}
	follow(t, e, m, r, "optimal")
}

// TestMicroBatchesDrawAsAsked: a step in micro-batches draws other random numbers than the whole
// one, so it is divided where that is asked for, and not by default.
func TestMicroBatchesDrawAsAsked(t *testing.T) {
	e := engine(t)
	m := trainingGraph(t, "gpt2", func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch, c.Dropout = 3, 192, 4, 4000, 256, 8, 0.1
	})
	for _, batch := range []Division{{}, Parts(4)} {
		r := withinWork(t, e, m, batch)
		if got := r.Variant.Divided.Batch; got != batch.N {
			t.Errorf("asked for %v: %d micro-batches", batch, got)
		}
		if drawn := strings.Contains(r.Rounding(), "other random numbers"); drawn != (batch.N > 0) {
			t.Errorf("asked for %v: it says %q", batch, r.Rounding())
		}
	}
	v, err := Prepare(e, m, Options{Provider: ort.CPU, OptLevel: 1, Divisions: Divisions{Batch: Division{Mode: Coarse}}})
	if err != nil {
		t.Fatal(err)
	}
	if k := slices.IndexFunc(v.Reports, func(r rewrite.Report) bool { return r.Pass == "batch" }); k < 0 || len(v.Reports[k].Skipped) == 0 ||
		!strings.Contains(v.Reports[k].Skipped[0].Why, "--micro-batches N") {
		t.Errorf("left whole without a reason: %v", v.Reports)
	}
}

// TestFineMicroBatches: within a bound on the work, or for the least memory, more than eight micro-batches are
// looked at where their nodes are large and not many; without a bound they are not, as planning takes longer.
func TestFineMicroBatches(t *testing.T) {
	e := engine(t)
	m := trainingGraph(t, "gpt2", func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 1, 192, 4, 2000, 256, 32
	})
	p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	if c := choices[batched]; c.Batch != auto || c.far {
		t.Fatalf("choice %d divides %+v", batched, c.Divisions)
	}
	if n := fineSlices(p.Problem()); n <= slicesOfBatch || n > mostSlices {
		t.Fatalf("%d micro-batches are worth it", n)
	}
	knee, err := p.PlanWithin("optimal", Budget{})
	if err != nil {
		t.Fatal(err)
	}
	if knee.Variant.Divided.Batch > slicesOfBatch {
		t.Errorf("without a bound: %+v", knee.Variant.Divided)
	}
	within, err := p.PlanWithin("optimal", Budget{Work: new(0.4)})
	if err != nil {
		t.Fatal(err)
	}
	if within.Variant.Divided.Batch <= slicesOfBatch {
		t.Errorf("within a bound: %+v", within.Variant.Divided)
	}
	if got := executeAt(t, e, within.Model, p.opts, 2, nil, within.Roles()); got.peaks[0] != within.Peak {
		t.Errorf("live peak %d, predicted %d", got.peaks[0], within.Peak)
	}
	least, err := p.Plan("least", 0)
	if err != nil {
		t.Fatal(err)
	}
	if least.Variant.Divided.Batch <= slicesOfBatch || least.Peak > within.Peak+within.Peak/50 {
		t.Errorf("the least holds %d bytes by %+v, within a bound %d", least.Peak, least.Variant.Divided, within.Peak)
	}
}

// TestMicroBatchesNotOffered: nodes that take no longer than it takes to start them are
// not looked at in slices of the batch, nor are so many that the search would take far longer than
// a step, nor those of another device.
func TestMicroBatchesNotOffered(t *testing.T) {
	s, _, err := planner.Find("optimal")
	if err != nil {
		t.Fatal(err)
	}
	offered := func(change func(*models.Config), o Options) bool {
		t.Helper()
		o.OptLevel, o.Threads = 1, 1
		p, err := NewPlanner(engine(t), trainingGraph(t, "gpt2", change), o)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(choices[:], func(c choice) bool {
			return c.Batch != Division{} && p.offers(s, slices.Index(choices[:], c))
		})
	}
	small := func(c *models.Config) { c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 32, 2, 300, 48, 8 }
	large := func(c *models.Config) { c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 3, 192, 4, 4000, 256, 8 }
	if !offered(large, Options{Provider: ort.CPU}) {
		t.Error("not offered for a step of large nodes")
	}
	if offered(small, Options{Provider: ort.CPU}) {
		t.Error("offered for a step of small nodes")
	}
	deep := func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 30, 256, 4, 4000, 256, 8
	}
	if offered(deep, Options{Provider: ort.CPU}) {
		t.Error("offered for a step that a search takes far longer than")
	}
	deepAndWide := func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 30, 1024, 16, 4000, 1024, 8
	}
	if !offered(deepAndWide, Options{Provider: ort.CPU}) {
		t.Error("not offered for a step that takes as long as a search")
	}
	if offered(large, Options{Provider: ort.CPU, CUDA: true}) || offered(large, Options{Provider: ort.CPU, WebGPU: true}) {
		t.Error("offered for another device")
	}
}

// TestFewSlices: of two numbers of slices that keep a budget the one is taken
// with which less is read again, as that counts as work; smaller budgets take more
// slices, and never less work.
func TestFewSlices(t *testing.T) {
	e := engine(t)
	m := trainingGraph(t, "gpt2", func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 64, 4, 3000, 512, 2
	})
	p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	least, err := p.Plan("least", 0)
	if err != nil {
		t.Fatal(err)
	}
	weights, _ := m.Graph.Value("transformer.wte.weight").Type.Bytes()
	var slices []int
	for _, v := range p.asked.prepared() {
		n := v.Divided.Loss
		if n == 0 {
			continue
		}
		slices = append(slices, n)
		// The weights are read for the logits and for the gradient behind them, and
		// their own gradient is a sum over the slices.
		if want := 3 * weights * int64(n-1) * balance; v.Analysis.Problem.Reread != want {
			t.Errorf("%d slices read again what takes as long as %d operations, want %d", n, v.Analysis.Problem.Reread, want)
		}
	}
	if len(slices) < 2 || slices[0] != 4 || slices[len(slices)-1] != 32 {
		t.Fatalf("forms with %d slices of the loss, want from 4 to 32", slices)
	}
	overhead, chosen := -1.0, 0
	for budget := p.Scheduled; budget >= least.Peak; budget -= (p.Scheduled - least.Peak) / 8 {
		r, err := p.Plan("optimal", budget)
		if err != nil {
			t.Fatal(err)
		}
		if r.Peak > budget || r.overhead() < overhead {
			t.Errorf("budget %d: live peak %d at %.4f more work, after %.4f", budget, r.Peak, r.overhead(), overhead)
		}
		overhead = r.overhead()
		chosen = max(chosen, r.Variant.Divided.Loss)
	}
	if chosen != 4 {
		t.Errorf("no budget is kept with 4 slices")
	}
}

// TestUpdateRows computes the updates of the largest parameters over slices,
// gradients included: the file reaches its predicted peak, which falls below
// what the whole gradient with its update takes, and the next values differ by
// rounding. What is added to the step's work counts as overhead.
func TestUpdateRows(t *testing.T) {
	e := engine(t)
	large := func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 64, 2, 4000, 32, 1
	}
	for _, c := range []struct {
		model    string
		kind     optim.Kind
		change   func(*models.Config)
		strategy string
		share    float64 // of the largest parameter's bytes the peak may be
	}{
		{"gpt2", optim.AdamW, large, "full", 1.7},
		{"gpt2", optim.SGD, large, "full", 1.7},
		{"gpt2", optim.Adafactor, large, "full", 1.7},
		{"gpt2", optim.ApolloMini, large, "full", 1.7},
		{"mlp", optim.SGD, func(c *models.Config) { c.Layers, c.Hidden, c.Batch = 4, 256, 16 }, "none", 1.9},
		{"mlp", optim.AdamW, func(c *models.Config) { c.Layers, c.Hidden, c.Batch = 4, 256, 16 }, "none", 2.5},
	} {
		m := zooStep(t, c.model, c.kind, c.change)
		largest := int64(0)
		for _, v := range m.Graph.Outputs {
			if b, ok := v.Type.Bytes(); ok {
				largest = max(largest, b)
			}
		}
		for _, level := range []int{0, 1, 99} {
			t.Run(fmt.Sprintf("%s %v at %d", c.model, c.kind, level), func(t *testing.T) {
				plain := runPlanned(t, e, m, Options{OptLevel: level}, "none")
				o := Options{OptLevel: level, Divisions: Divisions{Rows: auto}}
				if c.model == "gpt2" {
					o.Chunk = auto
				}
				got := runPlanned(t, e, m, o, c.strategy)
				if got.peaks[0] >= plain.peaks[0] || float64(got.peaks[0]) > c.share*float64(largest) {
					t.Errorf("live peak %d, plain %d, largest parameter %d", got.peaks[0], plain.peaks[0], largest)
				}
				within := 1e-5
				if c.kind == optim.Adafactor { // whole, it sums the squares of 4000 rows one after the other
					within = 5e-5
				}
				alikeOutputs(t, plain, got, within)
			})
		}
	}
}

// runPlanned plans, checks that each asked-for division was made, runs the
// file twice, and checks its peaks against the prediction.
func runPlanned(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, strategy string) result {
	t.Helper()
	o.Provider, o.Threads = ort.CPU, 2
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Plan(strategy, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, rep := range r.Reports {
		if slices.Contains([]string{"batch", "tile", "chunk", "rows"}, rep.Pass) && rep.Applied != rep.Requested {
			t.Errorf("%s", rep)
		}
	}
	got := executeAt(t, e, r.Model, o, 2, nil, r.Roles())
	for i, peak := range got.peaks {
		if peak != r.Peak {
			t.Errorf("%s run %d: live peak %d, predicted %d", strategy, i+1, peak, r.Peak)
		}
	}
	return got
}

// alikeOutputs reports outputs that differ from those wanted by more than a share of their largest magnitude.
func alikeOutputs(t *testing.T, wanted, got result, within float64) {
	t.Helper()
	for name, want := range wanted.outputs {
		if d := farthest(want, got.outputs[name]); !(d <= within) {
			t.Errorf("output %s differs by %g of its largest magnitude", name, d)
		}
	}
}

// farthest is the largest difference of two float32 tensors as a share of the
// first one's largest magnitude.
func farthest(a, b []byte) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	most, scale := 0.0, 0.0
	for i := 0; i+4 <= len(a); i += 4 {
		x, y := float64(float32At(a[i:])), float64(float32At(b[i:]))
		most, scale = max(most, math.Abs(x-y)), max(scale, math.Abs(x))
	}
	if most == 0 {
		return 0
	}
	return most / scale
}

func float32At(b []byte) float32 {
	return math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
}
