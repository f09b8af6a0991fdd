package ortest

// Counter-cases. A pass that looks for a pattern must look at all of it: a
// Variant is the pattern with one thing changed, and whatever the pass makes of
// it must compute what the variant computes. Variants are made by walking over
// the file, so a pattern needs nothing but its text:
//
//	attributes    another axis, permutation, flag or factor, or none
//	constants     another number, sign or rank; an input instead
//	inputs        other extents (1), another rank; an initializer instead
//	edges         another value of the graph, or a node in between
//	operators     a relative (Add for Sub), swapped operands, one left out
//	values        a graph output, a second reader
//	types         float64 throughout
//
// Many are not valid models; Differ leaves these out.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// A Variant is a model that differs from another in what What says.
type Variant struct {
	What  string
	Model *onnx.Model
}

// relatives are operators that take the same inputs.
var relatives = map[string][]string{
	"Add": {"Sub", "Mul"}, "Sub": {"Add"}, "Mul": {"Div", "Add"}, "Div": {"Mul"}, "Neg": {"Abs"},
	"Erf": {"Tanh"}, "Tanh": {"Erf"}, "Sqrt": {"Exp", "Reciprocal"}, "Reciprocal": {"Sqrt"}, "Exp": {"Neg"}, "Log": {"Neg"}, "Relu": {"Neg"},
	"ReduceMean": {"ReduceSum", "ReduceMax"}, "ReduceSum": {"ReduceMean", "ReduceL1"},
	"Softmax": {"LogSoftmax", "Hardmax"}, "LogSoftmax": {"Softmax"}, "IsNaN": {"IsInf"}, "Cast": {"Identity"},
	"Pow": {"Mul"}, "Concat": {"Sum"}, "Squeeze": {"Unsqueeze"}, "Unsqueeze": {"Squeeze"},
}

// variants is the work of one call of Variants.
type variants struct {
	t     testing.TB
	base  *pb.ModelProto
	types map[string]onnx.Type
	seen  map[string]bool
	list  []Variant
}

// Variants returns the variants of a model.
func Variants(t testing.TB, m *onnx.Model) []Variant {
	t.Helper()
	m, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.NameNodes()
	w := &variants{t: t, base: m.ToProto(), types: map[string]onnx.Type{}, seen: map[string]bool{}}
	w.base = proto.CloneOf(w.base)
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range w.names() {
		w.types[name] = m.Graph.Value(name).Type
	}
	w.add("as it is", func(*pb.GraphProto) bool { return true })
	for i := range w.base.Graph.Node {
		w.attributes(i)
		w.operator(i)
		w.edges(i)
	}
	w.constants()
	w.inputs()
	w.values()
	w.double()
	return w.list
}

// names are those of all values, in file order.
func (w *variants) names() []string {
	var names []string
	for _, in := range w.base.Graph.Input {
		names = append(names, in.GetName())
	}
	for _, c := range w.base.Graph.Initializer {
		names = append(names, c.GetName())
	}
	for _, n := range w.base.Graph.Node {
		for _, o := range n.Output {
			if o != "" {
				names = append(names, o)
			}
		}
	}
	return names
}

