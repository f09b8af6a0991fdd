package predict

import (
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
)

// stack is a forward chain and a backward chain that reads it.
func stack(b *testing.B, nodes int) *onnx.Model {
	m := onnx.NewModel("stack", 18)
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		b.Fatal(err)
	}
	bd := build.New(m.Graph, types, "")
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(8, 16)))
	acts := []*onnx.Value{x}
	for range nodes / 2 {
		x = bd.Op("Tanh", build.In(x))
		acts = append(acts, x)
	}
	for i := range nodes / 2 {
		x = bd.Op("Mul", build.In(x, acts[len(acts)-1-i]))
	}
	if err := bd.Err(); err != nil {
		b.Fatal(err)
	}
	m.Graph.AddOutput(x)
	bd.Flush()
	return m
}

func BenchmarkPredict(b *testing.B) {
	for _, nodes := range []int{1000, 10_000, 100_000} {
		m := stack(b, nodes)
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			for b.Loop() {
				if _, err := Predict(m, Options{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(nodes), "ns/node")
		})
	}
}
