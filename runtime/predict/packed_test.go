package predict

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestPackedElements: a dead buffer goes to a value of the same shape and element
// size, and elements of two and of four bits differ in that, though neither fills
// a byte.
func TestPackedElements(t *testing.T) {
	for _, c := range []struct {
		first, second onnx.DType
		shared        bool
	}{
		{onnx.Uint8, onnx.Int8, true}, {onnx.Int8, onnx.Bool, true},
		{21, 22, true}, {25, 26, true}, // uint4 and int4, uint2 and int2
		{21, 25, false}, {26, 22, false}, {onnx.Int8, 22, false}, {25, onnx.Uint8, false},
	} {
		t.Run(fmt.Sprint(c.first, c.second), func(t *testing.T) {
			p, got := predictedAndMeasured(t, fmt.Sprintf(`model ir=12 opset=25
graph g {
in x float32[4096]
a = Cast(x) {to=%d}
p = Cast(a) {to=1}
q = Tanh(p)
b = Cast(q) {to=%d}
y = Cast(b) {to=1}
out y float32[4096]
}
`, c.first, c.second), map[string][]byte{"x": make([]byte, 4*4096)})
			if p.LivePeak != got.live || len(p.Trace.Events) != len(got.events) {
				t.Errorf("peak %d in %d events, measured %d in %d", p.LivePeak, len(p.Trace.Events), got.live, len(got.events))
			}
			if a, b := p.Graph.Values[p.place(t, "a")].Class, p.Graph.Values[p.place(t, "b")].Class; (a == b) != c.shared {
				t.Errorf("classes %d and %d, shared %v", a, b, c.shared)
			}
		})
	}
}

// TestPackedOnce: a Gemm that reads a constant transposed has the pack of one that reads it as it
// is, where it is symmetric, and that of a constant that holds the transposed matrix.
func TestPackedOnce(t *testing.T) {
	for _, c := range []struct {
		name, v, w string
	}{
		{"symmetric", "[1, 2, 2, 3]", "[1, 2, 2, 3]"},
		{"transposed", "[1, 2, 4, 3]", "[1, 4, 2, 3]"},
		{"other", "[1, 2, 4, 3]", "[1, 2, 4, 3]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, got := predictedAndMeasured(t, fmt.Sprintf(`model ir=10 opset=20
graph g {
in x float32[4,2]
init v float32[2,2] = %s
init w float32[2,2] = %s
a = Gemm(x, v)
y = Gemm(a, w) {transB=1}
out y float32[4,2]
}
`, c.v, c.w), nil)
			if s := p.Session.Bytes(); s != got.session {
				t.Errorf("session of %d bytes, measured %d", s, got.session)
			}
		})
	}
}

// TestUnreadInitializer: one that nothing reads is dropped, and one that is an input too is held.
func TestUnreadInitializer(t *testing.T) {
	for name, input := range map[string]string{"alone": "", "input": "in v float32[8]\n"} {
		t.Run(name, func(t *testing.T) {
			p, got := predictedAndMeasured(t, "model ir=10 opset=20\ngraph g {\nin x float32[8]\n"+input+`init v float32[8] = [1,2,3,4,5,6,7,8]
init w float32[8] = [1,2,3,4,5,6,7,9]
y = Add(x, w)
out y float32[8]
}
`, nil)
			if s := p.Session.Bytes(); s != got.session {
				t.Errorf("session of %d bytes, measured %d", s, got.session)
			}
		})
	}
}

// TestPackedAlike: constants of other shapes share a pack where its bytes are the same: zeros of
// any, as states to begin with, and columns that the layout fills with zeros.
func TestPackedAlike(t *testing.T) {
	ones := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("1, ", n), ", ") + "]" }
	for _, c := range []struct {
		name, v, w, attributes string
		rows                   int
	}{
		{"zeros", "float32[2,6] = [0,0,0,0,0,0,0,0,0,0,0,0]", "float32[2,4] = [0,0,0,0,0,0,0,0]", "", 2},
		{"padded", "float32[2,3] = [1,2,0,3,4,0]", "float32[2,2] = [1,2,3,4]", "", 2},
		{"padded, transposed", "float32[2,3] = [1,2,0,3,4,0]", "float32[2,2] = [1,3,2,4]", "transB=1", 2},
		{"ones", "float32[2,3] = [1,1,1,1,1,1]", "float32[2,2] = [1,1,1,1]", "", 2},
		{"filled", "float32[2,16] = " + ones(32), "float32[1,32] = " + ones(32), "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, got := predictedAndMeasured(t, fmt.Sprintf(`model ir=10 opset=20
graph g {
in x float32[4,2]
in z float32[4,%d]
init v %s
init w %s
a = Gemm(x, v)
y = Gemm(z, w) {%s}
out a float32[4,a]
out y float32[4,b]
}
`, c.rows, c.v, c.w, c.attributes), nil)
			if s := p.Session.Bytes(); s != got.session {
				t.Errorf("session of %d bytes, measured %d", s, got.session)
			}
		})
	}
}

// TestWidenedByEachNorm: what a norm widens of a half type, no other one shares, not even of
// the same constant.
func TestWidenedByEachNorm(t *testing.T) {
	for _, c := range []struct{ op, second string }{
		{"LayerNormalization", "v"}, {"LayerNormalization", "w"}, {"RMSNormalization", "v"}, {"RMSNormalization", "w"},
	} {
		t.Run(c.op+" "+c.second, func(t *testing.T) {
			numbers := strings.TrimSuffix(strings.Repeat("1, ", 64), ", ")
			p, got := predictedAndMeasured(t, fmt.Sprintf(`model ir=10 opset=23
graph g {
in x float32[4,64]
init v float16[64] = [%s]
init w float16[64] = [%s]
h = Cast(x) {to=10}
a = %s(h, v)
b = %s(a, %s)
y = Cast(b) {to=1}
out y float32[4,64]
}
`, numbers, numbers, c.op, c.op, c.second), nil)
			if s := p.Session.Bytes(); s != got.session {
				t.Errorf("session of %d bytes, measured %d", s, got.session)
			}
		})
	}
}

// TestMultinomial: the draw holds a row's sums in float64, beside what it makes.
func TestMultinomial(t *testing.T) {
	p, got := predictedAndMeasured(t, `model ir=10 opset=20
graph g {
in x float32[4,300]
y = Multinomial(x) {dtype=7, sample_size=2, seed=1.0}
out y int64[4,2]
}
`, nil)
	if p.LivePeak != got.live || allocations(p) != len(allocs(got.events)) {
		t.Errorf("%d bytes in %d blocks, predicted %d in %d", got.live, len(allocs(got.events)), p.LivePeak, allocations(p))
	}
}

// place is the number of a value by name.
func (p *Prediction) place(t *testing.T, name string) int {
	for i, v := range p.Values {
		if v.Name == name {
			return i
		}
	}
	t.Fatalf("no value %q", name)
	return 0
}

// predictedAndMeasured is a step of a graph as text, with one thread and nothing fused.
func predictedAndMeasured(t *testing.T, text string, feeds map[string][]byte) (*Prediction, *measured) {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	p, err := Predict(m, Options{Declared: true, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	got, err := measure(path, ort.SessionOptions{Level: 0, Threads: 1}, feeds)
	if err != nil {
		t.Fatal(err)
	}
	return p, got
}
