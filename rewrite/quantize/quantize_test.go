package quantize

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// wave is a tensor of that shape, with a block of zeros and one large element.
func wave(dims ...int64) *onnx.Tensor {
	n, _ := onnx.Elements(dims)
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(math.Sin(float64(i)*1.7) * math.Cos(float64(i/7)*0.3))
		if i < 70 {
			values[i] = 0
		}
	}
	if n > 90 {
		values[90] = -40
	}
	return onnx.Float32Tensor(values, dims...)
}

// widened is what a weight is once it was quantized, by the formulas: element by
// element, in float64 but for the scale, which is kept in float32.
func widened(w *onnx.Tensor, axis int, kind Kind) *onnx.Tensor {
	values, _ := w.Float64s()
	dims := w.Dims()
	inner, _ := onnx.Elements(dims[axis+1:])
	block := map[Kind]int64{Int8: 64, Int4: 32}[kind]
	blockOf := func(i int) string {
		at := int64(i) / inner % dims[axis]
		return fmt.Sprint(int64(i)/inner/dims[axis], at/block, int64(i)%inner)
	}
	extreme := map[string]float64{}
	for i, v := range values {
		if b := blockOf(i); math.Abs(v) > math.Abs(extreme[b]) {
			extreme[b] = v
		}
	}
	out := make([]float32, len(values))
	for i, v := range values {
		scale := float64(float32(extreme[blockOf(i)] / map[Kind]float64{Int8: 127, Int4: -8}[kind]))
		if scale != 0 {
			code := math.RoundToEven(v / scale)
			if kind == Int4 {
				code = min(code, 7)
			}
			out[i] = float32(code * scale)
		}
	}
	return onnx.Float32Tensor(out, dims...)
}

// TestBlocks: what ONNX Runtime makes of codes and scales is what the formulas say,
// to the bit, for axes that blocks do not divide, and no weight is off by more than
// half a step (a whole one at the end of the codes that has one code less).
func TestBlocks(t *testing.T) {
	for _, dims := range [][]int64{{64, 8}, {8, 64}, {70, 33}, {33, 1}, {1, 33}, {5, 3, 7}, {2, 129, 3}, {0, 8}, {40, 0}, {1, 1}} {
		for axis := range dims {
			for _, kind := range []Kind{Int8, Int4} {
				what := fmt.Sprint(dims, " axis ", axis, " ", kind)
				w := wave(dims...)
				data, _ := w.Bytes()
				cuts, err := cut(dims, axis, kind.block())
				if err != nil {
					t.Fatal(err)
				}
				codes, scales, finite := cuts.encode(data, kind)
				if !finite {
					t.Fatalf("%s: not finite", what)
				}
				got := dequantized(t, codes, scales, dims, axis, cuts, kind)
				want, _ := widened(w, axis, kind).Float64s()
				if !slices.Equal(got, want) {
					t.Errorf("%s: got %v, want %v", what, got, want)
				}
				given, _ := w.Float64s()
				for i := range given {
					if most := 40 / float64(math.Abs(float64(kind.extreme()))) * 1.0001; math.Abs(given[i]-got[i]) > most {
						t.Errorf("%s: element %d is %v, was %v", what, i, got[i], given[i])
					}
				}
			}
		}
	}
}

// dequantized has ONNX Runtime widen codes.
func dequantized(t *testing.T, codes, scales []byte, dims []int64, axis int, cuts blocking, kind Kind) []float64 {
	t.Helper()
	m := onnx.NewModel("widen", opset)
	scaleDims := slices.Clone(dims)
	scaleDims[axis] = cuts.blocks()
	s := m.Graph.AddInput("s", onnx.TensorOf(onnx.Float32, onnx.StaticShape(scaleDims...)))
	q := m.Graph.AddConstant("q", onnx.NewTensor(kind.dtype(), dims, codes))
	n := m.Graph.NewNode("", "DequantizeLinear", "n", []*onnx.Value{q, s}, []string{"y"},
		onnx.IntAttr("axis", int64(axis)), onnx.IntAttr("block_size", kind.block()))
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Outputs[0])
	return ortest.Run(t, m, 1, map[string]*onnx.Tensor{"s": onnx.NewTensor(onnx.Float32, scaleDims, scales)})["y"]
}

