package infer

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// TestSymbolic infers the sample with free batch and seq, puts numbers for the
// symbols afterwards, and compares with inference over the numbers.
func TestSymbolic(t *testing.T) {
	path := filepath.Join("..", "..", "testdata", "models", "gpt2_tiny_mask.ts_dynaxes.onnx")
	dims := map[string]int64{"batch": 3, "seq": 16}
	load := func(o Options) (*onnx.Model, *Result) {
		m, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		o.Strict = true
		r, err := Model(m, o)
		if err != nil {
			t.Fatal(err)
		}
		return m, r
	}
	free, r := load(Options{})
	fixed, _ := load(Options{Dims: dims})
	for i, n := range free.Graph.Nodes {
		for k, v := range n.Outputs {
			if v == nil {
				continue
			}
			w := fixed.Graph.Nodes[i].Outputs[k]
			got := append(onnx.Shape{}, v.Type.Shape...)
			for j := range got {
				if !got[j].Known() {
					t.Errorf("%s (%s) is %s", v.Name, n.OpType(), v.Type)
				}
				got[j] = got[j].Subst(dims)
			}
			if !got.Equal(w.Type.Shape) {
				t.Errorf("%s (%s) is %s, with numbers %s, expected %s", v.Name, n.OpType(), v.Type, got, w.Type)
			}
			// Elements of shape arithmetic stay polynomials as well.
			if n.Is("Shape") {
				if e, ok := r.Ints(v); !ok || len(e) != len(n.In(0).Type.Shape) {
					t.Errorf("%s: elements %v", v.Name, e)
				}
			}
		}
	}
}

// TestShapeArithmetic follows exporters' chains from a shape to a Reshape,
// with a detour through Cast.
func TestShapeArithmetic(t *testing.T) {
	m := onnx.NewModel("chain", 20)
	g := m.Graph
	x := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.Shape{onnx.Symbol("batch"), onnx.Symbol("seq"), onnx.Static(12)}))
	one := func(n int64) *onnx.Value { return g.AddConstant("c", onnx.Int64Tensor([]int64{n})) }
	vec := func(n ...int64) *onnx.Value { return g.AddConstant("v", onnx.Int64Tensor(n, int64(len(n)))) }
	add := func(op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
		n := g.NewNode("", op, op, in, []string{op}, attrs...)
		g.Append(n)
		return n.Outputs[0]
	}
	shape := add("Shape", []*onnx.Value{x})
	b := add("Gather", []*onnx.Value{shape, one(0)})
	s := add("Gather", []*onnx.Value{shape, one(1)})
	h := add("Gather", []*onnx.Value{shape, one(2)})
	heads := add("Div", []*onnx.Value{h, one(4)})
	heads = add("Cast", []*onnx.Value{add("Cast", []*onnx.Value{heads}, onnx.IntAttr("to", 1))}, onnx.IntAttr("to", 7))
	rows := add("Mul", []*onnx.Value{b, s})
	next := add("Sub", []*onnx.Value{s, one(1)})
	un := func(v *onnx.Value) *onnx.Value { return add("Unsqueeze", []*onnx.Value{v, vec(0)}) }
	full := add("Concat", []*onnx.Value{un(b), un(s), vec(4), un(heads)}, onnx.IntAttr("axis", 0))
	minus := add("Equal", []*onnx.Value{full, vec(-1)})
	full = add("Where", []*onnx.Value{minus, vec(1, 1, 1, 1), full})
	split := add("Reshape", []*onnx.Value{x, full})
	flat := add("Reshape", []*onnx.Value{x, add("Concat", []*onnx.Value{un(rows), vec(-1)}, onnx.IntAttr("axis", 0))})
	short := add("Slice", []*onnx.Value{x, vec(0), un(next), vec(1)})
	last := add("Slice", []*onnx.Value{x, un(add("Neg", []*onnx.Value{s})), vec(math.MaxInt64), vec(1)})
	further := add("Slice", []*onnx.Value{x, un(add("Neg", []*onnx.Value{add("Add", []*onnx.Value{s, b})})), vec(math.MaxInt64), vec(1)})
	tail := add("Slice", []*onnx.Value{add("Concat", []*onnx.Value{x, x}, onnx.IntAttr("axis", 1)), un(add("Neg", []*onnx.Value{s})), vec(math.MaxInt64), vec(1)})
	butLast := add("Slice", []*onnx.Value{add("Concat", []*onnx.Value{x, x}, onnx.IntAttr("axis", 1)), vec(0), un(add("Neg", []*onnx.Value{s})), vec(1)})
	beyond := add("Slice", []*onnx.Value{x, vec(0), un(add("Add", []*onnx.Value{s, b})), vec(1)})
	upTo := add("Range", []*onnx.Value{one(0), s, one(1)})
	r, err := Model(m, Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	for v, want := range map[*onnx.Value]string{
		split: "float32[batch,seq,4,3]", flat: "float32[batch*seq,12]",
		short: "float32[batch,seq-1,12]", upTo: "int64[seq]",
		last: "float32[batch,seq,12]", further: "float32[batch,?,12]", tail: "float32[batch,seq,12]",
		butLast: "float32[batch,seq,12]", beyond: "float32[batch,seq,12]",
	} {
		if v.Type.String() != want {
			t.Errorf("%s is %s, expected %s", v.Name, v.Type, want)
		}
	}
	if e, ok := r.Ints(rows); !ok || e[0].String() != "batch*seq" {
		t.Errorf("batch*seq is %v", e)
	}
}

