package data

// Which input of a language model gets what: by what the graph does with it, and by
// its name where that leaves several answers.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Names that break ties.
var (
	tokenNames = []string{"input_ids", "token_ids", "tokens", "ids", "idx", "input", "x"}
	labelNames = []string{"labels", "label", "targets", "target", "y"}
)

// assign finds the inputs for tokens and labels, and what all others are filled
// with. labels is nil where the tokens themselves are what the loss compares with,
// or where it compares with none.
func (t *target) assign(r *graphReading, given map[string]string) (tokens, labels *meaning, fill map[string]string, err error) {
	if len(t.inputs) == 0 {
		return nil, nil, nil, errNoInput
	}
	stated := map[string]*meaning{}
	for _, x := range r.meanings {
		if word := given[x.input.Name]; word == fillTokens || word == fillLabels {
			if stated[word] != nil {
				return nil, nil, nil, fmt.Errorf("--fill: %s and %s are both said to get %s", stated[word].input.Name, x.input.Name, word)
			}
			stated[word] = x
		}
	}
	if labels = stated[fillLabels]; labels == nil {
		if labels, err = pickLabels(r, given); err != nil {
			return nil, nil, nil, err
		}
	}
	if tokens = stated[fillTokens]; tokens == nil {
		if tokens, err = pickTokens(r, labels, given); err != nil {
			return nil, nil, nil, err
		}
	}
	for _, x := range []*meaning{tokens, labels} {
		if x != nil && !x.input.Type.DType.IsInt() {
			return nil, nil, nil, &InputError{x.input.Name, fmt.Sprintf("is %s, tokens and labels are whole numbers", x.input.Type.DType)}
		}
	}
	if labels == tokens {
		labels = nil
	}
	if labels != nil && len(labels.tables) > 0 {
		return nil, nil, nil, &InputError{labels.input.Name, "holds labels, and the model embeds them too, as an encoder-decoder does: --text and --tokens are for language models, use --data F.npz"}
	}
	fill = map[string]string{}
	for _, x := range r.meanings {
		name := x.input.Name
		if x == tokens || x == labels {
			continue
		}
		if fill[name] = given[name]; fill[name] == "" {
			if fill[name], err = x.filling(); err != nil {
				return nil, nil, nil, err
			}
		}
	}
	return tokens, labels, fill, nil
}

// pickLabels finds the input that the loss compares with, nil where there is none.
func pickLabels(r *graphReading, given map[string]string) (*meaning, error) {
	var list []*meaning
	for _, x := range r.meanings {
		if len(x.targets) > 0 && given[x.input.Name] == "" {
			list = append(list, x)
		}
	}
	// What is only compared with comes before what is embedded as well.
	if pure := slices.DeleteFunc(slices.Clone(list), func(x *meaning) bool { return len(x.tables) > 0 }); len(pure) > 0 {
		list = pure
	}
	return oneOf(list, labelNames, fillLabels, "reach the loss as labels")
}

// pickTokens finds the input that indexes an embedding.
func pickTokens(r *graphReading, labels *meaning, given map[string]string) (*meaning, error) {
	var list []*meaning
	for _, x := range r.meanings {
		if len(x.tables) > 0 && given[x.input.Name] == "" {
			list = append(list, x)
		}
	}
	if len(list) > 1 { // an encoder-decoder embeds its labels
		list = slices.DeleteFunc(list, func(x *meaning) bool { return x == labels })
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no input of whole numbers reaches an embedding, so none takes tokens: use --data F.npz, or give --fill NAME=tokens")
	}
	if len(list) > 1 && labels != nil {
		// The table of tokens has a row for each class of the loss.
		n := classes(labels.targets[0])
		if same := slices.DeleteFunc(slices.Clone(list), func(x *meaning) bool { return !slices.Contains(x.tables, n) }); n > 0 && len(same) > 0 {
			list = same
		}
	}
	return oneOf(list, tokenNames, fillTokens, "reach an embedding")
}

// oneOf takes the only one of a list, or the one that has the first of the names.
func oneOf(list []*meaning, names []string, word, what string) (*meaning, error) {
	switch len(list) {
	case 0:
		return nil, nil
	case 1:
		return list[0], nil
	}
	for _, name := range names {
		for _, x := range list {
			if strings.EqualFold(x.input.Name, name) {
				return x, nil
			}
		}
	}
	var have []string
	for _, x := range list {
		have = append(have, x.input.Name)
	}
	return nil, fmt.Errorf("inputs %s all %s: say which with --fill NAME=%s", strings.Join(have, ", "), what, word)
}

// Unread reports an input whose values nothing reads: its size alone may be, as where
// a written graph delays a node.
func Unread(v *onnx.Value) bool {
	return !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !traits.ReadsShape(u.Node) })
}

// filling is what an input gets that takes neither tokens nor labels.
func (x *meaning) filling() (string, error) {
	v, name := x.input, strings.ToLower(x.input.Name)
	whole := v.Type.DType.IsInt() || v.Type.DType == onnx.Bool
	called := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
	}
	switch {
	case Unread(v):
		return fillZeros, nil
	case whole && x.angular:
		return fillPositions, nil
	case len(x.tables) > 0 && called("pos"):
		return fillPositions, nil
	case len(x.tables) > 0 && (called("type", "segment") || slices.Max(x.tables) == 2):
		return fillZeros, nil
	case len(x.tables) > 0 || len(x.targets) > 0:
	case whole && x.logical, whole && called("mask"):
		return fillOnes, nil
	case whole && called("pos"):
		return fillPositions, nil
	}
	return "", &InputError{v.Name, fmt.Sprintf("%s, neither tokens nor labels, and the graph does not show what it takes: give --fill %s=ones|zeros|positions, or use --data F.npz", v.Type, v.Name)}
}
