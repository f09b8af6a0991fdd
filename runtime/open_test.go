package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestErrorsNameNodes: ONNX Runtime has no long names, and an error of a run has them all the
// same, from a file and from memory.
func TestErrorsNameNodes(t *testing.T) {
	const name = "transformer/h.0/attention/gather"
	m, err := onnx.Parse("model ir=10 opset=20\n" + `graph g {
  in    x float32[4]
  in    i int64[1]
  a = Relu(x) "first"
  y = Gather(a, i) "` + name + `"
  out   y float32[1]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	o := Options{Provider: ort.CPU, Feed: map[string]Tensor{"i": {onnx.Int64, []int64{1}, []byte{9, 0, 0, 0, 0, 0, 0, 0}}}}
	for what, open := range map[string]func() (*Session, error){
		"file":   func() (*Session, error) { return testEngine.OpenFile(path, o) },
		"memory": func() (*Session, error) { return testEngine.Open(m, o) },
	} {
		s, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Step(context.Background()); err == nil || !strings.Contains(err.Error(), "Name:'"+name+"'") {
			t.Errorf("%s: the error is %v, want the name %s in it", what, err, name)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestForeignNamesStay: what is no node of the lean graph keeps its name in an error, and what
// the error wraps is found.
func TestForeignNamesStay(t *testing.T) {
	o := opener{nodes: func() []string { return []string{"first", "second"} }}
	for _, name := range []string{"n", "x1", "n1x", "n2", "n01"} {
		was := fmt.Errorf("Name:'%s': %w", name, ort.ErrMemory)
		if err := o.named(was); err.Error() != was.Error() || !errors.Is(err, ort.ErrMemory) {
			t.Errorf("%v has become %v", was, err)
		}
	}
	if err := o.named(errors.New("Name:'n1' Status")); err.Error() != "Name:'second' Status" {
		t.Error(err)
	}
}

// TestWholeModels: a model goes to ONNX Runtime as it is where a profile names its nodes,
// and where it holds more weights than leaving names out saves.
func TestWholeModels(t *testing.T) {
	load := func(weights int64) *onnx.Model {
		m := onnx.NewModel("m", 20)
		g := m.Graph
		x := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(weights)))
		w := g.AddConstant("w", onnx.NewTensor(onnx.Float32, []int64{weights}, make([]byte, 4*weights)))
		n := g.NewNode("", "Add", "sum", []*onnx.Value{x, w}, []string{"y"})
		g.Append(n)
		g.AddOutput(n.Out(0))
		return m
	}
	for _, c := range []struct {
		weights int64
		o       Options
		lean    bool
	}{
		{leanSaves / 4, Options{}, true},
		{leanSaves/4 + 1, Options{}, false},
		{4, Options{Profile: true}, false},
		{4, Options{ProfileAside: true}, false},
	} {
		open := testEngine.opener(load(c.weights), &c.o, false)
		if lean := open.nodes != nil; lean != c.lean {
			t.Errorf("%d weights, %+v: lean is %v", c.weights, c.o, lean)
		}
	}
}

// TestSpare: a session that gave its model's graph up as soon as it could fills its inputs
// and takes steps as one that keeps it, and so does the session with an arena.
func TestSpare(t *testing.T) {
	for _, late := range []bool{false, true} {
		path := trainingModel(t, late)
		run := func(made func(*Session) error) (losses []float64, w []byte) {
			s, err := testEngine.OpenFile(path, Options{Provider: ort.CPU, LR: 0.5, Seed: 3, Made: made})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if given := s.Model.Graph == nil; given != (made != nil) {
				t.Errorf("the graph was given up: %v", given)
			}
			for range 2 {
				step, err := s.Step(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				loss, _ := step.Output("loss")
				number, _ := loss.Scalar()
				losses = append(losses, number)
			}
			v, _, err := s.Input("W")
			if err != nil {
				t.Fatal(err)
			}
			if err := s.MeasureArena(context.Background(), nil, true); err != nil {
				t.Error(err)
			}
			if _, ok := s.Metadata(ParametersKey); !ok {
				t.Error("the metadata is gone")
			}
			return losses, v.Data
		}
		want, weights := run(nil)
		got, others := run(func(s *Session) error {
			if s.Memory().ParameterBytes != 0 || s.inputs[0].value != nil {
				t.Error("an input has its value before Made")
			}
			if err := s.MeasureConstants(); err != nil {
				t.Error(err)
			}
			s.Spare()
			return nil
		})
		if got[0] != want[0] || got[1] != want[1] || !bytes.Equal(weights, others) {
			t.Errorf("losses %v and weights %v, want %v and %v", got, others, want, weights)
		}
	}
}

// TestSpareOfWeightsInside: the graph of a file that holds its weights, and that seeds make
// another than the file, stays for the session with an arena.
func TestSpareOfWeightsInside(t *testing.T) {
	m, err := onnx.Parse("model ir=10 opset=20\n" + `graph g {
  in    x float32[1024]
  init  w float32[1024] = [` + strings.Repeat("1,", 1023) + `1]
  z = RandomNormalLike(x)
  y = Add(z, w)
  out   y float32[1024]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	s, err := testEngine.OpenFile(path, Options{Provider: ort.CPU, Made: func(s *Session) error { s.Spare(); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.MeasureArena(context.Background(), nil, false); err != nil {
		t.Error(err)
	}
}

// TestMadeFails: what Made returns ends the opening.
func TestMadeFails(t *testing.T) {
	s, err := testEngine.OpenFile(trainingModel(t, false), Options{Provider: ort.CPU, Made: func(*Session) error { return os.ErrDeadlineExceeded }})
	if s != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, %v", s, err)
	}
}

// TestOpenSeeds: what a model in memory draws follows from the seed and the runs before, as
// with a file; the model stays as it was.
func TestOpenSeeds(t *testing.T) {
	m, err := onnx.Parse("model ir=10 opset=20\n" + `graph g {
  in    x float32[64]
  init  half float32[] = [0.5]
  init  on bool[] = [true]
  y, mask = Dropout(x, half, on)
  z = RandomNormalLike(x)
  out   y float32[64]
  out   mask bool[64]
  out   z float32[64]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	draws := func(seed uint64, runs, steps int) (y, z string) {
		t.Helper()
		s, err := testEngine.Open(m, Options{Provider: ort.CPU, Seed: seed, From: Progress{Runs: runs}, Feed: map[string]Tensor{"x": FromFloat32s(slices.Repeat([]float32{1}, 64), 64)}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for range steps {
			out, err := s.Step(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			a, _ := out.Output("y")
			b, _ := out.Output("z")
			y, z = string(a.Data), string(b.Data)
		}
		return y, z
	}
	y, z := draws(1, 0, 3)
	if again, drawn := draws(1, 0, 3); again != y || drawn != z {
		t.Error("the same seed draws other numbers")
	}
	if again, _ := draws(1, 2, 1); again != y {
		t.Error("a session that goes on drops other elements")
	}
	if other, drawn := draws(2, 0, 3); other == y || drawn == z {
		t.Error("another seed draws the same numbers")
	}
	for _, n := range m.Graph.Nodes {
		if n.Has("seed") {
			t.Errorf("%s got a seed", n.Label())
		}
	}
}

// TestOwnFormat: a session of ONNX Runtime's own format computes the same bits in the same memory as
// one of the model, to the byte, and names nodes in errors; nothing of it is left once session and values
// are closed. Where the format cannot be written, or would hold weights, the session is one of the model.
func TestOwnFormat(t *testing.T) {
	defer func(n int) { ownFormatNodes = n }(ownFormatNodes)
	path := trainingModel(t, false)
	m, err := onnx.Parse("model ir=10 opset=20\n" + `graph g {
  in    x float32[64,64]
  in    i int64[1]
  init  s int64[2] = [64,64]
  init  one float32[1] = [1.5]
  init  two float32[1] = [2]
  table = Expand(one, s)
  a = Mul(x, table)
  b = Relu(a)
  c = Add(b, a)
  d = Add(c, two)
  y = Gather(b, i) "transformer/h.0/attention/gather"
  out   d float32[64,64]
  out   table float32[64,64]
  out   y float32[1,64]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		memory  Memory
		outputs map[string][]byte
	}
	run := func(open func(Options) (*Session, error)) (r result, purposes []string) {
		testEngine.Env.WatchSessions(func(o ort.SessionOptions, _ time.Duration) { purposes = append(purposes, o.Purpose) })
		defer testEngine.Env.WatchSessions(nil)
		s, err := open(Options{Provider: ort.CPU, Level: 1, LR: 0.5, Seed: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r.outputs = map[string][]byte{}
		for range 2 {
			step, err := s.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range step.Outputs {
				r.outputs[o.Name] = bytes.Clone(o.Data)
			}
		}
		r.memory = s.Memory()
		return r, purposes
	}
	for what, open := range map[string]func(Options) (*Session, error){
		"file":   func(o Options) (*Session, error) { return testEngine.OpenFile(path, o) },
		"memory": func(o Options) (*Session, error) { return testEngine.Open(m, o) },
	} {
		ownFormatNodes = 1 << 20
		want, without := run(open)
		ownFormatNodes = 1
		got, with := run(open)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		if slices.Contains(without, "optimize") || !slices.Contains(with, "optimize") {
			t.Errorf("%s: sessions were made to %q, and to %q", what, without, with)
		}
	}

	session := func() *Session {
		s, err := testEngine.Open(m, Options{Provider: ort.CPU, Level: 1, Feed: map[string]Tensor{"i": {onnx.Int64, []int64{1}, []byte{99, 0, 0, 0, 0, 0, 0, 0}}}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	mapped := func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Skip(err)
		}
		return bytes.Contains(maps, []byte("model.ort"))
	}
	s := session()
	if _, err := s.Step(context.Background()); err == nil || !strings.Contains(err.Error(), "Name:'transformer/h.0/attention/gather'") {
		t.Errorf("the error is %v, without the node's name", err)
	}
	if !mapped() {
		t.Error("no file is mapped")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if mapped() {
		t.Error("the file is mapped still")
	}
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	if s = session(); mapped() {
		t.Error("a file is mapped, of no folder")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, external := range []bool{false, true} {
		if external {
			m.Graph.AddConstant("w", onnx.ExternalTensor("w", onnx.Float32, []int64{4}, "weights", 0, 16))
		}
		if own := inOwnFormat(m, ort.SessionOptions{Provider: ort.CPU}); own == external {
			t.Errorf("in ONNX Runtime's format: %t, with weights in a file %t", own, external)
		}
	}
	if inOwnFormat(m, ort.SessionOptions{Provider: ort.CUDA}) {
		t.Error("in ONNX Runtime's format on CUDA")
	}
}
