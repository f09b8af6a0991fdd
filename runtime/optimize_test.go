package runtime

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/runtime/ort"
)

// token is a number that layout transformations put into names, another in
// each session.
var token = regexp.MustCompile(`_token_\d+`)

// TestDump compares the order of the dumped graph with the profile's, on every
// sample and level.
func TestDump(t *testing.T) {
	for _, path := range sampleModels(t) {
		for _, level := range []int{0, 1, 99} {
			dumpAgrees(t, path, level)
		}
	}
}

func dumpAgrees(t *testing.T, path string, level int) {
	t.Helper()
	s, err := testEngine.OpenFile(path, Options{Level: level, Threads: 1, Provider: ort.CPU, Profile: true, Feeds: readSample(t, path)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	p, err := s.Profile()
	if err != nil {
		t.Fatal(err)
	}
	dump, err := testEngine.Dump(s.Model, ort.SessionOptions{Level: level, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Close()
	place := filepath.Base(path)
	if len(dump.Graph.Nodes) != len(p.Nodes) {
		t.Fatalf("%s level %d: %d nodes dumped, %d ran", place, level, len(dump.Graph.Nodes), len(p.Nodes))
	}
	for i, n := range dump.Graph.Nodes {
		if n.OpType() != p.Nodes[i].Op || n.Name() != "" && token.ReplaceAllString(n.Name(), "") != token.ReplaceAllString(p.Nodes[i].Node, "") {
			t.Fatalf("%s level %d: node %d is %s %s in the dump, %s %s in the profile", place, level, i,
				n.OpType(), n.Name(), p.Nodes[i].Op, p.Nodes[i].Node)
		}
	}
	if times, sizes := Top(p, 10); len(times) != 10 || times[0].Seconds < times[9].Seconds ||
		sizes[0].Bytes < sizes[9].Bytes || times[0].Share <= 0 {
		t.Errorf("top: %v, %v", times, sizes)
	}
}

// TestOptimize normalizes an exported GPT-2: initializers keep their names and
// bytes, and the loss stays.
func TestOptimize(t *testing.T) {
	path := filepath.Join(samples, "gpt2_tiny_mask.ts.onnx")
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	out, err := testEngine.Optimize(m, OptimizeOptions{Level: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if before, after := len(m.Graph.Nodes), len(out.Graph.Nodes); before != 476 || after > 160 {
		t.Errorf("%d nodes became %d", before, after)
	}
	if err := out.Check(); err != nil {
		t.Error(err)
	}
	if len(out.Graph.Inputs) != len(m.Graph.Inputs) {
		t.Errorf("inputs: %v", out.Graph.Inputs)
	}
	for _, v := range m.Graph.Initializers {
		if !trainable(v) {
			continue
		}
		w := out.Graph.Value(v.Name)
		if w == nil || w.Init == nil {
			t.Errorf("initializer %s is gone", v.Name)
			continue
		}
		a, _ := v.Init.Bytes()
		b, _ := w.Init.Bytes()
		if !bytes.Equal(a, b) {
			t.Errorf("initializer %s changed", v.Name)
		}
	}
	feeds := readSample(t, path)
	s, err := testEngine.Open(out, Options{Provider: ort.CPU, Feeds: feeds, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	checkOutputs(t, step, feeds)
}

// TestConstants folds one table of 4 KiB into a session.
func TestConstants(t *testing.T) {
	m := onnx.NewModel("fold", 17)
	g := m.Graph
	table := g.AddConstant("table", FromFloat32s(make([]float32, 1024), 1024).constant())
	x := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(1024)))
	e := g.NewNode("", "Exp", "", []*onnx.Value{table}, []string{"e"})
	a := g.NewNode("", "Add", "", []*onnx.Value{x, e.Out(0)}, []string{"y"})
	g.Append(e, a)
	a.Out(0).Type = x.Type
	g.AddOutput(a.Out(0))
	for _, c := range []struct {
		level int
		want  int64
	}{{0, 0}, {1, 4096}} {
		s, err := testEngine.Open(m, Options{Provider: ort.CPU, Level: c.level})
		if err != nil {
			t.Fatal(err)
		}
		before := s.Memory().SessionBytes
		if err := s.MeasureConstants(); err != nil {
			t.Fatal(err)
		}
		if got := s.Memory().SessionBytes - before; got != c.want {
			t.Errorf("level %d: %d bytes of constants, want %d", c.level, got, c.want)
		}
		s.Close()
	}
}

// TestExternalData runs a model in memory whose initializer lies in a file,
// and optimizes it; the data is found in the model's folder.
func TestExternalData(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "w.bin"), FromFloat32s([]float32{1, 2, 3, 4}).Data, 0o600); err != nil {
		t.Fatal(err)
	}
	m := onnx.NewModel("external", 17)
	g := m.Graph
	tensor := FromFloat32s(make([]float32, 4), 4).constant()
	tensor.Proto.RawData = nil
	tensor.Proto.DataLocation = pb.TensorProto_EXTERNAL.Enum()
	tensor.Proto.ExternalData = []*pb.StringStringEntryProto{{Key: proto.String("location"), Value: proto.String("w.bin")}}
	w := g.AddConstant("w", tensor)
	x := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4)))
	n := g.NewNode("", "Mul", "", []*onnx.Value{w, x}, []string{"y"})
	g.Append(n)
	n.Out(0).Type = x.Type
	g.AddOutput(n.Out(0))
	path := filepath.Join(dir, "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	loaded, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	better, err := testEngine.Optimize(loaded, OptimizeOptions{Level: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer better.Close()
	for _, m := range []*onnx.Model{loaded, better} {
		if !m.Graph.Value("w").Init.IsExternal() {
			t.Error("the initializer became inline")
		}
		s, err := testEngine.Open(m, Options{Provider: ort.CPU, Feed: map[string]Tensor{"x": FromFloat32s([]float32{1, 1, 1, 2}, 4)}})
		if err != nil {
			t.Fatal(err)
		}
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := step.Outputs[0].Float64s(); v[2] != 3 || v[3] != 8 {
			t.Errorf("got %v", v)
		}
		s.Close()
	}
}

// TestDumpReadsNoWeights asks for the graph that is run of 512 MiB of external
// weights: they are not read, let alone packed for kernels.
func TestDumpReadsNoWeights(t *testing.T) {
	const side = 8192
	const size = 4 * side * side
	m := onnx.NewModel("weights", 17)
	g := m.Graph
	v := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(1, side)))
	for i, name := range []string{"A", "B"} {
		w := g.AddConstant(name, onnx.ExternalTensor(name, onnx.Float32, []int64{side, side}, "w.bin", int64(i)*size, size))
		n := g.NewNode("", "MatMul", "by"+name, []*onnx.Value{v, w}, []string{"x" + name})
		g.Append(n)
		v = n.Out(0)
		v.Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape(1, side))
	}
	g.AddOutput(v)
	m.Path = filepath.Join(t.TempDir(), "m.onnx")
	file := filepath.Join(filepath.Dir(m.Path), "w.bin")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 2*size); err != nil {
		t.Fatal(err)
	}
	for _, level := range []int{0, 1, 99} {
		// From here on the largest size is counted again.
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			t.Skipf("the largest size cannot be reset: %v", err)
		}
		before, err := RSS()
		if err != nil {
			t.Fatal(err)
		}
		d, err := testEngine.Dump(m, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		after, err := PeakRSS()
		if err != nil {
			t.Fatal(err)
		}
		if grown := after - before; grown > 64<<20 {
			t.Errorf("level %d: the process grew by %d bytes for a graph with %d of weights", level, grown, 2*size)
		}
	}
}

