package pipeline

// What a graph computes, without computing it. Each value gets a number: a hash of
// the operator that makes it, its attributes and the numbers of what it reads, or
// of a constant's content, or of an input's name. A view has the number of what it
// is a view of, and an extent list that is joined with tensors of no elements is
// the list alone; so a rewritten graph, in which values are computed again, wait for
// each other and hide their shapes, gives its outputs the numbers that they had.

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// meaning returns the outputs' numbers by name. The model is left as it is.
func meaning(m *onnx.Model, dims map[string]int64) (map[string]string, error) {
	m, err := m.Clone()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	g := m.Graph
	if err := g.SortTopologically(); err != nil {
		return nil, err
	}
	dropEmpty(g)
	if _, err := infer.Model(m, infer.Options{Dims: dims, Strict: true}); err != nil {
		return nil, err
	}
	number := map[*onnx.Value][sha256.Size]byte{}
	for _, v := range g.Inputs {
		number[v] = hash("input", v.Name)
	}
	for _, v := range g.Initializers {
		if data, err := v.Init.Bytes(); err != nil {
			return nil, err
		} else if !v.IsInput() {
			number[v] = hash("constant", fmt.Sprint(v.Init.DType(), v.Init.Dims()), string(data))
		}
	}
	for _, n := range g.Nodes {
		if isView(n) {
			number[n.Outputs[0]] = number[n.Inputs[0]]
			continue
		}
		base := operation(n, number)
		for i, v := range n.Outputs {
			if v != nil {
				number[v] = hash(base, fmt.Sprint(i))
			}
		}
	}
	out := map[string]string{}
	for _, v := range g.Outputs {
		out[v.Name] = fmt.Sprintf("%v %x", v.Type.Shape, number[v])
	}
	return out, nil
}

// dropEmpty takes from each Concat the operands that have no elements by what their
// producers say, and puts what is left of one operand in its place.
func dropEmpty(g *onnx.Graph) {
	empty := map[*onnx.Value]bool{}
	zero := func(v *onnx.Value) bool {
		if v == nil || !v.IsConstant() {
			return false
		}
		list, err := v.Init.Int64s()
		return err == nil && slices.Equal(list, []int64{0})
	}
	for _, n := range g.Nodes {
		switch {
		case n.Is("Slice"):
			empty[n.Outputs[0]] = zero(n.In(1)) && zero(n.In(2))
		case n.Is("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "NonZero"):
			empty[n.Outputs[0]] = empty[n.Inputs[0]]
		case n.Is("Concat"):
			if left := slices.DeleteFunc(slices.Clone(n.Inputs), func(v *onnx.Value) bool { return empty[v] }); len(left) == 0 {
				empty[n.Outputs[0]] = true
			} else if len(left) < len(n.Inputs) {
				n.SetInputs(left...)
				if len(left) == 1 && !n.Outputs[0].IsOutput() {
					g.ReplaceUses(n.Outputs[0], left[0])
				}
			}
		}
	}
	for _, n := range g.Nodes { // along no axes
		if n.Is("Unsqueeze") && empty[n.In(1)] {
			n.SetInput(1, g.AddConstant("none", onnx.Int64Tensor(nil, 0)))
		}
	}
	g.RemoveDead()
}

// isView reports an operator that returns the elements of its input in their order.
func isView(n *onnx.Node) bool {
	return n.Is("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
}

// operation names what a node computes.
func operation(n *onnx.Node, number map[*onnx.Value][sha256.Size]byte) string {
	parts := []string{n.Domain(), n.OpType(), fmt.Sprint(len(n.Outputs))}
	attributes := map[string]string{}
	for _, a := range n.Proto.GetAttribute() {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
		attributes[a.GetName()] = fmt.Sprintf("%x %v", data, err)
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		parts = append(parts, name, attributes[name])
	}
	for _, v := range n.Inputs {
		if v == nil {
			parts = append(parts, "")
			continue
		}
		parts = append(parts, fmt.Sprint(v.Type.DType, v.Type.Shape), fmt.Sprintf("%x", number[v]))
	}
	h := hash(parts...)
	return string(h[:])
}

func hash(parts ...string) [sha256.Size]byte {
	h := sha256.New()
	for _, s := range parts {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// sameMeaning checks that two graphs have the same outputs, and compute the same.
func sameMeaning(t *testing.T, what string, before, after *onnx.Model, dims map[string]int64) {
	t.Helper()
	want, err := meaning(before, dims)
	if err != nil {
		t.Fatalf("%s: the graph as prepared: %v", what, err)
	}
	got, err := meaning(after, dims)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d outputs, not %d", what, len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: output %s is computed from something else, or otherwise", what, name)
		}
	}
}

// TestMeaning: what rewriting puts in changes no meaning, and what computes something
// else does.
func TestMeaning(t *testing.T) {
	parse := func(text string) *onnx.Model {
		t.Helper()
		m, err := onnx.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	graph := func(nodes string) *onnx.Model {
		return parse(`model ir=10 opset=20
graph g {
  in    x float32[2,3]
  in    y float32[2,3]
  init  zero int64[1] = [0]
  init  one int64[1] = [1]
  init  two int64[1] = [2]
  init  flat int64[1] = [-1]
  init  extents int64[2] = [2, 3]
` + nodes + "  out   z float32[2,3]\n}\n")
	}
	const plain = "  a = Tanh(x)\n  z = Sub(a, y)\n"
	for _, c := range []struct {
		name, nodes string
		same        bool
	}{
		{"as it was", plain, true},
		{"computed again, behind a barrier", `  a = Tanh(x)
  f = Reshape(a, flat)
  s = Slice(f, zero, zero, zero)
  n = Cast(s) {to=7}
  e = Concat(extents, n) {axis=0}
  w = Reshape(x, e)
  b = Tanh(w)
  z = Sub(b, y)
`, true},
		{"behind a view along no axes", `  f = Reshape(y, flat)
  s = Slice(f, zero, zero, zero)
  n = Cast(s) {to=7}
  u = Unsqueeze(x, n)
  a = Tanh(u)
  z = Sub(a, y)
`, true},
		{"operands in another order", "  a = Tanh(x)\n  z = Sub(y, a)\n", false},
		{"another operator", "  a = Sinh(x)\n  z = Sub(a, y)\n", false},
		{"another operand", "  a = Tanh(x)\n  z = Sub(a, x)\n", false},
		{"another order of elements", "  t = Transpose(x)\n  w = Reshape(t, extents)\n  a = Tanh(w)\n  z = Sub(a, y)\n", false},
		{"extents that a slice of one element is joined to", `  s = Slice(extents, zero, one, zero)
  r = Slice(extents, one, two, zero)
  e = Concat(s, r) {axis=0}
  w = Reshape(x, e)
  a = Tanh(w)
  z = Sub(a, y)
`, true},
	} {
		want, err := meaning(graph(plain), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := meaning(graph(c.nodes), nil)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if maps.Equal(want, got) != c.same {
			t.Errorf("%s: the same meaning: %t", c.name, !c.same)
		}
	}
}
