package grad

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"google.golang.org/protobuf/proto"
)

// FuzzDifferentiate damages the graphs of the rules' cases as a broken or hostile exporter
// would: inputs that are missing or others', attributes and constants that no operator
// takes, tensors of another size or type. Differentiate may refuse them, in a line, and must
// not panic or run on; what it derives is a graph.
func FuzzDifferentiate(f *testing.F) {
	var cases [][]byte
	for i, c := range allCases() {
		m := c.model(f)
		for _, v := range m.Graph.Inputs { // exporters have weights in the file
			if dims, ok := v.Type.Shape.Ints(); ok && v.Type.DType.IsFloat() {
				n, _ := onnx.Elements(dims)
				m.Graph.TakeOver(v, m.Graph.AddConstant(v.Name+".weight", onnx.FloatTensor(v.Type.DType, make([]float64, n), dims...)))
			}
		}
		data, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		cases = append(cases, data)
		for kind := range damages {
			f.Add(uint16(i), []byte{byte(kind), byte(i), byte(i >> 3), byte(7 * i), byte(kind + i)})
		}
	}
	f.Fuzz(func(t *testing.T, which uint16, choices []byte) { survives(t, cases[int(which)%len(cases)], choices) })
}

// survives differentiates a model that is damaged as the choices say.
func survives(t *testing.T, data []byte, choices []byte) {
	p := &pb.ModelProto{}
	if err := proto.Unmarshal(data, p); err != nil {
		t.Fatal(err)
	}
	d := &damage{p: p, g: p.Graph, choices: choices}
	for range 3 {
		if len(d.choices) > 0 {
			damages[d.pick(len(damages))](d)
		}
	}
	data, err := proto.Marshal(p)
	if err != nil {
		return // a name that is no text
	}
	m, err := onnx.Decode(data, ".")
	if err != nil {
		return
	}
	defer m.Close()
	if m.Check() != nil {
		return
	}
	if _, err := Differentiate(m, Options{}); err != nil {
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %q", err)
		}
		return
	}
	if err := m.Check(); err != nil {
		t.Error(err)
	}
}

// damage is a model that is being damaged, and the choices that are left.
type damage struct {
	p       *pb.ModelProto
	g       *pb.GraphProto
	choices []byte
}

// pick chooses one of n, the first where no choices are left.
func (d *damage) pick(n int) int {
	if len(d.choices) == 0 || n < 2 {
		return 0
	}
	c := int(d.choices[0])
	d.choices = d.choices[1:]
	return c % n
}

func (d *damage) node() *pb.NodeProto { return d.g.Node[d.pick(len(d.g.Node))] }

func (d *damage) number() int64 {
	odd := []int64{-1, 0, 1, 2, 3, 7, -2, -7, 1 << 20, 1 << 40, math.MinInt64, math.MaxInt64}
	return odd[d.pick(len(odd))]
}

func (d *damage) tensor() *pb.TensorProto {
	all := slices.Clone(d.g.Initializer)
	for _, n := range d.g.Node {
		for _, a := range n.Attribute {
			if a.T != nil {
				all = append(all, a.T)
			}
		}
	}
	if len(all) == 0 {
		return &pb.TensorProto{}
	}
	return all[d.pick(len(all))]
}

