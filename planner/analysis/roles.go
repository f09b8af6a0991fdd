package analysis

import (
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// What inputs and outputs are for. A file says it itself (metadata
// remat.roles, or the names that remat grad gives); else the structure does:
//
//	loss   the scalar float output that depends on the weights and on the
//	       fewest operators: everything else scalar (a norm) comes after it
//	new    an output that is an input of its shape times a number, plus
//	       something, is that input's next state (moved.go); where several
//	       inputs are reached (P and m both lead to P.new), those that are the
//	       only one for another output go there first
//	grad   what is left, of a weight's shape: in the order of the weights if
//	       all fit, else by the longest common ending of the names
//
// Weakness: two weights of one shape whose gradients come out of order and
// under unrelated names are mixed up; --roles settles it.

// Stated returns the roles that are given, or else those that the file says; stated is
// false where there are neither. A role of something that the graph does not have is an
// error.
func Stated(m *onnx.Model, given *step.Roles) (r step.Roles, stated bool, err error) {
	if r, stated, err = step.RolesOf(m, given); err == nil {
		err = r.Check(m.Graph)
	}
	return r, stated, err
}

// findRoles fills in a.Roles.
func (a *Analysis) findRoles(m *onnx.Model) error {
	r, stated, err := Stated(m, a.opts.Roles)
	if err != nil || stated {
		a.Roles = r
		return err
	}
	f := &roleFinder{a: a, g: m.Graph, roles: step.Roles{Grad: map[string]string{}, New: map[string]string{}}, done: map[*onnx.Value]bool{}}
	f.findLoss()
	f.findStated()
	f.findNew()
	f.findGrad()
	a.Roles = f.roles
	return nil
}

type roleFinder struct {
	a       *Analysis
	g       *onnx.Graph
	roles   step.Roles
	done    map[*onnx.Value]bool // outputs that have a role
	forward *step.Slice          // operators before the loss
	read    map[*onnx.Value]bool // what those read
}

// findLoss picks the scalar float output that reads weights and depends on
// the fewest operators.
func (f *roleFinder) findLoss() {
	type candidate struct {
		v            *onnx.Value
		ops, weights int
	}
	var list []candidate
	most := 0
	for _, v := range f.g.Outputs {
		free := slices.ContainsFunc(v.Type.Shape, func(d onnx.Dim) bool { return d.Known() && !d.IsStatic() }) // counted as 1
		if v.Producer == nil || !v.Type.DType.IsFloat() || f.a.elements(v) != 1 || free {
			continue
		}
		before := f.before(v)
		c := candidate{v, before.Len(), f.weights(before)}
		most = max(most, c.weights)
		list = append(list, c)
	}
	var best *candidate
	for i := range list {
		if c := &list[i]; 2*c.weights >= most && (best == nil || c.ops < best.ops) {
			best = c
		}
	}
	if best == nil {
		return
	}
	f.roles.Loss = best.v.Name
	f.done[best.v] = true
	f.forward = f.before(best.v)
	f.read = f.forward.Reads()
}

// before is what runs before v is there.
func (f *roleFinder) before(v *onnx.Value) *step.Slice { return f.a.deps.Backward(step.Any, v) }

// weights counts the float inputs and initializers of more than one element
// that some of the operators read.
func (f *roleFinder) weights(ops *step.Slice) int {
	count := 0
	for v := range ops.Reads() {
		if f.weight(v) {
			count++
		}
	}
	return count
}

func (f *roleFinder) weight(v *onnx.Value) bool {
	return v.Producer == nil && v.Type.DType.IsFloat() && f.a.elements(v) > 1
}

// findStated takes the names that remat grad gives: P.grad and P.new.
func (f *roleFinder) findStated() {
	for _, v := range f.g.Outputs {
		for suffix, into := range map[string]map[string]string{step.GradSuffix: f.roles.Grad, step.NewSuffix: f.roles.New} {
			base, ok := strings.CutSuffix(v.Name, suffix)
			if in := f.g.Value(base); ok && in != nil && in.Producer == nil && f.sameShape(in, v) {
				into[base] = v.Name
				f.done[v] = true
			}
		}
	}
}

func (f *roleFinder) sameShape(x, y *onnx.Value) bool {
	p, q := &f.a.Problem.Graph.Values[f.a.Index[x]], &f.a.Problem.Graph.Values[f.a.Index[y]]
	return p.Class >= 0 && p.Class == q.Class && x.Type.DType == y.Type.DType
}

// A reach is what an output is when it is moved a little, or shrunk.
type reach struct{ inputs, weights map[*onnx.Value]bool }

// findNew matches updated inputs, then initializers, with the outputs that
// update them.
func (f *roleFinder) findNew() {
	all := map[*onnx.Value]reach{}
	for _, v := range f.g.Outputs {
		if v.Producer != nil && !f.done[v] && v.Type.DType.IsFloat() && f.backwardOps(v) > 0 {
			if r := f.movedTo(v); len(r.inputs)+len(r.weights) > 0 {
				all[v] = r
			}
		}
	}
	assign := func(in, out *onnx.Value) {
		f.roles.New[in.Name] = out.Name
		f.done[out] = true
		for _, r := range all {
			delete(r.inputs, in)
			delete(r.weights, in)
		}
	}
	for in, out := f.onlyReach(all); in != nil; in, out = f.onlyReach(all) {
		assign(in, out)
	}
	f.findMerged(all, assign)
	for _, out := range f.g.Outputs {
		if f.done[out] {
			continue
		}
		if inputs := all[out].inputs; len(inputs) > 0 { // a weight and what masks it
			maps.DeleteFunc(inputs, func(in *onnx.Value, _ bool) bool { return !f.read[in] })
			if in := f.alike(out, slices.Collect(maps.Keys(inputs))); len(inputs) == 1 {
				assign(in, out)
			}
			continue
		}
		if in := f.alike(out, slices.Collect(maps.Keys(all[out].weights))); in != nil {
			assign(in, out)
		}
	}
}

// findMerged gives outputs that are left the inputs that nothing reads:
// exporters merge inputs that were equal when they traced; then one state is
// read for two, and the other not at all.
func (f *roleFinder) findMerged(all map[*onnx.Value]reach, assign func(in, out *onnx.Value)) {
	for _, out := range f.g.Outputs {
		if _, ok := all[out]; !ok || f.done[out] {
			continue
		}
		var unread []*onnx.Value
		for _, in := range f.g.Inputs {
			if _, taken := f.roles.New[in.Name]; !taken && len(in.Uses()) == 0 && f.sameShape(in, out) {
				unread = append(unread, in)
			}
		}
		if in := f.alike(out, unread); in != nil {
			assign(in, out)
		}
	}
}

// alike returns the value whose name ends most like v's, the first of the file
// among equals; nil for none.
func (f *roleFinder) alike(v *onnx.Value, list []*onnx.Value) *onnx.Value {
	slices.SortFunc(list, func(a, b *onnx.Value) int { return f.a.Index[a] - f.a.Index[b] })
	var best *onnx.Value
	for _, in := range list {
		if best == nil || commonEnding(in.Name, v.Name) > commonEnding(best.Name, v.Name) {
			best = in
		}
	}
	return best
}

// onlyReach picks an output that a single input reaches; of several outputs
// of that input, the one that fewest weights reach, then the one whose name
// ends most alike.
func (f *roleFinder) onlyReach(all map[*onnx.Value]reach) (in, out *onnx.Value) {
	for _, o := range f.g.Outputs {
		if f.done[o] || len(all[o].inputs) != 1 {
			continue
		}
		for i := range all[o].inputs {
			fewer := 0
			if in != nil {
				fewer = len(all[out].weights) - len(all[o].weights)
			}
			if in == nil || i == in && (fewer > 0 || fewer == 0 && commonEnding(i.Name, o.Name) > commonEnding(in.Name, out.Name)) {
				in, out = i, o
			}
		}
	}
	return in, out
}

// backwardOps counts the operators behind v that the loss does not need: a
// gradient has some, another output of forward none or hardly any.
func (f *roleFinder) backwardOps(v *onnx.Value) int {
	return f.before(v).Outside(f.forward)
}

// findGrad matches what is left with the weights that forward reads.
func (f *roleFinder) findGrad() {
	var weights, outs []*onnx.Value
	for _, v := range f.a.Values { // inputs first, then initializers, in file order
		if v.Producer == nil && f.read[v] && v.Type.DType.IsFloat() {
			weights = append(weights, v)
		}
	}
	for _, v := range f.g.Outputs {
		if !f.done[v] && v.Producer != nil && v.Type.DType.IsFloat() && f.backwardOps(v) >= 3 {
			outs = append(outs, v)
		}
	}
	if f.inOrder(weights, outs) {
		return
	}
	for _, out := range outs {
		var best *onnx.Value
		for _, w := range weights {
			if _, taken := f.roles.Grad[w.Name]; taken || !f.sameShape(w, out) {
				continue
			}
			if best == nil || commonEnding(w.Name, out.Name) > commonEnding(best.Name, out.Name) {
				best = w
			}
		}
		if best != nil {
			f.roles.Grad[best.Name] = out.Name
		}
	}
}

// inOrder matches the outputs with a subsequence of the weights, if they all
// fit.
func (f *roleFinder) inOrder(weights, outs []*onnx.Value) bool {
	match := map[string]string{}
	k := 0
	for _, out := range outs {
		for k < len(weights) && !f.sameShape(weights[k], out) {
			k++
		}
		if k == len(weights) {
			return false
		}
		match[weights[k].Name] = out.Name
		k++
	}
	maps.Copy(f.roles.Grad, match)
	return true
}

func commonEnding(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}
