package grad

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// A Rule says how a gradient passes one operator.
type Rule struct {
	// Domain and Op name the operator; "" is the standard domain.
	Domain, Op string
	// Since is the first opset version that the row holds for; of several rows
	// the highest not above the model's opset counts.
	Since int64
	// Doc states the derivative, in the terms of the function below it.
	Doc string
	// Inputs lists the inputs that a gradient can flow to; nil means every
	// float input.
	Inputs []int
	// Flows says, where it is not nil, to which of Inputs of a node a gradient flows.
	Flows func(n *onnx.Node, i int) bool
	// Fixed lists the float inputs beside them that are settings and not data,
	// so that none is missed. One in neither list that depends on what trains is
	// an error.
	Fixed []int
	// Grad emits the gradients. It is called only when the gradient of at
	// least one output has arrived and at least one of Inputs needs one. It
	// asks Context.Needs before it computes anything for an input.
	Grad func(*Context)
	// None says, where Grad is nil, why no gradient flows.
	None string
}

// flowsTo reports whether the row passes a gradient to input i of n.
func (r *Rule) flowsTo(n *onnx.Node, i int) bool {
	v := n.In(i)
	if r.Grad == nil || v == nil || !v.Type.DType.IsFloat() && v.Type.DType != onnx.Undefined && !straightThrough(n, v) {
		return false
	}
	if r.Inputs != nil && !slices.Contains(r.Inputs, i) {
		return false
	}
	return r.Flows == nil || r.Flows(n, i)
}

// misses reports a float input of n that is data and to which the row has no derivative.
func (r *Rule) misses(n *onnx.Node, i int) bool {
	v := n.In(i)
	return r.Grad != nil && v != nil && v.Type.DType.IsFloat() && r.Inputs != nil && !slices.Contains(r.Inputs, i) && !slices.Contains(r.Fixed, i)
}

type ruleKey struct{ domain, op string }

// index arranges rows by operator; rows of one operator stay in table order.
func index(tables ...[]Rule) map[ruleKey][]*Rule {
	byOp := map[ruleKey][]*Rule{}
	for _, t := range tables {
		for i := range t {
			k := ruleKey{t[i].Domain, t[i].Op}
			byOp[k] = append(byOp[k], &t[i])
		}
	}
	return byOp
}

// lookup finds the row of an operator at an opset, nil where there is none.
func lookup(domain, op string, opset int64) *Rule {
	var best *Rule
	for _, r := range byOperator[ruleKey{onnx.NormalDomain(domain), op}] {
		if r.Since <= opset && (best == nil || r.Since > best.Since) {
			best = r
		}
	}
	return best
}

// Covers reports that an operator has a row, be it one that says why no gradient
// flows.
func Covers(domain, op string) bool {
	return len(byOperator[ruleKey{onnx.NormalDomain(domain), op}]) > 0
}
