package grad

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// A LossError says why no loss could be settled on.
type LossError struct {
	// Name is the loss that was asked for, "" where none was.
	Name string
	// Candidates are the scalar float outputs, when there are several.
	Candidates []string
	Reason     string
}

func (e *LossError) Error() string {
	switch {
	case e.Name != "":
		return fmt.Sprintf("loss %q: %s", e.Name, e.Reason)
	case len(e.Candidates) > 1:
		return fmt.Sprintf("several scalar float outputs (%s): choose one with --loss", strings.Join(e.Candidates, ", "))
	}
	return e.Reason
}

// A ParameterError says why a value cannot be trained as asked.
type ParameterError struct {
	Name, Reason string
}

func (e *ParameterError) Error() string { return fmt.Sprintf("parameter %q: %s", e.Name, e.Reason) }

// A StopError says why a gradient cannot be stopped as asked.
type StopError struct {
	Pattern, Reason string
}

func (e *StopError) Error() string { return fmt.Sprintf("stop %q: %s", e.Pattern, e.Reason) }

// A MissingRuleError names an operator that a gradient must pass and that has
// no row in the table.
type MissingRuleError struct {
	Op, Domain, Node string
	Opset            int64
	Torch            bool // one of PyTorch's exporters wrote the file
}

func (e *MissingRuleError) Error() string {
	domain := cmp.Or(e.Domain, "ai.onnx")
	return fmt.Sprintf("node %q: no gradient rule for operator %s of domain %s, opset %d: %s", e.Node, e.Op, domain, e.Opset, e.wayOut())
}

// wayOut says what can be done about an operator without a rule.
func (e *MissingRuleError) wayOut() string {
	switch {
	case isList(e.Op):
		return "the length of a list, or a place in it, is unknown before the run: fix it with --dim, " + otherThanLists
	case e.Domain == "com.microsoft.nchwc":
		return "ONNX Runtime saved this file for processors of one kind: derive from the file that it read, or save at ORT_ENABLE_EXTENDED"
	case e.Domain != "" && e.Domain != "ai.onnx":
		return "write it with standard operators, or let no gradient through with --stop GLOB"
	}
	const way = "write it with other operators, or let no gradient through with --stop GLOB"
	if e.Torch {
		return "export with the other exporter (dynamo=True or False), " + way
	}
	return way
}

// otherThanLists is the way out for whoever exports a model with lists.
const otherThanLists = "export with dynamo=False, or write an EmbeddingBag as an Embedding and a sum"

func isList(op string) bool {
	return op != "ReverseSequence" && strings.Contains(op, "Sequence")
}

// hasLists reports a graph that puts lists of tensors together.
func hasLists(g *onnx.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *onnx.Node) bool { return isList(n.OpType()) })
}

// An UnsupportedError says which form of a known operator has no derivative
// here.
type UnsupportedError struct {
	Op, Node, Reason string
}

func (e *UnsupportedError) Error() string {
	text := fmt.Sprintf("node %q: gradient of %s: %s", e.Node, e.Op, e.Reason)
	if saysWhatToDo(e.Reason) {
		return text
	}
	return text + "; write it with other operators, or let no gradient through with --stop GLOB"
}

// saysWhatToDo reports a reason that has a way out.
func saysWhatToDo(reason string) bool {
	return strings.Contains(reason, "--dim") || strings.Contains(reason, "export")
}

// A ClashError names a value of the file whose name the training graph needs.
type ClashError struct {
	Name string
}

func (e *ClashError) Error() string {
	return fmt.Sprintf("the file already has a value named %q, which the training graph needs: rename it with --names MAP.json, or in the model", e.Name)
}