// damages are the kinds.
var damages = []func(*damage){
	func(d *damage) { // no input
		if n := d.node(); len(n.Input) > 0 {
			n.Input[d.pick(len(n.Input))] = ""
		}
	},
	func(d *damage) { // another's input
		if n, o := d.node(), d.node(); len(n.Input) > 0 && len(o.Input) > 0 {
			n.Input[d.pick(len(n.Input))] = o.Input[d.pick(len(o.Input))]
		}
	},
	func(d *damage) { // fewer inputs
		if n := d.node(); len(n.Input) > 0 {
			n.Input = n.Input[:len(n.Input)-1]
		}
	},
	func(d *damage) { // more inputs
		n, o := d.node(), d.node()
		n.Input = append(n.Input, o.Input...)
	},
	func(d *damage) { // no output
		if n := d.node(); len(n.Output) > 0 {
			n.Output[d.pick(len(n.Output))] = ""
		}
	},
	func(d *damage) { // one more output
		n := d.node()
		n.Output = append(n.Output, fmt.Sprint("more", len(d.choices)))
	},
	func(d *damage) { // no attribute
		if n := d.node(); len(n.Attribute) > 0 {
			i := d.pick(len(n.Attribute))
			n.Attribute = slices.Delete(n.Attribute, i, i+1)
		}
	},
	func(d *damage) { // another attribute
		n := d.node()
		if len(n.Attribute) == 0 {
			return
		}
		switch a := n.Attribute[d.pick(len(n.Attribute))]; a.GetType() {
		case pb.AttributeProto_INT:
			a.I = proto.Int64(d.number())
		case pb.AttributeProto_INTS:
			switch {
			case len(a.Ints) == 0 || d.pick(4) == 3:
				a.Ints = append(a.Ints, d.number())
			case d.pick(4) == 3:
				a.Ints = a.Ints[:len(a.Ints)-1]
			default:
				a.Ints[d.pick(len(a.Ints))] = d.number()
			}
		case pb.AttributeProto_FLOAT:
			odd := []float64{0, -1, math.NaN(), math.Inf(1), 1e30}
			a.F = proto.Float32(float32(odd[d.pick(len(odd))]))
		case pb.AttributeProto_STRING:
			odd := []string{"", "x", "edge", "mean", "none", "SAME_UPPER", "VALID", "bidirectional", "ij,jk->ik"}
			a.S = []byte(odd[d.pick(len(odd))])
		}
	},
	func(d *damage) { // another size
		if t := d.tensor(); len(t.Dims) > 0 {
			t.Dims[d.pick(len(t.Dims))] = d.number()
		} else {
			t.Dims = []int64{1}
		}
	},
	func(d *damage) { // the same elements in other axes
		t := d.tensor()
		switch d.pick(3) {
		case 0:
			slices.Reverse(t.Dims)
		case 1:
			t.Dims = append(t.Dims, 1)
		case 2:
			n := int64(1)
			for _, k := range t.Dims {
				n *= k
			}
			t.Dims = []int64{n}
		}
	},
	func(d *damage) { d.tensor().DataType = proto.Int32(int32(d.pick(24))) },
	func(d *damage) { // another integer
		if t := d.tensor(); t.GetDataType() == int32(onnx.Int64) && len(t.RawData) >= 8 {
			v, at := d.number(), 8*d.pick(len(t.RawData)/8)
			for k := range 8 {
				t.RawData[at+k] = byte(v >> (8 * k))
			}
		}
	},
	func(d *damage) { // another operator
		n, o := d.node(), d.node()
		n.OpType, n.Domain = o.OpType, o.Domain
	},
	func(d *damage) { // a node less
		if i := d.pick(len(d.g.Node)); len(d.g.Node) > 1 {
			d.g.Node = slices.Delete(d.g.Node, i, i+1)
		}
	},
	func(d *damage) { // another opset
		for _, o := range d.p.OpsetImport {
			if o.GetDomain() == "" {
				o.Version = proto.Int64(int64(1 + d.pick(26)))
			}
		}
	},
	func(d *damage) { // an input of any size in place of a weight
		if len(d.g.Initializer) > 0 {
			i := d.pick(len(d.g.Initializer))
			t := d.g.Initializer[i]
			dims := make([]*pb.TensorShapeProto_Dimension, len(t.Dims))
			for k := range dims {
				dims[k] = &pb.TensorShapeProto_Dimension{}
			}
			d.g.Initializer = slices.Delete(d.g.Initializer, i, i+1)
			d.g.Input = append(d.g.Input, &pb.ValueInfoProto{Name: t.Name, Type: &pb.TypeProto{Value: &pb.TypeProto_TensorType{
				TensorType: &pb.TypeProto_Tensor{ElemType: t.DataType, Shape: &pb.TensorShapeProto{Dim: dims}},
			}}})
		}
	},
}

// TestBrokenNodes: what no runtime takes is refused in a line that names the node.
func TestBrokenNodes(t *testing.T) {
	const loss = "\nloss = ReduceMean(y) {keepdims=0}\nout loss float32[]"
	for name, c := range map[string]struct {
		opset      int
		body, want string
	}{
		"no input":                 {20, "in x float32[2,3]\ninit w float32[3,1] = zeros\na = MatMul(x, w)\ny = Add(_, a)" + loss, `node "Add that makes y": Add: input 0 is missing`},
		"old opset":                {6, "in x float32[2,3]\ninit w float32[3,1] = zeros\ny = MatMul(x, w)" + loss, "the oldest supported is 7"},
		"rows of recurrent gates":  {20, "in x float32[3,2,2]\ninit w float32[1,6,2] = zeros\ninit r float32[1,8,2] = zeros\ny = LSTM(x, w, r) {hidden_size=2}" + loss, "input 1, the weights of what is read, is [1,6,2], where direction, rows and hidden_size ask for [1,8,2]"},
		"types of a recurrent net": {20, "in x float32[3,2,2]\ninit w float32[1,8,2] = zeros\ninit r float64[1,8,2] = zeros\ny = LSTM(x, w, r) {hidden_size=2}" + loss, "float32 and float64"},
		"many conditions":          {20, "in x float32[2]\ninit w float32[2] = zeros\nz = Mul(x, w)\nc = Greater(z, x)\ny = If(c) {then_branch=graph t {\np = Abs(z)\nout p float32[2]\n}, else_branch=graph e {\nq = Exp(z)\nout q float32[2]\n}}" + loss, "the condition has 2 elements, want one"},
		"a large border":           {20, "in x float32[2,3]\ninit w float32[2,3] = zeros\nz = Mul(x, w)\ninit p int64[4] = [0, 0, 0, 1099511627776]\ny = Pad(z, p) {mode=\"wrap\"}" + loss, "along axis 1, padded by 0 and 1099511627776"},
		"a large table":            {20, "in x float32[1,1,2,2]\ninit w float32[1,2,3] = zeros\ninit s int64[4] = [1, 1, 1048576, 1048576]\ng = AffineGrid(w, s)\ny = GridSample(x, g)" + loss, "a table of 3 × 1048576 × 1048576 numbers is too large to be written"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := onnx.Parse(fmt.Sprintf("model ir=9 opset=%d\ngraph g {\n%s\n}\n", c.opset, c.body))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Differentiate(m, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
}
