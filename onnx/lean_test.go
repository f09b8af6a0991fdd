package onnx

import (
	"slices"
	"strings"
	"testing"
)

// leanBase has what a short name must not meet: an input called v0, a subgraph that defines
// v1 and reads b, and types with and without shapes.
const leanBase = `graph g {
  in    v0 float32[4]
  in    cond bool[]
  init  constant.of.a.long.name float32[4] = [1.0, 2.0, 3.0, 4.0]
  transformer.h.0.first.value = Relu(v0) "transformer.h.0.first.node"
  read.inside.a.branch = Tanh(transformer.h.0.first.value) "second"
  of.a.branch = If(cond) {then_branch=graph t {
    v1 = Add(read.inside.a.branch, constant.of.a.long.name) "inner"
    out   v1
  }, else_branch=graph e {
    v2 = Neg(read.inside.a.branch)
    out   v2
  }} "if"
  transformer.h.0.result = Add(of.a.branch, transformer.h.0.first.value) "sum"
  out   transformer.h.0.result float32[4]
}
`

// TestEncodeLean: the lean form is the same graph, with the names that are seen from
// elsewhere, and no others that a string holds outside itself.
func TestEncodeLean(t *testing.T) {
	m, err := Parse(editHead + leanBase)
	if err != nil {
		t.Fatal(err)
	}
	m.Graph.Value("transformer.h.0.first.value").Type = TensorOf(Float32, StaticShape(4))
	m.Graph.Value("of.a.branch").Type = Type{DType: Float32}
	m.Graph.AnnotateTypes()
	m.SetMetadata("remat.slab", strings.Repeat("x", 1000))
	for _, n := range m.Graph.Nodes {
		n.SetMetadata("remat.origin", "somewhere")
	}
	before, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	data, err := m.EncodeLean()
	if err != nil {
		t.Fatal(err)
	}
	if after, err := m.Encode(); err != nil || !slices.Equal(before, after) {
		t.Errorf("the model has changed, error %v", err)
	}
	lean, err := Decode(data, ".")
	if err != nil {
		t.Fatal(err)
	}
	if err := lean.Check(); err != nil {
		t.Error(err)
	}
	if len(lean.Proto.MetadataProps) > 0 {
		t.Error("the model's metadata is still there")
	}
	stay := []string{"v0", "cond", "constant.of.a.long.name", "read.inside.a.branch", "transformer.h.0.result"}
	names := map[string]string{} // of the lean graph, by those of the given one
	for i, n := range m.Graph.Nodes {
		l := lean.Graph.Nodes[i]
		if l.Name() != LeanName(i) || l.OpType() != n.OpType() || len(l.Proto.MetadataProps) > 0 {
			t.Errorf("node %d: %s %q with metadata %v, was %s", i, l.OpType(), l.Name(), l.Proto.MetadataProps, n.OpType())
		}
		for _, pair := range [][2][]*Value{{n.Inputs, l.Inputs}, {n.Outputs, l.Outputs}} {
			for j, v := range pair[0] {
				short := pair[1][j].Name
				if was, seen := names[v.Name]; seen && was != short {
					t.Errorf("%s is %s, and %s elsewhere", v.Name, short, was)
				}
				names[v.Name] = short
				if slices.Contains(stay, v.Name) != (short == v.Name) || short != v.Name && len(short) > 15 {
					t.Errorf("%s has become %s", v.Name, short)
				}
			}
		}
	}
	for _, short := range []string{"v1", "v2"} {
		if lean.Graph.Value(short) != nil {
			t.Errorf("%s is a value now, and one of a branch", short)
		}
	}
	first := lean.Graph.Value(names["transformer.h.0.first.value"])
	if shape, ok := first.Type.Shape.Ints(); !ok || !slices.Equal(shape, []int64{4}) {
		t.Errorf("the first value is %v, want float32[4]", first.Type)
	}
	if infos := lean.Graph.Proto.ValueInfo; len(infos) != 1 || infos[0].GetName() != first.Name {
		t.Errorf("%d values are declared, want the one with a shape", len(infos))
	}
}
