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
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

// A call is one call of the exported program.
type call struct {
	text  string         // as the exporter shows it
	part  string         // the prefix of the names in its part of the file
	refs  []string       // what it is called with, in order
	times map[string]int // how often
	// numbers: it is called with numbers too.
	numbers bool
	nodes   []*onnx.Node
	has     map[*onnx.Node]bool // the nodes
}

var (
	fxRef    = regexp.MustCompile(`%(\w+)`)
	fxNumber = regexp.MustCompile(`[^\w.%][-+]?\d`)
	fxDetach = regexp.MustCompile(`^detach(_\d+)?$`)
	fxCopy   = regexp.MustCompile(`^(clone|copy|cat)(_\d+)?$`)
	// fxArithmetic are the names of sums and products.
	fxArithmetic = regexp.MustCompile(`^(add|sub|mul|div)(_\d+)?$`)
)

// calls collects the nodes of each call, in the order of the first of them. Parts of a file may
// have equal calls.
func (s *Signature) calls(g *onnx.Graph) []*call {
	var list []*call
	by := map[string]*call{}
	for _, n := range g.Nodes {
		text := n.TorchCall()
		_, args, ok := strings.Cut(text, "](args = ")
		if !ok {
			continue
		}
		part := s.part(n.Name())
		c := by[part+text]
		if c == nil {
			c = &call{text: text, part: part, times: map[string]int{}, numbers: fxNumber.MatchString(args), has: map[*onnx.Node]bool{}}
			for _, found := range fxRef.FindAllStringSubmatch(args, -1) {
				ref := part + found[1]
				if c.times[ref] == 0 {
					c.refs = append(c.refs, ref)
				}
				c.times[ref]++
			}
			by[part+text] = c
			list = append(list, c)
		}
		c.nodes, c.has[n] = append(c.nodes, n), true
	}
	return list
}

// computedAway reports a call that is given a sum or a product which no call of the file makes: the
// exporter's optimizer found a term of 0 or a factor of 1.
func computedAway(calls []*call) bool {
	made := madeBy(calls)
	return slices.ContainsFunc(calls, func(c *call) bool {
		return slices.ContainsFunc(c.refs, func(ref string) bool { return !made[ref] && fxArithmetic.MatchString(strings.TrimPrefix(ref, c.part)) })
	})
}

// madeBy are the names that calls have for their results.
func madeBy(calls []*call) map[string]bool {
	made := map[string]bool{}
	for _, c := range calls {
		if name := fxRef.FindStringSubmatch(c.text); name != nil { // the first one, before the target
			made[c.part+name[1]] = true
		}
	}
	return made
}

// A slot is one value from outside that a call reads, with the places where.
type slot struct {
	v    *onnx.Value
	uses []onnx.Use
}

// outside lists what the call's nodes read from outside, in order: of a single node
// each input, because merged values may be several of its inputs; of several nodes
// each value once.
func (c *call) outside() []slot {
	var list []slot
	place := map[*onnx.Value]int{}
	for _, n := range c.nodes {
		for i, v := range n.Reads() {
			if c.has[v.Producer] {
				continue
			}
			at, ok := place[v]
			if !ok || len(c.nodes) == 1 {
				at, list = len(list), append(list, slot{v: v})
				place[v] = at
			}
			list[at].uses = append(list[at].uses, onnx.Use{Node: n, Index: i})
		}
	}
	return list
}

// Unmerge gives parameters that the exporter's optimizer merged initializers of
// their own again, as Differentiate does: under these names it trains them. So does it
// to stored statistics, and to what TorchScript merged if given, by name, has a value for it.
// A matrix for which there is none is read from the parameter that it was tied to. Where
// there is one for a constant of a subgraph or a function, that becomes an initializer.
// After an error the model is as it was.
func Unmerge(m *onnx.Model, given func(name string) bool) error {
	if err := takeOut(m, given); err != nil {
		return err
	}
	s := ReadSignature(m)
	if unmerge(m, s, nil); !s.known {
		for _, t := range twins(m.Graph) {
			if given(t.of.Name) && !given(t.v.Name) {
				tie(m.Graph, t)
			}
		}
	}
	for _, n := range slices.Clone(m.Graph.Nodes) {
		if v, from := identity(n); v != nil && given(v.Name) {
			setApart(m.Graph, v, from)
		}
	}
	ownStatistics(m.Graph)
	return nil
}

