package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// normalizing is a small network that normalizes by its batch, and that stages can cut.
const normalizing = `
in x float32[4,3,8,8]
in y int64[4]
init c1.weight float32[6,3,3,3] = %s
init n1.weight float32[6] = [1, 1, 1, 1, 1, 1]
init n1.bias float32[6] = [0, 0, 0, 0, 0, 0]
init n1.running_mean float32[6] = [0, 0, 0, 0, 0, 0]
init n1.running_var float32[6] = [1, 1, 1, 1, 1, 1]
init c2.weight float32[6,6,3,3] = %s
init n2.weight float32[6] = [1, 1, 1, 1, 1, 1]
init n2.bias float32[6] = [0, 0, 0, 0, 0, 0]
init n2.running_mean float32[6] = [0, 0, 0, 0, 0, 0]
init n2.running_var float32[6] = [1, 1, 1, 1, 1, 1]
init head.weight float32[6,10] = %s
a = Conv(x, c1.weight) {pads=[1, 1, 1, 1]}
b, b_mean, b_var = BatchNormalization(a, n1.weight, n1.bias, n1.running_mean, n1.running_var) {training_mode=1}
c = Relu(b)
d = Conv(c, c2.weight) {pads=[1, 1, 1, 1]}
e, e_mean, e_var = BatchNormalization(d, n2.weight, n2.bias, n2.running_mean, n2.running_var) {training_mode=1}
f = Add(e, c)
g = GlobalAveragePool(f)
h = Flatten(g)
k = MatMul(h, head.weight)
loss = SoftmaxCrossEntropyLoss(k, y)
`

// writeNormalizing writes the network and 16 samples.
func writeNormalizing(t *testing.T, model, data string) {
	t.Helper()
	r := rand.New(rand.NewPCG(3, 4))
	numbers := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = strconv.FormatFloat(r.NormFloat64()/4, 'g', 6, 64)
		}
		return "[" + strings.Join(list, ", ") + "]"
	}
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {" + fmt.Sprintf(normalizing, numbers(6*3*9), numbers(6*6*9), numbers(60)) + "out loss float32\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save(model); err != nil {
		t.Fatal(err)
	}
	x, y := make([]float32, 16*3*8*8), make([]int64, 16)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for i := range y {
		y[i] = r.Int64N(10)
	}
	if err := remat.WriteNPZ(data, map[string]remat.Tensor{"x": remat.FromFloat32s(x, 16, 3, 8, 8), "y": remat.FromInt64s(y, 16)}); err != nil {
		t.Fatal(err)
	}
}

// running are the running statistics of a state.
func running(t *testing.T, path string) map[string][]byte {
	list := tensorsOf(t, path)
	maps.DeleteFunc(list, func(name string, _ []byte) bool { return !strings.Contains(name, ".running_") })
	return list
}

