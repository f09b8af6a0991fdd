package predict

// The CUDA provider of ONNX Runtime's GPU build, on the null device: it places,
// allocates, copies and releases as on a GPU, so what is predicted of that can be
// compared to the byte on any machine. A process has one library, so these tests run in
// one of their own; without the GPU build they are skipped.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice/devicetest"
)

// onCUDA has the test run in a process with the GPU build, and reports that this is
// one.
func onCUDA(t *testing.T) bool {
	t.Helper()
	if devicetest.Library() != "" {
		return true
	}
	devicetest.Again(t, "^"+t.Name()+"$")
	return false
}

// TestCUDARandomGraphs: order, trace, peak and session bytes, in the first run and the
// next, of random graphs in float32 and in half types, exactly.
func TestCUDARandomGraphs(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	count := uint64(2000)
	if testing.Short() {
		count = 200
	}
	dir, failed, ran := t.TempDir(), 0, map[onnx.DType]int{}
	for seed := range count {
		for _, d := range []onnx.DType{onnx.Float32, onnx.Float16, onnx.BFloat16} {
			if d == onnx.Float16 && seed%16 != 0 || d == onnx.BFloat16 && seed%2 != 0 { // many operators do not take bfloat16
				continue
			}
			err := checkRandomCUDA(seed, d, dir)
			if errors.Is(err, errNoSession) {
				continue
			}
			ran[d]++
			if err != nil {
				t.Errorf("seed %d, %s: %v", seed, d, err)
				if keep := os.Getenv("REMAT_KEEP"); keep != "" {
					os.Rename(filepath.Join(dir, "r.onnx"), filepath.Join(keep, fmt.Sprintf("r%d_%s.onnx", seed, d)))
				}
				if failed++; failed == 8 {
					t.FailNow()
				}
			}
		}
	}
	if ran[onnx.Float16] < int(count)/20 || ran[onnx.BFloat16] < int(count)/100 {
		t.Errorf("graphs that ran by type: %v", ran)
	}
	t.Logf("%v", ran)
}

// errNoSession is that of a graph in a half type that an operator does not take.
var errNoSession = errors.New("no session")

func checkRandomCUDA(seed uint64, d onnx.DType, dir string) error {
	m, err := newTypedGrower(seed, d).grow(5 + int(seed%60))
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "r.onnx")
	if seed%8 < 4 {
		m.Graph.AnnotateTypes()
	}
	if err := m.Save(path); err != nil {
		return err
	}
	if m, err = onnx.Load(path); err != nil {
		return err
	}
	if _, err := infer.Model(m, infer.Options{Strict: true}); err != nil {
		return err
	}
	o := ort.SessionOptions{Threads: 1, Provider: ort.CUDA, ProfilePrefix: filepath.Join(dir, "p")}
	if d != onnx.Float32 {
		s, err := testEnv.NewSession(path, ort.SessionOptions{Provider: ort.CUDA})
		if err != nil {
			return fmt.Errorf("%w: %w", errNoSession, err)
		}
		s.Close()
	}
	real, err := measure(path, o, nil)
	if err != nil {
		return err
	}
	p, err := Predict(m, Options{On: step.CUDA})
	if err != nil {
		return err
	}
	loose := false
	if !p.Exact() && d != onnx.Float32 { // ONNX Runtime puts casts in
		o.ProfilePrefix = ""
		if p, err = asExecuted(path, dir, o); err != nil {
			return err
		}
		loose = true
	}
	if !p.Exact() {
		return fmt.Errorf("not exact: %s", p.Unknown[0])
	}
	if order := p.labels(); !slices.EqualFunc(order, real.order, sameNode) {
		return fmt.Errorf("order %v, measured %v", order, real.order)
	}
	return compareCUDA(p, real, loose)
}

// compareCUDA compares both runs and the session.
func compareCUDA(p *Prediction, real *measured, loose bool) error {
	for _, run := range [][]ort.Event{real.first, real.events} {
		real.events = run
		if diff := compare(p, real, loose); diff != "" {
			return fmt.Errorf("%s", diff)
		}
	}
	if s := p.Session.Bytes(); s != real.session {
		return fmt.Errorf("session holds %d bytes, predicted %d", real.session, s)
	}
	return nil
}

