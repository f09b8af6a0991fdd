package predict

// The probe that the memory columns of package traits are made with. For each
// operator a one-node model is run in several variants:
//
//	feed ─▶ Concat ─▶ a ─▶ the node ─▶ outputs ─▶ Shape ─▶ returned
//	                  └──▶ (second variant) a later reader of a
//
// and the measured trace is compared with that of every hypothesis: the input
// is left alone, is taken over in place, or is always shared. Exactly one must
// fit both variants.

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/ort"
)

var update = flag.Bool("update", false, "print the memory columns as found by the probe")

// An arg is an input of a probed node: a feed, or a constant.
type arg struct {
	dtype onnx.DType
	shape []int64
	value *onnx.Tensor
}

func feed(shape ...int64) arg                  { return arg{dtype: onnx.Float32, shape: shape} }
func typed(d onnx.DType, shape ...int64) arg   { return arg{dtype: d, shape: shape} }
func ints(v ...int64) arg                      { return arg{value: onnx.Int64Tensor(v, int64(len(v)))} }
func scalarInt(v int64) arg                    { return arg{value: onnx.Int64Tensor([]int64{v})} }
func number(v float64) arg                     { return arg{value: onnx.FloatTensor(onnx.Float32, []float64{v})} }
func truth() arg                               { return arg{value: onnx.NewTensor(onnx.Bool, nil, []byte{1})} }
func attr(n string, v int64) onnx.Attribute    { return onnx.IntAttr(n, v) }
func axes(n string, v ...int64) onnx.Attribute { return onnx.IntsAttr(n, v...) }

func floats(n string, v ...float32) onnx.Attribute {
	return &onnxpb.AttributeProto{Name: &n, Floats: v, Type: onnxpb.AttributeProto_FLOATS.Enum()}
}

// A probe is one operator's one-node model; ops share it. They are of the standard
// domain, but for those of ONNX Runtime's own, which contribProbes lists.
type probe struct {
	ops     string
	args    []arg
	outputs int
	attrs   []onnx.Attribute
}

// A bench is where probes are run: for which operators, on which provider.
type bench struct {
	domain string
	opset  int64
	on     ort.Provider
}

var cpuBench = bench{"", 24, ort.CPU}

func with(a ...onnx.Attribute) []onnx.Attribute { return a }

var matrix = feed(4, 6)

// none is an input that is left out.
var none arg

func mode(m string) onnx.Attribute { return onnx.StringAttr("mode", m) }

// lengths of two sequences of five steps at most.
var lengths = arg{value: onnx.NewTensor(onnx.Int32, []int64{2}, []byte{5, 0, 0, 0, 3, 0, 0, 0})}