// TestNode infers a node that a pass adds, and its constants.
func TestNode(t *testing.T) {
	m := onnx.NewModel("m", 20)
	g := m.Graph
	x := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(2, 6)))
	r, err := Model(m, Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	shape := g.NewNode("", "Shape", "shape", []*onnx.Value{x}, []string{"shape"})
	prod := g.NewNode("", "ReduceProd", "prod", []*onnx.Value{shape.Outputs[0]}, []string{"prod"})
	flat := g.NewNode("", "Reshape", "flat", []*onnx.Value{x, prod.Outputs[0]}, []string{"flat"})
	for _, n := range []*onnx.Node{shape, prod, flat} {
		g.Append(n)
		if err := r.Node(n); err != nil {
			t.Fatal(err)
		}
	}
	if got := flat.Outputs[0].Type.String(); got != "float32[12]" {
		t.Errorf("the reshape is %s", got)
	}
	c, ok := r.Const(shape.Outputs[0])
	if !ok {
		t.Fatal("the shape is no constant")
	}
	if v, err := c.Int64s(); err != nil || len(v) != 2 || v[0] != 2 || v[1] != 6 {
		t.Errorf("the shape holds %v, %v", v, err)
	}
	if _, ok := r.Const(x); ok {
		t.Error("an input is a constant")
	}
	bad := g.NewNode("", "Reshape", "bad", []*onnx.Value{x, g.AddConstant("c", onnx.Int64Tensor([]int64{5}, 1))}, []string{"y"})
	if err := r.Node(bad); err == nil || !strings.Contains(err.Error(), `node "bad": Reshape`) {
		t.Errorf("error %v", err)
	}
}

func TestDeclaredTypes(t *testing.T) {
	build := func(declared string, output bool) error {
		m := onnx.NewModel("m", 20)
		g := m.Graph
		n := g.NewNode("", "Relu", "relu", []*onnx.Value{g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.Shape{onnx.Symbol("b"), onnx.Static(3)}))}, []string{"y"})
		g.Append(n)
		typ, err := parseType(declared)
		if err != nil {
			t.Fatal(err)
		}
		n.Outputs[0].Type = typ
		if output {
			g.AddOutput(n.Outputs[0])
		}
		_, err = Model(m, Options{})
		if is := n.Outputs[0].Type; err == nil && (len(is.Shape) != 2 || !is.Shape[1].Is(3)) {
			t.Errorf("declared %s: is %s", declared, is)
		}
		return err
	}
	for declared, fails := range map[string]bool{
		"float32[b,3]": false, "float32[7,3]": false, "float32": false, "float32[other,?]": false,
		"float32[b,4]": true, "float64[b,3]": true, "float32[b,3,1]": true,
	} {
		if err := build(declared, true); (err != nil) != fails {
			t.Errorf("declared %s: %v", declared, err)
		} else if err != nil && !strings.Contains(err.Error(), `node "relu"`) {
			t.Errorf("declared %s: the error names no node: %v", declared, err)
		}
		// Inside the graph a wrong shape is a wrong hint; exporters write them.
		fails = strings.HasPrefix(declared, "float64")
		if err := build(declared, false); (err != nil) != fails {
			t.Errorf("declared %s inside: %v", declared, err)
		}
	}
}

