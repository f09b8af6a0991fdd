package data

// A language model's inputs: which take tokens and labels, how large a batch is, and
// what labels are.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// A language is a mapping of tokens onto a model, with what its batches need.
type language struct {
	Mapping
	tokens, labels *onnx.Value // labels may be nil
	counted        []bool      // the labels of a batch that reach the loss; nil: all
	limit          int64       // of labels; 0: none is known
}

// language finds which inputs get what, how large a batch is, and what labels are.
func (s *Source) language(t *target) (*language, error) {
	r := readGraph(t.m, t.known, t.lossValue(), t.inputs)
	tokens, labels, fill, err := t.assign(r, s.o.Fill)
	if err != nil {
		return nil, err
	}
	l := &language{Mapping: Mapping{Tokens: tokens.input.Name, Fill: fill}}
	if labels != nil {
		l.Labels = labels.input.Name
	}
	if err := t.bindTokens(s, tokens.input, l); err != nil {
		return nil, err
	}
	// Again, where dimensions have got their numbers.
	if r, err = t.reread(r); err != nil {
		return nil, err
	}
	tokens = r.meaning(l.Tokens)
	labelled := tokens
	if labels != nil {
		labelled = r.meaning(l.Labels)
		if err := l.forEachToken(labelled.input); err != nil {
			return nil, err
		}
	}
	if err := l.settle(s.o.Labels, r, labelled); err != nil {
		return nil, err
	}
	if rows := s.train.tokens; l.Kind == LabelsNext && len(rows.shape) == 2 && rows.shape[1] == l.Length {
		// The last number of a row is a label alone.
		if !t.rebind(tokens.input, l.Length-1) {
			return nil, fmt.Errorf("--tokens %s: rows of %d tokens, want %d: one more than the model's length, as each label is the token after", s.train.name, rows.shape[1], l.Length+1)
		}
		if r, err = t.reread(r); err != nil {
			return nil, err
		}
		l.Length--
		tokens, labelled = r.meaning(l.Tokens), r.meaning(labelled.input.Name)
		if err := l.settle(s.o.Labels, r, labelled); err != nil {
			return nil, err
		}
	}
	l.tokens = tokens.input
	if l.Labels != "" {
		l.labels = labelled.input
		l.limit = runtime.FeedLimit(t.m, l.labels)
		if err := l.forEachToken(l.labels); err != nil {
			return nil, err
		}
	}
	l.Vocabulary = runtime.FeedLimit(t.m, l.tokens)
	if l.Kind == LabelsNext && !r.causal() {
		t.notes = append(t.notes, "the graph shows no causal mask: a model that sees later tokens, as BERT does, learns nothing from predicting the next one; if it does, use --data F.npz with masked tokens")
	}
	return l, nil
}

// forEachToken refuses labels that are not one for each token, as a classifier's.
func (l *language) forEachToken(labels *onnx.Value) error {
	if n, _ := onnx.Elements(shapeOf(labels)); n != l.Batch*l.Length {
		return &InputError{labels.Name, fmt.Sprintf("shape %v for labels of %d samples of %d tokens: text has a label for each token; for others use --data F.npz", shapeOf(labels), l.Batch, l.Length)}
	}
	return nil
}

// TakesText reports a model that text can be mapped onto: an input of rows takes tokens, a loss
// compares as many labels, and the graph shows what all others get.
func TakesText(m *onnx.Model, sizes Sizes) bool {
	t := &target{source: m, given: sizes.Dims, dims: maps.Clone(sizes.Dims)}
	if t.dims == nil {
		t.dims = map[string]int64{}
	}
	defer t.close()
	if t.sort(sizes.Roles) != nil || t.infer() != nil {
		return false
	}
	tokens, labels, _, err := t.assign(readGraph(t.m, t.known, t.lossValue(), t.inputs), nil)
	if err != nil {
		return false
	}
	if labels == nil {
		labels = tokens
	}
	rows, of := tokens.input.Type.Shape, labels.input.Type.Shape
	if len(labels.targets) == 0 || len(rows) == 0 || len(rows) > 2 {
		return false
	}
	if n, static := rows.Elements().Int(); len(rows) != len(of) {
		return static && of.Elements().Is(n)
	}
	for i, d := range rows { // sizes of two names may be the same
		if n, static := d.Int(); static && of[i].IsStatic() && !of[i].Is(n) {
			return false
		}
	}
	return true
}

// reread reads the graph with the numbers of dimensions that are known by now, unless
// it was read with them.
func (t *target) reread(last *graphReading) (*graphReading, error) {
	if err := t.infer(); err != nil {
		return nil, err
	}
	for _, v := range t.inputs {
		if _, err := t.shape(v); err != nil {
			return nil, err
		}
	}
	if last.graph == t.m.Graph {
		return last, nil
	}
	return readGraph(t.m, t.known, t.lossValue(), t.inputs), nil
}

