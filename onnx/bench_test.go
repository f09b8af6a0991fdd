package onnx

import (
	"fmt"
	"runtime"
	"testing"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// chain encodes a graph of n nodes in which every node reads its two
// predecessors and one value that all share.
func chain(tb testing.TB, n int) []byte {
	tb.Helper()
	m := NewModel("chain", 20)
	g := m.Graph
	shape := TensorOf(Float32, Shape{Symbol("batch"), Static(64)})
	shared := g.AddInput("shared_scale", shape)
	a, b := g.AddInput("input_hidden_states", shape), shared
	for i := range n {
		op, inputs := "Add", []*Value{a, b}
		if i%3 == 0 {
			op, inputs = "Mul", []*Value{a, shared}
		}
		node := g.NewNode("", op, fmt.Sprintf("/model/layers.%d/%s", i, op), inputs, []string{fmt.Sprintf("/model/layers.%d/%s_output_0", i, op)})
		g.Append(node)
		node.Outputs[0].Type = shape
		a, b = node.Outputs[0], a
	}
	g.AddOutput(a)
	g.AnnotateTypes()
	data, err := m.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

func BenchmarkLoadCheck(b *testing.B) {
	for _, n := range []int{1000, 10_000, 20_000, 100_000} {
		data := chain(b, n)
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := Decode(data, ".")
				if err != nil {
					b.Fatal(err)
				}
				if err := m.Check(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

func BenchmarkText(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		m, err := Decode(chain(b, n), ".")
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			for b.Loop() {
				if _, err := Parse(m.Text()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/node")
		})
	}
}

func TestWireCostBoundsMemory(t *testing.T) {
	data := chain(t, 20_000)
	sum, err := wireCost(data, &pb.ModelProto{})
	if err != nil {
		t.Fatal(err)
	}
	cost := sum.cost
	before := liveHeap()
	m, err := Decode(data, ".")
	if err != nil {
		t.Fatal(err)
	}
	took := liveHeap() - before
	runtime.KeepAlive(m)
	t.Logf("%d bytes of file, estimated %d, took %d", len(data), cost, took)
	if took > cost || cost > 2*took {
		t.Errorf("decoding took %d bytes, estimated %d", took, cost)
	}
	if budget := decodeBudget(len(data), sum.nodes); cost > budget*3/4 {
		t.Errorf("an honest graph costs %d of a budget of %d", cost, budget)
	}
}

func liveHeap() int64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}
