package onnx

// Where a node comes from, said by the node itself. A pass notes its own name, the
// node or value that the new node stems from, and which of the pass's steps it is;
// all three are kept in the file's node metadata, so that a later pass, or a later
// run on the written file, asks the node. Names are for people: nothing reads them.
//
//	remat.pass  the pass that made the node: recompute, grad, optim, control …
//	remat.of    the name of the node or value that it stems from
//	remat.step  which of the pass's nodes it is, where the pass tells them apart

// Metadata keys of an Origin.
const (
	passKey = "remat.pass"
	ofKey   = "remat.of"
	stepKey = "remat.step"
)

// An Origin says which pass made a node, and from what. The zero Origin is that of
// a node that the given file holds.
type Origin struct {
	Pass string
	// Of names the node or value that this one stems from; "" where it stems from
	// none in particular.
	Of string
	// Step tells the pass's nodes for one Of apart; "" where nobody asks.
	Step string
}

// Origin returns where the node comes from.
func (n *Node) Origin() Origin {
	return Origin{Pass: n.Metadata(passKey), Of: n.Metadata(ofKey), Step: n.Metadata(stepKey)}
}

// SetOrigin notes where the node comes from, in place of what was noted before.
func (n *Node) SetOrigin(o Origin) {
	for _, entry := range [...]struct{ key, value string }{{passKey, o.Pass}, {ofKey, o.Of}, {stepKey, o.Step}} {
		if entry.value != "" {
			n.SetMetadata(entry.key, entry.value)
		} else {
			n.DropMetadata(entry.key)
		}
	}
}

// RecomputePass made a node that runs again; Of names the one that runs first.
const RecomputePass = "recompute"

// HiddenStep is the step of a node that keeps the type of what it returns from ONNX
// Runtime: no file declares it.
const HiddenStep = "hidden"

// ControlPass made the operators of a control dependency.
const ControlPass = "control"

// Hides reports a node that keeps the type of what it returns from ONNX Runtime: one of
// a HiddenStep, or the view by which a control dependency leads such a value on.
func (n *Node) Hides() bool {
	for n.Metadata(stepKey) != HiddenStep {
		if !n.MadeBy(ControlPass) || !n.Is("Unsqueeze", "Squeeze", "Reshape") || n.In(0) == nil || n.Inputs[0].Producer == nil {
			return false
		}
		n = n.Inputs[0].Producer
	}
	return true
}

// MadeBy reports that a pass made the node.
func (n *Node) MadeBy(pass string) bool { return n.Metadata(passKey) == pass }
