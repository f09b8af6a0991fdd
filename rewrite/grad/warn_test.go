package grad

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestSharedUses: a weight that serves one module again and again, as in an
// unrolled loop, is meant; one that serves another module than its own is not.
func TestSharedUses(t *testing.T) {
	for name, c := range map[string]struct {
		weight        string
		first, second string
		warns         bool
	}{
		"unrolled":         {"cell.bias", "/cell/Gemm", "/cell/Gemm_1", false},
		"called twice":     {"cell.bias", "/cell/Gemm", "/cell_1/Gemm", false},
		"deeper":           {"net.layers.0.fc.bias", "/net/layers.0/fc/Add", "/net/layers.0_1/fc/Add", false},
		"in a list":        {"net.0.bias", "/net/net.0/Add", "/net/net.0_1/Add", false},
		"of another layer": {"layers.0.fc.bias", "/layers.0/fc/Add", "/layers.1/fc/Add", true},
		"of another name":  {"fc1.bias", "/fc1/Add", "/fc2/Add", true},
		"no names":         {"fc1.bias", "", "", true},
	} {
		m := parseGraph(t, fmt.Sprintf("in x float32[4]\ninit %s float32[4] = [1,2,3,4]\ny = Add(x, %s)\nz = Add(y, %s)\nloss = ReduceMean(z) {keepdims=0}", c.weight, c.weight, c.weight), "loss float32")
		m.Graph.Nodes[0].SetName(c.first)
		m.Graph.Nodes[1].SetName(c.second)
		if got := len(sharedUses(m.Graph, false)) > 0; got != c.warns {
			t.Errorf("%s: warns %v", name, got)
		}
		if len(sharedUses(m.Graph, true)) > 0 {
			t.Errorf("%s, told apart by calls: warns", name)
		}
	}
}

// TestSharedShapes: a gain of one long axis is as likely merged as a vector is, a matrix that
// one operator reads several times is meant, and who asks for a shape reads no numbers.
func TestSharedShapes(t *testing.T) {
	for body, warns := range map[string]bool{
		"init w float32[1,1,3] = [1,1,1]\ny = Mul(x, w)\nz = Mul(y, w)":                   true,
		"init w float32[1,3,3] = [1,2,3,4,5,6,7,8,9]\ny = MatMul(x, w)\nz = MatMul(y, w)": false,
		"init w float32[3] = [1,2,3]\ns = Shape(w)\ny = Mul(x, w)\nz = Expand(y, s)":      false,
	} {
		m := parseGraph(t, "in x float32[2,4,3]\n"+body+"\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		if got := len(sharedUses(m.Graph, false)) > 0; got != warns {
			t.Errorf("%s: warns %v", body, got)
		}
	}
}

