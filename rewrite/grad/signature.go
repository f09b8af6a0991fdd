package grad

// What PyTorch's exporter (torch.onnx.export with dynamo=True) says of the values
// that it wrote. An exported program has a signature: of each tensor that is no
// input of the user's, whether it is a parameter, a buffer or a constant of the
// module. The exporter writes it down twice:
//
//	the graph's metadata     p_l_weight: PARAMETER target='l.weight'
//	a value's metadata       InputSpec.kind = PARAMETER
//
// and before torch 2.7 the first as Python shows the object: InputSpec(kind=
// <InputKind.PARAMETER: 2>, arg=TensorArgument(name='p_l_weight'),
// target='l.weight', …). Initializers bear the name of the target. What cannot be
// read is passed over: a file without a readable signature is decided about by
// what it holds (decide.go).
//
// The signature does not say what has requires_grad=False.
//
// onnx.compose joins models into one, most often after it has put a prefix before all names of
// each. It keeps what values and nodes say, which knows no prefix, and not what the graph says. So a
// reference is looked up with the prefix of the part that it stands in; of an initializer of a
// part that says nothing of its own, by TorchScript say, nothing is known. Nor is anything known of
// what onnxscript's optimizer left as it was in a file that has notes by that optimizer alone.

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/planner"
)

// The metadata keys of PyTorch's exporter.
const (
	signatureKey = "pkg.torch.export.ExportedProgram.graph_signature"
	kindKey      = "pkg.torch.export.graph_signature.InputSpec.kind"
	originalKey  = "pkg.torch.onnx.original_node_name"
	foldedKey    = "pkg.onnxscript.optimizer.folded_from"
)

// The kinds of torch.export's InputKind that initializers can be of.
const (
	kindParameter = "PARAMETER"
	kindBuffer    = "BUFFER"
	kindConstant  = "CONSTANT_TENSOR"
)

// The OutputKinds of what a buffer and a parameter become.
const (
	kindMutation          = "BUFFER_MUTATION"
	kindParameterMutation = "PARAMETER_MUTATION"
)

// A Signature is what an export says of its initializers.
type Signature struct {
	// kinds are by initializer name; some may be of no initializer.
	kinds map[string]string
	// changed are the buffers and the parameters that the exported program changes.
	changed map[string]bool
	// targets are the names of initializers by what the exported program calls
	// them, %p_l_weight.
	targets map[string]string
	// folded says from what the exporter's optimizer computed an initializer.
	folded map[string][]string
	// prefixes stand before the names of a part.
	prefixes []string
	// silent are initializers of which a file without the graph's signature says nothing.
	silent map[string]bool
	// again are those of the silent that an optimizer computed from what it had computed before.
	again map[string]bool
	// known reports a signature that can be trusted: it names a parameter that
	// is an initializer, or one that an initializer was computed from, or all that
	// could be parameters are constants of it.
	known bool
	// lost are the parameters, if the file has none of them, and only constants instead.
	lost []string
}

var (
	specLine = regexp.MustCompile(`^\s*(\S+): ([A-Z_]+)(?: target='(.*?)')?(?: persistent=\w+)?\s*$`)
	specRepr = regexp.MustCompile(`(?:Input|Output)Spec\(kind=<(?:Input|Output)Kind\.([A-Z_]+): \d+>, arg=\w+\(name='([^']*)'[^)]*\), target=(?:'([^']*)'|"([^"]*)"|None)`)
)

// ReadSignature reads what the file holds of a signature, perhaps nothing.
func ReadSignature(m *onnx.Model) *Signature {
	s := &Signature{kinds: map[string]string{}, changed: map[string]bool{}, targets: map[string]string{}, folded: map[string][]string{}, silent: map[string]bool{}, again: map[string]bool{}}
	s.prefixes = prefixes(m)
	whole, kinds := false, false
	for _, props := range [][]*pb.StringStringEntryProto{m.Graph.Proto.GetMetadataProps(), m.Proto.GetMetadataProps()} {
		if text, ok := onnx.Property(props, signatureKey); ok {
			s.readText(text)
			whole = true
		}
	}
	for _, v := range m.Graph.Proto.GetValueInfo() {
		says := func(key string) string { text, _ := onnx.Property(v.GetMetadataProps(), key); return text }
		s.note(says(kindKey), says(originalKey), v.GetName())
		kinds = kinds || says(kindKey) != ""
		if from := says(foldedKey); from != "" {
			s.folded[v.GetName()] = onnx.PythonStrings(from)
			s.place(v.GetName(), whole)
		}
	}
	if !whole && (noted(m.Graph) || !kinds) {
		for _, v := range m.Graph.Initializers {
			if s.kinds[v.Name] == "" && len(s.origins(v.Name)) == 0 && (!readByExporter(v) || slices.ContainsFunc(s.folded[v.Name], s.module)) {
				s.silent[v.Name] = true
			}
		}
	}
	if whole {
		s.foldAgain(m.Graph)
	}
	constants, others := false, false
	for _, v := range m.Graph.Initializers {
		s.known = s.known || s.kinds[v.Name] == kindParameter || len(s.origins(v.Name)) > 0
		constants = constants || s.kinds[v.Name] == kindConstant
		n, err := v.Init.Elements()
		others = others || err != nil || n > 1 && v.Type.DType.IsFloat() && s.kinds[v.Name] == "" && len(s.folded[v.Name]) == 0
	}
	if !s.known && constants && !others {
		for name, kind := range s.kinds {
			if kind == kindParameter {
				s.lost = append(s.lost, name)
			}
		}
		slices.Sort(s.lost)
		s.known = len(s.lost) > 0
	}
	return s
}

