package loss

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// A Kind is a loss by name.
type Kind string

// The losses.
const (
	CrossEntropy Kind = "cross-entropy"
	NextToken    Kind = "next-token"
	Binary       Kind = "bce"
	Squares      Kind = "mse"
	Distances    Kind = "l1"
)

// kind is a row of the table of losses.
type kind struct {
	name Kind
	// Doc is what it is, for help.
	doc string
	// inverse are the operators whose input is meant where they made the prediction.
	inverse []string
	// emit writes the loss of x; made is what gave way to x, nil where nothing did.
	emit func(a *adder, x *onnx.Value, made *source) (*onnx.Value, error)
}

var kinds = []kind{
	{CrossEntropy, "of classes, labels are their numbers", []string{"Softmax", "LogSoftmax"}, crossEntropy},
	{NextToken, "of a language model, labels are the tokens", []string{"Softmax", "LogSoftmax"}, nextToken},
	{Binary, "binary cross entropy, labels between 0 and 1", []string{"Sigmoid"}, binaryEntropy},
	{Squares, "mean of squares of differences", nil, squares},
	{Distances, "mean of differences without sign", nil, distances},
}

// Kinds lists the losses, joined for a flag's help, and what each is.
func Kinds() (joined string, docs []string) {
	var list []string
	for _, k := range kinds {
		list = append(list, string(k.name))
		docs = append(docs, fmt.Sprintf("%s: %s", k.name, k.doc))
	}
	return strings.Join(list, "|"), docs
}

// ParseKind reads the name of a loss.
func ParseKind(name string) (Kind, error) {
	for _, k := range kinds {
		if string(k.name) == name {
			return k.name, nil
		}
	}
	joined, _ := Kinds()
	return "", fmt.Errorf("no loss %q: want %s", name, strings.ReplaceAll(joined, "|", ", "))
}

func (k Kind) row() kind {
	for _, row := range kinds {
		if row.name == k {
			return row
		}
	}
	panic("loss: no kind " + string(k))
}