// sameNode compares labels of nodes with those of a profile, where copies, and nodes
// without a name, are numbered.
func sameNode(label, profiled string) bool {
	op, _, nameless := strings.Cut(label, " that makes ")
	return label == profiled || nameless && strings.HasPrefix(profiled, op+"_") ||
		strings.HasPrefix(label, "Memcpy") && strings.HasPrefix(profiled, "Memcpy")
}

// TestCUDANextOnHost: the next value of a parameter that a node of the host reads is bound
// to the host's memory; where the device makes it, it has a buffer there too.
func TestCUDANextOnHost(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[2,4,5,5]\nin W float32[4,3,3,3]\nin d float32[4,3,3,3]\n" +
		"y = ConvTranspose(x, W) {strides=[2, 2], pads=[1, 1, 0, 0]}\nz = Relu(y)\ns = ReduceSum(z)\nu = Mul(d, s)\nW.new = Sub(W, u)\nout W.new float32[4,3,3,3]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	p, err := Predict(m, Options{On: step.CUDA, Bound: []string{"W.new"}, Roles: step.Roles{New: map[string]string{"W": "W.new"}}})
	if err != nil {
		t.Fatal(err)
	}
	real, err := measure(path, ort.SessionOptions{Threads: 1, Provider: ort.CUDA}, nil, "W.new")
	if err != nil {
		t.Fatal(err)
	}
	if p.LivePeak != real.live || allocations(p) != len(allocs(real.events)) {
		t.Errorf("%d bytes in %d blocks, predicted %d in %d", real.live, len(allocs(real.events)), p.LivePeak, allocations(p))
	}
}

func allocs(events []ort.Event) []ort.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e ort.Event) bool { return !e.Alloc })
}

func allocations(p *Prediction) (n int) {
	for _, e := range p.Trace.Events {
		if e.Alloc {
			n++
		}
	}
	return n
}

// Why a sample is not exact on the null device.
const (
	shapeOnDevice = "a shape is computed on the device, which computes nothing here: the step fails"
	batchNorm     = "the provider has no BatchNormalization for training at opset 14 and above: the session fails"
)

// cudaExceptions are samples that do not run on the null device, or are not predicted,
// by level, "" for all.
// The list may only shrink.
var cudaExceptions = map[string]map[string]string{
	"bert_tiny.ts.onnx":              {"0": shapeOnDevice},
	"encoder_postln.ts.onnx":         {"0": shapeOnDevice},
	"gpt2_tiny_mask.ts.onnx":         {"0": shapeOnDevice},
	"gpt2_tiny_mask.ts_dynaxes.onnx": {"0": shapeOnDevice},
	"gpt2_tiny_mask.tseval.onnx":     {"0": shapeOnDevice},
	"lstm_char.ts.onnx":              {"0": shapeOnDevice},
	"nanogpt_tril.ts_op17.onnx":      {"0": shapeOnDevice},

	"resnet18_like.ts.onnx": {"": batchNorm},
}

// TestCUDASamples: every sample, foreign joint graphs too, at each level.
func TestCUDASamples(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	seen := map[string]bool{}
	for _, path := range samples(t) {
		if strings.Contains(path, "gpt2_small") {
			continue // moves gigabytes
		}
		name := filepath.Base(path)
		path := static(t, path, t.TempDir())
		for _, level := range []int{0, 1, 99} {
			why := cudaExceptions[name][fmt.Sprint(level)] + cudaExceptions[name][""]
			seen[name] = true
			err := checkSample(t, path, ort.SessionOptions{Level: level, Threads: 1, Provider: ort.CUDA})
			switch {
			case err != nil && why == "":
				t.Errorf("%s level %d: %v", name, level, err)
			case err == nil && why != "":
				t.Errorf("%s level %d is exact now: take it off the list of exceptions", name, level)
			}
		}
	}
	for name := range cudaExceptions {
		if !seen[name] {
			t.Errorf("%s is among the exceptions and no sample", name)
		}
	}
}

