package onnx

import (
	"testing"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// TestModule: what exporters say of a node's place in the program, what is no such
// thing, and what a pass notes, which counts before all others.
func TestModule(t *testing.T) {
	const scopes, namespace = "pkg.torch.onnx.name_scopes", "namespace"
	for _, c := range []struct {
		name, key, value, want string
	}{
		{"n", scopes, "['', 'model', 'model.layers.1', 'model.layers.1.mlp', 'mul_8']", "model.layers.1.mlp"},
		{"n", scopes, `['', "it's", 'relu']`, "it's"},
		{"n", scopes, "['', 'relu']", ""},
		{"n", scopes, "['', 'relu", ""},
		{"n", scopes, "nothing", ""},
		{"n", scopes, "[,,", ""},
		{"n", namespace, ": __main__.Net/model: Llama/model.layers.1: Layer/relu: aten.relu.default", "model.layers.1"},
		{"n", namespace, "alone", ""},
		{"/model/layers.1/mlp/MatMul_1", "", "", "model.layers.1.mlp"},
		{"/model/net/net.5/Relu", "", "", "model.net.5"},
		{"/MatMul_1", "", "", ""},
		{"model/layers.1/MatMul", "", "", ""},
		{"/a/MatMul", ModuleKey, "b.c", "b.c"},
		{"/a/MatMul", scopes, "[]", "a"},
	} {
		n := &Node{Proto: &pb.NodeProto{Name: &c.name}}
		if c.key != "" {
			n.Proto.MetadataProps = append(n.Proto.MetadataProps, &pb.StringStringEntryProto{Key: &c.key, Value: &c.value})
		}
		if got := n.Module(); got != c.want {
			t.Errorf("%q with %s %q: module %q, want %q", c.name, c.key, c.value, got, c.want)
		}
		n.SetModule("other")
		n.SetModule("")
		if got := n.Module(); got != "other" || len(n.Proto.MetadataProps) > 2 {
			t.Errorf("%q: noted module %q in %v", c.name, got, n.Proto.MetadataProps)
		}
	}
}