var probes = []probe{
	{"Abs Neg Relu LeakyRelu ThresholdedRelu Clip Sign Floor Ceil Round Shrink Exp Log Sqrt Softplus Tanh Sigmoid Erf Gelu HardSigmoid Elu Selu Celu Softsign Sin Cos Tan Sinh Cosh Asin Acos Atan Asinh Acosh Atanh Reciprocal IsNaN IsInf Identity Flatten Transpose Shape Size Trilu Softmax LogSoftmax Hardmax LpNormalization", []arg{matrix}, 1, nil},
	{"Softmax LogSoftmax Hardmax", []arg{matrix}, 1, with(attr("axis", 0))},
	{"Relu Clip Shrink Tanh Sigmoid Trilu Softmax LogSoftmax", []arg{typed(onnx.Float64, 4, 6)}, 1, nil},
	{"Softmax LogSoftmax", []arg{typed(onnx.Float64, 4, 6)}, 1, with(attr("axis", 0))},
	{"ScatterElements", []arg{typed(onnx.Float64, 4, 6), typed(onnx.Int64, 2, 6), typed(onnx.Float64, 2, 6)}, 1, nil},
	{"Add Sub Mul Div Pow PRelu Equal Greater GreaterOrEqual Less LessOrEqual Max Min Sum Mean", []arg{matrix, matrix}, 1, nil},
	{"Add Mul Div", []arg{matrix, feed(1)}, 1, nil},
	{"Max Min Sum Mean", []arg{matrix, matrix, matrix, matrix}, 1, nil},
	{"Mod", []arg{matrix, matrix}, 1, with(attr("fmod", 1))},
	{"And Or Xor", []arg{typed(onnx.Bool, 4, 6), typed(onnx.Bool, 4, 6)}, 1, nil},
	{"Not", []arg{typed(onnx.Bool, 4, 6)}, 1, nil},
	{"BitwiseAnd BitwiseOr BitwiseXor", []arg{typed(onnx.Int32, 4, 6), typed(onnx.Int32, 4, 6)}, 1, nil},
	{"BitwiseNot", []arg{typed(onnx.Int32, 4, 6)}, 1, nil},
	{"Cast", []arg{matrix}, 1, with(attr("to", 6))},
	{"Cast", []arg{typed(onnx.Int64, 4, 6)}, 1, with(attr("to", 11))},
	{"Dropout", []arg{matrix, number(0.5), truth()}, 2, nil},
	{"Reshape", []arg{matrix, ints(6, 4)}, 1, nil},
	{"Squeeze", []arg{feed(1, 6), ints(0)}, 1, nil},
	{"Unsqueeze", []arg{matrix, ints(0)}, 1, nil},
	{"Expand", []arg{matrix, ints(2, 4, 6)}, 1, nil},
	{"Expand", []arg{matrix, ints(4, 6)}, 1, nil},
	{"Tile", []arg{matrix, ints(1, 2)}, 1, nil},
	{"Concat", []arg{matrix, matrix}, 1, with(attr("axis", 0))},
	{"Split", []arg{matrix}, 2, with(attr("num_outputs", 2))},
	{"Slice", []arg{matrix, ints(0), ints(3)}, 1, nil},
	{"Slice", []arg{matrix, ints(0), ints(4)}, 1, nil},
	{"Gather", []arg{matrix, ints(0, 1)}, 1, nil},
	{"GatherElements", []arg{matrix, typed(onnx.Int64, 4, 6)}, 1, nil},
	{"GatherND", []arg{matrix, typed(onnx.Int64, 4, 1)}, 1, nil},
	{"Pad", []arg{matrix, ints(0, 1, 0, 1)}, 1, nil},
	{"Where", []arg{typed(onnx.Bool, 4, 6), matrix, matrix}, 1, nil},
	{"Where", []arg{typed(onnx.Bool, 4, 1), matrix, feed(6)}, 1, nil},
	{"DepthToSpace", []arg{feed(1, 8, 3, 3)}, 1, with(attr("blocksize", 2))},
	{"SpaceToDepth", []arg{feed(1, 2, 4, 4)}, 1, with(attr("blocksize", 2))},
	{"ReverseSequence", []arg{matrix, {value: onnx.Int64Tensor([]int64{1, 2, 3, 4, 1, 2}, 6)}}, 1, nil},
	{"ScatterElements", []arg{matrix, typed(onnx.Int64, 2, 6), feed(2, 6)}, 1, with(onnx.StringAttr("reduction", "add"))},
	{"ScatterND", []arg{matrix, typed(onnx.Int64, 2, 1), feed(2, 6)}, 1, nil},
	{"ConstantOfShape", []arg{ints(4, 6)}, 1, nil},
	{"Range", []arg{scalarInt(0), scalarInt(5), scalarInt(1)}, 1, nil},
	{"EyeLike", []arg{matrix}, 1, nil},
	{"OneHot", []arg{typed(onnx.Int64, 4), scalarInt(5), {value: onnx.FloatTensor(onnx.Float32, []float64{0, 1}, 2)}}, 1, nil},
	{"ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceSumSquare ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp", []arg{matrix, ints(0)}, 1, nil},
	{"ReduceSum ReduceMean ReduceMax", []arg{feed(2, 3, 4), ints(0, 2)}, 1, nil},
	{"CumSum", []arg{matrix, scalarInt(0)}, 1, nil},
	{"ArgMax ArgMin", []arg{matrix}, 1, nil},
	{"TopK", []arg{matrix, ints(2)}, 2, nil},
	{"MatMul", []arg{matrix, feed(6, 5)}, 1, nil},
	{"MatMul", []arg{feed(2, 3, 4, 6), feed(2, 3, 6, 5)}, 1, nil},
	{"Gemm", []arg{matrix, feed(6, 5), feed(4, 5)}, 1, nil},
	{"Gemm", []arg{feed(6, 4), feed(5, 6), feed(5)}, 1, with(attr("transA", 1), attr("transB", 1))},
	{"Einsum", []arg{feed(2, 3, 4, 8), feed(2, 3, 5, 8)}, 1, with(onnx.StringAttr("equation", "bhqd,bhkd->bhqk"))},
	{"Einsum", []arg{feed(2, 3, 4), feed(4, 5), feed(5, 3)}, 1, with(onnx.StringAttr("equation", "abc,cd,db->ad"))},
	{"Einsum", []arg{feed(3, 4), feed(2, 4, 5, 6)}, 1, with(onnx.StringAttr("equation", "oi, ...ihw -> ...ohw"))},
	{"DFT", []arg{feed(2, 16, 1)}, 1, nil},
	{"DFT", []arg{feed(3, 13, 2), scalarInt(13), scalarInt(1)}, 1, with(attr("inverse", 1))},
	{"DFT", []arg{feed(2, 12, 2, 1), scalarInt(12), scalarInt(1)}, 1, with(attr("onesided", 1))},
	{"DFT", []arg{feed(2, 4, 2)}, 1, with(attr("inverse", 1), attr("onesided", 1))},
	{"DFT", []arg{feed(3, 3, 2), scalarInt(5)}, 1, with(attr("inverse", 1), attr("onesided", 1))},
	{"DFT", []arg{feed(3, 5, 2), scalarInt(8)}, 1, with(attr("inverse", 1), attr("onesided", 1))},
	{"STFT", []arg{feed(2, 40, 1), scalarInt(4), feed(16), scalarInt(16)}, 1, nil},
	{"STFT", []arg{feed(2, 40, 1), scalarInt(5), feed(12), scalarInt(12)}, 1, with(attr("onesided", 1))},
	{"STFT", []arg{feed(2, 40, 1), scalarInt(4), none, scalarInt(8)}, 1, with(attr("onesided", 0))},
	{"Col2Im", []arg{feed(2, 12, 9), ints(4, 4), ints(2, 2)}, 1, nil},
	{"AffineGrid", []arg{feed(2, 2, 3), ints(2, 3, 4, 5)}, 1, nil},
	{"AffineGrid", []arg{feed(2, 3, 4), ints(2, 3, 2, 4, 5)}, 1, with(attr("align_corners", 1))},
	{"LayerNormalization", []arg{matrix, feed(6), feed(6)}, 3, nil},
	{"RMSNormalization", []arg{matrix, feed(6)}, 1, nil},
	{"BatchNormalization", []arg{feed(2, 3, 4, 5), feed(3), feed(3), feed(3), feed(3)}, 1, nil},
	{"BatchNormalization", []arg{feed(2, 3, 4, 5), feed(3), feed(3), feed(3), feed(3)}, 3, with(attr("training_mode", 1))},
	{"InstanceNormalization", []arg{feed(2, 3, 4, 5), feed(3), feed(3)}, 1, nil},
	{"MeanVarianceNormalization", []arg{feed(2, 3, 4, 5)}, 1, nil},
	{"LRN", []arg{feed(2, 3, 4, 5)}, 1, with(attr("size", 3))},
	{"Conv", []arg{feed(2, 4, 9, 9), feed(6, 4, 3, 3)}, 1, with(axes("pads", 1, 1, 1, 1))},
	{"Conv", []arg{feed(1, 4, 5, 5), feed(40, 4, 3, 3)}, 1, nil},
	{"Conv", []arg{feed(1, 4, 5, 5), feed(40, 4, 1, 1)}, 1, nil},
	{"Conv", []arg{feed(1, 4, 15), feed(8, 4, 3), feed(8)}, 1, nil},
	{"ConvTranspose", []arg{feed(2, 4, 5, 5), feed(4, 3, 3, 3)}, 1, nil},
	{"MaxPool", []arg{feed(2, 3, 8, 8)}, 2, with(axes("kernel_shape", 2, 2))},
	{"AveragePool LpPool", []arg{feed(2, 3, 8, 8)}, 1, with(axes("kernel_shape", 2, 2))},
	{"GlobalMaxPool GlobalAveragePool", []arg{feed(2, 3, 8, 8)}, 1, nil},
	{"Resize", []arg{feed(2, 3, 8, 9), none, none, ints(2, 3, 4, 5)}, 1, nil},
	{"Resize", []arg{feed(2, 3, 8, 9), none, none, ints(2, 3, 4, 5)}, 1, with(mode("linear"))},
	{"Resize", []arg{feed(2, 8, 9, 3), none, none, ints(2, 4, 5, 3)}, 1, with(mode("linear"))},
	{"Resize", []arg{feed(2, 3, 8, 9), none, none, ints(2, 3, 8, 9)}, 1, with(mode("linear"))},
	{"Resize", []arg{feed(2, 3, 4, 8, 9), none, none, ints(2, 3, 2, 4, 5)}, 1, with(mode("linear"))},
	{"Resize", []arg{feed(2, 3, 8), none, none, ints(2, 3, 4)}, 1, with(mode("linear"))},
	{"Resize", []arg{feed(8, 9), none, none, ints(4, 5)}, 1, with(mode("linear"))},
	{"Resize", []arg{feed(2, 3, 8, 9), none, none, ints(2, 3, 4, 5)}, 1, with(mode("cubic"))},
	{"Resize", []arg{feed(2, 3, 8, 9), none, none, ints(2, 3, 4, 5)}, 1, with(mode("linear"), attr("antialias", 1))},
	{"Resize", []arg{feed(2, 3, 8, 9), none, none, ints(2, 3, 11, 5)}, 1, with(mode("cubic"), attr("antialias", 1))},
	{"Resize", []arg{feed(2, 8, 9, 3), none, none, ints(2, 4, 5, 3)}, 1, with(mode("linear"), attr("antialias", 1))},
	{"Resize", []arg{feed(2, 3, 4, 8, 9), none, none, ints(2, 3, 2, 4, 5)}, 1, with(mode("linear"), attr("antialias", 1))},
	{"Resize", []arg{feed(2, 3, 8), none, none, ints(2, 3, 4)}, 1, with(mode("linear"), attr("antialias", 1))},
	{"Resize", []arg{feed(8, 9), none, none, ints(4, 5)}, 1, with(mode("cubic"), attr("antialias", 1))},
	{"LSTM", []arg{feed(5, 2, 3), feed(1, 16, 3), feed(1, 16, 4), feed(1, 32)}, 3, with(attr("hidden_size", 4))},
	{"LSTM", []arg{feed(5, 2, 3), feed(2, 16, 3), feed(2, 16, 4)}, 1, with(attr("hidden_size", 4), onnx.StringAttr("direction", "bidirectional"))},
	{"GRU", []arg{feed(5, 2, 3), feed(1, 12, 3), feed(1, 12, 4), feed(1, 24)}, 2, with(attr("hidden_size", 4))},
	{"GRU", []arg{feed(5, 2, 3), feed(1, 12, 3), feed(1, 12, 4), feed(1, 24)}, 2, with(attr("hidden_size", 4), attr("linear_before_reset", 1), onnx.StringAttr("direction", "reverse"))},
	{"RNN", []arg{feed(5, 2, 3), feed(1, 4, 3), feed(1, 4, 4)}, 2, with(attr("hidden_size", 4))},
	{"GRU", []arg{feed(5, 2, 3), feed(2, 12, 3), feed(2, 12, 4), feed(2, 24)}, 2, with(attr("hidden_size", 4), attr("linear_before_reset", 1), onnx.StringAttr("direction", "bidirectional"))},
	{"GRU", []arg{feed(5, 2, 3), feed(2, 12, 3), feed(2, 12, 4), feed(2, 24)}, 2, with(attr("hidden_size", 4), onnx.StringAttr("direction", "bidirectional"))},
	{"GRU", []arg{feed(5, 2, 3), feed(2, 12, 3), feed(2, 12, 4)}, 1, with(attr("hidden_size", 4), onnx.StringAttr("direction", "bidirectional"))},
	{"GRU", []arg{feed(5, 2, 3), feed(2, 12, 3), feed(2, 12, 4)}, 1, with(attr("hidden_size", 4), attr("linear_before_reset", 1), onnx.StringAttr("direction", "bidirectional"))},
	{"LSTM", []arg{feed(5, 2, 3), feed(2, 16, 3), feed(2, 16, 4), feed(2, 32)}, 3, with(attr("hidden_size", 4), onnx.StringAttr("direction", "bidirectional"))},
	{"LSTM", []arg{feed(5, 2, 3), feed(2, 16, 3), feed(2, 16, 4), feed(2, 32), lengths, feed(2, 2, 4), feed(2, 2, 4)}, 3, with(attr("hidden_size", 4), onnx.StringAttr("direction", "bidirectional"))},
	{"GRU", []arg{feed(5, 2, 3), feed(2, 12, 3), feed(2, 12, 4), feed(2, 24), lengths, feed(2, 2, 4)}, 2, with(attr("hidden_size", 4), attr("linear_before_reset", 1), onnx.StringAttr("direction", "bidirectional"))},
	{"RNN", []arg{feed(5, 2, 3), feed(2, 4, 3), feed(2, 4, 4), feed(2, 8), lengths, feed(2, 2, 4)}, 2, with(attr("hidden_size", 4), onnx.StringAttr("direction", "bidirectional"))},
	{"RNN", []arg{feed(5, 2, 3), feed(2, 4, 3), feed(2, 4, 4), feed(2, 8)}, 2, with(attr("hidden_size", 4), onnx.StringAttr("direction", "bidirectional"))},
	{"Attention", []arg{feed(2, 3, 4, 8), feed(2, 3, 6, 8), feed(2, 3, 6, 8)}, 1, nil},
	{"Attention", []arg{feed(2, 3, 4, 8), feed(2, 3, 6, 8), feed(2, 3, 6, 8), typed(onnx.Bool, 4, 6)}, 1, nil},
	{"Attention", []arg{feed(2, 3, 4, 8), feed(2, 3, 4, 8), feed(2, 3, 4, 8)}, 1, with(attr("is_causal", 1))},
	{"Attention", []arg{feed(2, 4, 24), feed(2, 4, 24), feed(2, 4, 24)}, 1, with(attr("is_causal", 1), attr("q_num_heads", 3), attr("kv_num_heads", 3))},
}

