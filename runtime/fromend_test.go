package runtime

import (
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestFromEnd: numbers below zero are found where they are counted from the end of what they
// index, and not where they are replaced, ignored, or changed on the way.
func TestFromEnd(t *testing.T) {
	const labels = "  in l int64[3]\n  in x float32[3,5]\n  init ignored int64[] = -100\n  init zero int64[] = 0\n  init axis int64[1] = [1]\n"
	for name, c := range map[string]struct {
		body string
		feed []int64
		want string // input, number, extent, count, what to feed
	}{
		"a table":   {"  in l int64[3]\n  init x float32[2,2] = [1,2,3,4]\n  y = Gather(x, l)\n", []int64{0, -2, -1}, "[{l -2 2 2 feed 0 to 1}]"},
		"in range":  {"  in l int64[3]\n  init x float32[2,2] = [1,2,3,4]\n  y = Gather(x, l)\n", []int64{0, 1, 1}, "[]"},
		"a loss":    {labels + "  y = SoftmaxCrossEntropyLoss(x, l) {ignore_index=-3}\n", []int64{-3, -1, 4}, "[{l -1 5 1 feed 0 to 4, or -3 for what is left out}]"},
		"replaced":  {labels + "  e = Equal(l, ignored)\n  i = Where(e, zero, l)\n  k = Unsqueeze(i, axis)\n  y = GatherElements(x, k) {axis=1}\n", []int64{-100, 1, -1}, "[{l -1 5 1 feed 0 to 4, or -100 for what is left out}]"},
		"clipped":   {labels + "  i = Clip(l, zero)\n  k = Unsqueeze(i, axis)\n  y = GatherElements(x, k) {axis=1}\n", []int64{-1, 1, -1}, "[]"},
		"no index":  {labels + "  f = Cast(l) {to=1}\n  k = Unsqueeze(f, axis)\n  y = Mul(x, k)\n", []int64{-1, 1, -1}, "[]"},
		"a default": {labels + "  a = Less(l, zero)\n  i = Where(a, zero, l)\n  k = Unsqueeze(i, axis)\n  y = GatherElements(x, k) {axis=1}\n", []int64{-1, 1, -1}, "[]"},
	} {
		s := openIndexing(t, c.body, c.feed)
		list, err := s.FromEnd()
		if got := fmt.Sprint(list); err != nil || got != c.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, c.want)
		}
		s.Close()
	}
}

// TestOutside: a step that ends in a kernel's refusal of an index says which input holds it.
func TestOutside(t *testing.T) {
	const labels = "  in l int64[3]\n  in x float32[3,5]\n  init ignored int64[] = -100\n  init zero int64[] = 0\n  init axis int64[1] = [1]\n" +
		"  e = Equal(l, ignored)\n  i = Where(e, zero, l)\n  k = Unsqueeze(i, axis)\n  y = GatherElements(x, k) {axis=1}\n"
	for name, c := range map[string]struct {
		body string
		feed []int64
		want string
	}{
		"a table":  {"  in l int64[3]\n  init x float32[2,2] = [1,2,3,4]\n  y = Gather(x, l)\n", []int64{0, 2, -1}, `step 1: input "l": 2 lies outside of what it indexes: feed 0 to 1`},
		"below":    {"  in l int64[3]\n  init x float32[2,2] = [1,2,3,4]\n  y = Gather(x, l)\n", []int64{0, 1, -3}, `step 1: input "l": -3 lies outside of what it indexes: feed 0 to 1`},
		"a label":  {labels, []int64{-100, 7, 1}, `step 1: input "l": 7 lies outside of what it indexes: feed 0 to 4, or -100 for what is left out`},
		"in range": {labels, []int64{-100, 4, -5}, ""},
		"a column": {"  in l int64[3]\n  init x float32[2,2] = [1,2,3,4]\n  init w float32[5,2] = zeros\n  init last int64[1] = [2]\n  init first int64[2] = [0,1]\n" +
			"  k = Gather(l, last)\n  m = Gather(l, first)\n  u = Gather(w, m)\n  v = Gather(x, k) \"of the last\"\n  y = Add(u, v)\n",
			[]int64{4, 3, 2}, `step 1: input "l": 2 lies outside of what a part of it indexes in of the last: feed 0 to 1 there`},
	} {
		s := openIndexing(t, c.body, c.feed)
		got := ""
		if _, err := s.Step(t.Context()); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		s.Close()
	}
}

// openIndexing opens a graph whose input l indexes something, fed with three numbers.
func openIndexing(t *testing.T, body string, feed []int64) *Session {
	t.Helper()
	m, err := onnx.Parse("model ir=10 opset=20\ngraph g {\n" + body + "  out y float32\n}\n")
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	s, err := testEngine.Open(m, Options{Provider: ort.CPU, Feed: map[string]Tensor{"l": FromInt64s(feed, 3)}})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return s
}
