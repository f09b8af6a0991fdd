package runtime

import (
	"context"
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/runtime/ort"
)

// TestEdgesStopNobody: a node of the host that reads the Size of a value on the device
// stops the host, each time. The Shape of a view is read on the device.
func TestEdgesStopNobody(t *testing.T) {
	if testEngine.device == nil {
		t.Skip("not a rehearsal: TestRehearsed runs it in one")
	}
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