// TestSharedWithFused: where calls told apart what was merged, what a node that a tool fused reads
// is said to be shared.
func TestSharedWithFused(t *testing.T) {
	m := parseGraph(t, "in x float32[2,3]\ninit w float32[3] = [1,1,1]\ny = LayerNormalization(x, w)\nz = com.microsoft.SkipLayerNormalization(x, y, w)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
	for told, want := range map[bool]int{true: 1, false: 1} {
		if got := len(sharedUses(m.Graph, told)); got != want {
			t.Errorf("told %v: %d", told, got)
		}
	}
	noteCall(m, "z", "layer_norm.default", "%add, [3], %p_w")
	if got := len(sharedUses(m.Graph, true)); got != 0 {
		t.Errorf("with a call: %d", got)
	}
}

// TestLostBias: layers without a bias are named in a file by tf2onnx, which leaves out a bias of
// zeros, but not the first of two products in a row, nor where one bias is added to two.
func TestLostBias(t *testing.T) {
	for body, want := range map[string]string{
		"h = Relu(a)\ny = MatMul(h, v)":                                                             "w/ReadVariableOp:0, v",
		"b = Add(a, k)\nh = Relu(b)\ny = MatMul(h, v)":                                              "v",
		"n = Mul(a, k)\nb = Add(n, k)\nh = Relu(b)\nc = MatMul(h, v)\ny = Add(k, c)":                "",
		"b = MatMul(a, v)\ny = Add(b, k)":                                                           "",
		"b = MatMul(x, v)\nc = Add(a, b)\ny = Add(c, k)":                                            "",
		"b = MatMul(x, v)\nc = Add(b, k)\ny = Add(a, c)":                                            "",
		"b = Reshape(a, four)\nc = Sub(b, x0)\nh = Relu(c)\nd = Reshape(h, two)\ny = Gemm(d, v, k)": "w/ReadVariableOp:0",
	} {
		for _, producer := range []string{"tf2onnx", ""} {
			m := parseGraph(t, "in x float32[2,2]\nin x0 float32[4]\ninit w/ReadVariableOp:0 float32[2,2] = [1,2,3,4]\ninit v float32[2,2] = [1,2,3,5]\ninit k float32[2] = [1,2]\n"+
				"init four int64[1] = [4]\ninit two int64[2] = [2,2]\na = MatMul(x, w/ReadVariableOp:0)\n"+body+"\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
			m.Proto.ProducerName = &producer
			res, err := Differentiate(m, Options{})
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			said := strings.Join(res.Warnings, " ")
			warns := want != "" && producer != ""
			if strings.Contains(said, "nothing is added") != warns || warns && !strings.Contains(said, "with these weights: "+want+"; where") {
				t.Errorf("%s by %q: %q", body, producer, said)
			}
		}
	}
}

// TestMatricesInNodes: a weight that stands in a Constant node is not trained, and a warning
// names it; a literal that PyTorch wrote, or that is only added, is none.
func TestMatricesInNodes(t *testing.T) {
	for name, c := range map[string]struct {
		producer, op string
		o            Options
		warns        bool
	}{
		"product":       {"", "MatMul", Options{}, true},
		"elementwise":   {"", "Add", Options{}, false},
		"by PyTorch":    {"pytorch", "MatMul", Options{}, false},
		"trained named": {"", "MatMul", Options{Params: []string{"w"}}, false},
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit w float32[2,2] = [1,2,3,4]\nk = Constant() {value=tensor(float32[2,2] = [1,2,3,5])}\na = MatMul(x, w)\nb = "+c.op+"(a, k)\nq = Mul(b, b)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		m.Proto.ProducerName = &c.producer
		res, err := Differentiate(m, c.o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, " "), "Constant nodes hold matrices, which are not trained; where they are weights, make initializers of them: k"); got != c.warns {
			t.Errorf("%s: %q", name, res.Warnings)
		}
	}
}

// TestAllInNodes: a file whose weights all stand in Constant nodes is refused, and it is said where they
// are, beside a number too, which alone is no reason.
func TestAllInNodes(t *testing.T) {
	m := parseGraph(t, "in x float32[2,2]\nw = Constant() {value=tensor(float32[2,2] = [1,2,3,5])}\ns = Constant() {value=tensor(float32[] = 2)}\na = MatMul(x, w)\nb = Mul(a, s)\nloss = ReduceMean(b) {keepdims=0}", "loss float32")
	_, err := Differentiate(m, Options{})
	if err == nil || !strings.Contains(err.Error(), "Constant nodes hold matrices; where they are weights, make initializers of them, as onnxoptimizer does: w") {
		t.Error(err)
	}
}

// TestLostDetach: x + (f(x) - x), of which TorchScript's file does not say that the difference
// was detached, is named with the stop that detaches it; behind a stop, and where the file says what is
// detached, it is not.
func TestLostDetach(t *testing.T) {
	const body = "in x float32[2,2]\ninit l.weight float32[2,2] = [1,2,3,4]\ny = MatMul(x, l.weight)\nr = Round(y)\nd = Sub(r, y)\nq = Add(%s)\ns = Mul(q, q)\nloss = ReduceMean(s) {keepdims=0}"
	for name, c := range map[string]struct {
		sum       string
		stop      []string
		signature string
		said      bool
	}{
		"left":    {"y, d", nil, "", true},
		"right":   {"d, y", nil, "", true},
		"of else": {"d, r", nil, "", false},
		"stopped": {"y, d", []string{"d"}, "", false},
		"signed":  {"y, d", nil, "p_w: PARAMETER target='l.weight'", false},
	} {
		m := parseTorch(t, fmt.Sprintf(body, c.sum), "loss float32")
		m.SetMetadata(signatureKey, c.signature)
		res, err := Differentiate(m, Options{Stop: c.stop})
		if err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(strings.Join(res.Warnings, " "), "if the difference was, add --stop 'd'"); said != c.said {
			t.Errorf("%s: %q", name, res.Warnings)
		}
	}
}

// TestFlat: parameters that reach the loss only through operators without a slope, as a spike whose
// surrogate slope is in no file, are named; those behind a detach, frozen ones and what the
// names do not tell to be parameters are not.
func TestFlat(t *testing.T) {
	for name, c := range map[string]struct {
		weight, body string
		o            Options
		warns        bool
	}{
		"a spike":    {"a.weight", "c = Greater(h, /a/zero)\nf = Cast(c) {to=1}", Options{}, true},
		"a rounding": {"a.weight", "f = Round(h)", Options{}, true},
		"a slope":    {"a.weight", "f = Relu(h)", Options{}, false},
		"a shape":    {"a.weight", "s = Shape(h)\nf = Expand(x, s)", Options{}, false},
		"a detach":   {"a.weight", "d = Identity(h)\nf = Relu(d)", Options{Stop: []string{"h"}}, false},
		"frozen":     {"a.weight", "f = Round(h)", Options{Frozen: []string{"a.*"}}, false},
		"a limit":    {"limit", "c = Greater(x, limit)\nf = Cast(c) {to=1}", Options{}, false},
		"an input":   {"b.weight", "f = Round(x)", Options{}, false},
	} {
		m := parseTorch(t, fmt.Sprintf("in x float32[2,2]\ninit /a/zero float32[] = 0\ninit a.weight float32[2,2] = [1,2,3,4]\ninit b.weight float32[2,2] = [1,2,3,5]\ninit limit float32[2] = [1,2]\nh = MatMul(x, a.weight)\n%s\ny = MatMul(f, b.weight)\nloss = ReduceMean(y) {keepdims=0}", c.body), "loss float32")
		m.Graph.Nodes[0].SetName("/a/MatMul")
		res, err := Differentiate(m, c.o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := strings.Contains(strings.Join(res.Warnings, " "), "such as a comparison or a rounding: "+c.weight); got != c.warns {
			t.Errorf("%s: %q", name, res.Warnings)
		}
	}
}

// TestFlatAlone: where no other parameter is left, they are why.
func TestFlatAlone(t *testing.T) {
	m := parseTorch(t, "in x float32[2,2]\ninit a.weight float32[2,2] = [1,2,3,4]\ninit b.weight float32[2,2] = [1,2,3,5]\nh = MatMul(x, a.weight)\nf = Round(h)\ny = MatMul(f, b.weight)\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
	m.Graph.Nodes[0].SetName("/a/MatMul")
	_, err := Differentiate(m, Options{Frozen: []string{"b.weight"}})
	if err == nil || !strings.Contains(err.Error(), "such as a comparison or a rounding: a.weight") {
		t.Error(err)
	}
}

// TestStoredStatistics: batch normalization in evaluation mode is worth a warning,
// except where the exported program asks for it itself.
func TestStoredStatistics(t *testing.T) {
	const line = "1 × BatchNormalization with stored statistics"
	for name, c := range map[string]struct {
		call   string
		attr   string
		warns  bool
		trains bool // normalizes by its batch, and moves its statistics
	}{
		"unsaid":        {"", "", true, false},
		"in train()":    {"_native_batch_norm_legit_functional.default](args = (%x, %s, %b, %m, %v, True, 0.1, 1e-05)", "", false, true},
		"training on":   {"batch_norm.default](args = (%x, None, None, %m, %v, True, 0.1, 1e-05, False)", "", false, true},
		"in eval()":     {"_native_batch_norm_legit_no_training.default](args = (%x, %s, %b, %m, %v, 0.1, 1e-05)", "", false, false},
		"training off":  {"batch_norm.default](args = (%x, %s, %b, %m, %v, False, 0.1, 1e-05, True)", "", false, false},
		"training mode": {"", " {training_mode=1}", false, true},
	} {
		outs := "y"
		if c.attr != "" {
			outs = "y, rm, rv"
		}
		m := parseGraph(t, "in x float32[2,3,2]\ninit s float32[3] = [1,2,3]\ninit b float32[3] = [1,0,2]\ninit m float32[3] = [0.1, -0.2, 0.3]\ninit v float32[3] = [1.5, 0.7, 2]\n"+
			outs+" = BatchNormalization(x, s, b, m, v)"+c.attr+"\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		if c.call != "" {
			n := m.Graph.Nodes[0]
			n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry("pkg.torch.onnx.fx_node", "%y : [num_users=1] = call_function[target=torch.ops.aten."+c.call+", kwargs = {})"))
		}
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, "\n"), line); got != c.warns {
			t.Errorf("%s: warns %q", name, res.Warnings)
		}
		if got := len(res.Buffers) == 2; got != c.trains {
			t.Errorf("%s: %d running statistics are moved", name, len(res.Buffers))
		}
	}
}

