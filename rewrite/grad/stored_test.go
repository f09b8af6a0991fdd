package grad

import (
	"slices"
	"testing"
)

// TestWrittenStatistics: where a batch normalization is written out, in a file whose names tell
// nothing, its scale and shift are trained, and its mean and variance are not.
func TestWrittenStatistics(t *testing.T) {
	const root = "f = Add(v, e)\nr = Sqrt(f)\n"
	for name, c := range map[string]struct {
		body    string
		trained []string
	}{
		"as Keras writes it":    {"w = Reshape(v, i)\nf = Add(w, e)\nr = Sqrt(f)\nk = Div(one, r)\na = Mul(k, s)\nn = Neg(m)\no = Mul(n, a)\nd = Add(o, b)\nu = Mul(x, a)\nz = Add(u, d)", []string{"b", "s"}},
		"after the subtraction": {root + "u = Sub(x, m)\nk = Div(u, r)\na = Mul(k, s)\nz = Add(a, b)", []string{"b", "s"}},
		"a power":               {"f = Add(e, v)\nr = Pow(f, p)\nu = Sub(x, m)\nk = Mul(u, r)\na = Mul(k, s)\nz = Add(a, b)", []string{"b", "s"}},
		"folded":                {"g = Cast(e) {to=1}\nf = Add(v, g)\nr = Sqrt(f)\nk = Div(s, r)\nu = Sub(b, m)\na = Mul(u, k)\nw = Mul(x, k)\nz = Add(w, a)", []string{"b", "s"}},
		"without a variance":    {"u = Sub(x, m)\nk = Div(u, v)\na = Mul(k, s)\nz = Add(a, b)", []string{"b", "m", "s", "v"}},
		"of the data":           {"q0 = Mul(x, v)\nh = Mul(q0, q0)\nf = Add(h, e)\nr = Sqrt(f)\nu = Sub(x, m)\nk = Div(u, r)\na = Mul(k, s)\nz = Add(a, b)", []string{"b", "m", "s", "v"}},
		"read elsewhere":        {root + "u = Sub(x, m)\nk = Div(u, r)\na = Mul(k, s)\nc = Add(a, b)\nd = Add(c, m)\nz = Mul(d, v)", []string{"b", "m", "s", "v"}},
	} {
		m := parseGraph(t, "in x float32[3,2]\ninit v float32[2] = [1,2]\ninit m float32[2] = [0.5,0.25]\ninit s float32[2] = [2,3]\ninit b float32[2] = [0.1,0.2]\n"+
			"init e float32[] = 0.001\ninit one float32[] = 1\ninit p float32[] = -0.5\ninit i int64[2] = [1,2]\n"+c.body+"\nq = Mul(z, z)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
		got, _ := trainedOf(t, m)
		if slices.Sort(got); !slices.Equal(got, c.trained) {
			t.Errorf("%s: trained %v, want %v", name, got, c.trained)
		}
	}
	m := parseTorch(t, "in x float32[3,2]\ninit net.v float32[2] = [1,2]\ninit net.m float32[2] = [0.5,0.25]\ninit e float32[] = 0.001\n"+
		"f = Add(net.v, e)\nr = Sqrt(f)\nu = Sub(x, net.m)\nz = Div(u, r)\nq = Mul(z, z)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
	if got, _ := trainedOf(t, m); len(got) != 2 {
		t.Errorf("named as a module's parameters are: trained %v", got)
	}
}
