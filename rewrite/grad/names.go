package grad

// What a name says of an initializer in a file that carries no signature.
//
//	exporter             parameters and buffers       constants and what was folded
//	torch, TorchScript   model.layers.0.norm.weight   onnx::Mul_123, 123, /attn/Constant_2_output_0
//	torch, dynamo        model.layers.0.norm.weight   val_12, full, lifted_tensor_0
//	Keras, TorchScript   _torch_params.net/norm/beta  as TorchScript's
//	tf2onnx              …/ReadVariableOp:0           const_fold_opt__12, new_shape__3
//
// Both exporters of PyTorch keep the names of the state_dict, which tell no
// parameter from a buffer but either from a constant. A name without a dot may be
// of the outermost module (logit_scale): TorchScript gives none such to anything
// else, while dynamo calls constants after the operator that made them.

import (
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/rewrite/normalize"
)

// stateName is a path of Python names and positions in lists, of which the outermost module may be one.
var stateName = regexp.MustCompile(`^(\d+\.)*[A-Za-z_]\w*(\.\w+)*$`)

// kerasName is a path of Keras, which holds its variables in a dict of PyTorch's parameters.
var kerasName = regexp.MustCompile(`^(\w+\.)*_?torch_params\.(\S+)$`)

// negated are the small parameters of which TorchScript computed the negation ahead, as of a
// log-variance in exp(-v): it has their numbers, each with the other sign, zeros too.
func (n namer) negated(g *onnx.Graph) []string {
	const most = 64
	type numbers struct {
		name   string
		values []float64
	}
	var params, ahead []numbers
	for _, v := range g.Initializers {
		if !v.Type.DType.IsFloat() || len(v.Uses()) == 0 {
			continue
		}
		values := contents(v, most)
		switch {
		case values == nil:
		case n.variable(v.Name):
			params = append(params, numbers{v.Name, values})
		case ComputedAhead(v.Name):
			ahead = append(ahead, numbers{v.Name, values})
		}
	}
	opposite := func(a, b float64) bool { return a == -b && math.Signbit(a) != math.Signbit(b) }
	var names []string
	for _, p := range params {
		if slices.ContainsFunc(ahead, func(w numbers) bool { return slices.EqualFunc(p.values, w.values, opposite) }) {
			names = append(names, p.name)
		}
	}
	return names
}

// foldedConvolution reports a convolution's weights that TorchScript, or a tool behind it,
// computed ahead: they are called after no module, or a bias after the weights beside it, as
// onnxscript calls the one that it adds, or the node is noted as one into which onnxscript folded.
func (n namer) foldedConvolution(v *onnx.Value) bool {
	computed := n.script && (ComputedAhead(v.Name) || !n.variable(v.Name) && !reshapedName.MatchString(v.Name))
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		rule, _ := onnx.Property(u.Node.Proto.GetMetadataProps(), "pkg.onnxscript.rewriter.rule_name")
		here := computed || n.script && strings.HasPrefix(rule, "FuseBatchNorm")
		return isOrFuses(u.Node, "Conv", "ConvTranspose") && (u.Index == 1 && here || n.torch && u.Index == 2 && v.Name == u.Node.In(1).Name+"_bias")
	})
}

// ComputedAhead reports the name of what TorchScript computed ahead, perhaps behind the prefix
// of a part.
func ComputedAhead(name string) bool { return strings.Contains(name, "onnx::") }

// fromTorchScript reports a file by PyTorch's older exporter: it names nodes by
// their module, /encoder/Gemm, and writes no metadata on them. onnxscript's rewriter may have, and
// the pass that added a loss has.
func fromTorchScript(m *onnx.Model) bool {
	if m.Proto.GetProducerName() != "pytorch" && !composed(m) && !fused(m) {
		return false
	}
	scoped := false
	for _, n := range m.Graph.Nodes {
		scoped = scoped || strings.HasPrefix(n.Name(), "/") || composed(m) && strings.Contains(n.Name(), "/") && n.Out(0) != nil && n.Out(0).Name == n.Name()+"_output_0"
		if n.Origin().Pass != "" {
			continue
		}
		if slices.ContainsFunc(n.Proto.GetMetadataProps(), func(p *pb.StringStringEntryProto) bool { return !strings.HasPrefix(p.GetKey(), "pkg.onnxscript.") }) {
			return false
		}
	}
	return scoped
}

// composed reports a file that onnx.compose joined from several.
func composed(m *onnx.Model) bool {
	return strings.HasPrefix(m.Proto.GetProducerName(), "onnx.compose")
}

// fused reports a file by ONNX Runtime's optimizer for transformers, which puts its own name in
// place of the exporter's and leaves all others.
func fused(m *onnx.Model) bool { return m.Proto.GetProducerName() == "onnxruntime.transformers" }