// flatten makes initializers of the graph of the weights that functions and subgraphs hold, and
// of what a tool computed ahead.
func flatten(m *onnx.Model) error {
	if _, err := upgrade.Functions(m); err != nil {
		return err
	}
	if _, err := m.HoistConstants(); err != nil {
		return err
	}
	holdComputed(m)
	return nil
}

// holdComputed makes initializers of Constant nodes that hold what was computed ahead, as far as
// names tell: onnxsim writes so what it computes of PyTorch's files, as the position embeddings.
func holdComputed(m *onnx.Model) {
	names := newNamer(m)
	if !names.torch && !names.script || ReadSignature(m).known {
		return
	}
	for _, n := range slices.Clone(m.Graph.Nodes) {
		v := n.Out(0)
		if !n.Is("Constant") || v == nil || v.IsOutput() || !names.computed(v) {
			continue
		}
		t := v.Constant()
		if t == nil || !t.DType().IsFloat() {
			continue
		}
		if count, err := t.Elements(); err == nil && count > 1 {
			m.Graph.TakeOver(v, m.Graph.AddConstant(v.Name, t))
			m.Graph.Remove(n)
		}
	}
}

// takeOut flattens a model if given has a value for a weight that is an initializer only then.
func takeOut(m *onnx.Model, given func(name string) bool) error {
	flat, err := m.Clone()
	if err != nil {
		return err
	}
	if err := flatten(flat); err != nil {
		return err
	}
	if slices.ContainsFunc(flat.Graph.Initializers, func(v *onnx.Value) bool {
		held := m.Graph.Value(v.Name)
		return (held == nil || held.Init == nil) && given(v.Name)
	}) {
		m.Proto, m.Graph = flat.Proto, flat.Graph
	}
	return nil
}

// unmerge takes apart what the exporter's optimizer merged, and puts back the
// detaches that it took out, as far as the calls tell. It reports whether there are
// any: then what is shared is meant.
func unmerge(m *onnx.Model, s *Signature, res *Result) (told bool) {
	all := s.calls(m.Graph)
	if !s.known || len(all) == 0 {
		return false
	}
	u := &unmerger{g: m.Graph, s: s, res: res, unclear: map[*onnx.Value]bool{}, made: map[string]bool{}, inFolded: map[string]bool{}, called: s.calledBy(), results: madeBy(all), stops: normalize.NewStops(m.Graph),
		optimized: computedAway(all) || slices.ContainsFunc(m.Graph.Initializers, func(v *onnx.Value) bool { return s.kinds[v.Name] == "" })}
	seen := map[string]bool{}
	for _, c := range all {
		u.visit(c)
		for _, ref := range c.refs {
			if target := s.targets[ref]; s.kinds[target] == kindParameter && !seen[target] {
				u.named, seen[target] = append(u.named, target), true
			}
		}
	}
	u.stops.Apply()
	apart := retie(m.Graph, s)
	forms := once(m.Graph, s, all)
	holdOnce(m.Graph, s)
	if res != nil {
		u.res.warnOf(apart, "the exporter precomputed values from parameters that the file also holds; they are trained separately; "+optimizeFalse+": %s")
		u.res.warnOf(forms, "the exporter precomputed several values from one parameter; they are trained separately; "+optimizeFalse+": %s")
		u.report()
	}
	return true
}

type unmerger struct {
	g     *onnx.Graph
	s     *Signature
	res   *Result
	stops *normalize.Stops
	// called is what calls name an initializer, and what it was computed from.
	called map[string][]string
	// results are what the calls of the file make.
	results map[string]bool
	// named are the parameters that calls name.
	named []string
	// apart are the names that got an initializer of their own again; unclear
	// are parameters that a call reads that does not name them; lost are detaches
	// that cannot be placed, and copied are copies that took one with them if they had one.
	apart   []string
	made    map[string]bool // apart
	unclear map[*onnx.Value]bool
	lost    []string
	copied  []string
	// folded are weights that hold a normalization, with what it had; inFolded that.
	folded   []string
	inFolded map[string]bool
	// optimized: the file has constants as initializers, as the exporter's optimizer leaves them.
	optimized bool
}

// ofLayer is the name of a layer's weight, which has another's name where it is tied, and whose
// name its calls tell where it was computed ahead. A factor of 1 or a term of 0 leaves no trace.
var ofLayer = regexp.MustCompile(`(^|\.)(weight|bias)$`)