// TestTrainRunning: a network that normalizes by its batch moves its running statistics,
// in one process, in stages and in ranks, goes on with them, and is evaluated with them.
func TestTrainRunning(t *testing.T) {
	dir := t.TempDir()
	model := dir + "/m.onnx"
	writeNormalizing(t, model, dir+"/d.npz")
	train := "--quiet --json --threads 1 train " + model + " --data " + dir + "/d.npz --optimizer sgd --lr 1e-2 "
	do(t, train+"--accumulate 2 --steps 2 -o "+dir+"/one")
	one := tensorsOf(t, dir+"/one/state.safetensors")
	if n := len(running(t, dir+"/one/state.safetensors")); n != 4 {
		t.Errorf("%d running statistics, want 4", n)
	}
	do(t, train+"--accumulate 2 --steps 1 -o "+dir+"/two")
	first := running(t, dir+"/two/state.safetensors")
	if after := running(t, dir+"/one/state.safetensors"); maps.EqualFunc(first, after, bytes.Equal) {
		t.Error("the second step moved nothing")
	}
	do(t, train+"--accumulate 2 --steps 2 --resume -o "+dir+"/two")
	if two := tensorsOf(t, dir+"/two/state.safetensors"); !maps.EqualFunc(one, two, bytes.Equal) {
		t.Error("another state where it went on")
	}
	do(t, train+"--accumulate 2 --steps 2 --pipeline 2 -o "+dir+"/stages")
	if stages := tensorsOf(t, dir+"/stages/state.safetensors"); !maps.EqualFunc(one, stages, bytes.Equal) {
		t.Error("another state in stages")
	}
	var ranks []map[string][]byte
	for name, flags := range map[string]string{"step": "--ranks 2", "shard": "--ranks 2 --sync shard", "buckets": "--ranks 2 --buckets 2"} {
		do(t, train+flags+" --steps 2 -o "+dir+"/"+name)
		s := tensorsOf(t, dir+"/"+name+"/state.safetensors")
		if ranks = append(ranks, s); len(s) != len(one) {
			t.Errorf("%s: %d values in the state, of one process %d", flags, len(s), len(one))
		} else {
			for k := range s {
				if !strings.HasSuffix(k, ".acc") && !bytes.Equal(s[k], ranks[0][k]) {
					t.Errorf("%s: another %s than in other ways", flags, k)
				}
			}
		}
	}
	do(t, "--quiet apply "+dir+"/one/state.safetensors "+model+" -o "+dir+"/applied.onnx")
	do(t, "--quiet rewrite "+dir+"/one/train.onnx --strategy least --provider cuda -o "+dir+"/cuda.onnx")
	do(t, "--quiet rewrite "+dir+"/one/train.onnx --strategy full --provider cuda --precision fp16 -o "+dir+"/cudahalf.onnx")
	do(t, "--quiet rewrite "+dir+"/one/train.onnx --strategy full --half BatchNormalization --precision fp16 -o "+dir+"/half.onnx")
	loss := func(line string) float64 {
		var d struct{ Loss float64 }
		if out := do(t, "--quiet --json --threads 1 eval "+line+" --data "+dir+"/d.npz"); json.Unmarshal([]byte(out), &d) != nil {
			t.Fatal(out)
		}
		return d.Loss
	}
	state := " --state " + dir + "/one/state.safetensors"
	want := loss(dir + "/applied.onnx")
	for _, line := range []string{model + state, dir + "/one/train.onnx" + state, dir + "/cuda.onnx" + state} {
		if got := loss(line); math.Abs(got-want) > 1e-5*want {
			t.Errorf("eval %s: %v, of the applied model %v", line, got, want)
		}
	}
	for _, path := range []string{dir + "/cudahalf.onnx", dir + "/half.onnx"} {
		if got := loss(path + state); math.Abs(got-want) > 1e-3*want {
			t.Errorf("eval %s: %v, of the applied model %v", path, got, want)
		}
	}
	if before := loss(model); math.Abs(before-want) < 1e-3 {
		t.Errorf("loss %v before and %v after", before, want)
	}
}

// branched normalizes in a branch.
const branched = `model ir=10 opset=20
graph g {
  in x float32[4,2]
  init c bool[] = [true]
  init s float32[2] = [1, 2]
  init b float32[2] = [0.5, -1]
  init m float32[2] = [0.25, -0.5]
  init v float32[2] = [1.5, 0.75]
  y = If(c) {then_branch=graph t {
    p = BatchNormalization(x, s, b, m, v)TRAINING
    out p float32[4,2]
  }, else_branch=graph e {
    q = Neg(x)
    out q float32[4,2]
  }}
  z = Mul(y, y)
  loss = ReduceMean(z) {keepdims=0}
  out loss float32[]
}
`