const microsoft = "com.microsoft"

var contribProbes = []probe{
	{"Gelu FastGelu QuickGelu", []arg{matrix}, 1, nil},
	{"BiasGelu FastGelu", []arg{matrix, feed(6)}, 1, nil},
	{"FusedMatMul", []arg{matrix, feed(6, 5)}, 1, nil},
	{"FusedMatMul", []arg{feed(2, 3, 6, 4), feed(2, 3, 5, 6)}, 1, with(attr("transA", 1), attr("transB", 1))},
	{"FusedGemm", []arg{matrix, feed(6, 5), feed(4, 5)}, 1, with(onnx.StringAttr("activation", "Relu"))},
	{"FusedConv", []arg{feed(2, 4, 9, 9), feed(6, 4, 3, 3), feed(6)}, 1, with(onnx.StringAttr("activation", "Relu"))},
	{"SkipLayerNormalization", []arg{feed(2, 4, 6), feed(2, 4, 6), feed(6), feed(6), feed(6)}, 1, nil},
	{"SkipSimplifiedLayerNormalization", []arg{feed(2, 4, 6), feed(2, 4, 6), feed(6)}, 1, nil},
}

var mlProbes = []probe{
	{"ArrayFeatureExtractor", []arg{matrix, ints(0, 2)}, 1, nil},
	{"Binarizer Normalizer", []arg{matrix}, 1, nil},
	{"Imputer", []arg{matrix}, 1, with(floats("imputed_value_floats", 1), onnx.FloatAttr("replaced_value_float", 0.5))},
	{"Scaler", []arg{matrix}, 1, with(floats("offset", 1), floats("scale", 2))},
}