// add makes a variant by an edit, which returns false where it does not apply.
func (w *variants) add(what string, edit func(g *pb.GraphProto) bool) {
	p := proto.CloneOf(w.base)
	if !edit(p.Graph) {
		return
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil || w.seen[string(data)] {
		return
	}
	w.seen[string(data)] = true
	m, err := onnx.Decode(data, ".")
	if err != nil {
		return // refused as a file
	}
	w.list = append(w.list, Variant{what, m})
}

func (w *variants) label(i int) string {
	n := w.base.Graph.Node[i]
	return fmt.Sprintf("%s = %s", strings.Join(n.Output, ", "), n.GetOpType())
}

func (w *variants) rank(name string) int {
	t := w.types[name]
	if !t.Ranked {
		return -1
	}
	return len(t.Shape)
}

// attributes changes or drops each attribute of a node, and gives a Transpose
// every permutation.
func (w *variants) attributes(i int) {
	n := w.base.Graph.Node[i]
	rank := 0
	for _, name := range slices.Concat(n.Input, n.Output) {
		rank = max(rank, w.rank(name))
	}
	for k, a := range n.Attribute {
		w.add(fmt.Sprintf("%s without %s", w.label(i), a.GetName()), func(g *pb.GraphProto) bool {
			g.Node[i].Attribute = slices.Delete(g.Node[i].Attribute, k, k+1)
			return true
		})
		for _, b := range otherValues(a, rank) {
			w.add(fmt.Sprintf("%s {%v}", w.label(i), b), func(g *pb.GraphProto) bool {
				g.Node[i].Attribute[k] = b
				return true
			})
		}
	}
	for _, name := range []string{"axis", "keepdims", "transA", "transB", "noop_with_empty_axes", "allowzero"} {
		for _, v := range []int64{-2, -1, 0, 1, 2} {
			w.add(fmt.Sprintf("%s {%s=%d}", w.label(i), name, v), func(g *pb.GraphProto) bool {
				if !takes(n.GetOpType(), name) || slices.ContainsFunc(n.Attribute, func(a *pb.AttributeProto) bool { return a.GetName() == name }) {
					return false
				}
				g.Node[i].Attribute = append(g.Node[i].Attribute, onnx.IntAttr(name, v))
				return true
			})
		}
	}
	if n.GetOpType() != "Transpose" {
		return
	}
	for _, perm := range permutations(w.rank(n.Input[0])) {
		w.add(fmt.Sprintf("%s {perm=%v}", w.label(i), perm), func(g *pb.GraphProto) bool {
			g.Node[i].Attribute = []*pb.AttributeProto{onnx.IntsAttr("perm", perm...)}
			return true
		})
	}
}

// takes reports an optional attribute that an operator has; where the answer is
// wrong ONNX Runtime refuses the variant.
func takes(op, attr string) bool {
	switch attr {
	case "axis":
		return slices.Contains([]string{"Softmax", "LogSoftmax", "Gather", "GatherElements", "ScatterElements", "Flatten", "Split", "SplitToSequence", "ArgMax", "LayerNormalization"}, op)
	case "keepdims", "noop_with_empty_axes":
		return strings.HasPrefix(op, "Reduce")
	case "transA", "transB":
		return op == "Gemm" || op == "FusedMatMul"
	}
	return op == "Reshape"
}

// otherValues are attributes of the same name with other content.
func otherValues(a *pb.AttributeProto, rank int) []*pb.AttributeProto {
	var out []*pb.AttributeProto
	switch a.GetType() {
	case pb.AttributeProto_INT:
		if a.GetName() == "to" {
			break
		}
		for v := int64(-rank); v < int64(max(rank, 2)); v++ {
			out = append(out, onnx.IntAttr(a.GetName(), v))
		}
	case pb.AttributeProto_FLOAT:
		for _, f := range []float64{1 + 3e-5, 2, -1, 0} {
			out = append(out, onnx.FloatAttr(a.GetName(), f*float64(a.GetF())))
		}
	case pb.AttributeProto_INTS:
		for k := range a.Ints {
			for _, d := range []int64{-1, 1, int64(-rank)} {
				ints := slices.Clone(a.Ints)
				ints[k] += d
				out = append(out, onnx.IntsAttr(a.GetName(), ints...))
			}
		}
	case pb.AttributeProto_STRING:
		for _, s := range []string{"none", "tanh", "add", "mul", "mean", "sum"} {
			out = append(out, onnx.StringAttr(a.GetName(), s))
		}
	case pb.AttributeProto_TENSOR:
		for _, t := range otherTensors(a.T) {
			out = append(out, onnx.TensorAttrOf(a.GetName(), onnx.WrapTensor(t)))
		}
	}
	return out
}

// permutations of up to four axes.
func permutations(n int) [][]int64 {
	if n < 1 || n > 4 {
		return nil
	}
	list := [][]int64{{}}
	for range n {
		var longer [][]int64
		for _, p := range list {
			for a := range int64(n) {
				if !slices.Contains(p, a) {
					longer = append(longer, append(slices.Clone(p), a))
				}
			}
		}
		list = longer
	}
	return list
}

// operator replaces a node's operator, swaps its operands, leaves one out.
func (w *variants) operator(i int) {
	n := w.base.Graph.Node[i]
	for _, op := range relatives[n.GetOpType()] {
		w.add(w.label(i)+" is "+op, func(g *pb.GraphProto) bool {
			g.Node[i].OpType = &op
			return true
		})
	}
	for k := range n.Input {
		if k > 0 {
			w.add(fmt.Sprintf("%s, operands %d and %d swapped", w.label(i), k-1, k), func(g *pb.GraphProto) bool {
				in := g.Node[i].Input
				in[k-1], in[k] = in[k], in[k-1]
				return true
			})
		}
		w.add(fmt.Sprintf("%s without operand %d", w.label(i), k), func(g *pb.GraphProto) bool {
			g.Node[i].Input[k] = ""
			return true
		})
	}
}

// edges gives each input of a node every other value of its element type, or the
// same value through one more node.
func (w *variants) edges(i int) {
	n := w.base.Graph.Node[i]
	later := map[string]bool{}
	for _, m := range w.base.Graph.Node[i:] {
		for _, o := range m.Output {
			later[o] = true
		}
	}
	for k, name := range n.Input {
		if name == "" {
			continue
		}
		for _, other := range w.names() {
			if later[other] || w.types[other].DType != w.types[name].DType {
				continue
			}
			w.add(fmt.Sprintf("%s reads %s for %s", w.label(i), other, name), func(g *pb.GraphProto) bool {
				g.Node[i].Input[k] = other
				return true
			})
		}
		w.between(i, k, name)
	}
}

// between puts one more node before an input.
func (w *variants) between(i, k int, name string) {
	rank := w.rank(name)
	put := func(op string, constant *onnx.Tensor, attrs ...onnx.Attribute) {
		w.add(fmt.Sprintf("%s, %s %v before %s", w.label(i), op, attrs, name), func(g *pb.GraphProto) bool {
			n := &pb.NodeProto{OpType: &op, Name: proto.String("extra"), Input: []string{name}, Output: []string{"extra"}, Attribute: attrs}
			if constant != nil {
				p := proto.CloneOf(constant.Proto)
				p.Name = proto.String("extra.constant")
				g.Initializer = append(g.Initializer, p)
				n.Input = append(n.Input, "extra.constant")
			}
			g.Node[i].Input[k] = "extra"
			g.Node = slices.Insert(g.Node, i, n)
			return true
		})
	}
	if w.types[name].DType == onnx.Float32 {
		put("Neg", nil)
		put("Relu", nil)
		put("Mul", onnx.Float32Tensor([]float32{0.5}))
		put("Add", onnx.Float32Tensor([]float32{1}))
		if rank >= 1 {
			put("Softmax", nil, onnx.IntAttr("axis", -1))
			put("ReduceMax", nil, onnx.IntAttr("keepdims", 1))
			// A mask that leaves rows nothing.
			put("Add", onnx.Float32Tensor([]float32{float32(math.Inf(-1))}))
		}
	}
	if rank >= 2 && rank <= 4 {
		for _, perm := range permutations(rank) {
			put("Transpose", nil, onnx.IntsAttr("perm", perm...))
		}
	}
	if rank >= 0 {
		put("Unsqueeze", onnx.Int64Tensor([]int64{0}, 1))
		put("Identity", nil)
	}
}

// constants changes each initializer, or makes it an input.
func (w *variants) constants() {
	for i, c := range w.base.Graph.Initializer {
		for k, other := range otherTensors(c) {
			w.add(fmt.Sprintf("constant %s, change %d", c.GetName(), k), func(g *pb.GraphProto) bool {
				g.Initializer[i] = other
				return true
			})
		}
		w.add("input "+c.GetName(), func(g *pb.GraphProto) bool {
			g.Initializer = slices.Delete(g.Initializer, i, i+1)
			t := onnx.WrapTensor(c).Type()
			g.Input = append(g.Input, &pb.ValueInfoProto{Name: proto.String(c.GetName()), Type: t.Proto()})
			return true
		})
	}
}

// otherTensors are constants of another content or rank, of the same name.
func otherTensors(c *pb.TensorProto) []*pb.TensorProto {
	x := onnx.WrapTensor(c)
	var out []*pb.TensorProto
	add := func(y *onnx.Tensor) {
		p := proto.CloneOf(y.Proto)
		p.Name = c.Name
		out = append(out, p)
	}
	n, err := x.Elements()
	if err != nil || n == 0 {
		return nil
	}
	if values, err := x.Int64s(); err == nil && x.DType() == onnx.Int64 && n <= 8 {
		for k := range values {
			for _, d := range []int64{-1, 1, 2, -2, -3, -4} {
				other := slices.Clone(values)
				other[k] += d
				add(onnx.Int64Tensor(other, x.Dims()...))
			}
		}
	}
	if x.DType() == onnx.Bool {
		data, _ := x.Bytes()
		other := slices.Clone(data)
		other[0] ^= 1
		add(onnx.NewTensor(onnx.Bool, x.Dims(), other))
	}
	if !x.DType().IsFloat() {
		return out
	}
	values, err := x.Float64s()
	if err != nil {
		return nil
	}
	for _, f := range []float64{1 + 3e-5, 1 + 1e-3, 2, 0.5, 4, -1, 0} {
		other := slices.Clone(values)
		for k := range other {
			other[k] *= f
		}
		add(onnx.FloatTensor(x.DType(), other, x.Dims()...))
	}
	if len(x.Dims()) > 0 { // the first row is -Inf: a mask that leaves it nothing
		other := slices.Clone(values)
		for k := range n / x.Dims()[0] {
			other[k] = math.Inf(-1)
		}
		add(onnx.FloatTensor(x.DType(), other, x.Dims()...))
	}
	if n == 1 {
		for rank := range 6 {
			dims := slices.Repeat([]int64{1}, rank)
			add(onnx.FloatTensor(x.DType(), values, dims...))
		}
	}
	return out
}

// inputs gives each input other extents or another rank, or makes it a constant.
func (w *variants) inputs() {
	reshaped := func(i int, what string, change func(dims []int64) []int64) {
		in := w.base.Graph.Input[i]
		t := w.types[in.GetName()]
		dims, ok := t.Shape.Ints()
		if !ok {
			return
		}
		w.add(fmt.Sprintf("input %s %s", in.GetName(), what), func(g *pb.GraphProto) bool {
			dims := change(slices.Clone(dims))
			g.Input[i].Type = onnx.TensorOf(t.DType, onnx.StaticShape(dims...)).Proto()
			return true
		})
	}
	for i, in := range w.base.Graph.Input {
		for axis := range w.rank(in.GetName()) {
			reshaped(i, fmt.Sprintf("with extent 1 at %d", axis), func(dims []int64) []int64 { dims[axis] = 1; return dims })
			reshaped(i, fmt.Sprintf("without axis %d", axis), func(dims []int64) []int64 { return slices.Delete(dims, axis, axis+1) })
			reshaped(i, fmt.Sprintf("with another axis at %d", axis), func(dims []int64) []int64 { return slices.Insert(dims, axis, 1) })
			reshaped(i, fmt.Sprintf("with another 2 at %d", axis), func(dims []int64) []int64 { return slices.Insert(dims, axis, 2) })
		}
		w.add("constant "+in.GetName(), func(g *pb.GraphProto) bool {
			t := w.types[in.GetName()]
			if !t.IsStatic() {
				return false
			}
			x := randomTensor(rand.New(rand.NewPCG(5, 6)), t)
			p := proto.CloneOf(x.Proto)
			p.Name = proto.String(in.GetName())
			g.Input = slices.Delete(g.Input, i, i+1)
			g.Initializer = append(g.Initializer, p)
			return true
		})
	}
}

// values makes each inner value a graph output, and gives it one more reader.
func (w *variants) values() {
	for i, n := range w.base.Graph.Node {
		for _, name := range n.Output {
			t := w.types[name]
			if name == "" || t.DType == onnx.Undefined {
				continue
			}
			declared := func(g *pb.GraphProto, name string) {
				g.Output = append(g.Output, &pb.ValueInfoProto{Name: &name, Type: onnx.Type{DType: t.DType}.Proto()})
			}
			w.add(name+" is an output", func(g *pb.GraphProto) bool {
				if slices.ContainsFunc(g.Output, func(o *pb.ValueInfoProto) bool { return o.GetName() == name }) {
					return false
				}
				declared(g, name)
				return true
			})
			w.add(name+" is read once more", func(g *pb.GraphProto) bool {
				op := "Neg"
				if t.DType != onnx.Float32 {
					op = "Identity"
				}
				n := &pb.NodeProto{OpType: &op, Name: proto.String("extra"), Input: []string{name}, Output: []string{"extra"}}
				g.Node = slices.Insert(g.Node, i+1, n)
				declared(g, "extra")
				return true
			})
		}
	}
}

// double makes all float32 values float64.
func (w *variants) double() {
	to := int32(onnx.Float64)
	w.add("float64", func(g *pb.GraphProto) bool {
		for _, info := range slices.Concat(g.Input, g.Output, g.ValueInfo) {
			if t := info.GetType().GetTensorType(); t.GetElemType() == int32(onnx.Float32) {
				t.ElemType = &to
			}
		}
		for i, c := range g.Initializer {
			if x := onnx.WrapTensor(c); x.DType() == onnx.Float32 {
				values, err := x.Float64s()
				if err != nil {
					return false
				}
				y := proto.CloneOf(onnx.FloatTensor(onnx.Float64, values, x.Dims()...).Proto)
				y.Name = c.Name
				g.Initializer[i] = y
			}
		}
		for _, n := range g.Node {
			for i, a := range n.Attribute {
				if a.GetName() == "to" && a.GetI() == int64(onnx.Float32) {
					n.Attribute[i] = onnx.IntAttr("to", int64(onnx.Float64))
				}
			}
		}
		return true
	})
}
