package optim

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// drawn returns the signs that ONNX Runtime computes for some draws.
func drawn(t *testing.T, n int64, draws ...int64) [][]float64 {
	t.Helper()
	m := onnx.NewModel("signs", 20)
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := &applier{m: m, g: m.Graph, b: build.New(m.Graph, types, Pass)}
	a.s.draw = m.Graph.AddInput("draw", onnx.TensorOf(onnx.Int64, onnx.StaticShape()))
	m.Graph.AddOutput(a.b.NodeNamed("", "Identity", "signs", build.In(a.signs(n)), []string{"signs"})[0])
	if a.b.Err() != nil {
		t.Fatal(a.b.Err())
	}
	a.b.Flush()
	s, err := ortest.Engine(t).Open(m, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Feed: map[string]runtime.Tensor{"draw": int64s(0)}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var list [][]float64
	for _, d := range draws {
		if err := s.SetInput("draw", int64s(d)); err != nil {
			t.Fatal(err)
		}
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		out, _ := step.Output("signs")
		values, err := out.Float64s()
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, values)
	}
	return list
}

func int64s(v int64) runtime.Tensor {
	return runtime.Tensor{Type: onnx.Int64, Data: binary.LittleEndian.AppendUint64(nil, uint64(v))}
}

// TestSigns: ONNX Runtime computes the signs that the formula says, and they look like
// coins: of n throws the sum, and the product with the signs n places or draws away, are
// within four standard deviations.
func TestSigns(t *testing.T) {
	const n, draws = 1024, 40
	var numbers []int64
	for d := range int64(draws) {
		numbers = append(numbers, d)
	}
	numbers = append(numbers, 1<<40, 123456789012345678)
	rows := drawn(t, n, numbers...)
	for k, row := range rows[:draws] {
		for i, v := range row {
			if want := signAt(int64(i), int64(k)); v != want {
				t.Fatalf("sign %d of draw %d is %v, not %v", i, k, v, want)
			}
		}
	}
	coin := func(what string, x, y []float64) float64 {
		sum := 0.0
		for i := range x {
			sum += x[i] * y[i]
		}
		if z := sum / math.Sqrt(float64(len(x))); math.Abs(z) > 4 {
			t.Errorf("%s: %.1f standard deviations", what, z)
		}
		return sum
	}
	ones, all := make([]float64, n), 0.0
	for i := range ones {
		ones[i] = 1
	}
	for k, row := range rows {
		all += coin(fmt.Sprintf("draw %d", numbers[k]), row, ones)
		for lag := 1; lag <= 16; lag++ {
			coin(fmt.Sprintf("draw %d, %d places on", numbers[k], lag), row[lag:], row[:n-lag])
		}
		for l := range k {
			coin(fmt.Sprintf("draws %d and %d", numbers[k], numbers[l]), row, rows[l])
		}
	}
	if z := all / math.Sqrt(float64(n*len(rows))); math.Abs(z) > 4 {
		t.Errorf("all draws: %.1f standard deviations", z)
	}
}

// TestRedraw: another projection is drawn after 200 updates, by the number of the update.
func TestRedraw(t *testing.T) {
	for _, accumulate := range []int64{1, 2} {
		o := with(ApolloMini, func(o *Options) { o.Accumulate = accumulate })
		m, params := toyModel(t)
		if _, err := Apply(m, params, o); err != nil {
			t.Fatal(err)
		}
		first := 200*accumulate - 3
		s := openAt(t, m, first)
		ref := newReference(o, wave(12, 1), wave(4, 2))
		ref.step = int(first) - 1
		follow(t, fmt.Sprintf("from step %d", first), s, ref)
	}
}