// model builds one variant: input (None: all are feeds) comes from an
// inner value, read again later or not.
func (p *probe) model(at bench, op string, input int, later bool) (*onnx.Model, *onnx.Node, error) {
	m := onnx.NewModel("probe", at.opset)
	if at.domain != "" {
		m.SetOpset(at.domain, 1)
	}
	types, err := infer.Model(m, infer.Options{Strict: true})
	if err != nil {
		return nil, nil, err
	}
	b := build.New(m.Graph, types, "")
	var in []*onnx.Value
	var inner *onnx.Value
	for i, a := range p.args {
		v := m.Graph
		if a.value != nil {
			in = append(in, v.AddConstant("c", a.value))
			continue
		}
		if a.dtype == onnx.Undefined {
			in = append(in, nil)
			continue
		}
		x := v.AddInput(fmt.Sprintf("x%d", i), onnx.TensorOf(a.dtype, onnx.StaticShape(a.shape...)))
		if i == input {
			inner = b.Op("Concat", build.In(x), onnx.IntAttr("axis", 0))
			x = inner
		}
		in = append(in, x)
	}
	if later {
		m.Graph.AddOutput(b.Op("Concat", build.In(inner), onnx.IntAttr("axis", 0)))
	}
	made := b.Node(at.domain, op, in, p.outputs, p.attrs...)
	if err := b.Err(); err != nil {
		return nil, nil, err
	}
	node := made[0].Producer
	for _, o := range made {
		m.Graph.AddOutput(b.Op("Shape", build.In(o)))
	}
	b.Flush()
	m.Graph.AnnotateTypes()
	return m, node, b.Err()
}