// dynamoNode is how PyTorch's exporter with dynamo=True names a node, after the value that it makes.
var dynamoNode = regexp.MustCompile(`^node_\w+$`)

// FromPyTorch reports a file that one of PyTorch's exporters wrote, or parts of it.
func FromPyTorch(m *onnx.Model) bool {
	if m.Proto.GetProducerName() == "pytorch" || (composed(m) || fused(m)) && (noted(m.Graph) || fromTorchScript(m)) {
		return true
	}
	return fused(m) && slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return dynamoNode.MatchString(n.Name()) })
}

// namer tells from its name that an initializer is a variable of the model.
type namer struct {
	torch, script, tensorflow bool
}

func newNamer(m *onnx.Model) namer {
	producer := m.Proto.GetProducerName()
	n := namer{torch: FromPyTorch(m), script: fromTorchScript(m), tensorflow: producer == "tf2onnx"}
	if n.script && !slices.ContainsFunc(m.Graph.Initializers, func(v *onnx.Value) bool { return n.variable(v.Name) }) {
		n.torch = false // as behind Keras, none of whose names are left
	}
	return n
}

// ahead reports what the exporter, or a tool behind it, computed ahead by more than a reshape,
// as far as the name tells: TorchScript and TensorFlow call a value after its operator,
// /wpe/Gather_output_0 and …/batchnorm/mul:0, ONNX Runtime after its fusion, dynamo calls a parameter after its module, and
// nothing else.
func (n namer) ahead(v *onnx.Value) bool {
	name := v.Name
	switch {
	case fusedName.MatchString(name): // by ONNX Runtime, tf2onnx or onnxslim
		return true
	case n.script && ComputedAhead(name) && ofLinear(v):
		return true
	case n.script && ComputedAhead(name), n.tensorflow && strings.HasPrefix(name, "const_fold_opt__"):
		return elementwiseOnly(v) && !ofGroupNorm(v)
	case n.script:
		return outputName.MatchString(name) && !reshapedName.MatchString(name)
	case n.tensorflow:
		return outputName.MatchString(name) && !reshapedName.MatchString(name) && !n.variable(name)
	case n.torch && numberName.MatchString(name): // by older exporters
		return elementwiseOnly(v)
	case n.torch:
		return !strings.Contains(name, ".") && !turned.MatchString(strings.TrimSuffix(name, "_weight"))
	}
	return false
}

// computed reports what a tool behind the exporter computed ahead: exporters number constants too.
func (n namer) computed(v *onnx.Value) bool {
	return n.ahead(v) && !ComputedAhead(v.Name) && !numberName.MatchString(v.Name)
}

// computedByDynamo reports what dynamo's optimizer, or a tool behind it, computed and no operator
// of PyTorch's gave a name.
func computedByDynamo(v *onnx.Value) bool { return unnamed.MatchString(v.Name) }

var unnamed = regexp.MustCompile(`^val_\d+$`)

// ofLinear reports the matrix of a layer that TorchScript writes as it is, to be transposed by
// the Gemm, unless it was computed from others, as a weight norm computes it.
func ofLinear(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		return u.Node.Is("Gemm") && u.Index == 1 && u.Node.Int("transB", 0) == 1
	})
}

var (
	numberName = regexp.MustCompile(`^\d+$`)
	fusedName  = regexp.MustCompile(`^(ConvBnFusion|ConvMulFusion|ConvAddFusion_B|MatMulBnFusion)_|_fused_bn$|_(weight|bias)_fused$`)
	// onnxsim's
	simplifiedName = regexp.MustCompile(`^_v_\d+$`)
	outputName     = regexp.MustCompile(`/[^/]+(_output_|:)\d+$`)
	reshapedName   = regexp.MustCompile(`/(resource|Const|Constant|Reshape|ExpandDims|Unsqueeze|Squeeze|[Tt]ranspose|Identity|Cast|input)(_\d+)?(_output_|:)\d+$`)
)

// variable reports the name of a parameter or a buffer.
func (n namer) variable(name string) bool {
	switch {
	case strings.Contains(name, "ReadVariableOp"):
		return true
	case strings.HasPrefix(name, "_inlfunc_"), simplifiedName.MatchString(name): // a constant of a function that ONNX Runtime wrote out; what onnxsim computed
		return false
	case !n.torch || !stateName.MatchString(name) && !kerasName.MatchString(name):
		return false
	}
	return n.script || strings.Contains(name, ".")
}

