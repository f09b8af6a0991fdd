package step

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestAccumulation: the number of runs is found as well where the phase waits for
// something else, through either of its inputs.
func TestAccumulation(t *testing.T) {
	const waits = "none = Slice(axes, zero, zero)\n"
	for name, c := range map[string]struct {
		body string
		want int64
	}{
		"plain":        {"phase = Mod(step, three)\n", 3},
		"step waits":   {waits + "late = Reshape(step, none)\nphase = Mod(late, three)\n", 3},
		"number waits": {waits + "late = Unsqueeze(three, none)\nphase = Mod(step, late)\n", 3},
		"no phase":     {"phase = Add(step, three)\n", 1},
	} {
		m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin axes int64[4]\nin step int64[]\n" +
			"init three int64[] = 3\ninit zero int64[1] = [0]\n" + c.body + "out phase int64[]\n}\n")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := Accumulation(m.Graph); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