// hypothesis is what may happen to one input.
type hypothesis struct {
	output int // None: nothing
	alias  bool
}

// fits reports whether the variant's trace is as the hypothesis says.
func (p *probe) fits(t *testing.T, at bench, op string, input int, later bool, h hypothesis, real *measured) bool {
	m, node, err := p.model(at, op, input, later)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	o := Options{Threads: 1, Declared: true, On: providers[at.on]}
	o.places = o.On.Place(m, false)
	b, err := newBuilder(m, o)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	for i, n := range b.Nodes {
		if n != node {
			continue
		}
		g := &b.Graph.Nodes[i]
		others := func(list []ortmodel.Pair) []ortmodel.Pair {
			return slices.DeleteFunc(slices.Clone(list), func(q ortmodel.Pair) bool { return q.Input == input })
		}
		g.Alias, g.InPlace = others(g.Alias), others(g.InPlace)
		if pair := (ortmodel.Pair{Input: input, Output: h.output}); h.output != ortmodel.None && h.alias {
			g.Alias = append(g.Alias, pair)
		} else if h.output != ortmodel.None {
			g.InPlace = append(g.InPlace, pair)
		}
	}
	pred := &Prediction{Nodes: b.Nodes, Values: b.Values, Graph: b.Graph, Trace: ortmodel.Simulate(b.Graph, ortmodel.Order(b.Graph))}
	pred.LivePeak = pred.Trace.Peak
	return compare(pred, real, false) == ""
}

