package grad

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// trainedOf are the names of the parameters and of the running statistics of a derived graph.
func trainedOf(t *testing.T, m *onnx.Model) (params, buffers []string) {
	t.Helper()
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for _, p := range res.Params {
		params = append(params, p.Name)
	}
	for _, b := range res.Buffers {
		buffers = append(buffers, b.Name)
	}
	return params, buffers
}

// TestStatisticLeftByCall: a module that is called twice in train() moves the same running
// statistics twice, also where dynamo's exporter writes what the first call leaves as an Identity.
func TestStatisticLeftByCall(t *testing.T) {
	m := parseGraph(t, strings.NewReplacer("y, y_mean, y_var", "y", "z, z_mean, z_var", "m2 = Identity(m)\nv2 = Identity(v)\nz", "(w, s, b, m, v)", "(w, s, b, m2, v2)", "training_mode=1, ", "").Replace(twiceNormalized), "loss float32")
	for value, args := range map[string]string{"y": "%x, %s, %b, %m, %v", "m2": "%x, %s, %b, %m, %v", "v2": "%x, %s, %b, %m, %v", "z": "%w, %s, %b, %g, %h"} {
		noteCall(m, value, "_native_batch_norm_legit_functional.default", args+", True, 0.25, 1e-05")
	}
	if _, buffers := trainedOf(t, m); !slices.Equal(buffers, []string{"m", "v"}) {
		t.Errorf("buffers %v", buffers)
	}
}

// TestNamedStatistics: in a file of TorchScript's exporter that says nothing else, what PyTorch
// names a running statistic is none that is trained, and moves under its name; what was merged
// into it is trained under its own.
func TestNamedStatistics(t *testing.T) {
	const head = "in x float32[2,3,2]\ninit bn.weight float32[3] = [1,2,1.5]\ninit bn.bias float32[3] = [0,1,0.5]\n" +
		"init bn.running_mean float32[3] = [0.1,0.2,0.3]\ninit bn.running_var float32[3] = [1,1,1]\n"
	for name, c := range map[string]struct {
		body            string
		params, buffers []string
	}{
		"read elsewhere": {"y, m, v = BatchNormalization(x, bn.weight, bn.bias, bn.running_mean, bn.running_var) {training_mode=1}\n" +
			"c = Reshape(bn.running_mean, i)\nz = Add(y, c)", []string{"bn.weight", "bn.bias"}, []string{"bn.running_mean", "bn.running_var"}},
		"merged": {"n.weight = Identity(bn.running_var)\nw = BatchNormalization(x, bn.weight, bn.bias, bn.running_mean, bn.running_var)\n" +
			"z = BatchNormalization(w, n.weight, bn.bias, bn.running_mean, bn.running_var)", []string{"bn.weight", "bn.bias", "n.weight"}, nil},
		"written out": {"w = Reshape(bn.weight, i)\nb = Reshape(bn.bias, i)\nm = Reshape(bn.running_mean, i)\nv = Reshape(bn.running_var, i)\n" +
			"f = Add(v, e)\nr = Sqrt(f)\ns = Div(w, r)\na = Mul(m, s)\nd = Sub(b, a)\ny = Mul(x, s)\nu = Add(y, d)\nz = Mul(u, l.weight)", []string{"l.weight"}, nil},
		"expanded": {"o = Expand(bn.running_mean, j)\nm = Tile(o, t)\nv = Tile(bn.running_var, t)\nw = Tile(bn.weight, t)\nb = Tile(bn.bias, t)\n" +
			"k = Reshape(x, h)\nz = BatchNormalization(k, w, b, m, v)", []string{"bn.weight", "bn.bias"}, nil},
	} {
		body := head + "init l.weight float32[2] = [0.5, 2]\ninit e float32[1] = [0.001]\ninit h int64[3] = [1,6,2]\ninit i int64[2] = [3,1]\ninit j int64[1] = [3]\ninit t int64[1] = [2]\n" + c.body + "\nq = Mul(z, z)\nloss = ReduceMean(q) {keepdims=0}"
		m := parseTorch(t, body, "loss float32")
		params, buffers := trainedOf(t, m)
		slices.Sort(params)
		slices.Sort(c.params)
		if !slices.Equal(params, c.params) || !slices.Equal(buffers, c.buffers) {
			t.Errorf("%s: parameters %v, running statistics %v", name, params, buffers)
		}
	}
}

