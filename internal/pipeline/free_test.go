package pipeline

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A file with free extents, whose values are declared with their names, as
// exporters and the gradient write it. Rows come from a Reshape to a fed shape, so
// ONNX Runtime knows their number by the declared name or not at all; a dead
// buffer of b*s rows is taken over by the next of that name, waits for it while
// the widest value is there, and is not taken over by one of a number that is the
// same in this step.
const freeGraph = `model ir=10 opset=20
graph g {
  in  x float32[b,s,8]
  in  y float32[b,s,8]
  in  rows int64[2]
  in  w float32[8,8]
  in  spread float32[8,64]
  in  gather float32[64,8]
  init two float32[] = 2
  n = Shape(x)
  x2 = Reshape(x, rows)
  p = MatMul(x2, w)
  q = Mul(p, two)
  r = Neg(q)
  t = Sub(r, two)
  wide = Reshape(t, n)
  u = Neg(wide)
  v = Add(u, y)
  big = MatMul(v, spread)
  k = MatMul(big, gather)
  z = Reshape(k, rows)
  d = Mul(z, two)
  e = Neg(d)
  f = Sub(e, two)
  h = Neg(f)
  loss = ReduceMean(h) {keepdims=0}
  out loss float32[]
  out wide float32[b,s,8]
  value x2 float32[b*s,8]
  value p float32[b*s,8]
  value q float32[b*s,8]
  value r float32[b*s,8]
  value t float32[b*s,8]
  value u float32[b,s,8]
  value v float32[b,s,8]
  value k float32[b,s,8]
  value z float32[b*s,8]
  value f float32[b*s,8]
  value h float32[b*s,8]
  value d float32[b*s,8]
  value e float32[b*s,8]
}
`

// TestFreeExtents: what is predicted of a file with free extents is what it
// takes, whether ONNX Runtime is told their numbers, one of them, or has them
// from the feeds; and what a plan says of the file as it stands is the first.
func TestFreeExtents(t *testing.T) {
	e := engine(t)
	path := saved(t, freeGraph)
	all := map[string]int64{"b": 3, "s": 5}
	feed := freeFeed()
	for _, level := range []int{0, 1, 99} {
		o := runtime.Options{Level: level, Threads: 1, Provider: ort.CPU, Feed: feed}
		for _, told := range []map[string]int64{all, {"b": 3}, {"s": 5}, nil} {
			o.Dims = told
			s, err := e.OpenFile(path, o)
			peak := onlyPeak(t, s, err)
			given := openWith(t, path, told)
			free := maps.Clone(all)
			maps.DeleteFunc(free, func(name string, _ int64) bool { return told[name] > 0 })
			checkPeak(t, fmt.Sprintf("level %d, told %v", level, told), e, given, Options{Dims: told, Free: free, OptLevel: level, Threads: 1}, peak)
			if len(told) < len(all) {
				continue
			}
			planner, err := NewPlanner(e, given, Options{Dims: told, OptLevel: level, Threads: 1, Normalize: Off})
			if err != nil {
				t.Fatal(err)
			}
			if got := planner.Before.LivePeak; got != peak {
				t.Errorf("level %d: a plan says %d bytes of the file as it stands, %d measured", level, got, peak)
			}
		}
		// A graph that was given its numbers is one that has them.
		o.Dims = nil
		fixed := openWith(t, path, all)
		s, err := e.Open(fixed, o)
		checkPeak(t, fmt.Sprintf("level %d, fixed", level), e, fixed, Options{OptLevel: level, Threads: 1}, onlyPeak(t, s, err))
	}
}

// TestFreeExtentsAsGiven: a file whose nodes stay as they were is written with numbers for free extents.
// ONNX Runtime knows buffers of equal numbers to be as large then, whatever their names were, and what a
// plan says of the written file holds for that one.
func TestFreeExtentsAsGiven(t *testing.T) {
	e := engine(t)
	path := saved(t, strings.NewReplacer("value x2 float32[b*s,8]", "value x2 float32[n,8]", "value p float32[b*s,8]", "value p float32[n,8]",
		"value q float32[b*s,8]", "value q float32[n,8]", "value r float32[b*s,8]", "value r float32[n,8]").Replace(freeGraph))
	feed := freeFeed()
	apart := false
	for _, level := range []int{0, 1, 99} {
		o := Options{Dims: map[string]int64{"b": 3, "s": 5, "n": 15}, OptLevel: level, Threads: 1, Normalize: Off}
		planner, err := NewPlanner(e, openWith(t, path, o.Dims), o)
		if err != nil {
			t.Fatal(err)
		}
		worse := *planner.asked.reordered // so that the one given is written
		worse.Peak = math.MaxInt64
		kept, err := planner.asGiven(&worse)
		if err != nil {
			t.Fatal(err)
		}
		s, err := e.Open(kept.Model, runtime.Options{Level: level, Threads: 1, Provider: ort.CPU, Feed: feed})
		if got := onlyPeak(t, s, err); got != kept.Peak {
			t.Errorf("level %d: a plan says %d bytes of the file as it is written, %d measured", level, kept.Peak, got)
		}
		apart = apart || kept.Peak != planner.Before.LivePeak
	}
	if !apart {
		t.Error("the numbers change nothing")
	}
}