// TestDeclaredConstant: a constant has the type of its number, whatever is declared beside the
// graph; as an output it has what is declared.
func TestDeclaredConstant(t *testing.T) {
	for _, output := range []bool{false, true} {
		m := onnx.NewModel("m", 20)
		g := m.Graph
		n := g.NewNode("", "Constant", "c", nil, []string{"c"}, onnx.FloatAttr("value_float", 2))
		g.Append(n)
		n.Out(0).Type = onnx.TensorOf(onnx.Float16, onnx.StaticShape())
		if output {
			g.AddOutput(n.Out(0))
		}
		if _, err := Model(m, Options{}); (err != nil) != output || err == nil && n.Out(0).Type.DType != onnx.Float32 {
			t.Errorf("output %v: %v, %s", output, err, n.Out(0).Type)
		}
	}
}

func TestUnknownOperator(t *testing.T) {
	m := onnx.NewModel("m", 20)
	g := m.Graph
	n := g.NewNode("my.domain", "Thing", "thing", []*onnx.Value{g.AddInput("x", onnx.TensorOf(onnx.Float32, nil))}, []string{"y"})
	g.Append(n)
	_, err := Model(m, Options{Strict: true})
	var u *UnknownOpError
	if !errors.As(err, &u) || u.Domain != "my.domain" || u.Op != "Thing" || u.Node != "thing" {
		t.Errorf("error %v", err)
	}
	if _, err := Model(m, Options{}); err != nil || n.Outputs[0].Type.Known() {
		t.Errorf("not strict: %v, type %s", err, n.Outputs[0].Type)
	}
}

// body is a subgraph whose outputs have the given types.
func body(types ...string) *pb.GraphProto {
	g := &pb.GraphProto{}
	for _, s := range types {
		t, err := parseType(s)
		if err != nil {
			panic(err)
		}
		g.Output = append(g.Output, &pb.ValueInfoProto{Type: t.Proto()})
	}
	return g
}

func graphAttr(name string, g *pb.GraphProto) onnx.Attribute {
	return &pb.AttributeProto{Name: &name, G: g, Type: pb.AttributeProto_GRAPH.Enum()}
}

func TestControlFlow(t *testing.T) {
	tests := []struct {
		op     string
		inputs string
		attrs  []onnx.Attribute
		want   string
	}{
		{"If", "bool[]", []onnx.Attribute{graphAttr("then_branch", body("float32[2,n]")), graphAttr("else_branch", body("float32[3,n]"))}, "float32[?,n]"},
		{"If", "bool(0)", []onnx.Attribute{graphAttr("then_branch", body("float32[2,n]")), graphAttr("else_branch", body("float32[3,n]"))}, "float32[3,n]"},
		{"If", "bool[]", []onnx.Attribute{graphAttr("then_branch", body("float32[2]")), graphAttr("else_branch", body("float32[3,n]"))}, "float32"},
		{"If", "bool[]", nil, "no attribute then_branch"},
		{"Loop", "int64[] bool[] float32[2,n]", []onnx.Attribute{graphAttr("body", body("bool[]", "float32[2,n]", "float32[4]"))}, "float32[2,n] float32[?,4]"},
		{"Loop", "int64[] bool[] float32[2,n]", []onnx.Attribute{graphAttr("body", body("bool[]"))}, "a body of 1 outputs"},
		{"Scan", "float32[2] float32[n,3]", []onnx.Attribute{onnx.IntAttr("num_scan_inputs", 1), graphAttr("body", body("float32[2]", "float32[5]"))}, "float32[2] float32[n,5]"},
		{"Scan", "float32[2]", []onnx.Attribute{onnx.IntAttr("num_scan_inputs", 9), graphAttr("body", body("float32[2]"))}, "a body of"},
	}
	for _, test := range tests {
		m := onnx.NewModel("m", 20)
		var in []*onnx.Value
		for _, w := range strings.Fields(test.inputs) {
			v, err := addOperand(m.Graph, w)
			if err != nil {
				t.Fatal(err)
			}
			in = append(in, v)
		}
		outputs := []string{"a", "b", "c"}[:len(strings.Fields(strings.Split(test.want, " of ")[0]))]
		if !strings.Contains(test.want, "[") {
			outputs = outputs[:1]
		}
		n := m.Graph.NewNode("", test.op, "node", in, outputs, test.attrs...)
		m.Graph.Append(n)
		var got []string
		if _, err := Model(m, Options{Strict: true}); err != nil {
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s %s: %v", test.op, test.inputs, err)
			}
			continue
		}
		for _, v := range n.Outputs {
			got = append(got, v.Type.String())
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s %s: %v, expected %s", test.op, test.inputs, got, test.want)
		}
	}
}

