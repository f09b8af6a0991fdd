package grad

// What the file leaves open and a person should hear of: weights that an exporter
// may have tied, inputs that it may have merged, batch normalization in evaluation mode,
// blocks that may have run without gradients, functions with a backward of their own.

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

// sharedUses says of initializers that serve several places in different ways how
// they do: exporters merge initializers that happen to be equal when they export,
// which ties weights that the author did not tie. One that always serves the same
// module, as in an unrolled loop, is meant. Where the export's calls told apart what was merged, only
// what a node that a tool fused reads is left to be said.
func sharedUses(g *onnx.Graph, told bool) map[string]string {
	shared := map[string]string{}
	for _, v := range g.Initializers {
		kinds := map[string]bool{}
		var readers []*onnx.Node
		for _, u := range v.Uses() {
			if u.Node.Is("Shape", "Size") {
				continue
			}
			kinds[fmt.Sprintf("%s input %d", u.Node.OpType(), u.Index)] = true
			if !slices.Contains(readers, u.Node) {
				readers = append(readers, u.Node)
			}
		}
		if len(readers) < 2 || longAxes(v) > 1 && tiedEmbedding(kinds) || ofOneModule(v.Name, readers) ||
			told && !slices.ContainsFunc(readers, func(n *onnx.Node) bool { return n.TorchCall() == "" && n.Domain() != "" }) {
			continue
		}
		var list []string
		for k := range kinds {
			list = append(list, k)
		}
		slices.Sort(list)
		shared[v.Name] = fmt.Sprintf("parameter %q is used in %d places (%s): if the exporter merged equal values, they are now tied", v.Name, len(readers), strings.Join(list, ", "))
	}
	return shared
}

// warnUnread names the inputs that nothing reads. torch.export keeps one of those that
// were one tensor when it was called, and the others stay as names: such a file reads its
// tokens from labels, or its labels from tokens.
func warnUnread(g *onnx.Graph, res *Result) {
	var names []string
	for _, v := range g.Inputs {
		if v.Init == nil && v.Dead() {
			names = append(names, v.Name)
		}
	}
	res.warnOf(names, "nothing reads these inputs, and what they are fed has no effect: %s; an export that is given one tensor for two inputs has the model read one of them in place of both: give it copies, as in (ids, ids.clone())")
}

// tiedEmbedding reports the one sharing that models mean: an embedding that is
// the output layer too, there perhaps in half, or one matrix used by one operator several times.
func tiedEmbedding(kinds map[string]bool) bool {
	if len(kinds) == 1 {
		return true
	}
	for k := range kinds {
		switch k {
		case "Gather input 0", "MatMul input 1", "Gemm input 1", "Transpose input 0", "Cast input 0":
		default:
			return false
		}
	}
	return true
}

// ofOneModule reports that all readers belong to the module whose weight it is by
// name: TorchScript names the nodes of a module's calls /encoder/cell/Gemm,
// /encoder/cell_1/Gemm and so on.
func ofOneModule(name string, readers []*onnx.Node) bool {
	dot := strings.LastIndex(name, ".")
	if dot < 0 {
		return false
	}
	owner := strings.Split(name[:dot], ".")
	for _, n := range readers {
		scope := strings.Split(modulePath(n.Name()), ".")
		if len(scope) < len(owner) || !slices.EqualFunc(scope[len(scope)-len(owner):], owner, calledAs) {
			return false
		}
	}
	return true
}

// calledAs reports the name of a part's call: its own, or with a number behind.
func calledAs(call, part string) bool {
	number, ok := strings.CutPrefix(call, part)
	return ok && (number == "" || strings.HasPrefix(number, "_") && strings.Trim(number, "_0123456789") == "")
}

