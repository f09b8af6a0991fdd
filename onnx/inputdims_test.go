package onnx

import "testing"

// TestNamelessDims: dimensions of inputs that have neither a size nor a name get one, which no
// other has and --dim can take; others stay, and so does what is no input.
func TestNamelessDims(t *testing.T) {
	load := func(inputs string) *Model {
		m, err := Parse("model ir=9 opset=20\ngraph g {\n" + inputs + "\na = Relu(x)\nout a float32[?]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		return saved(t, m)
	}
	tests := []struct {
		inputs  string
		want    string
		amended bool
	}{
		{"in x float32[?,5]", "float32[x.0,5]", true},
		{"in x float32[?,?]", "float32[x.0,x.1]", true},
		{"in x float32[n,5]", "float32[n,5]", false},
		{"in x float32", "float32", false},
		{"in y float32[x.0]\nin x float32[?,x.1]", "float32[x.0_1,x.1]", true},
	}
	for _, c := range tests {
		m := load(c.inputs)
		if got := m.Graph.Value("x").Type.String(); got != c.want || m.Amended != c.amended {
			t.Errorf("%s: %s, amended %v; want %s, %v", c.inputs, got, m.Amended, c.want, c.amended)
		}
		if got := m.Graph.Value("a").Type.String(); got != "float32[?]" {
			t.Errorf("%s: the output is %s", c.inputs, got)
		}
	}
	if m := load("in \"a/b-c*d:0\" float32[?]\nin x float32[2]"); m.Graph.Inputs[0].Type.String() != "float32[a_b_c_d_0.0]" {
		t.Errorf("a name with signs: %s", m.Graph.Inputs[0].Type)
	}
}
