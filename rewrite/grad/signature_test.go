package grad

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

func entry(key, value string) *pb.StringStringEntryProto {
	return &pb.StringStringEntryProto{Key: &key, Value: &value}
}

// noteValue adds metadata to the value_info of an initializer.
func noteValue(m *onnx.Model, name string, props ...*pb.StringStringEntryProto) {
	m.Graph.Proto.ValueInfo = append(m.Graph.Proto.ValueInfo, &pb.ValueInfoProto{Name: &name, MetadataProps: props})
}

// noteCall says of the node that makes a value which call it comes from.
func noteCall(m *onnx.Model, value, target, args string) {
	n := m.Graph.Value(value).Producer
	text := fmt.Sprintf("%%%s : [num_users=1] = call_function[target=torch.ops.aten.%s](args = (%s), kwargs = {})", value, target, args)
	n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry("pkg.torch.onnx.fx_node", text))
}

const signedModel = `in x float32[2,4]
init layer.weight float32[4,4] = [1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7]
init head.bias float32[1] = [0.5]
init logit_scale float32[] = 2
init pos float32[2,4] = [1,3,2,5,1,0,2,8]
init val_3 float32[4] = [0.1, 0.2, 0.3, 0.4]
init val_4 float32[] = 1e-6
a = Add(x, pos)
b = MatMul(a, layer.weight)
c = Add(b, head.bias)
s = Exp(logit_scale)
d = Mul(c, s)
e = Mul(d, val_3)
f = Add(e, val_4)
loss = ReduceMean(f) {keepdims=0}
`

const signature = `
# inputs
p_layer_weight: PARAMETER target='layer.weight'
p_head_bias: PARAMETER target='head.bias'
p_logit_scale: PARAMETER target='logit_scale'
b_pos: BUFFER target='pos' persistent=True
x: USER_INPUT

# outputs
add: BUFFER_MUTATION target='layer.num_batches_tracked'
loss: USER_OUTPUT
`