// modulePath is the module that a node's name holds, layers.0.attn for
// /layers.0/attn/MatMul_1, and net.0 for /net/net.0/Gemm.
func modulePath(node string) string {
	if !strings.HasPrefix(node, "/") {
		return ""
	}
	var parts []string
	for part := range strings.SplitSeq(path.Dir(node)[1:], "/") {
		if last := len(parts) - 1; last >= 0 && strings.HasPrefix(part, parts[last]+".") {
			parts = parts[:last]
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ".")
}

// storedStatistics counts the BatchNormalizations on the way of the gradient that
// normalize by stored statistics, less those of which the export says that the
// model was in eval() itself.
func (e *engine) storedStatistics(reach map[*onnx.Value]bool) int {
	count := 0
	for _, n := range e.m.Graph.Nodes {
		if !n.Is("BatchNormalization") || traits.ComputesStatistics(n) || !reach[n.Out(0)] || !e.needs[n.Out(0)] {
			continue
		}
		mean := n.In(statisticsFrom).Behind("Identity", "Cast", "Reshape", "Unsqueeze", "Squeeze", "Tile", "Expand")
		computed := mean.Producer != nil && !mean.Stored() // by the graph, of the batch
		if _, said := calledInTraining(n); !said && !computed {
			count++
		}
	}
	return count
}

// warnChanged names the buffers that the loss depends on, gradient or not, and PyTorch's step
// changes, such as the vectors of a spectral norm or a codebook that follows averages, but for
// those that the training graph moves or trains, which are inputs by now, and frozen ones; and
// those that only eval() reads, such as running statistics.
func warnChanged(g *onnx.Graph, c *chooser, res *Result) {
	var kept, params []string
	for v := range step.DependenciesOf(g).Backward(step.Data, res.Loss).Reads() {
		if !v.IsConstant() || c.frozen(v.Name) {
			continue
		}
		for _, name := range append(slices.Clip(c.o.Signature.folded[v.Name]), v.Name) { // what it was computed from too
			switch s := c.o.Signature; {
			case !s.changed[name]:
			case s.kinds[name] == kindParameter:
				params = append(params, name)
			case !slices.Contains(kept, name):
				kept = append(kept, name)
			}
		}
	}
	for _, name := range c.o.Signature.unread(g) {
		if !c.frozen(name) && !slices.Contains(kept, name) {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	res.warnOf(kept, "in PyTorch each step changes buffers too, which stay as they are here: %s")
	if slices.Sort(params); len(params) > 0 {
		res.warn("the exported program changes parameters itself, as an embedding with max_norm does, and reads them without a gradient; they are not trained: %s", strings.Join(slices.Compact(params), ", "))
	}
}

// trackedNorm is a call of an instance normalization that normalizes by what it is given and
// moves running statistics.
var trackedNorm = regexp.MustCompile(`target=torch\.ops\.aten\.instance_norm\.\w+\]\(args = \([^,]*, [^,]*, [^,]*, %(\w+), %(\w+), True,`)

// unread are the buffers that the exported program changes and that no input is by now, whether
// the file holds them or not, but for counts of batches: nothing but a mean over all would read one.
func (s *Signature) unread(g *onnx.Graph) (names []string) {
	for name := range s.changed {
		moved := g.Value(name) != nil && !g.Value(name).IsConstant()
		if s.kinds[name] != kindParameter && !moved && !strings.HasSuffix(name, "num_batches_tracked") {
			names = append(names, name)
		}
	}
	return append(names, s.tracked(g)...)
}

// tracked are the running statistics that instance normalizations move, which are in no file.
func (s *Signature) tracked(g *onnx.Graph) (names []string) {
	for _, n := range g.Nodes {
		found := trackedNorm.FindStringSubmatch(n.TorchCall())
		if found == nil {
			continue
		}
		part := s.part(n.Name())
		for _, called := range found[1:] {
			if name := s.targets[part+called]; name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// matricesInNodes lists the matrices, filters and tables that Constant nodes hold and more
// than elementwise operators read: some tools write weights so.
func matricesInNodes(g *onnx.Graph) []string {
	var names []string
	for _, n := range g.Nodes {
		v := n.Out(0)
		if !n.Is("Constant") || v == nil {
			continue
		}
		if t := v.Constant(); t != nil && t.DType().IsFloat() && len(t.Dims()) > 1 && !elementwiseOnly(v) {
			names = append(names, v.Name)
		}
	}
	return names
}

// warnNodes names the matrices of Constant nodes that a gradient would reach.
func (e *engine) warnNodes(c *chooser, reach map[*onnx.Value]bool, res *Result) {
	if len(c.o.Params) > 0 || len(c.o.Adapters) > 0 {
		return // what is trained was said
	}
	res.warnOf(e.reachedNodes(c, reach), "Constant nodes hold matrices, which are not trained; where they are weights, make initializers of them: %s")
}

// withoutBias are the weights of layers to whose products the file adds nothing. A product that
// another one reads is left out, as the first of a separable convolution has no bias.
func withoutBias(g *onnx.Graph) map[string]bool {
	names := map[string]bool{}
	for _, v := range g.Initializers {
		if v.Type.DType.IsFloat() && len(v.Type.Shape) > 1 && len(v.Uses()) > 0 && servesOnly(v, unbiased) {
			names[v.Name] = true
		}
	}
	return names
}

// unbiased reports the weight of a product that gets no bias.
func unbiased(u onnx.Use) bool {
	n := u.Node
	return n.Is("MatMul", "Gemm", "Conv", "ConvTranspose") && u.Index == 1 && n.In(2) == nil && !shifted(n.Out(0))
}

// shifted reports that what the file holds is added to v, perhaps reshaped or scaled, or to
// its sum with another product, as a recurrence adds one bias to two; or that a product reads v.
func shifted(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		n := u.Node
		switch {
		case u.Index == onnx.Captured || n.Is("BatchNormalization", "MatMul", "Conv"):
			return true
		case n.Is("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "Slice") && u.Index == 0:
			return slices.ContainsFunc(n.Outputs, func(o *onnx.Value) bool { return o != nil && shifted(o) })
		case !n.Is("Add", "Sub", "Mul") || len(n.Inputs) != 2:
			return false
		}
		other := n.In(1 - u.Index)
		if held(other) {
			return !n.Is("Mul") || shifted(n.Out(0))
		}
		by := other.Behind("Reshape", "Transpose").Producer
		if by != nil && by.Is("Add") && len(by.Inputs) == 2 && (held(by.In(0)) || held(by.In(1))) {
			return true
		}
		return n.Is("Add") && by != nil && by.Is("MatMul", "Conv") && held(by.In(1)) && shifted(n.Out(0))
	})
}

// held reports what the file holds, perhaps reshaped.
func held(v *onnx.Value) bool {
	v = v.Behind("Reshape", "Unsqueeze", "Squeeze", "Transpose", "Cast")
	return v != nil && v.Stored()
}

// warnLost names the trained weights of layers without a bias in a file by tf2onnx, which
// leaves out what is added and all zeros, as the biases of a fresh model are.
func warnLost(c *chooser, params []*onnx.Value, res *Result) {
	var names []string
	for _, p := range params {
		if c.unbiased[p.Name] {
			names = append(names, p.Name)
		}
	}
	res.warnOf(names, "nothing is added to the products with these weights: %s; where their layers have biases, these were all zeros, as fresh ones are: "+
		"tf2onnx leaves such out, and they are not trained; set them to other numbers, however small, and export again")
}

// reachedNodes are the matrices of Constant nodes that a gradient would reach, by name.
func (e *engine) reachedNodes(c *chooser, reach map[*onnx.Value]bool) []string {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(name string) bool { return !reach[e.m.Graph.Value(name)] })
}

// A blockExit is a value that leaves a block of no_grad or autocast, and what stands for it
// once Identity nodes are gone, as a clone is one.
type blockExit struct{ name, value string }

// blockExits lists the float values that leave the blocks of the exported program
// that torch.export traces apart, which are those of torch.no_grad and
// torch.autocast: their nodes say that their code has no file.
func blockExits(g *onnx.Graph) []blockExit {
	inside := func(n *onnx.Node) bool {
		return strings.HasPrefix(n.Metadata(traceKey), `File "<eval_with_key>`)
	}
	var exits []blockExit
	for _, n := range g.Nodes {
		if !inside(n) {
			continue
		}
		for _, v := range n.Returns() {
			if slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !inside(u.Node) }) {
				exits = append(exits, blockExit{v.Name, v.Behind("Identity").Name})
			}
		}
	}
	return exits
}

const traceKey = "pkg.torch.onnx.stack_trace"

// ownBackward finds in a node's trace the call of a torch.autograd.Function: Python shows
// the line that calls apply, and below it the function's forward.
var ownBackward = regexp.MustCompile(`File "([^"]*)", [^\n]*\n[^\n]*\b(\w+)\.apply\([^\n]*\n *File "[^"]*", line \d+, in forward\n`)

// ownBackwards names the autograd functions that hand a gradient on, or would: what they
// compute may have none, as a rounding. Their backward is in no file. That of a reentrant
// checkpoint is its forward's.
func ownBackwards(g *onnx.Graph, reach map[*onnx.Value]bool) []string {
	var names []string
	for _, n := range g.Nodes {
		if !reach[n.Out(0)] {
			continue
		}
		for _, call := range ownBackward.FindAllStringSubmatch(n.Metadata(traceKey), -1) {
			if name := call[2]; path.Base(call[1]) != "checkpoint.py" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// warnFlat names the parameters that slopeless finds.
func (e *engine) warnFlat(c *chooser, loss *onnx.Value, reach map[*onnx.Value]bool, res *Result) {
	res.warnOf(e.slopeless(c, loss, reach), "the loss depends on these parameters, but they are not trained: "+flatWays+"%s; a file does not hold the backward of a torch.autograd.Function")
}

const flatWays = "each way to it passes an operator without a slope, such as a comparison or a rounding: "

// slopeless lists the parameters that the loss depends on without a stop between, and that no
// gradient reaches: a comparison, a rounding or the like comes between, as where a
// torch.autograd.Function had a slope of its own.
func (e *engine) slopeless(c *chooser, loss *onnx.Value, reach map[*onnx.Value]bool) (names []string) {
	depends := step.DependenciesBy(e.m.Graph, func(v *onnx.Value, u onnx.Use) step.Dependency {
		if normalize.StoppedBy(u.Node) != "" {
			return 0
		}
		return step.DependencyOf(v, u)
	}).Backward(step.Data, loss).Reads()
	for _, v := range e.m.Graph.Initializers {
		said := c.listed[v.Name] || c.o.Signature.lists(v.Name) || c.names.variable(v.Name) && len(v.Type.Shape) > 1 // no buffer to compare with
		if depends[v] && !reach[v] && c.candidates[v] && said && c.decide(v).Trained {
			names = append(names, v.Name)
		}
	}
	return names
}

// straightThrough lists differences to which what they took away is added again, y - x before
// x + (y - x): but for a stop that is y.
func (e *engine) straightThrough(reach map[*onnx.Value]bool) (names []string) {
	for _, n := range e.m.Graph.Nodes {
		for k := 0; k < 2 && n.Is("Add") && len(n.Inputs) == 2 && reach[n.Out(0)]; k++ {
			d := n.In(k)
			if by := d.Producer; by != nil && by.Is("Sub") && by.In(1) == n.In(1-k) && by.In(0) != by.In(1) && e.needs[by.In(1)] && !slices.Contains(names, d.Name) {
				names = append(names, d.Name)
			}
		}
	}
	return names
}

// likelyTurned lists scores of TorchScript's losses that may stand with the classes last, where
// the loss reads them second: the exporter makes one loss of LogSoftmax, Transpose and
// NegativeLogLikelihoodLoss, as though a Transpose stood before the LogSoftmax too. Other sizes
// do not fit.
func (e *engine) likelyTurned(c *chooser, reach map[*onnx.Value]bool) (names []string) {
	for _, n := range e.m.Graph.Nodes {
		if !c.names.script || !n.Is("SoftmaxCrossEntropyLoss") || !reach[n.Out(0)] {
			continue
		}
		scores := n.In(0)
		if by := scores.Producer; by != nil && by.Is("Transpose", "Conv", "ConvTranspose", "Resize") {
			continue // the classes were put second
		}
		if s := scores.Type.Shape; len(s) > 2 && s[1].Known() && s[1] == s[len(s)-1] {
			names = append(names, scores.Name)
		}
	}
	return names
}

// warnOpen says what the file leaves open about what is to be differentiated.
func (e *engine) warnOpen(c *chooser, params []*onnx.Value, reach map[*onnx.Value]bool, res *Result) {
	for _, p := range params {
		for _, text := range []string{c.shared[p.Name], c.lone[p.Name]} {
			if text != "" {
				res.Warnings = append(res.Warnings, text)
			}
		}
	}
	warnTwins(c.twins, params, res)
	warnLost(c, params, res)
	res.warnOf(e.likelyTurned(c, reach), "the scores have as many classes as places: %s; of an nll_loss of a transposed log_softmax TorchScript's exporter drops the transpose and the operator before the log_softmax; if so, write cross_entropy of the transposed scores, or export with dynamo=True, optimize=False")
	if n := e.storedStatistics(reach); n > 0 {
		text := fmt.Sprintf("%d × BatchNormalization with stored statistics, and nothing says whether the model was in train()", n)
		if c.names.torch {
			text += "; to train with batch statistics, export a model in train() with dynamo=True, optimize=False, or with dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False"
		}
		res.Warnings = append(res.Warnings, text)
	}
	var open []string
	for _, exit := range c.blocks {
		if v := e.m.Graph.Value(exit.value); v != nil && reach[v] && e.needs[v] && !c.stops(exit.name) {
			open = append(open, exit.name)
		}
	}
	res.warnOf(ownBackwards(e.m.Graph, reach), "no file holds the backward of a torch.autograd.Function; gradients are of what its forward computes: %s; "+
		"one that is straight-through can be written as x + (f(x) - x).detach()")
	if names := e.straightThrough(reach); len(names) > 0 && !c.o.Signature.known {
		res.warn("the graph computes x + (f(x) - x), as a straight-through estimator does, and the file does not say what was detached; if the difference was, add --stop '%s'", strings.Join(names, ","))
	}
	if len(open) > 0 {
		res.warn("gradients flow out of blocks of torch.no_grad or torch.autocast, and the file does not say which of the two; if no_grad, add --stop '%s'", strings.Join(open, ","))
	}
}