// TestBombs grows ranks, polynomials and tensors from node to node; all must
// end in an error or in unknown extents, at once.
func TestBombs(t *testing.T) {
	grow := map[string]func(g *onnx.Graph, x *onnx.Value) *onnx.Node{
		"rank": func(g *onnx.Graph, x *onnx.Value) *onnx.Node {
			return g.NewNode("", "Gather", "n", []*onnx.Value{x, x}, []string{"y"})
		},
		"polynomial": func(g *onnx.Graph, x *onnx.Value) *onnx.Node {
			return g.NewNode("", "Mul", "n", []*onnx.Value{x, x}, []string{"y"})
		},
		"repeats": func(g *onnx.Graph, x *onnx.Value) *onnx.Node {
			return g.NewNode("", "Concat", "n", []*onnx.Value{x, x, x, x}, []string{"y"}, onnx.IntAttr("axis", 0))
		},
		"range": func(g *onnx.Graph, x *onnx.Value) *onnx.Node {
			return g.NewNode("", "ConstantOfShape", "n", []*onnx.Value{x}, []string{"y"}, onnx.TensorAttrOf("value", onnx.Int64Tensor([]int64{1 << 40}, 1)))
		},
	}
	for name, node := range grow {
		t.Run(name, func(t *testing.T) {
			m := onnx.NewModel("m", 20)
			g := m.Graph
			in := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.Shape{onnx.Symbol("a"), onnx.Symbol("b"), onnx.Symbol("c")}))
			s := g.NewNode("", "Shape", "shape", []*onnx.Value{in}, []string{"s"})
			p := g.NewNode("", "Add", "plus", []*onnx.Value{s.Outputs[0], g.AddConstant("c", onnx.Int64Tensor([]int64{5, 6, 7}, 3))}, []string{"p"})
			g.Append(s, p)
			q := g.NewNode("", "Add", "sum", []*onnx.Value{p.Outputs[0], g.NewNode("", "Gather", "g", []*onnx.Value{p.Outputs[0], g.AddConstant("i", onnx.Int64Tensor([]int64{1, 2, 0}, 3))}, []string{"r"}).Outputs[0]}, []string{"q"})
			g.Append(q.Inputs[1].Producer, q)
			x := q.Outputs[0]
			for range 2000 {
				n := node(g, x)
				g.Append(n)
				x = n.Outputs[0]
			}
			start := time.Now()
			_, err := Model(m, Options{})
			if d := time.Since(start); d > time.Second {
				t.Errorf("took %v (%v)", d, err)
			}
		})
	}
}

// TestShapesBesideTables: many tables that are read leave shapes known that are computed after
// them.
func TestShapesBesideTables(t *testing.T) {
	m := onnx.NewModel("m", 20)
	g := m.Graph
	first := g.AddConstant("i", onnx.Int64Tensor([]int64{0}, 1))
	for range 2 * budgetBase / maxElems {
		table := g.AddConstant("t", onnx.Int64Tensor(make([]int64, maxElems), maxElems))
		g.Append(g.NewNode("", "Gather", "n", []*onnx.Value{table, first}, []string{"y"}))
	}
	joined := g.NewNode("", "Concat", "join", []*onnx.Value{
		g.AddConstant("a", onnx.Int64Tensor([]int64{2}, 1)), g.AddConstant("b", onnx.Int64Tensor([]int64{3}, 1)),
	}, []string{"s"}, onnx.IntAttr("axis", 0))
	zeros := g.NewNode("", "ConstantOfShape", "zeros", joined.Outputs, []string{"z"})
	g.Append(joined, zeros)
	if _, err := Model(m, Options{}); err != nil {
		t.Fatal(err)
	}
	if got := zeros.Outputs[0].Type.String(); got != "float32[2,3]" {
		t.Errorf("zeros of %s, want float32[2,3]", got)
	}
}

