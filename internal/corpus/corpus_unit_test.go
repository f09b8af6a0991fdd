package corpus

import (
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

func TestReadExceptions(t *testing.T) {
	got, err := ReadExceptions(strings.NewReader("# why\n\na: no kernel: b\n"))
	if err != nil || len(got) != 1 || got["a"] != "no kernel: b" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"a", "a:", "a: b\na: c"} {
		if _, err := ReadExceptions(strings.NewReader(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

func TestCompare(t *testing.T) {
	f := func(v ...float64) *onnx.Tensor { return onnx.FloatTensor(onnx.Float32, v, int64(len(v))) }
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name      string
		got, want *onnx.Tensor
		same      bool
	}{
		{"equal", f(1, 2), f(1, 2), true},
		{"close", f(1.0005), f(1), true},
		{"far", f(1.01), f(1), false},
		{"small beside a large one", f(1000, 0.001), f(1000, 0), true},
		{"nan", f(nan), f(nan), true},
		{"nan for a number", f(nan), f(1), false},
		{"a number for nan", f(1), f(nan), false},
		{"infinite", f(inf), f(inf), true},
		{"large for infinite", f(3e38), f(inf), false},
		{"shape", f(1, 2), f(1), false},
		{"type", f(1), onnx.Int64Tensor([]int64{1}, 1), false},
		{"integers", onnx.Int64Tensor([]int64{1}, 1), onnx.Int64Tensor([]int64{2}, 1), false},
	} {
		if err := Compare(c.got, c.want); (err == nil) != c.same {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
