package kernels

import "testing"

// TestNeeds: what a file asks for by its format, its opset, and its operators,
// as releases of ONNX Runtime were seen to open it and to refuse it.
func TestNeeds(t *testing.T) {
	const mul = "in x float32[2,2]\ny = Mul(x, x)\nout y float32[2,2]"
	for _, c := range []struct {
		ir    int64
		opset string
		body  string
		want  string
	}{
		{8, "13", mul, "1.17"},
		{9, "20", mul, "1.17"},
		{10, "20", mul, "1.18"},
		{9, "21", mul, "1.18"},
		{10, "22", mul, "1.21"},
		{10, "23", mul, "1.23"},
		{11, "20", mul, "1.23"},
		{12, "24", mul, "1.24"},
		{13, "25", mul, "1.24"},
		{13, "26", mul, "1.25"},
		{14, "20", mul, "1.32"},
		{14, "28", mul, "1.32"},
		{10, "20", "in x float16[2,2]\ny = Mul(x, x)\nout y float16[2,2]", "1.18"}, // between casts
		{10, "20", "in x float16[2,2]\nin w float16[2]\ny = LayerNormalization(x, w)\nout y float16[2,2]", "1.18"},
		{10, "20", "in x bfloat16[2,2]\nin w bfloat16[2]\ny = LayerNormalization(x, w)\nout y bfloat16[2,2]", "1.30"},
		{9, "20", "in x float32[2,2]\ny = Gelu(x)\nout y float32[2,2]", "1.18"},
		{9, "20", "in x bool[2,2]\ny = Trilu(x)\nout y bool[2,2]", "1.19"},
		{10, "21", "in x int8[4,2]\nin s float32[2]\ny = DequantizeLinear(x, s)\nout y float32[4,2]", "1.18"},
		{10, "21", "in x int8[4,2]\nin s float32[2,2]\ny = DequantizeLinear(x, s) {axis=0, block_size=2}\nout y float32[4,2]", "1.19"},
		{10, "21", "in x int4[4,2]\nin s float32[2,2]\ny = DequantizeLinear(x, s) {axis=0, block_size=2}\nout y float32[4,2]", "1.19"},
		{9, "20", "in x int64[2,2]\ny = ReduceMean(x)\nout y int64[1,1]", "1.20"},
	} {
		m, _ := node(t, c.opset, c.body)
		m.Proto.IrVersion = &c.ir
		if got := Needs(m, CPU).String(); got != c.want {
			t.Errorf("IR %d, opset %s, %s: needs %s, want %s", c.ir, c.opset, c.body, got, c.want)
		}
		if got := Needs(m, CUDA); got > Needs(m, CPU) {
			t.Errorf("IR %d, opset %s: CUDA needs %s", c.ir, c.opset, got)
		}
	}
}
