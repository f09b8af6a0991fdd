package grad

// What PyTorch's exporter says on its nodes about calls of the model, and what its
// optimizer undid. With optimize=True, the default of torch.onnx.export, equal
// initializers become one (all norms of a fresh model, zero biases, a scale of 2 and
// the exponent of a square), and a detach vanishes. But each node still says which
// call it comes from, and with what:
//
//	Add ['val_23', 'layers.0.k_proj.bias']
//	%linear_7 : … = call_function[…](args = (%view, %p_layers_1_q_proj_weight, %p_layers_1_q_proj_bias), …)
//
// The nodes of one call read values from outside. Those that the call names explain
// themselves; what is left on either side belongs together where it is clear how:
// the bias above is layers.1.q_proj.bias, merged with another. The same way an
// activation is %detach where a detach stood before the call.

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

const fxNodeKey = "pkg.torch.onnx.fx_node"

// A call is one call of the exported program.
type call struct {
	text  string   // as the exporter shows it
	refs  []string // what it is called with, in order
	nodes []*onnx.Node
}

var (
	fxRef    = regexp.MustCompile(`%(\w+)`)
	fxDetach = regexp.MustCompile(`^detach(_\d+)?$`)
)

// calls collects the nodes of each call, in the order of the first of them.
func calls(g *onnx.Graph) []*call {
	var list []*call
	by := map[string]*call{}
	for _, n := range g.Nodes {
		text := property(n.Proto.GetMetadataProps(), fxNodeKey)
		_, args, ok := strings.Cut(text, "](args = ")
		if !ok {
			continue
		}
		c := by[text]
		if c == nil {
			c = &call{text: text}
			for _, ref := range fxRef.FindAllStringSubmatch(args, -1) {
				if !slices.Contains(c.refs, ref[1]) {
					c.refs = append(c.refs, ref[1])
				}
			}
			by[text] = c
			list = append(list, c)
		}
		c.nodes = append(c.nodes, n)
	}
	return list
}

// outside lists the values from outside that the call's nodes read, in order.
func (c *call) outside() []*onnx.Value {
	var list []*onnx.Value
	for _, n := range c.nodes {
		for _, v := range n.Inputs {
			if v == nil || slices.Contains(list, v) || v.Producer != nil && slices.Contains(c.nodes, v.Producer) {
				continue
			}
			list = append(list, v)
		}
	}
	return list
}

// replace lets the call's nodes read w instead of v.
func (c *call) replace(v, w *onnx.Value) {
	for _, n := range c.nodes {
		for i, in := range n.Inputs {
			if in == v {
				n.SetInput(i, w)
			}
		}
	}
}

// unmerge takes apart what the exporter's optimizer merged, and puts back the
// detaches that it took out, as far as the calls tell.
func unmerge(m *onnx.Model, s *Signature, res *Result) {
	if !s.known {
		return
	}
	u := &unmerger{g: m.Graph, s: s, res: res, unclear: map[*onnx.Value]bool{}}
	for _, c := range calls(m.Graph) {
		u.visit(c)
	}
	u.report()
}

type unmerger struct {
	g   *onnx.Graph
	s   *Signature
	res *Result
	// apart are the names that got an initializer of their own again; unclear
	// are parameters that a call reads that does not name them; lost are detaches
	// that cannot be placed.
	apart   []string
	unclear map[*onnx.Value]bool
	lost    []string
}

// visit pairs what the call names with what its nodes read.
func (u *unmerger) visit(c *call) {
	refs := slices.Clone(c.refs)
	explain := func(ref string) bool {
		i := slices.Index(refs, ref)
		if i >= 0 {
			refs = slices.Delete(refs, i, i+1)
		}
		return i >= 0
	}
	var weights, values []*onnx.Value
	for _, v := range c.outside() {
		switch {
		case v.Init == nil:
			if !explain(v.Name) && mayCarryGradient(v) && v.Producer != nil {
				values = append(values, v)
			}
		case !slices.ContainsFunc(u.s.placeholders(v.Name), explain):
			if u.s.kinds[v.Name] == kindParameter {
				weights = append(weights, v)
			}
		}
	}
	var targets, detached, others []string
	for _, ref := range refs {
		switch target := u.s.targets[ref]; {
		case target != "":
			targets = append(targets, target)
		case fxDetach.MatchString(ref) && u.g.Value(ref) == nil:
			detached = append(detached, ref)
		default:
			others = append(others, ref)
		}
	}
	u.weights(c, weights, targets, len(refs) == 0)
	u.detaches(c, values, detached, len(others))
}

// weights gives the call the initializers that it names. A parameter that a call
// reads that names nothing unknown stands where the model has a number.
func (u *unmerger) weights(c *call, weights []*onnx.Value, targets []string, number bool) {
	switch {
	case len(weights) == 0:
	case len(weights) == len(targets) && (len(targets) == 1 || inOrder.MatchString(c.text)):
		for i, v := range weights {
			c.replace(v, u.own(v, targets[i], u.s.kinds[targets[i]]))
		}
	case number:
		for _, v := range weights {
			c.replace(v, u.own(v, v.Name+".constant", kindConstant))
		}
	default:
		for _, v := range weights {
			u.unclear[v] = true
		}
	}
}

// inOrder are the calls that take their parameters in the order in which the
// ONNX operator does.
var inOrder = regexp.MustCompile(`target=torch\.ops\.aten\.(linear|layer_norm|native_layer_norm|rms_norm|group_norm|native_group_norm|instance_norm|batch_norm|_native_batch_norm\w*|conv\w*)\.`)

// own returns the initializer of that name, a copy of v if there is none yet.
func (u *unmerger) own(v *onnx.Value, name, kind string) *onnx.Value {
	if w := u.g.Value(name); w != nil && w.Init != nil && slices.Contains(u.apart, name) {
		return w
	}
	w := u.g.AddConstant(name, v.Init)
	u.s.kinds[w.Name] = kind
	u.apart = append(u.apart, w.Name)
	return w
}

// detaches stops the gradient of the one value that the call names as detached.
func (u *unmerger) detaches(c *call, values []*onnx.Value, detached []string, others int) {
	if len(detached) == 0 {
		return
	}
	if len(detached) > 1 || len(values) != 1 || others > 0 {
		u.lost = append(u.lost, detached...)
		return
	}
	for _, n := range c.nodes {
		for i, v := range n.Inputs {
			if v == values[0] {
				normalize.InsertStopBefore(u.g, n, i, "aten.detach")
			}
		}
	}
}

const optimizeFalse = "export with optimize=False"

// report says what was merged.
func (u *unmerger) report() {
	var params, missing []string
	for _, name := range u.apart {
		if u.s.kinds[name] == kindParameter {
			params = append(params, name)
		}
	}
	if len(params) > 0 {
		u.warn("the exporter merged parameters of equal values, apart again: %s", some(params))
	}
	for _, v := range u.g.Initializers {
		if u.unclear[v] {
			missing = append(missing, v.Name)
		}
	}
	if len(missing) > 0 {
		u.warn("the exporter merged other values with these parameters, and the file does not say which: %s; "+optimizeFalse, some(missing))
	}
	slices.Sort(u.lost)
	if lost := slices.Compact(u.lost); len(lost) > 0 {
		u.warn("the exporter took out detached values (%s), and the file does not say where they stood: their gradient flows; "+optimizeFalse, some(lost))
	}
}

func (u *unmerger) warn(format string, args ...any) {
	u.res.Warnings = append(u.res.Warnings, fmt.Sprintf(format, args...))
}

// some lists the first names, and how many more there are.
func some(names []string) string {
	const most = 4
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
