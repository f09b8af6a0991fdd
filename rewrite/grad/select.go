package grad

// What is the loss, and what is trained: by default the parameters that the file
// names, in a file that names none the float initializers that a gradient reaches,
// less what decide.go takes for constants.

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
)

// A chooser decides what is trained. It is made of the file as it was read,
// because normalizing adds constants and renames nodes.
type chooser struct {
	o      Options
	listed map[string]bool // by the metadata entry remat.parameters
	names  namer
	// initializers are those of the file, by name.
	initializers map[string]bool
	// candidates may be parameters.
	candidates map[*onnx.Value]bool
	// begins are states with which recurrences begin.
	begins map[*onnx.Value]bool
	// angles are what reaches the loss as the angles of rotary embeddings alone.
	angles map[*onnx.Value]bool
	// fixedNorms are modules whose stored statistics are written out.
	fixedNorms map[string]bool
	// schedules are those that rise or fall, by the indices that gather places of them.
	schedules map[*onnx.Value][]*onnx.Value
	// unbiased are weights of layers without a bias, by name, in a file by tf2onnx.
	unbiased map[string]bool
	// statistics says of values that they are stored statistics of a normalization that is written out.
	statistics map[*onnx.Value]string
	// adapters are the parameters of low-rank pairs that were added, by name.
	adapters map[string]bool
	// shared says of values by name that they serve where another was meant.
	shared map[string]string
	// lone says of biases by name that their other half is zeros.
	lone map[string]string
	// twins are matrices that hold another's numbers.
	twins []twin
	// nodes are the matrices that Constant nodes hold, by name.
	nodes []string
	// negated are parameters whose negation TorchScript computed ahead.
	negated []string
	// numbers are what TorchScript computed ahead of one element.
	numbers []string
	// blocks are the values that leave a block of no_grad or autocast.
	blocks []blockExit
	// inputs are the patterns of Params that match no initializer: they can only
	// mean inputs, as in a graph that takes all its weights as inputs.
	inputs []string
}

// newChooser lists the candidates: float initializers. One of a single element is
// a constant unless the file says otherwise, or it stands where weights do.
func newChooser(m *onnx.Model, o Options) *chooser {
	c := &chooser{o: o, listed: listedParameters(m), names: newNamer(m), initializers: map[string]bool{}, candidates: map[*onnx.Value]bool{}, adapters: map[string]bool{}, blocks: blockExits(m.Graph)}
	for _, v := range m.Graph.Initializers {
		c.initializers[v.Name] = true
		n, err := v.Init.Elements()
		if err != nil || n < 1 || !v.Type.DType.IsFloat() {
			continue
		}
		named := o.Signature.lists(v.Name) || !o.Signature.speaksOf(v.Name) && (c.names.variable(v.Name) || standsAsWeight(v) && !(c.names.torch && elementwiseOnly(v)))
		if n > 1 || c.listed[v.Name] || named || slices.Contains(o.Params, v.Name) {
			c.candidates[v] = true
		}
	}
	if !o.Signature.known || len(o.Signature.silent) > 0 {
		c.begins, c.lone, c.twins = beginnings(m.Graph), loneBiases(m.Graph), twins(m.Graph)
		c.schedules = schedules(m.Graph)
		c.statistics = writtenStatistics(m.Graph)
		if c.names.script {
			c.negated = c.names.negated(m.Graph)
			c.numbers = c.numbersAhead(m.Graph)
		}
		if c.names.tensorflow {
			c.unbiased = withoutBias(m.Graph)
		}
		if c.names.torch || c.names.script { // whose Constant nodes hold no parameter
			c.fixedNorms = fixedNorms(m.Graph)
		} else {
			c.nodes = matricesInNodes(m.Graph)
		}
	}
	for _, glob := range o.Params {
		if !slices.ContainsFunc(m.Graph.Initializers, func(v *onnx.Value) bool { return o.Signature.means(glob, v.Name) }) {
			c.inputs = append(c.inputs, glob)
		}
	}
	return c
}

// numbersAhead are what TorchScript computed ahead and nothing trains, as it has one element.
func (c *chooser) numbersAhead(g *onnx.Graph) []string {
	var names []string
	for _, v := range g.Initializers {
		asked := len(c.o.Params) == 0 || c.o.Signature.meanAny(c.o.Params, v.Name)
		if ComputedAhead(v.Name) && v.Type.DType.IsFloat() && isScalar(v) && len(v.Uses()) > 0 && !c.candidates[v] && asked && !c.frozen(v.Name) {
			names = append(names, v.Name)
		}
	}
	return names
}