// visit pairs what the call names with what its nodes read.
func (u *unmerger) visit(c *call) {
	explained := map[string]int{}
	explain := func(ref string) bool {
		if explained[ref] == c.times[ref] {
			return false
		}
		explained[ref]++
		return true
	}
	var weights, values []slot
	known := map[string]bool{}
	for _, x := range c.outside() {
		switch v := x.v; {
		case v.Init != nil && u.s.kinds[v.Name] != "" && c.absent(x):
			u.give(x, v.Name+".constant", kindConstant)
		case v.Init == nil:
			known[v.Name] = known[v.Name] || explain(v.Name)
			if !known[v.Name] && mayCarryGradient(v) && v.Producer != nil {
				values = append(values, x)
			}
		case slices.ContainsFunc(u.called[v.Name], explain):
			known[v.Name] = true
		case u.laterStatistic(c, x) != "":
			if of := u.laterStatistic(c, x); of != v.Name {
				u.give(x, of, kindBuffer)
			}
		default:
			if u.s.kinds[v.Name] == kindParameter {
				weights = append(weights, x)
			}
		}
	}
	var targets, detached, others []string
	for _, ref := range c.refs {
		switch target := u.s.targets[ref]; {
		case explained[ref] > 0:
		case target != "":
			targets = append(targets, target)
		case fxDetach.MatchString(strings.TrimPrefix(ref, c.part)) && u.g.Value(ref) == nil:
			detached = append(detached, ref)
		default:
			others = append(others, ref)
		}
	}
	if len(targets) == 0 && !c.numbers { // what is named is read twice, as in a square
		weights = slices.DeleteFunc(weights, func(x slot) bool { return known[x.v.Name] })
	}
	if c.foldedNorm() {
		u.fold(weights, targets)
	} else {
		u.weights(c, weights, targets, len(explained) == len(c.refs))
	}
	u.detaches(values, detached, len(others))
	if slices.ContainsFunc(values, func(x slot) bool { return !x.v.Producer.Is("Expand", "Transpose", "Slice", "Split") }) { // a reshape copies what these give
		for _, ref := range others {
			if fxCopy.MatchString(strings.TrimPrefix(ref, c.part)) && !u.results[ref] {
				u.copied = append(u.copied, ref)
			}
		}
	}
}

// absent reports a slot for the scale or shift of a batch normalization that is called without
// them: what stands there is ones or zeros, which the exporter merged with something else.
func (c *call) absent(x slot) bool {
	return len(c.nodes) == 1 && x.uses[0].Node.Is("BatchNormalization") && slices.Contains([]int{1, 2}, x.uses[0].Index) && withoutAffine.MatchString(c.text)
}

// withoutAffine is the call of a batch normalization without scale and shift.
var withoutAffine = regexp.MustCompile(`target=torch\.ops\.aten\.\w*batch_norm\w*\.\w+\]\(args = \([^,]*, None, None,`)

// laterStatistic is the running statistic that a slot holds in the second call of a batch
// normalization, or a later one, which names what the call before leaves of it; "" for none.
func (u *unmerger) laterStatistic(c *call, x slot) string {
	use := x.uses[0]
	if len(c.nodes) > 1 || !use.Node.Is("BatchNormalization") || use.Index < statisticsFrom || !torchNorm.MatchString(c.text) {
		return ""
	}
	of := c.part + use.Node.Module() + []string{".running_mean", ".running_var"}[use.Index-statisticsFrom]
	if u.s.kinds[of] != kindBuffer || slices.ContainsFunc(u.called[of], func(ref string) bool { return c.times[ref] > 0 }) {
		return ""
	}
	return of
}

// foldedNorm reports the call of a batch normalization of which a product is left, the
// layer before it.
func (c *call) foldedNorm() bool {
	is := func(ops ...string) bool {
		return slices.ContainsFunc(c.nodes, func(n *onnx.Node) bool { return n.Is(ops...) })
	}
	return torchNorm.MatchString(c.text) && is("Conv", "ConvTranspose", "Gemm") && !is("BatchNormalization")
}

// fold notes the weights of a layer with the parameters of the normalization in them.
func (u *unmerger) fold(weights []slot, targets []string) {
	var held, gone []string
	for _, x := range weights {
		held = append(held, x.v.Name)
	}
	for _, target := range targets {
		if u.s.kinds[target] == kindParameter {
			gone, u.inFolded[target] = append(gone, target), true
		}
	}
	text := strings.Join(held, " and ")
	if len(gone) > 0 {
		text += " (with " + strings.Join(gone, " and ") + ")"
	}
	if len(held) > 0 {
		u.folded = append(u.folded, text)
	}
}