// TestEvalRunningInside: a normalization in control flow is evaluated by its running
// statistics too.
func TestEvalRunningInside(t *testing.T) {
	dir := t.TempDir()
	if err := remat.WriteNPZ(dir+"/d.npz", map[string]remat.Tensor{"x": remat.FromFloat32s([]float32{1, 2, -3, 4, 5, -6, 7, 8}, 4, 2)}); err != nil {
		t.Fatal(err)
	}
	var said []string
	for i, training := range []string{"", " {training_mode=1}"} {
		m, err := onnx.Parse(strings.Replace(branched, "TRAINING", training, 1))
		if err != nil {
			t.Fatal(err)
		}
		path := fmt.Sprintf("%s/%d.onnx", dir, i)
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		said = append(said, do(t, "--quiet --json --threads 1 eval "+path+" --data "+dir+"/d.npz"))
	}
	if !strings.Contains(said[0], "\"loss\"") || said[0] != said[1] {
		t.Errorf("in training %s, else %s", said[1], said[0])
	}
}

// TestRunningCounted: running statistics are no trained parameters; a file with one that
// nothing reads can be cut into stages as another.
func TestRunningCounted(t *testing.T) {
	dir := t.TempDir()
	writeNormalizing(t, dir+"/m.onnx", dir+"/d.npz")
	do(t, "--quiet grad "+dir+"/m.onnx --optimizer sgd -o "+dir+"/t.onnx")
	var d struct{ Trained struct{ Count int } }
	if out := do(t, "--json inspect "+dir+"/t.onnx"); json.Unmarshal([]byte(out), &d) != nil || d.Trained.Count != 7 {
		t.Errorf("%d are trained, want 7", d.Trained.Count)
	}
	m, err := onnx.Load(dir + "/t.onnx")
	if err != nil {
		t.Fatal(err)
	}
	g := m.Graph
	unread := g.AddInput("unread", g.Value("n1.bias").Type)
	n := g.NewNode("", "Neg", "", []*onnx.Value{g.Value("n1.bias")}, []string{"unread.new"})
	n.Outputs[0].Type = unread.Type
	g.Nodes = append(g.Nodes, n)
	g.AddOutput(n.Outputs[0])
	roles, _, err := step.RolesOf(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	roles.New["unread"], roles.Buffers = "unread.new", append(roles.Buffers, "unread")
	if err := roles.Write(m); err != nil {
		t.Fatal(err)
	}
	if err := m.Save(dir + "/unread.onnx"); err != nil {
		t.Fatal(err)
	}
	do(t, "--quiet split "+dir+"/unread.onnx --stages 2 -o "+dir+"/stages")
}

// TestValuesLeftOut: what was trained and a forward model does not hold is named, by eval and apply.
func TestValuesLeftOut(t *testing.T) {
	dir := t.TempDir()
	model := dir + "/m.onnx"
	writeNormalizing(t, model, dir+"/d.npz")
	do(t, "--quiet --threads 1 train "+model+" --data "+dir+"/d.npz --momentum 0.9 --optimizer sgd --lr 1e-2 --steps 1 -o "+dir+"/run")
	m, err := onnx.Load(model)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.Rename(m.Graph.Value("n2.weight"), "onnx::Mul_1")
	m.Graph.Rename(m.Graph.Value("n2.running_var"), "onnx::Mul_2")
	if err := m.Save(dir + "/other.onnx"); err != nil {
		t.Fatal(err)
	}
	state := dir + "/run/state.safetensors"
	for _, c := range []struct {
		model string
		said  bool
	}{{model, false}, {dir + "/other.onnx", true}} {
		for _, line := range []string{"apply " + state + " " + c.model + " -o " + dir + "/out.onnx", "--threads 1 eval " + c.model + " --data " + dir + "/d.npz --state " + state} {
			var stdout, stderr bytes.Buffer
			if code := run(context.Background(), strings.Fields(line), &stdout, &stderr); code != 0 {
				t.Fatalf("%s: %s", line, stderr.String())
			}
			if got := strings.Contains(stderr.String(), "left out: n2.weight, n2.running_var\n"); got != c.said {
				t.Errorf("%s: %q", line, stderr.String())
			}
		}
	}
}