// scalars are the candidates of one element that are to be trained if the loss
// depends on them.
func (c *chooser) scalars() []*onnx.Value {
	var list []*onnx.Value
	for v := range c.candidates {
		if n, err := v.Init.Elements(); err == nil && n == 1 && c.decide(v).Trained {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b *onnx.Value) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// findLoss settles on the value to differentiate: the output of that name, else the
// only scalar float, or the only one of them that training changes.
func (e *engine) findLoss(name string, c *chooser, res *Result) (*onnx.Value, error) {
	g := e.m.Graph
	if name != "" {
		v := g.Value(name)
		switch {
		case v == nil || !v.IsOutput():
			return nil, &LossError{Name: name, Reason: "the model has no output of that name"}
		case !v.Type.DType.IsFloat():
			return nil, &LossError{Name: name, Reason: fmt.Sprintf("it is %s, want a float", v.Type)}
		case !isScalar(v):
			return nil, &LossError{Name: name, Reason: fmt.Sprintf("it is %s, want a scalar", v.Type)}
		}
		return v, nil
	}
	var found []*onnx.Value
	for _, v := range g.Outputs {
		if v.Type.DType.IsFloat() && isScalar(v) {
			found = append(found, v)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, &LossError{Reason: "no output is a scalar float that could be the loss: add one with remat loss, or export the model with its loss"}
	}
	if v := e.onlyTraining(found, c); v != nil {
		metrics := onnx.Names(slices.DeleteFunc(slices.Clone(found), func(w *onnx.Value) bool { return w == v }))
		res.warn("%q is taken for the loss: no gradient leads from %s to a parameter; --loss chooses another output", v.Name, some(metrics))
		return v, nil
	}
	return nil, &LossError{Candidates: onnx.Names(found)}
}

// onlyTraining is the one of several outputs from which a gradient reaches what may be
// trained, as none does from an accuracy; nil where several do, or none.
func (e *engine) onlyTraining(outputs []*onnx.Value, c *chooser) *onnx.Value {
	var found []*onnx.Value
	for _, v := range outputs {
		for w := range e.reached(v) {
			if c.candidates[w] && c.judge(w).Trained || w.IsInput() && w.Init == nil && c.decideInput(w).Trained {
				found = append(found, v)
				break
			}
		}
	}
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

func isScalar(v *onnx.Value) bool {
	return v.Type.Ranked && v.Type.Shape.Elements().Is(1)
}

// reached lists the values from which a gradient path leads to the loss.
func (e *engine) reached(loss *onnx.Value) map[*onnx.Value]bool {
	return e.reachedBut(loss, func(onnx.Use) bool { return false })
}

// angles are what is reached as cosines or sines of rotary embeddings alone.
func (e *engine) angles(loss *onnx.Value, reach map[*onnx.Value]bool) map[*onnx.Value]bool {
	rotary := func(n *onnx.Node) bool { return n.OpType() == "RotaryEmbedding" }
	if !slices.ContainsFunc(e.m.Graph.Nodes, rotary) {
		return nil
	}
	angles := maps.Clone(reach)
	for v := range e.reachedBut(loss, func(u onnx.Use) bool { return u.Index != 0 && rotary(u.Node) }) {
		delete(angles, v)
	}
	return angles
}

// reachedBut is reached without the paths through some uses.
func (e *engine) reachedBut(loss *onnx.Value, but func(onnx.Use) bool) map[*onnx.Value]bool {
	along := func(v *onnx.Value, u onnx.Use) step.Dependency {
		if but(u) {
			return 0
		}
		r := e.rule(u.Node)
		// Lists of tensors, and what comes out of them, may have no type.
		open := r == nil && (v.Type.DType.IsFloat() || v.Type.DType == onnx.Undefined)
		if u.Index == onnx.Captured || open || r != nil && r.flowsTo(u.Node, u.Index) {
			return step.Data
		}
		return 0
	}
	reach := step.DependenciesBy(e.m.Graph, along).Backward(step.Data, loss).Reads()
	reach[loss] = true
	return reach
}

// choose decides about every candidate of what the loss reaches and returns what
// is trained, in file order.
func (e *engine) choose(loss *onnx.Value, reach map[*onnx.Value]bool, c *chooser, res *Result) ([]*onnx.Value, error) {
	res.Stops, c.angles = e.stops(reach), e.angles(loss, reach)
	var params []*onnx.Value
	var ahead, folded []string
	for _, name := range c.o.Params {
		// Said outright, not by a pattern: then it must be possible.
		v := e.m.Graph.Value(name)
		stands := func(w *onnx.Value) bool { return reach[w] && c.o.Signature.means(name, w.Name) }
		if !isGlob(name) && (v == nil || !reach[v]) && !slices.ContainsFunc(e.m.Graph.Initializers, stands) {
			return nil, &ParameterError{name, "the loss does not depend on it"}
		}
	}
	for _, v := range e.m.Graph.Initializers {
		if !reach[v] || !c.candidates[v] {
			continue
		}
		d := c.decide(v)
		res.Decisions = append(res.Decisions, d)
		if d.Trained {
			params = append(params, v)
			if !c.o.Signature.speaksOf(v.Name) && (c.names.ahead(v) || c.o.Signature.again[v.Name]) {
				ahead = append(ahead, v.Name)
			}
			if c.names.foldedConvolution(v) {
				folded = append(folded, v.Name)
			}
		}
	}
	exporter, instead := "the exporter or a tool behind it", "; export with optimize=False, and derive from that file"
	switch {
	case c.names.script:
		exporter, instead = "TorchScript or a tool behind it", "; export with do_constant_folding=False, and derive from that file"
	case c.names.tensorflow:
		exporter, instead = "tf2onnx", ""
	}
	res.warnOf(ahead, exporter+" computed values ahead, perhaps from parameters, and they are trained in their place"+instead+": %s")
	res.warnOf(c.negated, "TorchScript computed the negation of these parameters ahead, and no gradient reaches them through it; export with do_constant_folding=False: %s")
	if len(c.negated) == 0 {
		res.warnOf(c.numbers, "TorchScript computed numbers ahead, perhaps from parameters of one element, and they are not trained; export with do_constant_folding=False: %s")
	}
	res.warnOf(folded, "TorchScript or a tool behind it computed weights of convolutions ahead, as it does to fold a BatchNormalization, and they are trained so, without normalizing; "+
		"export with training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False: %s")
	for _, v := range e.m.Graph.Inputs {
		if v.Init != nil || !reach[v] || !v.Type.DType.IsFloat() {
			continue
		}
		if d := c.decideInput(v); d.Trained {
			res.Decisions = append(res.Decisions, d)
			params = append(params, v)
		}
	}
	if err := c.unusedPatterns(params, res); err != nil {
		return nil, err
	}
	if len(params) == 0 {
		return nil, &LossError{Name: loss.Name, Reason: e.whyNothing(loss, reach, c, res)}
	}
	return params, nil
}

// whyNothing says why nothing trains that the loss depends on.
func (e *engine) whyNothing(loss *onnx.Value, reach map[*onnx.Value]bool, c *chooser, res *Result) string {
	const none = "it depends on no float initializer that could be trained"
	if lost := c.o.Signature.lost; len(lost) > 0 {
		return "the exporter made constants of the parameters, as where forward reads them from a list or a dict; have it read them as attributes, or export by TorchScript: " + some(lost)
	}
	if names := e.slopeless(c, loss, reach); len(names) > 0 {
		return flatWays + some(names)
	}
	if len(res.Decisions) > 0 {
		return "every parameter that it depends on is frozen"
	}
	if codes := inCodes(e.m.Graph, reach); len(codes) > 0 {
		return "its weights are codes, which no step can move: --lora GLOB trains pairs beside them: " + some(codes)
	}
	if held := e.reachedNodes(c, reach); len(held) > 0 {
		return none + ": Constant nodes hold matrices; where they are weights, make initializers of them, as onnxoptimizer does: " + some(held)
	}
	if one := singles(e.m.Graph, reach); len(one) > 0 {
		return "it depends on no float initializer of more than one element; --params with the whole name trains one: " + some(one)
	}
	return none
}

// inCodes lists initializers in codes that the loss depends on.
func inCodes(g *onnx.Graph, reach map[*onnx.Value]bool) []string {
	var names []string
	for _, v := range g.Initializers {
		read := func(u onnx.Use) bool { return u.Index == 0 && u.Node.Is("DequantizeLinear") && reach[u.Node.Out(0)] }
		if slices.ContainsFunc(v.Uses(), read) {
			names = append(names, v.Name)
		}
	}
	return names
}

// singles lists float initializers of one element that the loss depends on.
func singles(g *onnx.Graph, reach map[*onnx.Value]bool) []string {
	var names []string
	for _, v := range g.Initializers {
		if n, err := v.Init.Elements(); err == nil && n == 1 && v.Init.DType().IsFloat() && reach[v] {
			names = append(names, v.Name)
		}
	}
	return names
}

// unusedPatterns says which patterns of Params train nothing, which is an error
// where nothing is trained.
func (c *chooser) unusedPatterns(params []*onnx.Value, res *Result) error {
	for _, glob := range c.o.Params {
		hit := func(v *onnx.Value) bool { return c.o.Signature.means(glob, v.Name) }
		if !isGlob(glob) || slices.ContainsFunc(params, hit) {
			continue
		}
		var constants []string
		for _, d := range res.Decisions {
			if c.o.Signature.means(glob, d.Name) && d.Source != FromOptions {
				constants = append(constants, d.Name)
			}
		}
		var reason string
		switch {
		case len(constants) > 0:
			reason = "matches no parameter, only what looks like constants (" + some(constants) + "): give a whole name to train one"
		case slices.ContainsFunc(slices.Collect(maps.Keys(c.candidates)), hit):
			reason = "the loss depends on nothing that it matches, or --frozen holds it"
		default:
			continue // said already, or a constant of one element
		}
		if len(params) == 0 {
			return &ParameterError{glob, reason}
		}
		res.warn("--params %q %s", glob, reason)
	}
	return nil
}

// decideInput settles whether an input is trained: one that is named outright, by a
// pattern that matches no initializer, or that the file lists as a parameter whose
// values lie elsewhere.
func (c *chooser) decideInput(v *onnx.Value) Decision {
	d := Decision{Name: v.Name, Shape: v.Type.Shape.String()}
	switch {
	case matches(c.o.Frozen, v.Name):
	case slices.Contains(c.o.Params, v.Name), matches(c.inputs, v.Name), c.listed[v.Name] && matches(c.o.Params, v.Name):
		d.Trained, d.Source, d.Reason = true, FromOptions, "an input named in --params"
	case len(c.o.Params) == 0 && c.listed[v.Name]:
		d.Trained, d.Source, d.Reason = true, FromParameters, "the file lists it as a parameter"
	}
	return d
}

// listedParameters are the names in the metadata entry remat.parameters, which
// leaves no doubt; they may be inputs whose values the file does not hold. An
// entry that cannot be read lists none.
func listedParameters(m *onnx.Model) map[string]bool {
	names := map[string]bool{}
	var entries map[string]json.RawMessage
	if _, err := m.JSON("remat.parameters", &entries); err == nil {
		for name := range entries {
			names[name] = true
		}
	}
	return names
}

const nothingMatches = "matches no initializer and no input of the model"

// checkGlobs refuses names and patterns that nothing in the model bears, and
// integers to be trained. Beside patterns that match, one that does not is only
// worth a warning. Params are looked at again when it is known what trains.
func checkGlobs(g *onnx.Graph, o Options, res *Result) error {
	var variables []string
	for _, list := range [][]*onnx.Value{g.Initializers, g.Inputs} {
		for _, v := range list {
			variables = append(append(variables, v.Name), o.Signature.origins(v.Name)...)
			if slices.Contains(o.Params, v.Name) && !v.Type.DType.IsFloat() {
				return &ParameterError{v.Name, fmt.Sprintf("it is %s, and only floats can be trained", v.Type)}
			}
		}
	}
	for _, list := range []struct {
		flag  string
		globs []string
	}{{"--params", o.Params}, {"--frozen", o.Frozen}} {
		missed, err := unmatched(list.globs, variables)
		if err != nil {
			return err
		}
		for _, glob := range missed {
			res.warn("%s %q %s", list.flag, glob, matchesNothing(glob, variables))
		}
	}
	return nil
}

// unmatched lists the globs that match no name, which is an error where none
// matches any, or where one is no pattern.
func unmatched(globs, names []string) ([]string, error) {
	var missed []string
	for _, glob := range globs {
		if _, err := path.Match(glob, ""); err != nil {
			return nil, &ParameterError{glob, "not a valid pattern"}
		}
		if matchesAny(glob, names) {
			continue
		}
		if !isGlob(glob) {
			return nil, &ParameterError{glob, matchesNothing(glob, names)}
		}
		missed = append(missed, glob)
	}
	if len(missed) > 0 && len(missed) == len(globs) {
		return nil, &ParameterError{missed[0], matchesNothing(missed[0], names)}
	}
	return missed, nil
}

// matchesNothing says that a name or pattern matches none of names, and which pattern
// would: a module that wraps the model puts its own name before all others.
func matchesNothing(glob string, names []string) string {
	if longer := "*." + strings.TrimPrefix(glob, "*"); matchesAny(longer, names) {
		return fmt.Sprintf("%s; %q does", nothingMatches, longer)
	}
	return nothingMatches
}

func matchesAny(glob string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return planner.Match(glob, name) })
}

func isGlob(s string) bool { return strings.ContainsAny(s, "*?[") }

func matches(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(g string) bool { return planner.Match(g, name) })
}

func initializersOf(params []*onnx.Value) []*onnx.Value {
	var inits []*onnx.Value
	for _, p := range params {
		if p.Init != nil {
			inits = append(inits, p)
		}
	}
	return inits
}