// TestFreeExtentsPassedOn: a file may declare some values and leave others out: these have the names that ONNX
// Runtime hands on from what nodes read, also such as it does not reckon with, as b*s.
func TestFreeExtentsPassedOn(t *testing.T) {
	e := engine(t)
	feed := freeFeed()
	for _, left := range []string{"p", "q r", "p q r t", "d e", "d e f h", "u v"} {
		text := freeGraph
		for _, v := range strings.Fields(left) {
			for _, shape := range []string{"b*s,8", "b,s,8"} {
				text = strings.ReplaceAll(text, fmt.Sprintf("  value %s float32[%s]\n", v, shape), "")
			}
		}
		path := saved(t, text)
		for _, level := range []int{0, 1, 99} {
			for _, told := range []map[string]int64{{"b": 3, "s": 5}, {"b": 3}, {"s": 5}, nil} {
				s, err := e.OpenFile(path, runtime.Options{Level: level, Threads: 1, Provider: ort.CPU, Feed: feed, Dims: told})
				peak := onlyPeak(t, s, err)
				free := map[string]int64{"b": 3, "s": 5}
				maps.DeleteFunc(free, func(name string, _ int64) bool { return told[name] > 0 })
				checkPeak(t, fmt.Sprintf("%s not declared, level %d, told %v", left, level, told), e, openWith(t, path, told), Options{Dims: told, Free: free, OptLevel: level, Threads: 1}, peak)
			}
		}
	}
}

// TestFreeExtentsToldOne: where one number of two is told, ONNX Runtime reads the names that the file declares beside
// that number, and follows it less far than inference does: what is predicted is of the same types.
func TestFreeExtentsToldOne(t *testing.T) {
	e := engine(t)
	exported, err := onnx.Load(sample("gpt2_tiny_mask.ts_dynaxes.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exported.Close() })
	if _, err := grad.Differentiate(exported, grad.Options{}); err != nil {
		t.Fatal(err)
	}
	exported.Graph.AnnotateTypes()
	for name, m := range map[string]*onnx.Model{
		"zoo":      zooStep(t, "gpt2-tiny", optim.SGD, func(c *models.Config) { c.Seq, c.Batch = 0, 0 }),
		"exported": exported,
	} {
		path := filepath.Join(t.TempDir(), "free.onnx")
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		all := map[string]int64{"batch": 2, "seq": 32}
		feed := inputsOf(t, e, openWith(t, path, all), runtime.Options{Dims: all})
		for dim := range all {
			told, free := map[string]int64{dim: all[dim]}, maps.Clone(all)
			delete(free, dim)
			s, err := e.OpenFile(path, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Feed: feed, Dims: told})
			if err != nil {
				t.Fatal(err)
			}
			roles, bound := s.Roles, s.Bound()
			peak := onlyPeak(t, s, err)
			p, err := Predict(e, openWith(t, path, told), roles, Options{Dims: told, Free: free, OptLevel: 1, Threads: 1}, bound)
			if err != nil {
				t.Fatal(err)
			}
			if !p.Exact() || p.LivePeak != peak {
				t.Errorf("%s, told %v: %d bytes predicted, %d measured; unknown: %v", name, told, p.LivePeak, peak, p.Unknown)
			}
		}
	}
}

// saved is a file of a graph as text.
func saved(t *testing.T, text string) string {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.NameNodes()
	path := filepath.Join(t.TempDir(), "free.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// freeFeed feeds freeGraph with b=3 and s=5.
func freeFeed() map[string]runtime.Tensor {
	rows := []byte{8: 8, 15: 0}
	binary.LittleEndian.PutUint64(rows, math.MaxUint64) // -1
	feed := map[string]runtime.Tensor{"rows": {Type: onnx.Int64, Shape: []int64{2}, Data: rows}}
	for _, name := range []string{"x", "y"} {
		feed[name] = runtime.Tensor{Type: onnx.Float32, Shape: []int64{3, 5, 8}, Data: make([]byte, 4*3*5*8)}
	}
	return feed
}

// openWith reads a model with numbers for free extents.
func openWith(t *testing.T, path string, dims map[string]int64) *onnx.Model {
	t.Helper()
	m, err := Open(path, dims)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// onlyPeak runs one step of a session that was just opened and closes it.
func onlyPeak(t *testing.T, s *runtime.Session, err error) int64 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return steps(t, s, 1, func(int, int64) {}).peaks[0]
}

func checkPeak(t *testing.T, name string, e *runtime.Engine, m *onnx.Model, o Options, peak int64) {
	t.Helper()
	p, err := Predict(e, m, step.Roles{}, o, []string{})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Exact() || p.LivePeak != peak {
		t.Errorf("%s: %d bytes predicted, %d measured; unknown: %v", name, p.LivePeak, peak, p.Unknown)
	}
}

// TestListsOfFreeDims: a list that is as long as a dimension, as of what a loop over a batch takes out,
// is written out once the dimension has a number.
func TestListsOfFreeDims(t *testing.T) {
	m := trainingOf(t, `model ir=10 opset=20
graph g {
  in x float32[batch,4]
  in y float32[4]
  init w float32[4] = [1,2,3,4]
  init first int64[] = 0
  init last int64[] = -1
  rows = SplitToSequence(x) {axis=0, keepdims=0}
  a = SequenceAt(rows, first)
  b = SequenceAt(rows, last)
  c = Add(a, b)
  h = Mul(c, w)
  d = Sub(h, y)
  s = Mul(d, d)
  loss = ReduceMean(s) {keepdims=0}
  out loss float32[]
  value a float32[4]
  value b float32[4]
}
`)
	if err := sized(m, map[string]int64{"batch": 3}); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("SplitToSequence", "SequenceAt") {
			t.Errorf("%s is left", n.Label())
		}
	}
}