// prefixes are what a tool put before the names of an exported program's initializers and nodes.
func prefixes(m *onnx.Model) (list []string) {
	for _, v := range m.Graph.Proto.GetValueInfo() {
		called, _ := onnx.Property(v.GetMetadataProps(), originalKey)
		name := v.GetName()
		if at := len(name) - len(called) + len("p_"); len(called) > len("p_") && at > 0 && strings.ReplaceAll(name[at:], ".", "_") == called[len("p_"):] {
			list = append(list, name[:at])
		}
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(prefix string) bool {
		return !slices.ContainsFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return strings.HasPrefix(n.Name(), prefix) && n.TorchCall() != "" })
	})
}

// part is the prefix of the part that a name is of, "" for none.
func (s *Signature) part(name string) (prefix string) {
	for _, p := range s.prefixes {
		if strings.HasPrefix(name, p) && len(p) > len(prefix) {
			prefix = p
		}
	}
	return prefix
}

// module reports the name of something that a module of the program holds.
func (s *Signature) module(name string) bool {
	return strings.Contains(strings.TrimPrefix(name, s.part(name)), ".")
}

// turned are the names that transposes have in an export by dynamo, which names a value
// after its operator.
var turned = regexp.MustCompile(`^(t|permute|transpose|val)(_\d+)?$`)

// onlyTurned reports a value that the exporter's optimizer made of one parameter alone,
// by a transpose, or by one of another, as far as names tell: training it is training the
// parameter. A product with a mask or a constant was made of these too, an Exp has its own name.
func (s *Signature) onlyTurned(name string) bool {
	turns := func(name string) bool { return turned.MatchString(strings.TrimPrefix(name, s.part(name))) }
	others := slices.DeleteFunc(slices.Clone(s.folded[name]), func(from string) bool {
		return s.kinds[from] == kindParameter || turns(from) && !strings.HasPrefix(strings.TrimPrefix(from, s.part(from)), "val")
	})
	return len(s.origins(name)) == 1 && len(others) == 0 && turns(name)
}

// expanded reports a value that the exporter's optimizer made by an expansion, of whatever, or by
// one and operators that only move elements, as of prompts that are expanded over the batch and cut.
func (s *Signature) expanded(name string) bool {
	expands := func(name string) bool { return slices.Contains([]string{"expand", "repeat"}, s.operator(name)) }
	if expands(name) {
		return true
	}
	return moved.MatchString(s.operator(name)) && slices.ContainsFunc(s.folded[name], expands) && !slices.ContainsFunc(s.folded[name], func(from string) bool {
		return s.kinds[from] == "" && !expands(from) && !moved.MatchString(s.operator(from))
	})
}

// moved are the names of operators that only move elements, of constants, and of what stands
// between the exporter's own operators.
var moved = regexp.MustCompile(`^(view|reshape|flatten|squeeze|unsqueeze|t|permute|transpose|slice|select|clone|_to_copy|to|embedding|index|index_select|arange|val)$`)

// operator is what dynamo's export names a value after, less the number that tells apart the
// values of one operator.
func (s *Signature) operator(name string) string {
	return counted.ReplaceAllString(strings.TrimPrefix(name, s.part(name)), "")
}

var counted = regexp.MustCompile(`_\d+$`)

// jaxStop are the names that jax2onnx gives to what jax.lax.stop_gradient returns, perhaps in a
// function or a loop that was opened.
var jaxStop = regexp.MustCompile(`(^|\W)stop_out_\d+(\W|$)`)

// stopJAX makes stops of the Identities that jax2onnx writes of jax.lax.stop_gradient.
func stopJAX(g *onnx.Graph) {
	for _, n := range g.Nodes {
		if n.Is("Identity") && n.Out(0) != nil && jaxStop.MatchString(n.Out(0).Name) && normalize.StoppedBy(n) == "" {
			normalize.Stop(n, "jax.lax.stop_gradient")
		}
	}
}

// namedStatistic reports the name of a running statistic of PyTorch's or Keras's.
func namedStatistic(name string) bool {
	if path := kerasName.FindStringSubmatch(name); path != nil {
		last := path[2][strings.LastIndexByte(path[2], '/')+1:]
		return last == "moving_mean" || last == "moving_variance"
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	return last == "running_mean" || last == "running_var"
}

// ofSpectralNorm reports the vectors of PyTorch's spectral norm, by the name of the weight that
// they go with.
func ofSpectralNorm(name string, has map[string]bool) bool {
	for _, last := range []string{"_u", "_v"} {
		of, ok := strings.CutSuffix(name, last)
		if !ok {
			continue
		}
		if has[of+"_orig"] {
			return true
		}
		if module, ok := strings.CutSuffix(of, ".0."); ok && has[module+".original"] {
			return true
		}
	}
	return false
}

// moduleOf is the module of a name of PyTorch's.
func moduleOf(name string) string { return name[:max(strings.LastIndexByte(name, '.'), 0)] }