// TestRemovedInside: ONNX Runtime removes a cast there and back, also where a subgraph reads what it makes.
func TestRemovedInside(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=17
graph g {
in x float32[2,3]
in n int64[]
in t bool[]
a = Cast(x) {to=11}
b = Cast(a) {to=1}
y = Loop(n, t, x) {body=graph l {
in i int64[]
in c bool[]
in s float32[2,3]
k = Identity(c)
r = Add(s, b)
out k bool[]
out r float32[2,3]
}}
out y float32[2,3]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = testEngine.Dump(m, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
	if want := `its subgraph reads "b", which ONNX Runtime removes, so that it cannot run the graph`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestDumpOnce: the same graph is asked for once, whatever the threads, and a model
// that changed, or another level, once more.
func TestDumpOnce(t *testing.T) {
	m := onnx.NewModel("twice", 20)
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4)))
	n := m.Graph.NewNode("", "Relu", "a", []*onnx.Value{x}, []string{"y"})
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Outputs[0])
	made := 0
	testEngine.Env.WatchSessions(func(ort.SessionOptions, time.Duration) { made++ })
	defer testEngine.Env.WatchSessions(nil)
	dump := func(level, threads, want int) {
		t.Helper()
		d, err := testEngine.Dump(m, ort.SessionOptions{Level: level, Threads: threads, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		d.Graph.Nodes[0].SetName("changed") // is the caller's to change
		if made != want {
			t.Errorf("level %d, %d threads: %d sessions so far, want %d", level, threads, made, want)
		}
	}
	dump(1, 1, 1)
	dump(1, 2, 1)
	dump(99, 1, 2)
	n.SetName("b")
	dump(1, 1, 3)
	dump(99, 1, 4)
}

// TestDumpOfManyNodes: a large graph is asked for breadth first, and once more where that does
// not tell the order; then the next one is not, until one comes in which no node is new.
func TestDumpOfManyNodes(t *testing.T) {
	many, made := manyNodes, 0
	manyNodes = 8
	defer func() { manyNodes = many }()
	e := &Engine{Env: testEngine.Env}
	e.Env.WatchSessions(func(ort.SessionOptions, time.Duration) { made++ })
	defer e.Env.WatchSessions(nil)
	for i, c := range []struct {
		of       onnx.DType // the CPU has no kernel of it for half types, and casts are added
		sessions int
	}{{onnx.Float16, 2}, {onnx.Float16, 1}, {onnx.Float32, 1}, {onnx.Float32, 1}, {onnx.Float16, 2}} {
		m := onnx.NewModel(fmt.Sprint("many", i), 20)
		for range 2 { // chains, which breadth first take turns
			v := m.Graph.AddInput("x", onnx.TensorOf(c.of, onnx.StaticShape(4)))
			for range manyNodes / 2 {
				n := m.Graph.NewNode("", "Sin", "n", []*onnx.Value{v}, []string{"v"})
				m.Graph.Append(n)
				v = n.Outputs[0]
				v.Type = onnx.TensorOf(c.of, onnx.StaticShape(4))
			}
			m.Graph.AddOutput(v)
		}
		before := made
		d, err := e.Dump(m, ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU})
		if err != nil {
			t.Fatal(err)
		}
		d.Close()
		if made-before != c.sessions {
			t.Errorf("graph %d of %s: %d sessions, want %d", i, c.of, made-before, c.sessions)
		}
	}
}