// place gives what an initializer was computed from the names that it has in the file. Where the
// file does not list them any more, a layer's weight is one by its name.
func (s *Signature) place(name string, whole bool) {
	prefix := s.part(name)
	for i, from := range s.folded[name] {
		s.folded[name][i] = prefix + from
		if !whole && s.kinds[prefix+from] == "" && ofLayer.MatchString(from) {
			s.kinds[prefix+from] = kindParameter
		}
	}
}

// foldAgain finds what an optimizer that ran over the file again computed from what it had computed
// before: its note names that alone, which is in the file no more, and not the parameters behind it.
// There are none where the file accounts for all parameters.
func (s *Signature) foldAgain(g *onnx.Graph) {
	has := map[string]bool{}
	for _, v := range g.Initializers {
		has[v.Name] = true
		for _, from := range s.origins(v.Name) {
			has[from] = true
		}
	}
	lost := func(from string) bool { return s.kinds[from] == "" && g.Value(from) == nil && turned.MatchString(from) }
	for name, kind := range s.kinds {
		if kind != kindParameter || has[name] {
			continue
		}
		for _, v := range g.Initializers {
			if from := s.folded[v.Name]; s.kinds[v.Name] == "" && len(from) > 0 && !slices.ContainsFunc(from, func(f string) bool { return !lost(f) }) {
				s.silent[v.Name], s.again[v.Name] = true, true
			}
		}
		return
	}
}

// noted reports a graph with nodes on which PyTorch's exporter noted calls.
func noted(g *onnx.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *onnx.Node) bool { return n.TorchCall() != "" })
}

// readByExporter reports that a node which PyTorch's exporter noted a call on reads v.
func readByExporter(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Node.TorchCall() != "" })
}

// speaksOf reports that the signature says whether an initializer is trained, if only by not
// listing it.
func (s *Signature) speaksOf(name string) bool { return s.known && !s.silent[name] }

// origins are the parameters that an initializer was computed from.
func (s *Signature) origins(name string) []string {
	var params []string
	for _, from := range s.folded[name] {
		if s.kinds[from] == kindParameter {
			params = append(params, from)
		}
	}
	return params
}

// means reports that a name or pattern is of this initializer, or of a parameter that
// it was computed from.
func (s *Signature) means(glob, name string) bool {
	return slices.ContainsFunc(append(s.origins(name), name), func(known string) bool { return planner.Match(glob, known) })
}

// meanAny reports that one of the names or patterns is of this initializer.
func (s *Signature) meanAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return s.means(glob, name) })
}

// readText reads either form of the graph's signature.
func (s *Signature) readText(text string) {
	for line := range strings.SplitSeq(text, "\n") {
		if f := specLine.FindStringSubmatch(line); f != nil {
			s.note(f[2], f[1], f[3])
		}
	}
	for _, f := range specRepr.FindAllStringSubmatch(text, -1) {
		s.note(f[1], f[2], f[3]+f[4])
	}
}

// note keeps one input or output of the exported program, which calls it so.
func (s *Signature) note(kind, called, target string) {
	switch kind {
	case kindMutation, kindParameterMutation:
		s.changed[target] = true
	case kindParameter, kindBuffer, kindConstant:
		if target == "" {
			return
		}
		s.kinds[target] = kind
		if called != "" {
			s.targets[s.part(target)+called] = target
		}
	}
}

// calledBy says by initializer name what the exported program calls it, and what it
// was computed from.
func (s *Signature) calledBy() map[string][]string {
	own := map[string][]string{}
	for _, called := range slices.Sorted(maps.Keys(s.targets)) {
		own[s.targets[called]] = append(own[s.targets[called]], called)
	}
	by := maps.Clone(own)
	for name, from := range s.folded {
		for _, target := range from {
			if target != name {
				by[name] = append(slices.Clip(by[name]), own[target]...)
			}
		}
	}
	return by
}

// Rename says that initializers bear other names than the exporter gave them.
func (s *Signature) Rename(names map[string]string) {
	s.kinds, s.changed, s.folded = renamed(s.kinds, names), renamed(s.changed, names), renamed(s.folded, names)
	for called, target := range s.targets {
		if to := names[target]; to != "" {
			s.targets[called] = to
		}
	}
}

func renamed[V any](of map[string]V, names map[string]string) map[string]V {
	out := make(map[string]V, len(of))
	for name, v := range of {
		if to := names[name]; to != "" {
			name = to
		}
		out[name] = v
	}
	return out
}

// lists reports an initializer that the signature says something of.
func (s *Signature) lists(name string) bool {
	return s.known && (s.kinds[name] != "" || len(s.origins(name)) > 0)
}

// judge says whether the exported program trains an initializer. What was
// computed from a parameter ahead of time, a transposed matrix mostly, stands for
// it.
func (s *Signature) judge(name string) Decision {
	switch s.kinds[name] {
	case kindParameter:
		return Decision{Trained: true, Source: FromSignature, Reason: "the export lists it as a parameter"}
	case kindBuffer:
		return Decision{Source: FromSignature, Reason: "the export lists it as a buffer"}
	case kindConstant:
		return Decision{Source: FromSignature, Reason: "the export lists it as a constant"}
	}
	if from := s.origins(name); len(from) > 0 {
		return Decision{Trained: true, Source: FromSignature, Reason: "the exporter computed it from parameter " + strings.Join(from, " and ")}
	}
	return Decision{Source: FromSignature, Reason: "the export does not list it as a parameter"}
}
