package onnx

// The module of a node: where in the user's program it comes from, as a path of
// attribute names ("model.layers.1.mlp"). Exporters say it in different ways:
//
//	remat.module                    what a pass noted of the node that its own stems from
//	pkg.torch.onnx.name_scopes      ['', 'model', 'model.layers.1', 'relu']: the last is the operator
//	namespace                       : Net/model: Llama/model.layers.1: Layer/relu: aten.relu
//	a name of TorchScript's         /model/layers.1/mlp/MatMul_1
//
// All of it is text from a file: what does not parse is not a module.

import "strings"

// ModuleKey is the metadata entry in which a pass notes a module.
const ModuleKey = "remat.module"

// TorchCall is the call of the exported program that a node of PyTorch's dynamo
// exporter comes from, as that shows it; "" for none:
//
//	%y : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%x,), kwargs = {})
func (n *Node) TorchCall() string { return n.Metadata("pkg.torch.onnx.fx_node") }

// Module is the path of the module that the node belongs to, "" for none.
func (n *Node) Module() string {
	if module := n.Metadata(ModuleKey); module != "" {
		return module
	}
	if scopes := PythonStrings(n.Metadata("pkg.torch.onnx.name_scopes")); len(scopes) > 1 {
		return scopes[len(scopes)-2]
	}
	if scopes := strings.Split(n.Metadata("namespace"), "/"); len(scopes) > 1 {
		name, _, _ := strings.Cut(scopes[len(scopes)-2], ":")
		return strings.TrimSpace(name)
	}
	return scriptModule(n.Name())
}

// SetModule notes the module of a node that a pass made; "" notes nothing.
func (n *Node) SetModule(module string) {
	if module != "" && n.Module() != module {
		n.SetMetadata(ModuleKey, module)
	}
}

// scriptModule reads the name that TorchScript's exporter gives a node. What a
// Sequential holds is named there with the Sequential's own name before it:
// /net/net.5/Relu is of net.5.
func scriptModule(name string) string {
	rest, ok := strings.CutPrefix(name, "/")
	end := strings.LastIndexByte(rest, '/')
	if !ok || end < 0 {
		return ""
	}
	var path []string
	for part := range strings.SplitSeq(rest[:end], "/") {
		if k := len(path) - 1; k >= 0 && strings.HasPrefix(part, path[k]+".") {
			path = path[:k]
		}
		path = append(path, part)
	}
	return strings.Join(path, ".")
}

// PythonStrings reads a list of strings as Python prints it; nil for anything else.
func PythonStrings(text string) []string {
	text = strings.TrimSpace(text)
	if len(text) < 2 || text[0] != '[' || text[len(text)-1] != ']' {
		return nil
	}
	var list []string
	for rest := text[1 : len(text)-1]; ; {
		rest = strings.TrimLeft(rest, ", ")
		if rest == "" {
			return list
		}
		quote := rest[0]
		if quote != '\'' && quote != '"' {
			return nil
		}
		end := strings.IndexByte(rest[1:], quote)
		if end < 0 {
			return nil
		}
		list = append(list, rest[1:1+end])
		rest = rest[end+2:]
	}
}
