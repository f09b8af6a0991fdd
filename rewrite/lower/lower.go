package lower

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

const microsoft = "com.microsoft"

// A Report says what was done.
type Report struct {
	// Lowered counts the nodes replaced, by private operator.
	Lowered map[string]int
	// Nodes before and after.
	Before, After int
	// Roles are those written to the file's metadata, nil where no gradient
	// was recognized by name.
	Roles *step.Roles
}

// An UnknownError names a private operator that no row covers.
type UnknownError struct {
	Op, Node string
}

func (e *UnknownError) Error() string {
	return fmt.Sprintf("node %q: no replacement for private operator %s of domain com.microsoft", e.Node, e.Op)
}

// pass is the state of one walk.
type pass struct {
	m    *onnx.Model
	g    *onnx.Graph
	emit *grad.Emitter
	b    *build.Builder
	// sums are the accumulated gradients, by the name of what is accumulated.
	sums map[string]*onnx.Value
	loss *onnx.Value
}

// Model replaces the private operators of m, which is brought to the opset of
// training graphs first. Names of inputs and outputs stay; an output that only
// said that an accumulator was updated becomes the sum itself. After an error
// the model is in an undefined state.
func Model(m *onnx.Model) (*Report, error) {
	if _, err := upgrade.Functions(m); err != nil {
		return nil, err
	}
	if err := upgrade.Model(m, grad.MinOpset); err != nil {
		return nil, err
	}
	adopt(m)
	m.Graph.NameNodes()
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		return nil, err
	}
	p := &pass{m: m, g: m.Graph, sums: map[string]*onnx.Value{}}
	p.emit = grad.NewEmitter(m, types, grad.DialectORT, "lower")
	p.b = p.emit.Builder()
	report := &Report{Lowered: map[string]int{}, Before: len(m.Graph.Nodes)}
	for _, n := range slices.Clone(m.Graph.Nodes) {
		op := n.OpType()
		done, err := p.node(n)
		if err != nil {
			return nil, err
		}
		if done {
			report.Lowered[op]++
		}
	}
	m.Graph.RemoveDead()
	if err := p.dropExtras(); err != nil {
		return nil, err
	}
	if report.Roles, err = p.roles(); err != nil {
		return nil, err
	}
	report.After = len(m.Graph.Nodes)
	if err := upgrade.Model(m, grad.MinOpset); err != nil { // which drops domains of training alone
		return nil, err
	}
	m.ImportUsed(microsoft)
	return report, nil
}

// adopt puts private operators that the training package registers in the standard
// domain, MaxPoolGrad and AveragePoolGrad, with the others.
func adopt(m *onnx.Model) {
	for _, n := range m.Graph.Nodes {
		if n.Domain() == "" && private(n.OpType()) && lookup(n.OpType()) != nil {
			n.Proto.Domain = new(microsoft)
		}
	}
	m.ImportUsed(microsoft)
}

// node lowers one node, if it is private.
func (p *pass) node(n *onnx.Node) (bool, error) {
	if n.Domain() != microsoft {
		return false, nil
	}
	r := lookup(n.OpType())
	if r == nil {
		if private(n.OpType()) {
			return false, &UnknownError{n.OpType(), n.Label()}
		}
		return false, nil
	}
	outs, err := r.lower(p, n)
	if err == nil {
		err = p.b.Err()
	}
	if err != nil {
		return false, fmt.Errorf("node %q (%s): %w", n.Label(), n.OpType(), err)
	}
	p.place(n, outs)
	return true, p.b.Err()
}

// private reports a name that only the training package uses.
func private(op string) bool {
	ends := []string{"Grad", "Grad_13", "Grad_dX", "Training", "Internal", "OptimizerV2", "Optimizer", "AccumulatorV2", "Accumulator"}
	return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(op, end) })
}

// place puts what was made in front of n and lets it take over n's outputs.
func (p *pass) place(n *onnx.Node, outs []*onnx.Value) {
	taken := map[*onnx.Value]bool{}
	for i, v := range outs {
		if v == nil || n.Out(i) == nil {
			continue
		}
		if v.Producer == nil || taken[v] || !slices.Contains(p.b.Nodes, v.Producer) {
			v = p.b.Op("Identity", build.In(v))
			outs[i] = v
		}
		taken[v] = true
	}
	p.g.InsertBefore(n, p.b.Take()...)
	for i, v := range outs {
		o := n.Out(i)
		if o == nil || v == nil {
			continue
		}
		if o.Type.Ranked && o.Type.DType == v.Type.DType && !v.Type.IsStatic() {
			v.Type = o.Type
		}
		p.g.TakeOver(o, v)
	}
}

// dropExtras takes the outputs away that only the private form of a forward
// operator has, now that no gradient operator reads them.
func (p *pass) dropExtras() error {
	for _, n := range p.g.Nodes {
		for i := len(n.Outputs) - 1; i >= plainOutputs(n); i-- {
			if v := n.Outputs[i]; v != nil {
				if !v.Dead() {
					return fmt.Errorf("node %q (%s): its output %q is read by an operator that is not a gradient", n.Label(), n.OpType(), v.Name)
				}
				n.DropOutput(i)
			}
			n.Outputs = n.Outputs[:i]
		}
	}
	return nil
}

// roles recognizes the gradients by their names, NAME_grad or an accumulator of
// it, and writes them to the metadata.
func (p *pass) roles() (*step.Roles, error) {
	r := &step.Roles{Grad: map[string]string{}, New: map[string]string{}}
	if p.loss != nil && p.loss.IsOutput() {
		r.Loss = p.loss.Name
	}
	for _, in := range p.g.Inputs {
		name := in.Name + "_grad"
		if sum := p.sums[name]; sum != nil && sum.IsOutput() {
			r.Grad[in.Name] = sum.Name
			if buffer := name + ".accumulation.buffer"; p.g.Value(buffer) != nil {
				r.New[buffer] = sum.Name
			}
		} else if v := p.g.Value(name); v != nil && v.IsOutput() {
			r.Grad[in.Name] = name
		}
	}
	if len(r.Grad) == 0 {
		return nil, nil
	}
	return r, r.Write(p.m)
}