func (r *graphReading) meaning(name string) *meaning {
	for _, x := range r.meanings {
		if x.input.Name == name {
			return x
		}
	}
	return nil
}

func shapeOf(v *onnx.Value) []int64 { n, _ := v.Type.Shape.Ints(); return n }

// bindTokens settles batch and length by the input that takes tokens: [batch, length],
// or [length] for a batch of one.
func (t *target) bindTokens(s *Source, v *onnx.Value, l *language) error {
	if !v.Type.Ranked || len(v.Type.Shape) < 1 || len(v.Type.Shape) > 2 {
		return &InputError{v.Name, fmt.Sprintf("is %s, want tokens as [batch, length]", v.Type)}
	}
	axis := len(v.Type.Shape) - 1
	if axis == 0 {
		if t.batch > 1 {
			return fmt.Errorf("--batch %d: input %q has no axis of samples", t.batch, v.Name)
		}
		t.batch = 1
	} else if err := t.bindBatch(v); err != nil {
		return err
	}
	d := v.Type.Shape[axis].Subst(t.dims)
	n, known := d.Int()
	if rows := s.train.tokens; len(rows.shape) == 2 {
		switch length := rows.shape[1]; {
		case !known && t.bind(v, axis, length):
			n = length
		case !known:
			return &InputError{v.Name, fmt.Sprintf("its length (%s) is free: add --dim", d)}
		case n != length && n+1 != length:
			return fmt.Errorf("--tokens %s: rows of %d tokens, the model's length is %d (input %q)", s.train.name, length, n, v.Name)
		}
	} else if !known {
		name := "seq"
		if symbols := d.Symbols(); len(symbols) > 0 {
			name = symbols[0]
		}
		return &InputError{v.Name, fmt.Sprintf("its length (%s) is free: add --dim %s=N, the tokens of a sample", d, name)}
	}
	if n < 1 {
		return &InputError{v.Name, "a length of 0"}
	}
	l.Batch, l.Length = t.batch, n
	return nil
}

// rebind gives the length of an input another number; false where the file or the
// caller fixed it.
func (t *target) rebind(v *onnx.Value, n int64) bool {
	for _, given := range t.source.Graph.Inputs {
		if given.Name != v.Name {
			continue
		}
		d := given.Type.Shape[len(given.Type.Shape)-1]
		if symbols := d.Symbols(); n > 0 && len(symbols) == 1 && d.String() == symbols[0] && t.given[symbols[0]] == 0 {
			t.dims[symbols[0]] = n
			return true
		}
	}
	return false
}

// settle finds what labels are and which of them count.
func (l *language) settle(stated string, r *graphReading, labelled *meaning) error {
	pairs, err := r.comparisons(labelled, l.Batch, l.Length)
	kind := ""
	if err == nil {
		kind, err = shiftOf(pairs, l.Length)
	}
	l.Ignored, l.Ignores = ignoredBy(labelled)
	l.Ignores = l.Ignores && !r.meanOfAll(r.loss)
	l.counted = nil
	if err == nil {
		l.counted = make([]bool, l.Batch*l.Length)
		for _, p := range pairs {
			l.counted[p.label] = true
		}
		if !slices.Contains(l.counted, false) {
			l.counted = nil
		}
	}
	seen := map[string]string{
		LabelsSame: "the model compares its prediction at i with the label at i+1",
		LabelsNext: "the model compares its prediction at i with the label at i",
	}
	switch {
	case l.Labels == "":
		l.Kind, l.Why = LabelsSame, "the model has no input for labels"
	case stated != "" && kind != "" && stated != kind:
		l.Kind, l.Why = stated, "--labels says so, though "+seen[kind]
	case stated != "":
		l.Kind, l.Why = stated, "--labels says so"
	case err == nil:
		l.Kind, l.Why = kind, seen[kind]
	default:
		return fmt.Errorf("whether the model shifts its labels is not known (%w): give --labels same if it does, as transformers do, or --labels next if a label is the next token already", err)
	}
	return nil
}

// notes say how the inputs are fed.
func (l *language) notes() []string {
	parts := []string{l.Tokens + ": tokens"}
	if l.Labels != "" {
		what := "the same tokens"
		if l.Kind == LabelsNext {
			what = "the next tokens"
		}
		parts = append(parts, fmt.Sprintf("%s: %s, since %s", l.Labels, what, l.Why))
	}
	for _, name := range slices.Sorted(maps.Keys(l.Fill)) {
		parts = append(parts, name+": "+l.Fill[name])
	}
	return []string{strings.Join(parts, "; ")}
}

// extra is the number of tokens that the labels of a sample reach beyond it.
func (l *language) extra() int64 {
	if l.Kind == LabelsNext {
		return 1
	}
	return 0
}

// canFill reports that a sample can be left empty: the loss ignores its labels.
func (l *language) canFill() bool { return l.labels != nil && l.Ignores }