// net is a model whose frozen weights are read in every way that codes can be; p alone
// is trained.
const net = `model ir=8 opset=17
graph g {
  in i int64[2,3]
  init e float32[40,32]
  init a float32[32,48]
  init b float32[48,33]
  init c float32[40,33]
  init p float32[40]
  x = Gather(e, i)
  h = MatMul(x, a)
  t = Tanh(h)
  u = MatMul(t, b)
  two = Constant() {value=tensor(int64[2] = [-1, 33])}
  r = Reshape(u, two)
  y = Gemm(r, c, p) {transB=1}
  s = Gemm(y, e) {transA=0}
  q = Mul(s, s)
  loss = ReduceSum(q) {keepdims=0}
  out loss float32[]
}
`

var blockAxes = map[string]int{"e": 1, "a": 0, "b": 0, "c": 1}

// model is net with values; the named weights are rounded as kind would.
func model(t *testing.T, kind Kind) *onnx.Model {
	t.Helper()
	text := net
	for name, dims := range map[string]string{"e": "40,32", "a": "32,48", "b": "48,33", "c": "40,33", "p": "40"} {
		var values []string
		w := wave(dimsOf(dims)...)
		if axis, ok := blockAxes[name]; ok && kind != None {
			if name == "e" {
				w = widened(w, axis, Int8)
			} else if kind == Int4 { // in blocks as the weights lie
				data, _ := w.Bytes()
				data, _ = widened(onnx.NewTensor(onnx.Float32, []int64{int64(len(data) / 4)}, data), 0, kind).Bytes()
				w = onnx.NewTensor(onnx.Float32, w.Dims(), data)
			} else {
				w = widened(w, axis, kind)
			}
		}
		list, _ := w.Float64s()
		for _, v := range list {
			values = append(values, fmt.Sprintf("%.9g", v))
		}
		text = strings.Replace(text, "init "+name+" float32["+dims+"]", "init "+name+" float32["+dims+"] = ["+strings.Join(values, ", ")+"]", 1)
	}
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func dimsOf(text string) (dims []int64) {
	for _, d := range strings.Split(text, ",") {
		var n int64
		fmt.Sscan(d, &n)
		dims = append(dims, n)
	}
	return dims
}

// derived is the training graph of a model, quantized.
func derived(t *testing.T, m *onnx.Model, kind Kind) []*Weight {
	t.Helper()
	res, err := grad.Differentiate(m, grad.Options{Params: []string{"p"}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := Frozen(m, kind, res.Types)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.NameNodes()
	m.Graph.AnnotateTypes()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestGradients: loss and gradient have the bits of the model whose weights are the
// rounded ones, at every level of ONNX Runtime.
func TestGradients(t *testing.T) {
	indices := onnx.Int64Tensor([]int64{3, 39, 0, 3, 7, -1}, 2, 3)
	for _, kind := range []Kind{Int8, Int4} {
		for _, level := range []int{0, 1, 99} {
			narrow, wide := model(t, None), model(t, kind)
			list := derived(t, narrow, kind)
			derived(t, wide, None)
			if narrow.Opset("") != 21 || narrow.Proto.GetIrVersion() < 10 {
				t.Errorf("%s: opset %d, IR %d", kind, narrow.Opset(""), narrow.Proto.GetIrVersion())
			}
			for _, w := range list {
				if w.Codes == nil || w.Bytes() >= w.Was/3 {
					t.Errorf("%s: %s stays, or takes %d of %d bytes: %s", kind, w.Name, w.Bytes(), w.Was, w.Why)
				}
			}
			inputs := map[string]*onnx.Tensor{"i": indices, "p": wave(40)}
			got, want := ortest.Run(t, narrow, level, inputs), ortest.Run(t, wide, level, inputs)
			for name, values := range want {
				if !slices.Equal(got[name], values) {
					t.Errorf("%s, level %d: %s is %v, want %v", kind, level, name, got[name], values)
				}
			}
			if len(want) != 2 || len(list) != len(blockAxes) {
				t.Errorf("%d outputs, %d weights", len(want), len(list))
			}
		}
	}
}

// TestOneReader: each product reads a wide copy of its own, so that none lives from the
// forward pass to the backward pass.
func TestOneReader(t *testing.T) {
	m := model(t, None)
	derived(t, m, Int4)
	count := 0
	for _, n := range m.Graph.Nodes {
		if !n.Is("MatMul", "Gemm") {
			continue
		}
		d := n.Inputs[1].Producer
		if d != nil && d.Is("Reshape") {
			d = d.Inputs[0].Producer
		}
		if d != nil && d.Is("DequantizeLinear") {
			count++
			if uses := d.Outputs[0].Uses(); len(uses) != 1 {
				t.Errorf("%s has %d readers", d.Label(), len(uses))
			}
		}
	}
	if count != 5 { // four products of the forward pass, and one of the backward pass down to p
		t.Errorf("%d wide copies", count)
	}
}

// TestStays: weights that cannot be held in codes stay, with the reason.
func TestStays(t *testing.T) {
	nan := wave(64, 64)
	data, _ := nan.Bytes()
	binary.LittleEndian.PutUint32(data[400:], math.Float32bits(float32(math.NaN())))
	inf := wave(64, 64)
	data, _ = inf.Bytes()
	binary.LittleEndian.PutUint32(data[8:], math.Float32bits(float32(math.Inf(-1))))
	for _, c := range []struct {
		body string
		w    *onnx.Tensor
		why  string
	}{
		{"y = MatMul(x, w)", nan, "not finite"},
		{"y = MatMul(x, w)", inf, "not finite"},
		{"y = MatMul(x, w)", onnx.NewTensor(onnx.Float16, []int64{64, 64}, make([]byte, 64*64*2)), "in half"},
		{"y = Add(x, w)", wave(64, 64), "Add reads it"},
		{"k = MatMul(x, w)\nv = Neg(w)\ny = MatMul(k, v)", wave(64, 64), "Neg reads it"},
		{"y = Gather(w, i) {axis=1}", wave(64, 64), "last axis"},
		{"k = Gather(w, j)\ny = MatMul(k, x)", wave(64, 64), "with a constant"},
		{"y = Gemm(x, x, w)", wave(64, 64), "Gemm reads it"},
		{"y = MatMul(w, w)", wave(64, 64), "with a constant"},
		{"y = If(f) {then_branch=graph a {\np = MatMul(x, w)\nout p float32\n}, else_branch=graph b {\np = Neg(x)\nout p float32\n}}", wave(64, 64), "a subgraph of"},
	} {
		zeros := strings.TrimSuffix(strings.Repeat("0, ", 64*64), ", ")
		m, types := ortest.Parse(t, "model ir=8 opset=17\ngraph g {\nin x float32[64,64]\nin i int64[2]\nin f bool[]\n"+
			"init j int64[1] = [3]\ninit w float32[64,64] = ["+zeros+"]\n"+c.body+"\nout y float32\n}\n")
		w := m.Graph.Value("w")
		name := "w"
		w.Init = c.w
		w.Init.Proto.Name = &name
		nodes := len(m.Graph.Nodes)
		list, err := Frozen(m, Int4, types)
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		if len(list) != 1 || !strings.Contains(list[0].Why, c.why) || list[0].Bytes() != list[0].Was {
			t.Errorf("%s: %+v, want %q", c.body, list, c.why)
		}
		if m.Opset("") != 17 || len(m.Graph.Nodes) != nodes || m.Graph.Value("w") != w {
			t.Errorf("%s: changed to %d nodes of opset %d", c.body, len(m.Graph.Nodes), m.Opset(""))
		}
	}
}

// TestNoCandidates: what is no float32 matrix worth its scales is not looked at: it may
// be of any type, empty, a scalar or a vector.
func TestNoCandidates(t *testing.T) {
	m, types := ortest.Parse(t, `model ir=8 opset=17
graph g {
  in x float16[4,4]
  init h float16[4,4] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7]
  init s float32[2,2] = [1, 2, 3, 4]
  init e float32[0,4] = []
  init z float32[] = 2
  k = MatMul(x, h)
  c = Cast(k) {to=1}
  y = Mul(c, z)
  v = MatMul(s, s)
  n = MatMul(e, c)
  out y float32[4,4]
  out v float32[2,2]
  out n float32[0,4]
}
`)
	if list, err := Frozen(m, Int8, types); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestConstantsOfRules: a constant that only the backward pass reads is none of the model's weights:
// it keeps its numbers, and nothing is said of it.
func TestConstantsOfRules(t *testing.T) {
	zeros := strings.TrimSuffix(strings.Repeat("0, ", 64*64), ", ")
	m, types := ortest.Parse(t, "model ir=8 opset=17\ngraph g {\nin x float32[64,64]\ninit c float32[64,64] = ["+zeros+"]\ninit z float32[64,64] = ["+zeros+"]\n"+
		"g = MatMul(x, c) meta {remat.pass=\"grad\"}\ny = Add(g, z) meta {remat.pass=\"grad\"}\nout y float32[64,64]\n}\n")
	if list, err := Frozen(m, Int8, types); err != nil || len(list) != 0 || len(m.Graph.Nodes) != 2 {
		t.Errorf("%v, %v, %d nodes", list, err, len(m.Graph.Nodes))
	}
}