// TestLeft: what ONNX Runtime's optimizer leaves of a graph whose nodes it was given in
// another order is the same, and the model keeps its order.
func TestLeft(t *testing.T) {
	for _, path := range sampleModels(t) {
		m, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		nodes := slices.Clone(m.Graph.Nodes)
		o := ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU}
		lists := make([][]string, 2)
		for k, ask := range []func(*onnx.Model, ort.SessionOptions) (*onnx.Model, error){testEngine.Dump, testEngine.Left} {
			d, err := ask(m, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range d.Graph.Nodes {
				lists[k] = append(lists[k], n.OpType())
			}
			slices.Sort(lists[k])
			d.Close()
		}
		if !slices.Equal(lists[0], lists[1]) {
			t.Errorf("%s: %v is left, %v of another order", filepath.Base(path), lists[0], lists[1])
		}
		if !slices.Equal(nodes, m.Graph.Nodes) {
			t.Errorf("%s: the order was changed", filepath.Base(path))
		}
		m.Close()
	}
}

// TestRunOrderOfLeft: wherever the order in which a graph runs follows from one that ONNX
// Runtime was given breadth first, it is that of the graph given as it is; so it does for
// all training graphs of which ONNX Runtime makes nothing new.
func TestRunOrderOfLeft(t *testing.T) {
	joint, err := filepath.Glob(filepath.Join(samples, "joint", "*.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	follows := map[int]int{}
	check := func(name string, m *onnx.Model) {
		for _, level := range []int{0, 1} {
			follows[level] += followsFromLeft(t, name, m, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CPU})
		}
	}
	for _, path := range append(sampleModels(t), joint...) {
		m, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		check(path, m)
		m.Close()
	}
	for _, row := range models.Rows {
		c := row.Default
		c.Layers, c.Hidden, c.Vocab, c.Seq = min(c.Layers, 4), 4*max(c.Heads, 1), 32, 8
		built, err := row.Build(c)
		if err != nil {
			t.Fatalf("%s: %v", row.Name, err)
		}
		if err := built.Describe(); err != nil {
			t.Fatalf("%s: %v", row.Name, err)
		}
		if _, err := grad.Differentiate(built.Model, grad.Options{}); err != nil {
			t.Fatalf("%s: %v", row.Name, err)
		}
		check(row.Name, built.Model)
	}
	if follows[0] < 11+len(models.Rows) || follows[1] < 1+len(models.Rows) {
		t.Errorf("graphs whose order follows, by level: %v", follows)
	}
}

// TestRunOrderOfFused: the order follows, and no second session is asked for it, where ONNX
// Runtime takes Pads into the nodes that read them and leaves Identities out.
func TestRunOrderOfFused(t *testing.T) {
	many, made := manyNodes, 0
	manyNodes = 8
	defer func() { manyNodes = many }()
	e := &Engine{Env: testEngine.Env}
	m := onnx.NewModel("fused", 20)
	pads := m.Graph.AddConstant("pads", onnx.Int64Tensor([]int64{0, 0, 1, 1, 0, 0, 1, 1}, 8))
	of := onnx.TensorOf(onnx.Float32, onnx.StaticShape(1, 1, 4, 4))
	for range 2 { // chains, which breadth first take turns
		v := m.Graph.AddInput("x", of)
		step := func(op string, inputs ...*onnx.Value) {
			n := m.Graph.NewNode("", op, op, inputs, []string{"v"})
			if op == "AveragePool" {
				n.SetAttr(onnx.IntsAttr("kernel_shape", 3, 3))
			}
			m.Graph.Append(n)
			v = n.Outputs[0]
		}
		for range manyNodes / 2 {
			step("Sin", v)
			step("Identity", v)
			step("Pad", v, pads)
			step("AveragePool", v)
		}
		v.Type = of
		m.Graph.AddOutput(v)
	}
	o := ort.SessionOptions{Level: 1, Threads: 1, Provider: ort.CPU}
	if followsFromLeft(t, "Pads and Identities", m, o) == 0 {
		t.Error("the order does not follow")
	}
	e.Env.WatchSessions(func(ort.SessionOptions, time.Duration) { made++ })
	defer e.Env.WatchSessions(nil)
	d, err := e.Dump(m, o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if made != 1 {
		t.Errorf("%d sessions, want 1", made)
	}
	if len(d.Graph.Nodes) > 2*manyNodes {
		t.Errorf("%d nodes are left: the test has nothing fused", len(d.Graph.Nodes))
	}
}

// followsFromLeft is 1 where the order follows and is right.
func followsFromLeft(t *testing.T, name string, m *onnx.Model, o ort.SessionOptions) int {
	t.Helper()
	dump, err := testEngine.Dump(m, o)
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Close()
	left, err := testEngine.Left(m, o)
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	if !asRun(m.Graph, left.Graph) {
		return 0
	}
	if !sameOrder(dump.Graph, left.Graph) {
		t.Errorf("%s at level %d: the order is another than that in which it runs", name, o.Level)
		return 0
	}
	return 1
}

// TestDumpsForgotten: what is kept stays within its bound, the latest last to go.
func TestDumpsForgotten(t *testing.T) {
	var d dumped
	for i := range 5 {
		d.keep([sha256.Size]byte{byte(i)}, make([]byte, dumpedBytes/3))
		d.get([sha256.Size]byte{0})
	}
	d.keep([sha256.Size]byte{9}, make([]byte, dumpedBytes+1))
	for i, want := range []bool{true, false, false, true, true} {
		if got := d.get([sha256.Size]byte{byte(i)}) != nil; got != want {
			t.Errorf("graph %d is kept: %t, want %t", i, got, want)
		}
	}
	if d.bytes > dumpedBytes || len(d.graphs) != d.recent.Len() {
		t.Errorf("%d bytes in %d graphs, %d in order", d.bytes, len(d.graphs), d.recent.Len())
	}
}

// TestUnsaved: a folder for temporary files that is full is named, where ONNX Runtime says
// nothing of it.
func TestUnsaved(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	said := errors.New("onnx runtime: invalid protobuf: Protobuf serialization failed.")
	if err := unsaved(said, "/dev/full", 1); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Error(err)
	}
	own := errors.New("onnx runtime: failed: Failed to save ORT format model to file: model.ort")
	if err := unsaved(own, "/dev/full", 1); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := unsaved(said, filepath.Join(t.TempDir(), "m.onnx"), 1); err != said {
		t.Error(err)
	}
	if err := unsaved(ort.ErrMemory, "/dev/full", 1); err != ort.ErrMemory {
		t.Error(err)
	}
}
