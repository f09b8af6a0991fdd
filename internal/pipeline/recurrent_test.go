package pipeline

import (
	"fmt"
	"strings"
	"testing"
)

// TestRecurrenceInStretches: a step of a recurrence holds its gates and factors for a stretch of
// time. All at once they are 22 times the states for an LSTM and 18 times for a GRU,
// whose gradients of all gates, 4 and 3 times, are needed twice at the end.
func TestRecurrenceInStretches(t *testing.T) {
	const steps, batch, width = 64, 8, 32
	const states = steps * batch * width * 4 // bytes
	e := engine(t)
	for op, gates := range map[string]int{"LSTM": 4, "GRU": 3} {
		weight := func(name string, dims ...int) string {
			n := 1
			for _, d := range dims {
				n *= d
			}
			shape := strings.Join(strings.Fields(strings.Trim(fmt.Sprint(dims), "[]")), ",")
			return fmt.Sprintf("init %s float32[%s] = [%s0.5]\n", name, shape, strings.Repeat("0.1,", n-1))
		}
		m := trained(t, fmt.Sprintf("model ir=9 opset=20\ngraph g {\nin x float32[%d,%d,%d]\n", steps, batch, width)+
			weight("w", 1, gates*width, width)+weight("r", 1, gates*width, width)+weight("b", 1, 2*gates*width)+
			fmt.Sprintf("y = %s(x, w, r, b) {hidden_size=%d%s}\n", op, width, map[string]string{"GRU": ", linear_before_reset=1"}[op])+
			"squares = Mul(y, y)\nloss = ReduceMean(squares) {keepdims=0}\nout loss float32[]\n}\n")
		taken := runAsPredicted(t, e, m, Options{}, "none")
		if taken.LivePeakBytes > 12*states {
			t.Errorf("%s: %d bytes are live, %.1f times the states", op, taken.LivePeakBytes, float64(taken.LivePeakBytes)/states)
		}
		t.Logf("%s: %.1f times the states", op, float64(taken.LivePeakBytes)/states)
	}
}