// run measures one variant.
func (p *probe) run(t *testing.T, at bench, op string, input int, later bool) *measured {
	m, _, err := p.model(at, op, input, later)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	path := filepath.Join(t.TempDir(), "p.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	real, err := measure(path, ort.SessionOptions{Threads: 1, Provider: at.on}, nil)
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	return real
}

// judge finds what happens to one input.
func (p *probe) judge(t *testing.T, at bench, op string, input int) (hypothesis, bool) {
	one, two := p.run(t, at, op, input, false), p.run(t, at, op, input, true)
	hs := []hypothesis{{output: ortmodel.None}}
	for o := range p.outputs {
		hs = append(hs, hypothesis{o, false}, hypothesis{o, true})
	}
	for _, h := range hs {
		if p.fits(t, at, op, input, false, h, one) && p.fits(t, at, op, input, true, h, two) {
			return h, true
		}
	}
	return hypothesis{}, false
}

// The table of package traits says what the probe finds in the library, also in one of
// another release than the table was made from.
func TestMemoryColumns(t *testing.T) {
	probed := map[string]bool{}
	probeColumns(t, cpuBench, probes, probed)
	probeColumns(t, bench{microsoft, 24, ort.CPU}, contribProbes, probed)
	probeColumns(t, bench{"ai.onnx.ml", 24, ort.CPU}, mlProbes, probed)
	for _, tr := range traits.All() {
		if tr.Domain == "com.microsoft.nchwc" || tr.Expanded {
			continue
		}
		if op := qualified(tr.Domain, tr.Op); !probed[op] && unprobed[op] == "" {
			t.Errorf("%s has neither a probe nor a reason for having none", op)
		}
	}
}

// qualified is an operator's name with its domain.
func qualified(domain, op string) string {
	if domain == "" {
		return op
	}
	return domain + "." + op
}

// probeColumns holds the table to what the probes find, and notes the operators.
func probeColumns(t *testing.T, at bench, probes []probe, probed map[string]bool) {
	t.Helper()
	for i := range probes {
		p := &probes[i]
		for _, op := range strings.Fields(p.ops) {
			name := qualified(at.domain, op)
			probed[name] = true
			for input, a := range p.args {
				if a.value != nil || len(a.shape) == 0 {
					continue
				}
				h, ok := p.judge(t, at, op, input)
				if !ok {
					t.Errorf("%s (probe %d), input %d: no hypothesis fits; the scratch rule may be wrong", name, i, input)
					continue
				}
				if *update && h.output != ortmodel.None {
					fmt.Fprintf(os.Stderr, "%s: input %d, output %d, alias %v\n", name, input, h.output, h.alias)
				}
				_, node, err := p.model(at, op, input, false)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				want, _ := traits.Of(node)
				if got := named(want, input, p.outputs); got != h {
					t.Errorf("%s, input %d: the table says %+v, the probe %+v", name, input, got, h)
				}
			}
		}
	}
}

// named is what the table says of one input.
func named(tr traits.Traits, input, outputs int) hypothesis {
	for _, p := range tr.Alias {
		if p.Input == input && p.Output < outputs {
			return hypothesis{p.Output, true}
		}
	}
	for _, p := range tr.InPlace {
		if p.Input == input && p.Output < outputs {
			return hypothesis{p.Output, false}
		}
	}
	return hypothesis{output: ortmodel.None}
}

// unprobed are operators of the table without a probe, by the reason.
var unprobed = reasons(map[string]string{
	"its output's size depends on data":           "Compress NonZero Unique NonMaxSuppression",
	"draws numbers; no kernel for this opset":     "Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial",
	"contains subgraphs":                          "If Loop Scan",
	"has no kernel on the CPU":                    "com.microsoft.BiasSoftmax",
	"a copy to or from a device":                  "MemcpyFromHost MemcpyToHost",
	"becomes an initializer":                      "Constant HannWindow HammingWindow BlackmanWindow MelWeightMatrix",
	"no kernel for this opset":                    "GlobalLpPool Upsample Scatter RoiAlign MaxRoiPool",
	"made by ONNX Runtime's optimizer only":       "SimplifiedLayerNormalization",
	"integer arithmetic, not met in training":     "MatMulInteger QLinearMatMul ConvInteger QLinearConv QuantizeLinear DequantizeLinear DynamicQuantizeLinear BitShift BitCast",
	"what it allocates inside is not modelled":    "DeformConv",
	"not met in training; seen in the node tests": "TensorScatter MaxUnpool CumProd GridSample Det RotaryEmbedding",
})

func reasons(byReason map[string]string) map[string]string {
	out := map[string]string{}
	for why, ops := range byReason {
		for _, op := range strings.Fields(ops) {
			out[op] = why
		}
	}
	return out
}
