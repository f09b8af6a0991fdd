package runtime

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/runtime/ort"
)

// TestEdgesStopNobody: a node of the host that reads the Size of a value on the device
// stops the host, each time. The Shape of a view is read on the device.
func TestEdgesStopNobody(t *testing.T) {
	onlyRehearsed(t)
	const edges = 7
	stops := func(edge string, level int) int64 {
		nodes, values := "", ""
		for k := range edges { // each exponential waits for the sum before it
			nodes += fmt.Sprintf(edge+`y%[1]d = Unsqueeze(x0, none%[1]d)
z%[1]d = Exp(y%[1]d)
x%[2]d = Add(x%[1]d, z%[1]d)
`, k, k+1)
			values += fmt.Sprintf("value y%d float32[64]\n", k)
		}
		s := openText(t, fmt.Sprintf(`model ir=10 opset=20
graph g {
in x0 float32[64]
in i int64[4]
init first int64[1] = [0]
n = Size(i)
u = Unsqueeze(n, first)
axes = Slice(u, first, first)
%sout x%d float32[64]
%s}
`, nodes, edges, values), Options{Provider: ort.CUDA, Level: level, Threads: 1})
		step := &Step{}
		for range 2 {
			var err error
			if step, err = s.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		return step.Device.Synchronizations
	}
	for _, level := range []int{0, 1, 99} {
		size := stops("n%[1]d = Size(x%[1]d)\nu%[1]d = Unsqueeze(n%[1]d, first)\nnone%[1]d = Slice(u%[1]d, first, first)\n", level)
		shape := stops("v%[1]d = Unsqueeze(x%[1]d, axes)\nnone%[1]d = Shape(v%[1]d) {start=0, end=0}\n", level)
		if size != shape+edges {
			t.Errorf("level %d: %d edges by Size stop the host %d times, by Shape %d", level, edges, size, shape)
		}
	}
}

// TestHostInputs: what a node of the host reads lies on the host, where it can be written
// between steps. ONNX Runtime copies a value of the device once, as it is bound.
func TestHostInputs(t *testing.T) {
	onlyRehearsed(t)
	s := openText(t, `model ir=10 opset=20
graph g {
in x float32[6]
in shape int64[2]
y = Reshape(x, shape)
z = Exp(y)
out z float32[a,b]
}
`, Options{Provider: ort.CUDA, Level: 1, Threads: 1, Feed: map[string]Tensor{"shape": FromInt64s([]int64{2, 3}, 2)}})
	for _, want := range [][]int64{{2, 3}, {3, 2}, {6, 1}} {
		if err := s.SetInput("shape", FromInt64s(want, 2)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := s.last[0].value.Shape; !slices.Equal(got, want) {
			t.Errorf("of shape %v the step made %v", want, got)
		}
	}
	x := FromFloat32s([]float32{1, -2, 3, 4, 5, 6}, 6)
	if err := s.SetInput("x", x); err != nil {
		t.Fatal(err)
	}
	if got, _, err := s.Input("x"); err != nil || !slices.Equal(got.Data, x.Data) {
		t.Errorf("%v was copied to the device, %v back: %v", x.Data, got.Data, err)
	}
	if s.byName["x"].value.OnHost() || !s.byName["shape"].value.OnHost() {
		t.Error("x lies on the host, or its shape does not")
	}
}

// TestArenaOfSpared: an arena is planned for a session that has given its graph up.
func TestArenaOfSpared(t *testing.T) {
	onlyRehearsed(t)
	s := openText(t, `model ir=10 opset=20
graph g {
in x float32[6]
init k float32[6] = [1, 2, 3, 4, 5, 6]
y = Mul(x, k)
z = Exp(y)
out z float32[6]
}
`, Options{Provider: ort.CUDA, Level: 1, Threads: 1})
	if _, err := s.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.Spare()
	if err := s.MeasureArena(context.Background(), nil, false); err != nil {
		t.Fatal(err)
	}
}