// weights gives the call the initializers that it names. A parameter that a call
// reads that names nothing unknown stands where the model has a number.
func (u *unmerger) weights(c *call, weights []slot, targets []string, number bool) {
	switch {
	case len(weights) == len(targets) && (len(targets) == 1 || inOrder.MatchString(c.text)):
		for i, x := range weights {
			u.give(x, targets[i], u.s.kinds[targets[i]])
		}
	case number:
		for _, x := range weights {
			u.give(x, x.v.Name+".constant", kindConstant)
		}
	default:
		for _, x := range weights {
			u.unclear[x.v] = true
		}
	}
}

// inOrder are the calls that take their parameters in the order in which the
// ONNX operator does.
var inOrder = regexp.MustCompile(`target=torch\.ops\.aten\.(linear|layer_norm|native_layer_norm|rms_norm|group_norm|native_group_norm|instance_norm|batch_norm|_native_batch_norm\w*|_batch_norm\w*|conv\w*)\.`)

// give lets a slot be read from the initializer of that name, a copy of what it
// reads if there is none yet.
func (u *unmerger) give(x slot, name, kind string) {
	w := u.g.Value(name)
	if w == nil || w.Init == nil || !u.made[name] {
		w = u.g.AddConstant(name, x.v.Init)
		u.s.kinds[w.Name] = kind
		u.apart, u.made[w.Name] = append(u.apart, w.Name), true
	}
	for _, use := range x.uses {
		use.Node.SetInput(use.Index, w)
	}
}

// detaches stops the gradient of the one value that the call names as detached.
func (u *unmerger) detaches(values []slot, detached []string, others int) {
	if len(detached) == 0 {
		return
	}
	if len(detached) > 1 || len(values) != 1 || others > 0 {
		u.lost = append(u.lost, detached...)
		return
	}
	if u.res == nil {
		return // nothing is differentiated
	}
	for _, use := range values[0].uses {
		u.stops.Before(use.Node, use.Index, "aten.detach")
	}
}

const optimizeFalse = "export with optimize=False"

// report says what was merged, and what the file has lost.
func (u *unmerger) report() {
	var params, unclear, aside []string
	has := map[string]bool{}
	for _, v := range u.g.Initializers {
		has[v.Name] = true
		for _, from := range u.s.origins(v.Name) {
			has[from] = true
		}
		if u.unclear[v] {
			unclear = append(unclear, v.Name)
		}
		if from := u.s.origins(v.Name); len(from) > 0 && (len(v.Init.Dims()) != 2 || !u.s.onlyTurned(v.Name)) {
			aside = append(aside, fmt.Sprintf("%s (of %s)", v.Name, strings.Join(from, " and ")))
		}
	}
	for _, name := range u.apart {
		if u.s.kinds[name] == kindParameter {
			params = append(params, name)
		}
	}
	gone := slices.DeleteFunc(u.named, func(name string) bool { return has[name] || u.inFolded[name] })
	var traceless []string
	for name, kind := range u.s.kinds {
		if kind == kindParameter && u.optimized && !has[name] && !slices.Contains(u.named, name) && !ofLayer.MatchString(name) {
			traceless = append(traceless, name)
		}
	}
	slices.Sort(traceless)
	slices.Sort(u.lost)
	u.res.warnOf(params, mergedEqual)
	u.res.warnOf(aside, "the exporter precomputed values from parameters; the values are trained instead; "+optimizeFalse+": %s")
	u.res.warnOf(u.folded, "the exporter folded a BatchNormalization into the layer before it, whose weights are trained with it inside, without normalizing; "+optimizeFalse+": %s")
	u.res.warnOf(gone, "the exporter dropped parameters from the file; they are not trained; "+optimizeFalse+": %s")
	u.res.warnOf(traceless, "the file lacks parameters of the exported program, and they are not trained: nothing reads them, or the exporter computed with their values ahead; "+optimizeFalse+": %s")
	u.res.warnOf(unclear, "the exporter merged other values with parameters, and the file does not say where; "+optimizeFalse+": %s")
	u.res.warnOf(slices.Compact(u.lost), "the exporter removed detach calls, and the file does not say where: gradients flow there; "+optimizeFalse+": %s")
	slices.Sort(u.copied)
	u.res.warnOf(slices.Compact(u.copied), "the exporter removed copies, and leaves no trace of a detach before one, as in x.detach().clone(): if there was one, gradients flow past it; "+optimizeFalse+": %s")
}

const mergedEqual = "the exporter merged parameters of equal value; they are separate again: %s"

// some lists the first names, and how many more there are.
func some(names []string) string {
	const most = 4
	if len(names) <= most+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