// TestCUDAColumns: what the probe finds of buffers shared and taken over is what the
// table of package traits says.
func TestCUDAColumns(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	at, judged := bench{"", 18, ort.CUDA}, 0
	for i := range probes {
		p := &probes[i]
		for _, op := range strings.Fields(p.ops) {
			for input, a := range p.args {
				if a.value != nil || len(a.shape) == 0 || !onDevice(p, at, op, input) {
					continue
				}
				h, ok := p.judge(t, at, op, input)
				want, _ := traits.OfCUDA(onnx.NewModel("op", at.opset).Graph.NewNode("", op, "", nil, nil))
				judged++
				if !ok {
					t.Errorf("%s (probe %d), input %d: no hypothesis fits; the scratch rule may be wrong", op, i, input)
				} else if got := named(want, input, p.outputs); got != h {
					t.Errorf("%s, input %d: the table says %+v, the probe %+v", op, input, got, h)
				}
			}
		}
	}
	if judged < 100 {
		t.Errorf("only %d inputs were judged", judged)
	}
}

// onDevice reports that the node of a probe runs on the device, with all that it
// borrows known.
func onDevice(p *probe, at bench, op string, input int) bool {
	m, node, err := p.model(at, op, input, false)
	if err != nil {
		return false // not in this opset
	}
	if _, sized := traits.ScratchCUDA(node); !sized {
		return false
	}
	return !step.CUDA.Place(m, false).HostNode(node)
}

// cudaTable is what was measured of one-node models: a line has the opset, inputs,
// constants and the node, and, behind a bar, what it asked of the allocator and gave
// back, its outputs last.
const cudaTable = "testdata/cuda.txt"

// readTable returns the lines of the table, cut at the bar, with what comes before
// the first.
func readTable(t *testing.T) (head []string, lines [][2]string) {
	t.Helper()
	f, err := os.Open(cudaTable)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		model, events, ok := strings.Cut(s.Text(), " |")
		if !ok {
			head = append(head, s.Text())
			continue
		}
		lines = append(lines, [2]string{model, strings.TrimSpace(events)})
	}
	return head, lines
}

// tableModel is the model of a line.
func tableModel(line string) (*onnx.Model, error) {
	opset, body, _ := strings.Cut(line, "; ")
	m, err := onnx.Parse(fmt.Sprintf("model ir=10 opset=%s opset[com.microsoft]=1\ngraph g {\n%s\n}\n", opset, strings.ReplaceAll(body, "; ", "\n")))
	if err != nil {
		return nil, err
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		return nil, err
	}
	addOutputs(m.Graph, m.Graph.Nodes[0])
	return m, nil
}

// addOutputs has the graph return what the node makes.
func addOutputs(g *onnx.Graph, n *onnx.Node) {
	for _, v := range n.Outputs {
		if v != nil {
			g.AddOutput(v)
		}
	}
}

// TestCUDATable: what is predicted of the models in the table is what was measured.
func TestCUDATable(t *testing.T) {
	_, lines := readTable(t)
	unknown := 0
	for _, l := range lines {
		m, err := tableModel(l[0])
		if err != nil {
			t.Fatalf("%s: %v", l[0], err)
		}
		p, err := Predict(m, Options{On: step.CUDA})
		if err != nil {
			t.Fatalf("%s: %v", l[0], err)
		}
		if !p.Exact() {
			unknown++
			continue
		}
		if got := eventLine(p); got != l[1] {
			t.Errorf("%s: predicted %s, measured %s", l[0], got, l[1])
		}
	}
	if unknown > len(lines)/20 {
		t.Errorf("%d of %d lines cannot be predicted", unknown, len(lines))
	}
}

// eventLine is a predicted trace as the table has it.
func eventLine(p *Prediction) string {
	var list []string
	for _, e := range p.Trace.Events {
		list = append(list, line(e.Alloc, e.Bytes))
	}
	for v, value := range p.Graph.Values {
		if value.Kind == ortmodel.Output && value.Bytes > 0 {
			list = append(list, line(false, p.Graph.Values[v].Bytes))
		}
	}
	return strings.Join(list, " ")
}

