package infer

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onnx-remat/remat/onnx"
)

// layers builds a model of about n nodes: blocks of a product, a norm, an
// activation and the shape arithmetic that exporters leave in.
func layers(n int) *onnx.Model {
	const f = onnx.Float32
	m := onnx.NewModel("layers", 20)
	g := m.Graph
	x := g.AddInput("x", onnx.TensorOf(f, onnx.Shape{onnx.Symbol("batch"), onnx.Symbol("seq"), onnx.Static(64)}))
	w := g.AddInput("w", onnx.TensorOf(f, onnx.StaticShape(64, 64)))
	s := g.AddInput("s", onnx.TensorOf(f, onnx.StaticShape(64)))
	axis := g.AddConstant("axis", onnx.Int64Tensor([]int64{0}))
	flat := g.AddConstant("flat", onnx.Int64Tensor([]int64{-1, 64}, 2))
	last := g.AddConstant("last", onnx.Int64Tensor([]int64{64}, 1))
	zero := g.AddConstant("zero", onnx.Int64Tensor([]int64{0}, 1))
	one := g.AddConstant("one", onnx.Int64Tensor([]int64{1}, 1))
	add := func(op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
		node := g.NewNode("", op, op, in, []string{op}, attrs...)
		g.Append(node)
		return node.Outputs[0]
	}
	for len(g.Nodes) < n {
		norm := add("LayerNormalization", []*onnx.Value{x, s, s})
		shape := add("Shape", []*onnx.Value{norm})
		b := add("Gather", []*onnx.Value{shape, axis})
		b = add("Unsqueeze", []*onnx.Value{b, zero})
		q := add("Slice", []*onnx.Value{shape, one, g.AddConstant("two", onnx.Int64Tensor([]int64{2}, 1))})
		full := add("Concat", []*onnx.Value{b, q, last}, onnx.IntAttr("axis", 0))
		rows := add("Reshape", []*onnx.Value{norm, flat})
		rows = add("MatMul", []*onnx.Value{rows, w})
		rows = add("Gelu", []*onnx.Value{rows})
		rows = add("Reshape", []*onnx.Value{rows, full})
		x = add("Add", []*onnx.Value{x, rows})
	}
	g.AddOutput(x)
	return m
}

func BenchmarkModel(b *testing.B) {
	for _, n := range []int{1_000, 3_000, 10_000, 20_000, 30_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := layers(n)
			for b.Loop() {
				if _, err := Model(m, Options{Strict: true}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

// BenchmarkLoadCheckInfer is what a command does before its own work.
func BenchmarkLoadCheckInfer(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 20_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "layers.onnx")
			if err := layers(n).Save(path); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				loadCheckInfer(b, path)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

func loadCheckInfer(t testing.TB, path string) {
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	if _, err := Model(m, Options{Strict: true}); err != nil {
		t.Fatal(err)
	}
}

// TestLoadCheckInferTime holds 20,000 nodes to a second.
func TestLoadCheckInferTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layers.onnx")
	if err := layers(20_000).Save(path); err != nil {
		t.Fatal(err)
	}
	best := time.Hour
	for range 3 {
		start := time.Now()
		loadCheckInfer(t, path)
		best = min(best, time.Since(start))
	}
	if best > time.Second {
		info, _ := os.Stat(path)
		t.Errorf("20,000 nodes (%d bytes) took %v, more than 1s", info.Size(), best)
	}
}

// TestLayers checks the end of the chain, so that the benchmark measures
// inference that succeeds.
func TestLayers(t *testing.T) {
	m := layers(200)
	r, err := Model(m, Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Graph.Outputs[0].Type.String(); got != "float32[batch,seq,64]" {
		t.Errorf("the output is %s", got)
	}
	for _, n := range m.Graph.Nodes {
		if n.OpType() == "Concat" {
			dims, ok := r.Ints(n.Outputs[0])
			if !ok || onnx.Shape(dims).String() != "[batch,seq,64]" {
				t.Errorf("%s holds %v", n.Label(), dims)
			}
		}
	}
}