// TestComputedStatistics: statistics that the graph computes of its batch, as tf2onnx writes
// training, are not stored ones.
func TestComputedStatistics(t *testing.T) {
	m := parseGraph(t, "in x float32[2,3]\ninit s float32[3] = [1,2,3]\ninit b float32[3] = [1,0,2]\ninit over int64[1] = [0]\nm = ReduceMean(x, over) {keepdims=0}\n"+
		"d = Sub(x, m)\nv = ReduceSumSquare(d, over) {keepdims=0}\ny = BatchNormalization(x, s, b, m, v)\nq = Mul(y, y)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
	res, err := Differentiate(m, Options{})
	if err != nil || len(res.Warnings) > 0 {
		t.Errorf("%v, warnings %q", err, res.Warnings)
	}
}

// TestOwnStatistics: stored statistics that an exporter merged with a weight keep their values
// when that is trained, and nothing is said of a weight that they alone shared.
func TestOwnStatistics(t *testing.T) {
	for name, body := range map[string]string{
		"identities": "v = Identity(s)\nw = Identity(v)\nm = Identity(b)\ny = BatchNormalization(x, s, b, m, w)",
		"merged":     "y = BatchNormalization(x, s, b, b, s)",
		"two":        "v = Identity(s)\ny = BatchNormalization(x, s, b, b, v)\nz = BatchNormalization(y, t, b, b, v)",
	} {
		last := body[strings.LastIndex(body, "\n")+1:][:1]
		body = "in x float32[2,3,2]\ninit s float32[3] = [1,1,1]\ninit t float32[3] = [1,1,2]\ninit b float32[3] = [0,0,0]\n" + body +
			"\nq = Mul(" + last + ", " + last + ")\nloss = ReduceMean(q) {keepdims=0}"
		m := parseGraph(t, body, "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, n := range m.Graph.Nodes {
			if !n.Is("BatchNormalization") {
				continue
			}
			for _, v := range n.Inputs[3:] {
				if v.Init == nil || v.IsInput() {
					t.Errorf("%s: %s is read as a statistic", name, v.Name)
				}
			}
		}
		if len(res.Params) < 2 {
			t.Errorf("%s: %d parameters", name, len(res.Params))
		}
		if tied := strings.Contains(strings.Join(res.Warnings, "\n"), `"s" is used in`); tied {
			t.Errorf("%s: %q", name, res.Warnings)
		}

		// A state is put into the forward graph: statistics stay there too.
		m = parseGraph(t, body, "loss float32")
		if err := Unmerge(m, func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
		for _, n := range m.Graph.Nodes {
			if n.Is("Identity") || n.Is("BatchNormalization") && (n.In(3) == m.Graph.Value("b") || n.In(4) == m.Graph.Value("s")) {
				t.Errorf("%s: %s has what is trained", name, n.Label())
			}
		}
		if err := m.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBlocksWithoutGradient: what leaves a block of no_grad or autocast is named
// with the option that stops its gradient, where one flows.
func TestBlocksWithoutGradient(t *testing.T) {
	const body = "in x float32[2]\ninit v float32[2] = [1, 2]\ninit w float32[2] = [3, 4]\na = Mul(x, v)\nb = Tanh(a)\nc = Mul(x, w)\nd = Add(b, c)\nloss = ReduceSum(d) {keepdims=0}"
	for _, stop := range []string{"", "b"} {
		m := parseGraph(t, body, "loss float32")
		for _, v := range []string{"a", "b"} {
			n := m.Graph.Value(v).Producer
			n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry(traceKey, `File "<eval_with_key>.7", line 5, in forward`))
		}
		o := Options{}
		if stop != "" {
			o.Stop = []string{stop}
		}
		res, err := Differentiate(m, o)
		if err != nil {
			t.Fatal(err)
		}
		warned := strings.Contains(strings.Join(res.Warnings, "\n"), "--stop 'b'")
		if warned != (stop == "") {
			t.Errorf("with --stop %q: %q", stop, res.Warnings)
		}
	}
}

// TestBlocksThatClone: what leaves a block as a copy is named by the copy's name, whatever was
// copied.
func TestBlocksThatClone(t *testing.T) {
	for name, body := range map[string]string{
		"of the block": "a = Mul(x, v)\nb = Identity(a)",
		"from outside": "o = Mul(x, v)\na = Neg(x)\nb = Identity(o)",
	} {
		for _, stop := range []string{"", "b"} {
			m := parseGraph(t, "in x float32[2]\ninit v float32[2] = [1, 2]\n"+body+"\nc = Mul(b, v)\nloss = ReduceSum(c) {keepdims=0}", "loss float32")
			for _, v := range []string{"a", "b"} {
				n := m.Graph.Value(v).Producer
				n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry(traceKey, `File "<eval_with_key>.7", line 5, in forward`))
			}
			o := Options{}
			if stop != "" {
				o.Stop = []string{stop}
			}
			res, err := Differentiate(m, o)
			if err != nil {
				t.Fatal(err)
			}
			if warned := strings.Contains(strings.Join(res.Warnings, "\n"), "--stop 'b'"); warned != (stop == "") {
				t.Errorf("%s, with --stop %q: %q", name, stop, res.Warnings)
			}
		}
	}
}

// TestOwnBackward: functions with a backward of their own, which no file holds, are named
// where they are on the way of a gradient.
func TestOwnBackward(t *testing.T) {
	const body = "in x float32[2]\ninit w float32[2] = [3, 4]\na = Mul(x, w)\nb = Round(a)\nc = Add(b, w)\nq = Neg(x)\nloss = ReduceSum(c) {keepdims=0}"
	frame := func(file, at, source string) string {
		return `File "` + file + `", line 9, in ` + at + "\n    " + source + "\n"
	}
	forward := frame("/m.py", "forward", "return torch.round(x)")
	for name, c := range map[string]struct {
		value, trace string
		warns        bool
	}{
		"a function":           {"b", frame("/m.py", "forward", "h = RoundSTE.apply(h, 4)") + "  " + forward, true},
		"inside another":       {"b", frame("/m.py", "forward", "return self.net(x)") + "  " + frame("/q.py", "quantize", "return ops.RoundSTE.apply(x)") + "  " + forward, true},
		"a module":             {"b", frame("/m.py", "forward", "h = self.round(h)") + "  " + forward, false},
		"another apply":        {"b", frame("/m.py", "forward", "h = RoundSTE.apply(h)") + "  " + frame("/t.py", "apply", "return f(x)") + "  " + forward, false},
		"a checkpoint":         {"b", frame("/torch/utils/checkpoint.py", "checkpoint", "return RoundSTE.apply(f, x)") + "  " + forward, false},
		"beside the loss":      {"q", frame("/m.py", "forward", "h = RoundSTE.apply(h)") + "  " + forward, false},
		"nothing in the trace": {"b", "", false},
	} {
		m := parseGraph(t, body, "loss float32", "q float32[2]")
		n := m.Graph.Value(c.value).Producer
		n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry(traceKey, c.trace))
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(strings.Join(res.Warnings, "\n"), "computes: RoundSTE;"); warned != c.warns {
			t.Errorf("%s: %q", name, res.Warnings)
		}
	}
}

// TestUnreadInputs: an export that was given one tensor twice reads one input alone.
func TestUnreadInputs(t *testing.T) {
	for reads, warns := range map[string]bool{"x": true, "again": false} {
		m := parseGraph(t, "in x float32[4]\nin again float32[4]\ninit w float32[4] = [1,2,3,4]\ny = Mul(x, w)\nz = Mul(y, "+reads+")\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(res.Warnings, "\n"), "nothing reads these inputs, and what they are fed has no effect: again;"); got != warns {
			t.Errorf("reads %s: warnings %q", reads, res.Warnings)
		}
	}
}

// TestTurnedScores: where TorchScript's exporter may have dropped a transpose behind a log_softmax,
// and the sizes fit nevertheless, that is said; not where the classes were put second, nor of
// other exporters.
func TestTurnedScores(t *testing.T) {
	const model = "in x float32[2,5,4]\nin l int64[2,%[1]d]\ninit a.weight float32[4,5] = [1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2]\nm = MatMul(x, a.weight)\nz = %[2]s(m)\nloss = SoftmaxCrossEntropyLoss(z, l)"
	for name, c := range map[string]struct {
		model, node string
		warns       bool
	}{
		"classes last": {fmt.Sprintf(model, 5, "Relu"), "/a/MatMul", true},
		"put second":   {strings.Replace(fmt.Sprintf(model, 5, "Transpose"), "(m)", "(m) {perm=[0,2,1]}", 1), "/a/MatMul", false},
		"dynamo":       {fmt.Sprintf(model, 5, "Relu"), "node_MatMul_1", false},
		"other sizes":  {strings.NewReplacer("[4,5]", "[4,3]", ",3,4,5,6,7,8,9,1,2]", "]", ",1,2,3,4,5,6,7,8,9,1,2]", ",1,2,3]").Replace(fmt.Sprintf(model, 3, "Relu")), "/a/MatMul", false},
	} {
		m := parseGraph(t, c.model, "loss float32")
		producer := "pytorch"
		m.Proto.ProducerName = &producer
		m.Graph.Nodes[0].SetName(c.node)
		_, res := decisions(t, m, Options{})
		if got := strings.Contains(strings.Join(res.Warnings, " "), "as many classes as places: "); got != c.warns {
			t.Errorf("%s: warnings %q", name, res.Warnings)
		}
	}
}

// TestLostSums: a scatter into zeros that is added, as TorchScript writes index_add, is named where
// its indices may repeat; not one that says its reduction, nor one that is read otherwise.
func TestLostSums(t *testing.T) {
	for nodes, warned := range map[string]bool{
		"s = ScatterND(z, i, u)\ny = Add(p, s)":                                                       true,
		"s = ScatterND(z, twice, u)\ny = Add(p, s)":                                                   true,
		"s = ScatterND(z, once, u)\ny = Add(p, s)":                                                    false,
		"s = ScatterND(z, i, u) {reduction=\"add\"}\ny = Add(p, s)":                                   false,
		"s = ScatterND(p, i, u)\ny = Add(p, s)":                                                       false,
		"s = ScatterND(z, i, u)\ny = Mul(p, s)":                                                       false,
		"e = ConstantOfShape(shape)\nj = Expand(i, cut)\ns = ScatterElements(e, j, u)\ny = Add(s, p)": true,
	} {
		m := parseGraph(t, "in i int64[2,1]\ninit p float32[4,3] = [1,2,3,4,5,6,7,8,9,1,2,3]\ninit u float32[2,3] = [1,2,3,4,5,7]\ninit z float32[4,3] = [0,0,0,0,0,0,0,0,0,0,0,0]\n"+
			"init twice int64[2,1] = [1,1]\ninit once int64[2,1] = [1,3]\ninit shape int64[2] = [4,3]\ninit cut int64[2] = [2,3]\n"+nodes+"\nloss = ReduceMean(y) {keepdims=0}", "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.Contains(w, "which TorchScript leaves out of index_add") }); got != warned {
			t.Errorf("%s: warned %v", nodes, got)
		}
	}
}