// TestCUDATableMeasured: the provider does what the table says, tried on a sample of its
// lines; with -update all are measured, and the table is written.
func TestCUDATableMeasured(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	head, lines := readTable(t)
	text := strings.Join(head, "\n") + "\n"
	for i, l := range lines {
		if !*update && i%5 != 0 {
			continue
		}
		m, err := tableModel(l[0])
		if err != nil {
			t.Fatalf("%s: %v", l[0], err)
		}
		path := filepath.Join(t.TempDir(), "p.onnx")
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		real, err := measure(path, ort.SessionOptions{Threads: 1, Provider: ort.CUDA}, nil)
		if err != nil {
			t.Errorf("%s: %v", l[0], err)
			continue
		}
		var list []string
		for _, e := range real.events {
			list = append(list, line(e.Alloc, e.Bytes))
		}
		if !slices.EqualFunc(real.first, real.events, func(a, b ort.Event) bool { return a.Alloc == b.Alloc && a.Bytes == b.Bytes }) {
			t.Errorf("%s: the first run is another than the second: %v, %v", l[0], real.first, real.events)
		}
		got := strings.Join(list, " ")
		if !*update && got != l[1] {
			t.Errorf("%s: measured %s, the table says %s", l[0], got, l[1])
		}
		text += l[0] + " | " + got + "\n"
	}
	if *update {
		if err := os.WriteFile(cudaTable, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCUDAUnstreamed: the kernels that ask for scratch in no stream's name are those that the
// traits say. Each runs behind a node whose buffers the stream has used: the arena grows where
// scratch may not lie in these.
func TestCUDAUnstreamed(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	_, lines := readTable(t)
	grown := ortmodel.ArenaSetup{Strategy: ortmodel.AsRequested, FirstChunk: 1 << 20, MaxExtend: 1 << 20, MaxDead: 1, Stream: true}
	tried, unstreamed := map[string]int{}, 0
	for _, l := range lines {
		m, err := behind(l[0])
		if err != nil {
			t.Fatalf("%s: %v", l[0], err)
		}
		p, err := Predict(m, Options{On: step.CUDA})
		if err != nil {
			t.Fatalf("%s: %v", l[0], err)
		}
		at := slices.IndexFunc(p.Nodes, func(n *onnx.Node) bool { return n.Name() == "judged" })
		op := p.Nodes[at].OpType()
		node := &p.Graph.Nodes[p.Order[at]]
		if len(node.Scratch) == 0 || !p.Exact() || node.Host || at < len(p.Order)-1 {
			continue
		}
		tried[op]++
		if slices.ContainsFunc(node.Script, func(a ortmodel.Act) bool { return a.Unstreamed }) {
			unstreamed++
		}
		path := filepath.Join(t.TempDir(), "p.onnx")
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		asked := slices.DeleteFunc(p.requests(), func(r ortmodel.Request) bool { return r.Kept })
		want := grown.After(1, 0, asked).Reserved
		if before, after, err := inArena(path, grown); err != nil {
			t.Errorf("%s: %v", l[0], err)
		} else if after-before != want {
			t.Errorf("%s: the arena takes %d bytes, %d are predicted", l[0], after-before, want)
		}
	}
	if len(tried) < 10 || unstreamed == 0 {
		t.Errorf("%d operators were tried, and %d nodes that ask in no stream's name", len(tried), unstreamed)
	}
}

// behind is the model of a line of the table, with a node that uses 64 KiB before.
func behind(line string) (*onnx.Model, error) {
	opset, body, _ := strings.Cut(line, "; ")
	m, err := onnx.Parse(fmt.Sprintf(`model ir=10 opset=%s opset[com.microsoft]=1
graph g {
in other float32[16384]
%s
wide = Exp(other)
sum = ReduceSum(wide) {keepdims=0}
}
`, opset, strings.ReplaceAll(body, "; ", "\n")))
	if err != nil {
		return nil, err
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		return nil, err
	}
	m.Graph.NameNodes()
	judged := m.Graph.Nodes[0]
	judged.SetName("judged")
	m.Graph.AddOutput(m.Graph.Value("sum"))
	addOutputs(m.Graph, judged)
	return m, nil
}

// inArena is what an arena has taken before and after a step of a model, in bytes: before
// the step, what the session holds and the feeds.
func inArena(path string, a ortmodel.ArenaSetup) (before, after int64, err error) {
	s, err := testEnv.NewSession(path, ort.SessionOptions{Threads: 1, Provider: ort.CUDA, Allocator: ort.OwnArena, Arena: ort.ArenaConfig{
		AsRequested: a.Strategy == ortmodel.AsRequested, FirstChunk: a.FirstChunk, MaxExtend: a.MaxExtend, MaxDead: a.MaxDead}})
	if err != nil {
		return 0, 0, err
	}
	defer s.Close()
	b, err := s.NewBinding()
	if err != nil {
		return 0, 0, err
	}
	defer b.Close()
	closers, err := bindAll(s, b, nil)
	bound, boundErr := s.DeviceStats()
	if err == nil {
		err = s.Run(context.Background(), b, "")
	}
	ran, ranErr := s.DeviceStats()
	for _, v := range closers {
		v.Close()
	}
	return bound.Reserved, ran.Reserved, errors.Join(err, boundErr, ranErr)
}

// TestCUDAArena: the arena of a random graph takes what is predicted, in the setup that is
// chosen for it. Feeds lie in it here, from before the step on.
func TestCUDAArena(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	count := uint64(300)
	if testing.Short() {
		count = 60
	}
	dir, ran := t.TempDir(), 0
	for seed := range count {
		m, err := newTypedGrower(seed, onnx.Float32).grow(3 + int(seed%40))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "r.onnx")
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		if m, err = onnx.Load(path); err != nil {
			t.Fatal(err)
		}
		if _, err := infer.Model(m, infer.Options{Strict: true}); err != nil {
			t.Fatal(err)
		}
		p, err := Predict(m, Options{On: step.CUDA})
		if err != nil {
			t.Fatal(err)
		}
		if !p.Exact() {
			continue
		}
		requests := p.requests()
		for v, val := range p.Graph.Values {
			if val.Kind == ortmodel.Feed && val.Bytes > 0 {
				requests = append(requests, ortmodel.Request{ID: len(requests) + v, Bytes: val.Bytes, Alloc: true, Kept: true})
			}
		}
		setup, want := ortmodel.PlanArena(0, requests, true)
		_, got, err := inArena(path, setup)
		if err != nil {
			t.Fatal(err)
		}
		ran++
		if got != want.Reserved {
			t.Errorf("seed %d: the arena takes %d bytes, %d are predicted; set up as %+v", seed, got, want.Reserved, setup)
		}
	}
	if ran < int(count)/2 {
		t.Errorf("%d graphs ran", ran)
	}
}

// TestCUDAHeld: what a session holds of the device is what is predicted, constants and what
// kernels keep.
func TestCUDAHeld(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	_, lines := readTable(t)
	held := 0
	for i, l := range lines {
		if keeps := strings.Contains(l[0], "Resize(") || strings.Contains(l[0], "hidden_size"); !keeps && i%20 != 0 {
			continue
		}
		m, err := tableModel(l[0])
		if err != nil {
			t.Fatalf("%s: %v", l[0], err)
		}
		p, err := Predict(m, Options{On: step.CUDA})
		if err != nil {
			t.Fatalf("%s: %v", l[0], err)
		}
		path := filepath.Join(t.TempDir(), "p.onnx")
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		real, err := measure(path, ort.SessionOptions{Threads: 1, Provider: ort.CUDA}, nil)
		if err != nil {
			t.Errorf("%s: %v", l[0], err)
		} else if got := p.Session.Allocated(); got != real.session {
			t.Errorf("%s: %d bytes held are predicted, %d measured", l[0], got, real.session)
		} else if got > 0 {
			held++
		}
	}
	if held < 20 {
		t.Errorf("only %d sessions hold anything", held)
	}
}

// TestCUDAErased: what the file does not declare, and ONNX Runtime cannot infer, is not
// known because copies to and from the host were put in.
func TestCUDAErased(t *testing.T) {
	if !onCUDA(t) {
		return
	}
	m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float32[2,4,8]
  init zero int64[1] = [0]
  init k int64[3] = [2, 4, 8]
  n = Size(x)
  u = Unsqueeze(n, zero)
  e = Slice(u, zero, zero, zero)
  w = NonZero(e)
  q = Squeeze(w, zero)
  s = Concat(k, q) {axis=0}
  z = Exp(x)
  y = ReduceSum(z) {keepdims=0}
  m = Reshape(x, s)
  h = Mean(m, m)
  waits = Add(h, y)
  late = Neg(waits)
  later = Exp(late)
  loss = ReduceSum(later) {keepdims=0}
  out loss float32[]
  value m float32
  value h float32
  value waits float32
  value late float32
  value later float32
}
`)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.NameNodes()
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	real, err := measure(path, ort.SessionOptions{Threads: 1, Provider: ort.CUDA}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Predict(m, Options{On: step.CUDA})
	if err != nil {
		t.Fatal(err)
	}
	if err := compareCUDA(p, real, false); err != nil {
		t.Error(err)
	}
}