// TestRefusedByRuntime: files of PyTorch's exporters that ONNX Runtime refuses are refused in a line
// that says what they come from and what to do.
func TestRefusedByRuntime(t *testing.T) {
	const weights = "in w float32[1,8,3]\nin r float32[1,8,2]\nin h float32[1,2,2]\nin c float32[1,2,5]\n"
	const call = "%lstm : [num_users=3] = call_function[target=torch.ops.aten.lstm.input](args = (%x, [%zeros, %zeros_1], [%p_net_weight_ih_l0, %p_net_weight_hh_l0, %p_net_weight_hr_l0], False, 1, 0.0, True, False, True), kwargs = {})"
	for name, c := range map[string]struct{ body, call, want string }{
		"projection":         {"in x float32[4,2,3]\n" + weights + "y = LSTM(x, w, r, _, _, h, c) {hidden_size=2}", call, `LSTM: input 6, the state to begin with, is [1,2,5], where direction, rows and hidden_size ask for [1,2,2]; ONNX's LSTM has no projection, and ONNX Runtime refuses the file too: export a model without proj_size`},
		"its weights":        {"in x float32[2,1]\nin z float32[2]\ny = Concat(x, z) {axis=0}", call, "Concat: inputs of rank 2 and 1; ONNX's LSTM has no projection"},
		"a state":            {"in x float32[4,2,3]\n" + weights + "y = LSTM(x, w, r, _, _, c) {hidden_size=2}", "", "input 5, the state to begin with, is [1,2,5]"},
		"layout":             {"in x float32[2,4,3]\n" + weights + "y = LSTM(x, w, r, _, _, h) {hidden_size=2, layout=1}", "", "ask for [2,1,2]"},
		"free rows":          {"in x float32[4,n,3]\n" + weights + "y = LSTM(x, w, r, _, _, h, h) {hidden_size=2}", "", ""},
		"classes last":       {"in x float32[2,6,5]\nin l int64[2,6]\ny = SoftmaxCrossEntropyLoss(x, l)", "", "the classes stand last, not second"},
		"other labels":       {"in x float32[7,2,5]\nin l int64[2,7]\ny = SoftmaxCrossEntropyLoss(x, l)", "", "extents 7 and 2 differ"},
		"statistics":         {"in x float32[1,2,3]\nin s float32[2]\ny, m, v, a, b = BatchNormalization(x, s, s, s, s)", "", "5 outputs, and from opset 14 on there are 3, so ONNX Runtime refuses the file: TorchScript's exporter writes this of an InstanceNorm with track_running_stats=True; export with dynamo=True"},
		"mixed norm":         {"in x float32[2,3]\nin s float16[3]\ny = LayerNormalization(x, s)", "", "LayerNormalization: inputs have types float32 and float16, and ONNX Runtime wants one type: exporters mix types in some models in half, fewer with dynamo=True; export in float32, and compute in half with --precision"},
		"rows by floats":     {"in x float32[2,3]\nin i float32[4]\ny = Gather(x, i)", "", "Gather: input 1, the indices, is float32, and ONNX Runtime wants int64 or int32: TorchScript's exporter writes this of a torch.full without dtype=torch.long"},
		"elements by floats": {"in x float32[2,3]\nin i float32[2,1]\ny = GatherElements(x, i) {axis=1}", "", "the indices, is float32"},
		"tuples of bools":    {"in x float32[2,3]\nin i bool[2,1]\ny = GatherND(x, i)", "", "the indices, is bool"},
		"put at floats":      {"in x float32[2,3]\nin i float32[2,1]\nin u float32[2,3]\ny = ScatterND(x, i, u)", "", "the indices, is float32"},
		"mixed groups":       {"in x float16[2,4,3]\nin s float32[4]\ny = GroupNormalization(x, s, s) {num_groups=2}", "", "inputs have types float16 and float32"},
	} {
		m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\n" + c.body + "\nout y float32\n}\n")
		if err != nil {
			t.Fatal(name, err)
		}
		if c.call != "" {
			m.Graph.Nodes[0].SetMetadata("pkg.torch.onnx.fx_node", c.call)
		}
		_, err = Model(m, Options{})
		if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && !strings.Contains(got, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
