package step

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestPlaces: which nodes CUDA leaves to the host, and what is copied for that; as ONNX
// Runtime 1.31.1 places these graphs.
func TestPlaces(t *testing.T) {
	for _, c := range []struct{ name, body, host, copies string }{
		{"all on the device", "in x float32[4,6]\ny = Tanh(x)\nz = Softmax(y) {axis=1}\nout z float32[4,6]", "", ""},
		{"no kernel", "in x float32[4,6]\ny = Tanh(x)\nz = Mean(y, y)\nu = Exp(z)\nout u float32[4,6]",
			"Mean", "MemcpyFromHost(z) MemcpyToHost(y)"},
		{"an input read on both sides", "in x float32[4,6]\ny = Tanh(x)\nz = Mean(x, x)\nout y float32[4,6]\nout z float32[4,6]",
			"Mean", "MemcpyFromHost(x)"},
		{"numbers of a shape", "in x float32[4,6]\ninit i int64[1] = [0]\ns = Shape(x)\ng = Gather(s, i)\nk = Concat(g, i) {axis=0}\ny = Reshape(x, k)\nout y float32[4,0]",
			"Gather Concat", ""},
		{"a slice that ends at a computed place", "in x float32[4,6]\ninit i int64[1] = [0]\ns = Shape(x)\ne = ReduceSum(s) {keepdims=1}\nk = Slice(s, i, e)\nc = Concat(k, i) {axis=0}\ny = Expand(x, c)\nout y float32[4,6]",
			"ReduceSum", "MemcpyFromHost(s) MemcpyToHost(c)"},
		{"a half type without a kernel of the host's", "in x float16[4,6]\ny = Tanh(x)\nz = Mul(y, y)\nout z float16[4,6]", "", ""},
	} {
		m := parse(t, c.body+"\n")
		places := CUDA.Place(m, false)
		var host []string
		for _, n := range m.Graph.Nodes {
			if places.HostNode(n) {
				host = append(host, n.OpType())
			}
		}
		if got := strings.Join(host, " "); got != c.host {
			t.Errorf("%s: on the host %q, want %q", c.name, got, c.host)
		}
		before := len(m.Graph.Nodes)
		if places.Copied(m.Graph) != (c.copies != "") {
			t.Errorf("%s: copied is %v", c.name, c.copies == "")
		}
		names := map[*onnx.Value]string{}
		for _, n := range m.Graph.Nodes {
			for _, v := range n.Outputs {
				names[v] = v.Name
			}
		}
		places.Copy(m.Graph)
		var copies []string
		for _, n := range m.Graph.Nodes[before:] {
			v := n.In(0)
			if names[v] == "" {
				names[v] = v.Name
			}
			copies = append(copies, fmt.Sprintf("%s(%s)", n.OpType(), names[v]))
		}
		if got := strings.Join(copies, " "); got != c.copies {
			t.Errorf("%s: copies %q, want %q", c.name, got, c.copies)
		}
		again := CUDA.Place(m, true)
		for _, n := range m.Graph.Nodes {
			if again.HostNode(n) != places.HostNode(n) {
				t.Errorf("%s: %s is on the host: %v, once the copies are in: %v", c.name, n.OpType(), places.HostNode(n), again.HostNode(n))
			}
		}
		if order := CopiesFirst(m.Graph); len(order) != len(m.Graph.Nodes) || slices.ContainsFunc(order[:1], isCopy) && len(order[0].In(0).Uses()) == 0 {
			t.Errorf("%s: %d of %d nodes", c.name, len(order), len(m.Graph.Nodes))
		}
	}
	if CPU.Place(parse(t, "in x float32[4]\ny = Tanh(x)\nout y float32[4]\n"), false) != nil {
		t.Error("the CPU has no places")
	}
}