// decisions differentiates and returns name, +trained or -frozen, source.
func decisions(t *testing.T, m *onnx.Model, o Options) (string, *Result) {
	t.Helper()
	res, err := Differentiate(m, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, d := range res.Decisions {
		list = append(list, map[bool]string{true: "+", false: "-"}[d.Trained]+d.Name+" "+string(d.Source))
	}
	return strings.Join(list, ", "), res
}

// TestSignature: in each form in which the exporter wrote it, the signature decides
// what is trained, parameters of one element too; what cannot be read decides
// nothing.
func TestSignature(t *testing.T) {
	const trained = "+layer.weight signature, +head.bias signature, +logit_scale signature, -pos signature, -val_3 signature"
	const guessed = "+layer.weight use, +pos content, +val_3 content"
	repr := "ExportGraphSignature(input_specs=["
	for _, line := range strings.Split(signature, "\n") {
		if f := specLine.FindStringSubmatch(line); f != nil && f[3] != "" {
			repr += fmt.Sprintf("InputSpec(kind=<InputKind.%s: 2>, arg=TensorArgument(name='%s'), target='%s', persistent=None), ", f[2], f[1], f[3])
		}
	}
	for name, c := range map[string]struct {
		note func(m *onnx.Model)
		want string
	}{
		"none": {func(*onnx.Model) {}, guessed},
		"of the graph": {func(m *onnx.Model) {
			m.Graph.Proto.MetadataProps = append(m.Graph.Proto.MetadataProps, entry(signatureKey, signature))
		}, trained},
		"of the model": {func(m *onnx.Model) { m.SetMetadata(signatureKey, signature) }, trained},
		"as an object": {func(m *onnx.Model) { m.SetMetadata(signatureKey, repr+"], output_specs=[])") }, trained},
		"lines of DOS": {func(m *onnx.Model) { m.SetMetadata(signatureKey, strings.ReplaceAll(signature, "\n", "\r\n")) }, trained},
		"of each value": {func(m *onnx.Model) {
			for _, v := range []string{"layer.weight", "head.bias", "logit_scale"} {
				noteValue(m, v, entry(kindKey, "PARAMETER"))
			}
			noteValue(m, "pos", entry(kindKey, "BUFFER"))
		}, trained},
		"of other names": {func(m *onnx.Model) { m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\n") }, guessed},
		"junk": {func(m *onnx.Model) {
			m.SetMetadata(signatureKey, "PARAMETER target='layer.weight'\n\x00: : '\n"+strings.Repeat("(", 1e5))
		}, guessed},
		"new kinds": {func(m *onnx.Model) { m.SetMetadata(signatureKey, signature+"q: QUANTIZED target='val_3'\n") }, trained},
	} {
		m := parseGraph(t, signedModel, "loss float32")
		c.note(m)
		if got, _ := decisions(t, m, Options{}); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestParametersAsConstants: where the exporter made constants of all parameters, as it does of those
// that forward reads from a dict, they are not trained as parameters of their own.
func TestParametersAsConstants(t *testing.T) {
	const text = "p_w: PARAMETER target='cell.w'\nc_0: CONSTANT_TENSOR target='lifted_tensor_0'\nc_1: CONSTANT_TENSOR target='lifted_tensor_1'\n"
	const body = "in x float32[2,2]\ninit lifted_tensor_0 float32[2,2] = [1,2,3,4]\ninit lifted_tensor_1 float32[2,2] = [1,2,3,4]\n" +
		"a = MatMul(x, lifted_tensor_0)\nb = MatMul(a, lifted_tensor_1)\n"
	m := parseGraph(t, body+"loss = ReduceMean(b) {keepdims=0}\n", "loss float32")
	m.SetMetadata(signatureKey, text)
	if _, err := Differentiate(m, Options{}); err == nil || !strings.Contains(err.Error(), "made constants of the parameters") || !strings.Contains(err.Error(), "cell.w") {
		t.Errorf("%v", err)
	}
	m = parseGraph(t, body+"init val_3 float32[2,2] = [4,2,3,1]\nc = MatMul(b, val_3)\nloss = ReduceMean(c) {keepdims=0}\n", "loss float32")
	m.SetMetadata(signatureKey, text)
	if got, _ := decisions(t, m, Options{}); !strings.Contains(got, "+val_3") {
		t.Errorf("beside another: %s", got)
	}
}

// TestParamsSelectParameters: patterns select among parameters, a whole name makes
// one of a constant; a pattern that trains nothing is a warning beside others, an
// error alone.
func TestParamsSelectParameters(t *testing.T) {
	for name, c := range map[string]struct {
		params, frozen      string
		trained, warns, err string
	}{
		"all":               {"*", "", "layer.weight head.bias logit_scale", "", ""},
		"but one":           {"*", "head.*", "layer.weight logit_scale", "", ""},
		"a buffer by name":  {"*.weight,pos", "", "layer.weight pos", "", ""},
		"a constant":        {"val_4", "", "val_4", "", ""},
		"nothing, beside":   {"*.weight,*.gamma", "", "layer.weight", `--params "*.gamma" matches no initializer`, ""},
		"constants, beside": {"*.weight,val_*", "", "layer.weight", `--params "val_*" matches no parameter, only what looks like constants (val_3): give a whole name`, ""},
		"constants":         {"val_*", "", "", "", "matches no parameter, only what looks like constants (val_3)"},
		"nothing":           {"*.gamma", "", "", "", "matches no initializer"},
		"no such name":      {"*.weight,gamma", "", "", "", `"gamma": matches no initializer`},
		"behind a wrapper":  {"weight*", "", "", "", `"weight*": matches no initializer and no input of the model; "*.weight*" does`},
		"an input":          {"x", "", "x", "", ""},
		"frozen, beside":    {"", "head.*,*.gamma", "layer.weight logit_scale", `--frozen "*.gamma" matches no initializer`, ""},
	} {
		m := parseGraph(t, signedModel, "loss float32")
		m.SetMetadata(signatureKey, signature)
		var o Options
		for list, text := range map[*[]string]string{&o.Params: c.params, &o.Frozen: c.frozen} {
			if text != "" {
				*list = strings.Split(text, ",")
			}
		}
		res, err := Differentiate(m, o)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var trained []string
		for _, p := range res.Params {
			trained = append(trained, p.Name)
		}
		warns := strings.Join(res.Warnings, "; ")
		if strings.Join(trained, " ") != c.trained || !strings.Contains(warns, c.warns) || (warns == "") != (c.warns == "") {
			t.Errorf("%s: trains %v, warns %q", name, trained, warns)
		}
	}
}

// TestNames: without a signature PyTorch's names tell parameters of one element
// from constants, in files by PyTorch.
func TestNames(t *testing.T) {
	for name, c := range map[string]struct{ producer, node, want string }{
		"unknown":           {"", "", "+layer.weight use, +pos content, +val_3 content"},
		"dynamo":            {"pytorch", "node_Add_1", "+layer.weight use, +head.bias use, +pos content, +val_3 content"},
		"TorchScript":       {"pytorch", "/head/Add", "+layer.weight use, +head.bias use, +logit_scale use, +pos name, +val_3 name, +val_4 name"},
		"fused":             {"onnxruntime.transformers", "node_Add_1", "+layer.weight use, +head.bias use, +pos content, +val_3 content"},
		"fused TorchScript": {"onnxruntime.transformers", "/head/Add", "+layer.weight use, +head.bias use, +logit_scale use, +pos name, +val_3 name, +val_4 name"},
		"fused, of another": {"onnxruntime.transformers", "Add_1", "+layer.weight use, +pos content, +val_3 content"},
	} {
		m := parseGraph(t, signedModel, "loss float32")
		m.Proto.ProducerName = &c.producer
		m.Graph.Nodes[0].SetName(c.node)
		if got, _ := decisions(t, m, Options{}); got != c.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestUniformConstants: a table that is filled with one number is a constant in a
// file by PyTorch, unless it has a module's name.
func TestUniformConstants(t *testing.T) {
	for name, c := range map[string]struct {
		weight, values string
		trained        bool
	}{
		"filled":   {"onnx::ScatterElements_9", "-1e9, -1e9, -1e9, -1e9", false},
		"a module": {"out.weight", "0, 0, 0, 0", true},
		"varied":   {"onnx::ScatterElements_9", "-1e9, -1e9, -1e9, 0", true},
	} {
		m := parseTorch(t, "in x float32[4]\nin i int64[4]\ninit w.b float32[4] = [1,2,3,4]\ninit \""+c.weight+"\" float32[4] = ["+c.values+"]\ny = Mul(x, w.b)\nz = ScatterElements(\""+c.weight+"\", i, y)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		_, res := decisions(t, m, Options{})
		for _, d := range res.Decisions {
			if d.Name == c.weight && d.Trained != c.trained {
				t.Errorf("%s: trained %v: %s", name, d.Trained, d.Reason)
			}
		}
	}
}

// TestSineTableIsFrozen: a parameter that holds sines is one with
// requires_grad=False; one that holds anything else, or is a factor, is not.
func TestSineTableIsFrozen(t *testing.T) {
	rows := func(shift, noise float64) string {
		var list []string
		for i := range 8 {
			for k := range 4 {
				list = append(list, fmt.Sprintf("%g", shift+math.Sin(float64(i)/math.Pow(3, float64(k)))+noise*float64((i*7+k*3)%5)))
			}
		}
		return strings.Join(list, ", ")
	}
	for name, c := range map[string]struct {
		rows, use string
		trained   bool
	}{
		"sines":    {rows(0, 0), "z = Add(x, w)", false},
		"shifted":  {rows(0.3, 0), "z = Add(x, w)", false},
		"gathered": {rows(0, 0), "z = Gather(w, i)", false},
		"learned":  {rows(0, 0.05), "z = Add(x, w)", true},
		"a matrix": {rows(0, 0), "z = MatMul(x8, w)", true},
	} {
		m := parseGraph(t, "in x float32[8,4]\nin x8 float32[8,8]\nin i int64[8]\ninit w float32[8,4] = ["+c.rows+"]\ninit b float32[4] = [1,2,3,4]\n"+c.use+
			"\ny = Mul(z, b)\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
		m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\np_b: PARAMETER target='b'\n")
		got, _ := decisions(t, m, Options{})
		if want := map[bool]string{true: "+w signature, ", false: "-w content, "}[c.trained] + "+b signature"; got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestSinesOnGrid: positions of an image's patches, half of whose columns are sines of the
// row and half of the column, are a table of sines too, behind tokens without a place as well.
func TestSinesOnGrid(t *testing.T) {
	const rows, cols, wide = 6, 8, 8
	sines := func(i, k int) float64 { return math.Sin(float64(i)/math.Pow(3, float64(k/2)) + math.Pi/2*float64(k%2)) }
	for name, c := range map[string]struct {
		zeros   int
		at      func(row, col, k int) float64
		trained bool
	}{
		"row beside column": {0, func(row, col, k int) float64 { return sines([]int{row, col}[k/4], k%4) }, false},
		"column beside row": {0, func(row, col, k int) float64 { return sines([]int{col, row}[k/4], k%4) }, false},
		"behind a token":    {1, func(row, col, k int) float64 { return sines([]int{row, col}[k/4], k%4) }, false},
		"scaled":            {2, func(row, col, k int) float64 { return 0.02 * sines([]int{row, col}[k/4], k%4) }, false},
		"summed":            {0, func(row, col, k int) float64 { return sines(row, k) + sines(col, k) }, true},
		"of the row alone":  {0, func(row, col, k int) float64 { return sines(row, k) }, true},
		"learned": {1, func(row, col, k int) float64 {
			return sines([]int{row, col}[k/4], k%4) + 0.01*float64((row*5+col*3+k)%7)
		}, true},
		"of anything": {0, func(row, col, k int) float64 { return float64([]int{row * row % 5, col * col % 7}[k/4] * (k + 1)) }, true},
	} {
		values := make([]float64, c.zeros*wide)
		for row := range rows {
			for col := range cols {
				for k := range wide {
					values = append(values, c.at(row, col, k))
				}
			}
		}
		places := c.zeros + rows*cols
		for _, signed := range []bool{true, false} {
			m := parseGraph(t, fmt.Sprintf("in x float32[2,%d,8]\ninit w float32[1,%d,8] = zeros\ninit b float32[8] = [1,2,3,4,5,6,7,8]\nz = Add(x, w)\ny = Mul(z, b)\nloss = ReduceMean(y) {keepdims=0}", places, places), "loss float32")
			m.Graph.Value("w").Init = onnx.FloatTensor(onnx.Float32, values, 1, int64(places), wide)
			if signed {
				m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\np_b: PARAMETER target='b'\n")
			}
			_, res := decisions(t, m, Options{})
			for _, d := range res.Decisions {
				if d.Name == "w" && d.Trained != c.trained {
					t.Errorf("%s, with a signature %v: trained %v: %s", name, signed, d.Trained, d.Reason)
				}
			}
		}
	}
}

// TestFoldedNorms: of a batch normalization that the exporter's optimizer folded into a
// convolution nothing else is said than that; one without parameters does not lend the
// convolution's weights the names of its statistics.
func TestFoldedNorms(t *testing.T) {
	for name, c := range map[string]struct{ args, with string }{
		"affine":  {"%conv2d, %p_b_w, %p_b_b, %b_m, %b_v, False, 0.1, 1e-05", "c.weight and c.bias (with b.weight and b.bias)"},
		"without": {"%conv2d, None, None, %b_m, %b_v, False, 0.1, 1e-05", "c.weight and c.bias"},
	} {
		m := parseGraph(t, `in x float32[1,1,3,3]
init c.weight float32[2,1,2,2] = [1,2,3,4,5,6,7,8]
init c.bias float32[2] = [1,2]
y = Conv(x, c.weight, c.bias)
loss = ReduceMean(y) {keepdims=0}
`, "loss float32")
		m.SetMetadata(signatureKey, "p_c_w: PARAMETER target='c.weight'\np_c_b: PARAMETER target='c.bias'\np_b_w: PARAMETER target='b.weight'\np_b_b: PARAMETER target='b.bias'\n"+
			"b_m: BUFFER target='b.running_mean' persistent=True\nb_v: BUFFER target='b.running_var' persistent=True\n")
		noteCall(m, "y", "_native_batch_norm_legit_no_training.default", c.args)
		got, res := decisions(t, m, Options{})
		if got != "+c.weight signature, +c.bias signature" {
			t.Errorf("%s: %s", name, got)
		}
		want := []string{"the exporter folded a BatchNormalization into the layer before it, whose weights are trained with it inside, without normalizing; export with optimize=False: " + c.with}
		if !slices.Equal(res.Warnings, want) {
			t.Errorf("%s: %q", name, res.Warnings)
		}
	}
}

// TestTraceless: a parameter that the exporter's optimizer computed away, a term of 0 or a factor
// of 1, is named; a tied weight is not in the file either, nor is one that an export without the
// optimizer leaves out.
func TestTraceless(t *testing.T) {
	for name, c := range map[string]struct{ constant, args, want string }{
		"a constant":         {"val_0", "%x, %p_l_w", "log_var, m.gate"},
		"as exported":        {"", "%x, %p_l_w", ""},
		"a factor of 1":      {"", "%mul_3, %p_l_w", "log_var, m.gate"},
		"a view, as no node": {"", "%view, %p_l_w", ""},
	} {
		body := "in x float32[2,2]\ninit l.weight float32[2,2] = [1,2,3,4]\n"
		k := "l.weight"
		if c.constant != "" {
			body, k = body+"init val_0 float32[] = 2\n", c.constant
		}
		m := parseGraph(t, body+"y = MatMul(x, l.weight)\nz = Mul(y, "+k+")\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		m.SetMetadata(signatureKey, "p_l_w: PARAMETER target='l.weight'\np_h_w: PARAMETER target='head.weight'\np_v: PARAMETER target='log_var'\np_g: PARAMETER target='m.gate'\n")
		noteCall(m, "y", "matmul.default", c.args)
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(strings.Join(res.Warnings, " "), "computed with their values ahead; export with optimize=False: ")
		if got != c.want {
			t.Errorf("%s: %q", name, res.Warnings)
		}
	}
}

// TestReadTwice: a call that reads one parameter twice, as a product with itself or a square,
// gives it both gradients; a number beside it that the exporter merged with it gives none.
func TestReadTwice(t *testing.T) {
	for name, c := range map[string]struct {
		target, args string
		want         float64
	}{
		"product": {"mul.Tensor", "%p_w, %p_w", 6},
		"square":  {"square.default", "%p_w", 6},
		"number":  {"mul.Tensor", "%p_w, 3.0", 3},
		"another": {"mul.Tensor", "%p_w, %p_v", 3},
	} {
		m := parseGraph(t, "in x float32[]\ninit w float32[] = 3\ny = Mul(w, w)\nloss = Mul(y, x)", "loss float32")
		m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\np_v: PARAMETER target='v'\n")
		noteCall(m, "y", c.target, c.args)
		if _, err := Differentiate(m, Options{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fed := map[string]*onnx.Tensor{"w": onnx.FloatTensor(onnx.Float32, []float64{3}), "x": onnx.FloatTensor(onnx.Float32, []float64{1})}
		if m.Graph.Value("v") != nil {
			fed["v"] = fed["w"]
		}
		if got := ortest.Run(t, m, 0, fed)["w.grad"]; len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: gradient %v, want %v", name, got, c.want)
		}
	}
}

// TestUnmerge: the calls of the exported program tell apart what its optimizer
// merged: parameters with parameters, with buffers, with numbers.
func TestUnmerge(t *testing.T) {
	body := `in x float32[2,4]
init a.weight float32[4] = [1,1,1,1]
init a.bias float32[4] = [0,0,0,0]
init scale float32[] = 2
y = LayerNormalization(x, a.weight, a.bias)
z = LayerNormalization(y, a.weight, a.bias)
s = Mul(z, scale)
q = Pow(s, scale)
loss = ReduceMean(q) {keepdims=0}
`
	m := parseGraph(t, body, "loss float32")
	m.SetMetadata(signatureKey, "p_a_w: PARAMETER target='a.weight'\np_a_b: PARAMETER target='a.bias'\np_b_w: PARAMETER target='b.weight'\nb_b_b: BUFFER target='b.shift' persistent=True\n"+
		"p_s: PARAMETER target='scale'\np_tied: PARAMETER target='tied'\np_gone: PARAMETER target='gone'\n")
	noteCall(m, "y", "layer_norm.default", "%x, [4], %p_a_w, %p_a_b")
	noteCall(m, "z", "layer_norm.default", "%y, [4], %p_b_w, %b_b_b")
	noteCall(m, "s", "mul.Tensor", "%z, %p_s")
	noteCall(m, "q", "pow.Tensor_Scalar", "%s, 2")
	noteCall(m, "loss", "mean.default", "%q, %p_gone")
	got, res := decisions(t, m, Options{})
	if want := "+a.weight signature, +a.bias signature, +scale signature, +b.weight signature, -b.shift signature, -scale.constant signature"; got != want {
		t.Error(got)
	}
	want := []string{"the exporter merged parameters of equal value; they are separate again: b.weight",
		"the exporter dropped parameters from the file; they are not trained; export with optimize=False: gone"}
	if !slices.Equal(res.Warnings, want) {
		t.Errorf("warnings %q", res.Warnings)
	}
}

// TestUnmergeNorms: of two fresh batch normalizations, whose weights and variances are all
// ones, the calls tell the parameters apart and the statistics from them.
func TestUnmergeNorms(t *testing.T) {
	m := parseGraph(t, `in x float32[2,3,2]
init a.weight float32[3] = [1,1,1]
init a.bias float32[3] = [0,0,0]
y = BatchNormalization(x, a.weight, a.bias, a.bias, a.weight)
z = BatchNormalization(y, a.weight, a.bias, a.bias, a.weight)
q = Mul(z, z)
loss = ReduceMean(q) {keepdims=0}
`, "loss float32")
	text := ""
	for _, of := range []string{"a", "b"} {
		text += fmt.Sprintf("p_%[1]s_w: PARAMETER target='%[1]s.weight'\np_%[1]s_b: PARAMETER target='%[1]s.bias'\nb_%[1]s_m: BUFFER target='%[1]s.mean' persistent=True\nb_%[1]s_v: BUFFER target='%[1]s.var' persistent=True\n", of)
	}
	m.SetMetadata(signatureKey, text)
	noteCall(m, "y", "_native_batch_norm_legit_no_training.default", "%x, %p_a_w, %p_a_b, %b_a_m, %b_a_v, 0.1, 1e-05")
	noteCall(m, "z", "_native_batch_norm_legit_no_training.default", "%y, %p_b_w, %p_b_b, %b_b_m, %b_b_v, 0.1, 1e-05")
	got, _ := decisions(t, m, Options{})
	for _, name := range []string{"a.weight", "a.bias", "b.weight", "b.bias"} {
		if !strings.Contains(got, "+"+name+" signature") {
			t.Errorf("%s is not trained: %s", name, got)
		}
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("BatchNormalization") && (n.In(3).Init == nil || n.In(4).Init == nil || n.In(3).IsInput() || n.In(4).IsInput()) {
			t.Errorf("%s normalizes by what is trained", n.Label())
		}
	}
}

// TestUnmergeCalls: a fresh batch normalization that is called twice has one pair of running
// statistics also where the exporter's optimizer merged them with its weights, or, where it has
// none, with the ones and zeros in their place.
func TestUnmergeCalls(t *testing.T) {
	for name, c := range map[string]struct{ scale, shift, args string }{
		"affine":  {"n.weight", "n.bias", "%p_w, %p_b"},
		"without": {"n.running_var", "n.running_mean", "None, None"},
	} {
		m := parseGraph(t, fmt.Sprintf(`in x float32[2,3,2]
init c.weight float32[2,2] = [1,2,3,4]
init %[1]s float32[3] = [1,1,1]
init %[2]s float32[3] = [0,0,0]
a = MatMul(x, c.weight)
y = BatchNormalization(a, %[1]s, %[2]s, %[2]s, %[1]s)
z = BatchNormalization(y, %[1]s, %[2]s, %[2]s, %[1]s)
q = Mul(z, z)
loss = ReduceMean(q) {keepdims=0}
`, c.scale, c.shift), "loss float32")
		m.SetMetadata(signatureKey, "p_c: PARAMETER target='c.weight'\np_w: PARAMETER target='n.weight'\np_b: PARAMETER target='n.bias'\n"+
			"b_m: BUFFER target='n.running_mean' persistent=True\nb_v: BUFFER target='n.running_var' persistent=True\n# outputs\ng: BUFFER_MUTATION target='n.running_mean'\n")
		noteCall(m, "y", "_native_batch_norm_legit_functional.default", "%a, "+c.args+", %b_m, %b_v, True, 0.1, 1e-05")
		noteCall(m, "z", "_native_batch_norm_legit_functional.default", "%y, "+c.args+", %getitem_3, %getitem_4, True, 0.1, 1e-05")
		for _, v := range []string{"y", "z"} {
			m.Graph.Value(v).Producer.SetMetadata("pkg.torch.onnx.name_scopes", "['', 'n', 'batch_norm']")
		}
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var buffers []string
		for _, b := range res.Buffers {
			buffers = append(buffers, b.Name)
		}
		slices.Sort(buffers)
		if !slices.Equal(buffers, []string{"n.running_mean", "n.running_var"}) || strings.Contains(strings.Join(res.Warnings, " "), "buffers") {
			t.Errorf("%s: running statistics %v, warnings %q", name, buffers, res.Warnings)
		}
	}
}

// TestParts: in a file that onnx.compose joined of two equal towers by dynamo, under prefixes, and a
// head by TorchScript, each part is taken for what it says or does not say: what the optimizer computed
// of a weight stands for it, a call is one part's alone, and the head's weights are not left out.
func TestParts(t *testing.T) {
	const tower = `in %[1]s.x float32[2,2]
init %[1]s.val_0 float32[2,2] = [1,2,3,5]
init %[1]s.val_1 float32[2,2] = [3,2,3,1]
init %[1]s.val_2 float32[2,2] = [1,2,4,1]
init %[1]s.fc.bias float32[2] = [1,2]
%[1]s.h = MatMul(%[1]s.x, %[1]s.val_0)
%[1]s.y = Add(%[1]s.h, %[1]s.fc.bias)
%[1]s.k = Add(%[1]s.y, %[1]s.val_1)
%[1]s.l = Mul(%[1]s.k, %[1]s.val_2)
%[1]s.z = Mul(%[1]s.l, %[1]s.y)
`
	m := parseGraph(t, fmt.Sprintf(tower, "q")+fmt.Sprintf(tower, "d")+`init h.o.weight float32[2,2] = [1,2,3,4]
init h.t float32[] = 2
h./o/MatMul_output_0 = MatMul(q.z, h.o.weight)
h./Mul_output_0 = Mul(h./o/MatMul_output_0, h.t)
h.s = Mul(h./Mul_output_0, d.z)
h.loss = ReduceMean(h.s) {keepdims=0}
`, "h.loss float32")
	producer := "onnx.compose.merge_models"
	m.Proto.ProducerName = &producer
	for _, n := range m.Graph.Nodes {
		value := n.Out(0).Name
		part, name := value[:2], value[2:]
		n.SetName(part + "node_" + name)
		if part == "h." {
			n.SetName(strings.TrimSuffix(value, "_output_0"))
			continue
		}
		args := map[string]string{"k": "%y, %val_1", "l": "%k, %val_2", "z": "%l, %detach"}[name]
		call := name
		if args == "" {
			call, args = "y", "%x, %p_fc_weight, %p_fc_bias"
		}
		n.SetMetadata("pkg.torch.onnx.fx_node", fmt.Sprintf("%%%s : [num_users=1] = call_function[target=torch.ops.aten.f.default](args = (%s), kwargs = {})", call, args))
	}
	for _, part := range []string{"q.", "d."} {
		noteValue(m, part+"fc.bias", entry(kindKey, kindParameter), entry(originalKey, "p_fc_bias"))
		noteValue(m, part+"val_0", entry(foldedKey, "['fc.weight']"))
		noteValue(m, part+"val_1", entry(foldedKey, "['val_7']"))
	}
	got, res := decisions(t, m, Options{})
	want := "+q.val_0 signature, -q.val_1 signature, -q.val_2 signature, +q.fc.bias signature, +d.val_0 signature, -d.val_1 signature, -d.val_2 signature, +d.fc.bias signature, +h.o.weight use, +h.t name"
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if len(res.Stops) != 2 || len(res.Warnings) > 0 {
		t.Errorf("stops %v, warnings %q", res.Stops, res.Warnings)
	}
}

// TestNotesByOptimizerAlone: where onnxscript's optimizer noted what it computed in a file by
// TorchScript, which has no signature, what it left is decided about as in any file without one.
func TestNotesByOptimizerAlone(t *testing.T) {
	m := parseTorch(t, `in x float32[2,2]
init /fc/Transpose_output_0 float32[2,2] = [1,3,2,4]
init fc.bias float32[2] = [1,2]
init /Constant_output_0 float32[2] = [3,3]
/fc/MatMul_output_0 = MatMul(x, /fc/Transpose_output_0)
/fc/Add_output_0 = Add(fc.bias, /fc/MatMul_output_0)
/Mul_output_0 = Mul(/fc/Add_output_0, /Constant_output_0)
loss = ReduceMean(/Mul_output_0) {keepdims=0}
`, "loss float32")
	for _, n := range m.Graph.Nodes {
		n.SetName(strings.TrimSuffix(n.Out(0).Name, "_output_0"))
	}
	m.Graph.Nodes[1].SetMetadata("pkg.onnxscript.rewriter.rule_name", "AddAdd")
	noteValue(m, "/fc/Transpose_output_0", entry(foldedKey, "['fc.weight']"))
	const want = "+/fc/Transpose_output_0 signature, +fc.bias use, -/Constant_output_0 content"
	if got, res := decisions(t, m, Options{}); got != want || len(res.Warnings) > 0 {
		t.Errorf("%s, want %s; warns %q", got, want, res.Warnings)
	}
}

// TestFoldedAgain: what an optimizer that ran again computed from what it had computed is not left
// out for its note, where parameters of the program are in the file no more.
func TestFoldedAgain(t *testing.T) {
	const says = "computed values ahead, perhaps from parameters, and they are trained in their place"
	for name, c := range map[string]struct {
		lists, from, want string
		warns             bool
	}{
		"joined":        {"q", "['val_3', 'val_4']", "+val_1 use, +b signature", true},
		"none is lost":  {"", "['val_3', 'val_4']", "-val_1 signature, +b signature", false},
		"a mask":        {"q", "['arange', 'ge', 'val_4']", "-val_1 signature, +b signature", false},
		"from a buffer": {"q", "['steps', 'val_4']", "-val_1 signature, +b signature", false},
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit val_1 float32[2,2] = [1,2,3,4]\ninit b float32[2] = [1,2]\ny = MatMul(x, val_1)\nz = Add(y, b)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		text := "p_b: PARAMETER target='b'\nb_steps: BUFFER target='steps' persistent=True\n"
		if c.lists != "" {
			text += "p_" + c.lists + ": PARAMETER target='" + c.lists + "'\n"
		}
		m.SetMetadata(signatureKey, text)
		producer := "pytorch"
		m.Proto.ProducerName = &producer
		noteValue(m, "val_1", entry(foldedKey, c.from))
		got, res := decisions(t, m, Options{})
		if said := strings.Contains(strings.Join(res.Warnings, "; "), says+"; export with optimize=False, and derive from that file: val_1"); got != c.want || said != c.warns {
			t.Errorf("%s: %s, warns %q", name, got, res.Warnings)
		}
	}
}

// TestRetie: a transpose that the exporter computed ahead is trained as the
// parameter that it comes from, where it is one.
func TestRetie(t *testing.T) {
	for name, c := range map[string]struct {
		head, want, warns string
	}{
		"tied":    {"[1,3,5,2,4,6]", "+e signature", ""},
		"changed": {"[1,3,5,2,4,7]", "+e signature, +val_1 signature", "trained separately; export with optimize=False: val_1 and e"},
	} {
		m := parseGraph(t, "in i int64[2]\ninit e float32[3,2] = [1,2,3,4,5,6]\ninit val_1 float32[2,3] = "+c.head+
			"\ng = Gather(e, i)\nz = MatMul(g, val_1)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		m.SetMetadata(signatureKey, "p_e: PARAMETER target='e'\n")
		noteValue(m, "val_1", entry(foldedKey, "['e']"))
		noteCall(m, "g", "embedding.default", "%p_e, %i")
		got, res := decisions(t, m, Options{})
		if got != c.want || !strings.Contains(strings.Join(res.Warnings, "; "), c.warns) || len(res.Warnings) > 0 && c.warns == "" {
			t.Errorf("%s: %s, warns %q", name, got, res.Warnings)
		}
	}
}

// TestCalledTwice: the exporter computes a matrix ahead for each call of its layer; they are one
// parameter, unless they are of several, or are parts of one.
func TestCalledTwice(t *testing.T) {
	const together, apart = "+val_1 signature", "+val_1 signature, +val_2 signature"
	for name, c := range map[string]struct {
		first, second, from, call, want string
	}{
		"one layer":   {"[1,2,3,4]", "[1,2,3,4]", "w", "p_w", together},
		"two layers":  {"[1,2,3,4]", "[1,2,3,4]", "v", "p_v", apart},
		"two parts":   {"[1,2,3,4]", "[1,2,3,5]", "w", "getitem", apart},
		"fresh":       {"[0,0,0,0]", "[0,0,0,0]", "w", "p_w", together},
		"fresh parts": {"[0,0,0,0]", "[0,0,0,0]", "w", "getitem", apart},
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit val_1 float32[2,2] = "+c.first+"\ninit val_2 float32[2,2] = "+c.second+
			"\ny = MatMul(x, val_1)\nz = MatMul(y, val_2)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\np_"+c.from+": PARAMETER target='"+c.from+"'\n")
		noteValue(m, "val_1", entry(foldedKey, "['w']"))
		noteValue(m, "val_2", entry(foldedKey, "['"+c.from+"']"))
		noteCall(m, "y", "linear.default", "%x, %p_w")
		noteCall(m, "z", "linear.default", "%y, %"+c.call)
		if got, res := decisions(t, m, Options{}); got != c.want || len(res.Warnings) > 0 {
			t.Errorf("%s: %s, warns %q", name, got, res.Warnings)
		}
	}
}

// TestSharedAhead: what the exporter computed ahead for each call of a shared layer is trained as one
// parameter; what it made of it otherwise stays apart, and that is said.
func TestSharedAhead(t *testing.T) {
	for name, c := range map[string]struct {
		second, values, want, warns string
	}{
		"transposes":    {"val_7", "[1,3,2,4]", "+val_1 signature", ""},
		"of each other": {"t_1", "[1,2,3,4]", "+val_1 signature", ""},
		"and back":      {"permute_1", "[1,2,3,4]", "+val_1 signature", ""},
		"other numbers": {"val_7", "[1,3,2,5]", "+val_1 signature, +val_7 signature", "trained separately; export with optimize=False: val_7 and val_1 of w"},
		"otherwise":     {"relu", "[1,3,2,4]", "+val_1 signature, +relu signature", "trained separately; export with optimize=False: relu and val_1 of w"},
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit val_1 float32[2,2] = [1,3,2,4]\ninit "+c.second+" float32[2,2] = "+c.values+
			"\ny = MatMul(x, val_1)\nr = Relu(y)\nz = MatMul(r, "+c.second+")\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\n")
		noteValue(m, "val_1", entry(foldedKey, "['w']"))
		from := "['w']"
		if name == "and back" {
			from = "['w', 'permute']"
		}
		noteValue(m, c.second, entry(foldedKey, from))
		noteCall(m, "y", "linear.default", "%x, %p_w")
		noteCall(m, "z", "linear.default", "%r, %p_w")
		got, res := decisions(t, m, Options{})
		if got != c.want || !strings.Contains(strings.Join(res.Warnings, "; "), c.warns) || len(res.Warnings) > 0 && c.warns == "" {
			t.Errorf("%s: %s, warns %q", name, got, res.Warnings)
		}
	}
}

// TestNamelessCalls: a call without a name, as no exporter writes it, is no reason to fail.
func TestNamelessCalls(t *testing.T) {
	for _, text := range []string{"](args = ", "](args = (%", "](args = (%add,", "%](args = (%mul_1"} {
		m := parseGraph(t, signedModel, "loss float32")
		m.SetMetadata(signatureKey, signature)
		n := m.Graph.Nodes[0]
		n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry("pkg.torch.onnx.fx_node", text))
		if _, err := Differentiate(m, Options{}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestHeldOnce: of a parameter that the exporter expanded ahead one copy is trained, where the
// values say along which axis.
func TestHeldOnce(t *testing.T) {
	for name, c := range map[string]struct {
		value, from, values, extents, want string
	}{
		"over the batch": {"expand", "['cls', 'val_0']", "[1,2,1,2,1,2]", "3,1,2", "[1,1,2]"},
		"repeated":       {"repeat_1", "['cls', 'val_0']", "[1,1,1,2,2,2]", "2,3", "[2,1]"},
		"zeros":          {"expand", "['cls', 'val_0']", "[0,0,0,0,0,0]", "3,1,2", "[3,1,2]"},
		"two axes":       {"expand_2", "['cls', 'val_0']", "[1,2,1,2,1,2,1,2]", "2,2,2", "[2,2,2]"},
		"apart":          {"expand", "['cls', 'val_0']", "[1,2,1,2,1,3]", "3,1,2", "[3,1,2]"},
		"of two":         {"expand", "['cls', 'pos']", "[1,2,1,2,1,2]", "3,1,2", "[3,1,2]"},
		"equal rows":     {"neg", "['cls']", "[1,2,1,2,1,2]", "3,1,2", "[3,1,2]"},
		"and cut":        {"slice_2", "['cls', 'repeat', 'unsqueeze_1', 'val_0']", "[1,2,1,2,1,2]", "3,1,2", "[1,1,2]"},
		"and masked":     {"mul", "['cls', 'expand', 'val_0']", "[1,2,1,2,1,2]", "3,1,2", "[3,1,2]"},
		"masked and cut": {"slice_1", "['cls', 'expand', 'mul', 'val_0']", "[1,2,1,2,1,2]", "3,1,2", "[3,1,2]"},
		"only cut":       {"slice_1", "['cls', 'val_0']", "[1,2,1,2,1,2]", "3,1,2", "[3,1,2]"},
	} {
		body := "in x float32[" + c.extents + "]\ninit " + c.value + " float32[" + c.extents + "] = " + c.values + "\nz = Mul(x, " + c.value + ")\nloss = ReduceMean(z) {keepdims=0}"
		sign := func(m *onnx.Model) {
			m.SetMetadata(signatureKey, "p_cls: PARAMETER target='cls'\np_pos: PARAMETER target='pos'\n")
			noteValue(m, c.value, entry(foldedKey, c.from))
			noteCall(m, "z", "mul.Tensor", "%x, %p_cls")
		}
		m := parseGraph(t, body, "loss float32")
		sign(m)
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		p := res.Params[0]
		if got := p.Data.Type().Shape.String(); p.Name != c.value || got != c.want || p.Grad.Type.Shape.String() != c.want {
			t.Errorf("%s: %s %s, gradient %s", name, p.Name, got, p.Grad.Type.Shape)
		}
		forward := parseGraph(t, body, "loss float32")
		sign(forward)
		if err := Unmerge(forward, func(string) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if got := forward.Graph.Value(c.value).Init.Type().Shape.String(); got != c.want {
			t.Errorf("%s: a state's values have %s in the forward model", name, got)
		}
		if err := errors.Join(m.Check(), forward.Check()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTrainedInstead: what stands for a parameter without being its transpose is said.
func TestTrainedInstead(t *testing.T) {
	for name, c := range map[string]struct {
		from string
		warn bool
	}{
		"val_1": {"['w']", false}, "permute_3": {"['w']", false}, "exp": {"['w']", true},
		"mul": {"['w', 'ones', 'tril']", true}, "t": {"['w', 'scalar_tensor']", true},
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit "+name+" float32[2,2] = [1,2,3,4]\nz = MatMul(x, "+name+")\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\n")
		noteValue(m, name, entry(foldedKey, c.from))
		noteCall(m, "z", "matmul.default", "%x, %p_w")
		_, res := decisions(t, m, Options{})
		if said := strings.Contains(strings.Join(res.Warnings, "; "), "trained instead; export with optimize=False: "+name+" (of w)"); said != c.warn {
			t.Errorf("%s of %s: warns %q", name, c.from, res.Warnings)
		}
	}
}

// TestPatternsOfComputed: names and patterns mean a parameter too where the file
// holds only what the exporter's optimizer computed from it.
func TestPatternsOfComputed(t *testing.T) {
	for name, c := range map[string]struct {
		params, frozen []string
		want, err      string
	}{
		"params":         {[]string{"*lora_*"}, nil, "-val_1 options, +val_2 options", ""},
		"params by name": {[]string{"l.lora_A.weight"}, nil, "-val_1 options, +val_2 options", ""},
		"of the file":    {[]string{"val_2"}, nil, "-val_1 options, +val_2 options", ""},
		"frozen":         {nil, []string{"*.base.*"}, "-val_1 options, +val_2 signature", ""},
		"frozen by name": {nil, []string{"l.base.weight"}, "-val_1 options, +val_2 signature", ""},
		"neither":        {[]string{"*lora_B*"}, nil, "", "matches no initializer"},
	} {
		m := parseGraph(t, `in x float32[2,2]
init val_1 float32[2,2] = [1,2,3,4]
init val_2 float32[2,2] = [1,0,2,5]
a = MatMul(x, val_1)
b = MatMul(a, val_2)
loss = ReduceMean(b) {keepdims=0}`, "loss float32")
		m.SetMetadata(signatureKey, "p_a: PARAMETER target='l.base.weight'\np_b: PARAMETER target='l.lora_A.weight'\n")
		noteValue(m, "val_1", entry(foldedKey, "['l.base.weight']"))
		noteValue(m, "val_2", entry(foldedKey, "['l.lora_A.weight']"))
		o := Options{Params: c.params, Frozen: c.frozen}
		if c.err != "" {
			if _, err := Differentiate(m, o); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if got, res := decisions(t, m, o); got != c.want || len(res.Warnings) > 0 {
			t.Errorf("%s: %s, warns %q", name, got, res.Warnings)
		}
	}
}

// TestCopied: where a call names a copy that the exporter removed, of which a detach may have been
// made, that is said; not where a reshape copied, nor of a copy that is there.
func TestCopied(t *testing.T) {
	for name, c := range map[string]struct {
		read string // what the product reads
		args string // what its call says that it reads
		told string
	}{
		"a copy":         {"h", "%clone_2, %p_w", "clone_2"},
		"joined alone":   {"h", "%cat_1, %p_w", "cat_1"},
		"the value":      {"h", "%h, %p_w", ""},
		"a view":         {"h", "%view, %p_w", ""},
		"a copy held":    {"kept", "%clone, %p_w", ""},
		"of a reshape":   {"turned", "%clone_1, %p_w", ""},
		"a known detach": {"h", "%detach, %p_w", ""},
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit w float32[2,2] = [1,2,3,4]\nh = Mul(x, w)\nkept = Identity(h)\nturned = Transpose(h) {perm=[1, 0]}\n"+
			"y = MatMul("+c.read+", w)\nz = Mul(y, h)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		m.SetMetadata(signatureKey, "p_w: PARAMETER target='w'\n")
		noteCall(m, "h", "mul.Tensor", "%x, %p_w")
		noteCall(m, "y", "mm.default", c.args)
		if c.read == "kept" { // under the name of an output
			kept := m.Graph.Value("kept").Producer
			kept.Proto.MetadataProps = append(kept.Proto.MetadataProps, entry("pkg.torch.onnx.fx_node", "%clone : [num_users=1] = call_function[target=torch.ops.aten.clone.default](args = (%h,), kwargs = {})"))
		}
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(strings.Join(res.Warnings, " "), "gradients flow past it; export with optimize=False: ")
		if got != c.told {
			t.Errorf("%s: %q", name, res.Warnings)
		}
	}
}