// TestUnmergeGiven: what TorchScript merged is apart again where there are values for each.
func TestUnmergeGiven(t *testing.T) {
	const body = "in x float32[2,3]\ninit a.weight float32[3] = [1,1,1]\nb.weight = Identity(a.weight)\ny = Mul(x, a.weight)\nz = Mul(y, b.weight)\nloss = ReduceMean(z) {keepdims=0}"
	for _, given := range []bool{false, true} {
		m := parseGraph(t, body, "loss float32")
		if err := Unmerge(m, func(name string) bool { return given && name == "b.weight" }); err != nil {
			t.Fatal(err)
		}
		if v := m.Graph.Value("b.weight"); v.IsConstant() != given {
			t.Errorf("given %v: b.weight is %v", given, v)
		}
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestUnmergeInside: what branches hold is trained under names of the graph, and is there under
// them where there are values for it; else the file keeps its form.
func TestUnmergeInside(t *testing.T) {
	const body = `in c bool[]
in x float32[2,2]
y = If(c) {then_branch=graph yes {
  init w float32[2,2] = [1,2,3,4]
  a = MatMul(x, w)
  out a float32[2,2]
}, else_branch=graph no {
  w = Constant() {value=tensor "w"(float32[2,2] = [5,6,7,8])}
  b = MatMul(x, w)
  out b float32[2,2]
}}
loss = ReduceMean(y) {keepdims=0}`
	trained := parseGraph(t, body, "loss float32")
	res, err := Differentiate(trained, Options{})
	if err != nil || len(res.Params) != 2 {
		t.Fatalf("%d parameters, %v", len(res.Params), err)
	}
	for name, want := range map[string]int{res.Params[0].Name: 2, res.Params[1].Name: 2, "w": 0} {
		m := parseGraph(t, body, "loss float32")
		if err := Unmerge(m, func(given string) bool { return given == name }); err != nil {
			t.Fatal(err)
		}
		if got := len(m.Graph.Initializers); got != want || want > 0 && m.Graph.Value(name).Init == nil {
			t.Errorf("%s: %d initializers", name, got)
		}
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	}
}

// TestBuffersChanged: buffers that PyTorch's step changes and no output of the file returns are
// named, whether the loss depends on them, by a gradient or without one, or eval() alone does, unless
// they are frozen on purpose.
func TestBuffersChanged(t *testing.T) {
	const line = "in PyTorch each step changes buffers too, which stay as they are here: pos"
	lines := strings.Replace(signature, "# outputs", "# outputs\nval_9: BUFFER_MUTATION target='pos'", 1)
	detached := strings.Replace(signedModel, "a = Add(x, pos)", "near = Neg(pos)\nkept = Identity(near)\na = Add(x, kept)", 1)
	for name, c := range map[string]struct {
		signature string
		params    []string
		frozen    []string
		said      bool
	}{
		"lines":     {lines, nil, nil, true},
		"detached":  {lines, nil, nil, true},
		"ahead":     {lines, nil, nil, true},
		"unread":    {lines, nil, nil, true},
		"dropped":   {lines, nil, nil, true},
		"object":    {"ExportGraphSignature(input_specs=[InputSpec(kind=<InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_w'), target='layer.weight', persistent=None)], output_specs=[OutputSpec(kind=<OutputKind.BUFFER_MUTATION: 3>, arg=TensorArgument(name='add'), target='pos')])", nil, nil, true},
		"unchanged": {signature, nil, nil, false},
		"frozen":    {lines, nil, []string{"pos"}, false},
		"trained":   {lines, []string{"pos", "layer.weight"}, nil, false},
	} {
		m := parseGraph(t, signedModel, "loss float32")
		o := Options{Params: c.params, Frozen: c.frozen}
		switch name {
		case "detached":
			m, o.Stop = parseGraph(t, detached, "loss float32"), []string{"near"}
		case "unread", "dropped": // as running statistics are in train()
			m = parseGraph(t, strings.Replace(signedModel, "a = Add(x, pos)", "a = Neg(x)", 1), "loss float32")
			if name == "dropped" {
				m.Graph.RemoveInitializer(m.Graph.Value("pos"))
			}
		}
		if name == "ahead" { // 0.9 of it
			m = parseGraph(t, strings.ReplaceAll(signedModel, "pos", "mul"), "loss float32")
			noteValue(m, "mul", entry(foldedKey, "['pos', 'val_1']"))
		}
		m.SetMetadata(signatureKey, c.signature)
		_, res := decisions(t, m, o)
		if got := slices.Contains(res.Warnings, line); got != c.said {
			t.Errorf("%s: warnings %q", name, res.Warnings)
		}
	}
}

// TestParametersChanged: parameters that the exported program changes itself and reads without a
// gradient are named.
func TestParametersChanged(t *testing.T) {
	const line = "the exported program changes parameters itself, as an embedding with max_norm does, and reads them without a gradient; they are not trained: layer.weight"
	m := parseGraph(t, strings.Replace(signedModel, "b = MatMul(a, layer.weight)", "fixed = Identity(layer.weight)\nb = MatMul(a, fixed)", 1), "loss float32")
	m.SetMetadata(signatureKey, strings.Replace(signature, "# outputs", "# outputs\nval_9: PARAMETER_MUTATION target='layer.weight'", 1))
	_, res := decisions(t, m, Options{Stop: []string{"fixed"}})
	if !slices.Contains(res.Warnings, line) {
		t.Errorf("warnings %q", res.Warnings)
	}
}

// TestSeparate: norms of a fresh model, which TorchScript merges as their elements are all ones,
// are trained apart and under their names; a tensor that the model has twice is one.
func TestSeparate(t *testing.T) {
	for name, c := range map[string]struct {
		values, scope string
		params        []string
	}{
		"fresh":         {"[1,1,1]", "/n/Mul", []string{"a.weight", "b.weight"}},
		"a loss added":  {"[1,1,1]", "/n/Mul", []string{"a.weight", "b.weight"}},
		"one element":   {"[0.25]", "/n/Mul", []string{"a.weight", "b.weight"}},
		"a list":        {"[1,1,1]", "/n/Mul", []string{"0.1.weight", "2.weight"}},
		"tied":          {"[1,2,1]", "/n/Mul", []string{"a.weight"}},
		"other exports": {"[1,1,1]", "", []string{"a.weight"}},
	} {
		text := "in x float32[2,3]\ninit a.weight float32[3] = " + c.values + "\nb.weight = Identity(a.weight)\ny = Mul(x, a.weight)\nz = Mul(y, b.weight)\nloss = ReduceMean(z) {keepdims=0}"
		if name == "a list" {
			text = strings.NewReplacer("a.weight", "0.1.weight", "b.weight", "2.weight").Replace(text)
		}
		if name == "one element" {
			text = strings.Replace(text, "a.weight float32[3]", "a.weight float32[1]", 1)
		}
		m := parseTorch(t, text, "loss float32")
		m.Graph.Nodes[1].SetName(c.scope)
		if name == "a loss added" {
			m.Graph.Nodes[3].SetOrigin(onnx.Origin{Pass: "loss"})
		}
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var params []string
		for _, p := range res.Params {
			params = append(params, p.Name)
		}
		if slices.Sort(params); !slices.Equal(params, c.params) {
			t.Errorf("%s: parameters %v", name, params)
		}
		if said := slices.Contains(res.Warnings, fmt.Sprintf(mergedEqual, c.params[len(c.params)-1])); said != (len(c.params) == 2) {
			t.Errorf("%s: warnings %q", name, res.Warnings)
		}
	}
}

// TestKeras: variables of Keras, which PyTorch holds in a dict under their paths, are told from
// constants by their names, one of one element too, and those of a fresh model are apart; moving
// statistics with which the normalization is written out are none that are trained.
func TestKeras(t *testing.T) {
	for _, dict := range []string{"m._functional._torch_params.", "_torch_params.", "m.torch_params."} {
		norm := dict + "net/norm/"
		m := parseTorch(t, "in x float32[2,3]\ninit "+norm+"gamma float32[3] = [1,1,1]\ninit "+norm+"beta float32[3] = [0,0,0]\ninit "+dict+"net/scale float32[] = 2\ninit /m/Constant_1_output_0 float32[] = 0.001\n"+
			norm+"moving_mean = Identity("+norm+"beta)\n"+norm+"moving_variance = Identity("+norm+"gamma)\n"+dict+"net/dense/bias = Identity("+norm+"beta)\n"+
			"a = Mul(x, "+dict+"net/scale)\nb = Add(a, "+dict+"net/dense/bias)\nc = Sub(b, "+norm+"moving_mean)\nd = Add("+norm+"moving_variance, /m/Constant_1_output_0)\nr = Sqrt(d)\n"+
			"f = Div(c, r)\ng = Mul(f, "+norm+"gamma)\nh = Add(g, "+norm+"beta)\nq = Mul(h, h)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		m.Graph.Nodes[3].SetName("/m/Mul")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var params []string
		for _, p := range res.Params {
			params = append(params, strings.TrimPrefix(p.Name, dict))
		}
		if slices.Sort(params); !slices.Equal(params, []string{"net/dense/bias", "net/norm/beta", "net/norm/gamma", "net/scale"}) {
			t.Errorf("%s: parameters %v", dict, params)
		}
		for name, op := range map[string]string{"beta": "Sub", "gamma": "Add"} {
			if uses := m.Graph.Value(norm + name).Uses(); slices.ContainsFunc(uses, func(u onnx.Use) bool { return u.Node.Is(op) }) {
				t.Errorf("%s: %s is tied to a statistic", dict, name)
			}
		}
		for _, d := range res.Decisions {
			if d.Open {
				t.Errorf("%s: %+v", dict, d)
			}
		}
	}
}

// TestIdentityOfNothing: an Identity without input or output is no merging, and no panic.
func TestIdentityOfNothing(t *testing.T) {
	m := parseGraph(t, "in x float32[2]\ninit w.weight float32[2] = [1, 1]\ny = Mul(x, w.weight)\nb.weight = Identity(w.weight)\nc = Neg(b.weight)\nz = Add(y, c)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
	n := m.Graph.Value("b.weight").Producer
	n.SetInput(0, nil)
	if v, from := identity(n); v != nil || from != nil {
		t.Errorf("%v of %v", v, from)
	}
	m.Graph.Value("c").Producer.SetInput(0, nil)
	n.DropOutput(0)
	if v, from := identity(n); v != nil || from != nil {
		t.Errorf("%v of %v", v, from)
	}
}

// TestTrackedInstances: running statistics that an instance normalization moves in PyTorch, and that
// are in no file, are named; not those that it normalizes by, nor frozen ones.
func TestTrackedInstances(t *testing.T) {
	const line = "in PyTorch each step changes buffers too, which stay as they are here: n.running_mean, n.running_var"
	for name, c := range map[string]struct {
		args   string
		frozen []string
		said   bool
	}{
		"train()":    {"%a, %p_w, %p_b, %b_m, %b_v, True, 0.1, 1e-05, False", nil, true},
		"not affine": {"%a, None, None, %b_m, %b_v, True, 0.1, 1e-05, False", nil, true},
		"eval()":     {"%a, %p_w, %p_b, %b_m, %b_v, False, 0.1, 1e-05, False", nil, false},
		"untracked":  {"%a, %p_w, %p_b, None, None, True, 0.1, 1e-05, False", nil, false},
		"frozen":     {"%a, %p_w, %p_b, %b_m, %b_v, True, 0.1, 1e-05, False", []string{"n.*"}, false},
	} {
		m := parseGraph(t, `in x float32[2,3,2]
init c.weight float32[2,2] = [1,2,3,4]
init n.weight float32[3] = [1,1,1]
init n.bias float32[3] = [0,0,0]
a = MatMul(x, c.weight)
y = InstanceNormalization(a, n.weight, n.bias)
q = Mul(y, y)
loss = ReduceMean(q) {keepdims=0}
`, "loss float32")
		m.SetMetadata(signatureKey, "p_c: PARAMETER target='c.weight'\np_w: PARAMETER target='n.weight'\np_b: PARAMETER target='n.bias'\n"+
			"b_m: BUFFER target='n.running_mean' persistent=True\nb_v: BUFFER target='n.running_var' persistent=True\n")
		noteCall(m, "y", "instance_norm.default", c.args)
		_, res := decisions(t, m, Options{Frozen: c.frozen})
		if got := slices.Contains(res.Warnings, line); got != c.said {
			t.Errorf("%s: warnings %q", name, res.Warnings)
		}
	}
}

// TestInstancesInEval: the export says that an instance normalization normalizes by its running
// statistics, as it does of a batch normalization.
func TestInstancesInEval(t *testing.T) {
	m := parseGraph(t, `in x float32[2,3,2]
init c.weight float32[2,2] = [1,2,3,4]
init n.running_mean float32[3] = [0,1,2]
init n.running_var float32[3] = [1,2,3]
init one float32[3] = [1,1,1]
init none float32[3] = [0,0,0]
a = MatMul(x, c.weight)
y = BatchNormalization(a, one, none, n.running_mean, n.running_var)
q = Mul(y, y)
loss = ReduceMean(q) {keepdims=0}
`, "loss float32")
	m.SetMetadata(signatureKey, "p_c: PARAMETER target='c.weight'\n"+
		"b_m: BUFFER target='n.running_mean' persistent=True\nb_v: BUFFER target='n.running_var' persistent=True\n")
	noteCall(m, "y", "instance_norm.default", "%a, None, None, %b_m, %b_v, False, 0.1, 1e-05, False")
	if _, res := decisions(t, m, Options{}); len(res.Warnings) > 0 || len(res.Buffers) > 0 {
		t.Errorf("warnings %q, buffers %v", res.Warnings, res.Buffers)
	}
}
