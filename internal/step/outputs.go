package step

// The ways in which a runtime hands out a step's next values, and large gradients.
//
//	bound      P.new is written over P: one memory, given beforehand
//	rows       so is it, and where P.new is computed in slices of its rows, each slice is
//	           an output of its own that is written over its rows of P (rows.go); and a large
//	           gradient is summed up in the memory in which it is returned (sums.go)
//	returned   P.new is a new value, which lives beside P until the run ends
//
// Where the caller can bind outputs, the first takes less than the last, and the second the
// least. Browsers cannot, and a plain session.run does not.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// Outputs is one of the ways; "" leaves it to the file.
type Outputs string

// The ways of outputs.
const (
	Bound    Outputs = "bound"
	Rows     Outputs = "rows"
	Returned Outputs = "returned"
)

// OutputsKey is the metadata entry that says for which way a file was written.
const OutputsKey = "remat.outputs"

// ParseOutputs reads a name; "" is "".
func ParseOutputs(text string) (Outputs, error) {
	switch o := Outputs(text); o {
	case "", Bound, Rows, Returned:
		return o, nil
	}
	return "", fmt.Errorf("%q: want bound, rows or returned", text)
}

// OutputsOf is the way that is given, or else that of the model's metadata entry, or
// else Bound.
func OutputsOf(m *onnx.Model, given Outputs) (Outputs, error) {
	if given != "" {
		return given, nil
	}
	text, _ := m.Metadata(OutputsKey)
	if text == "" {
		return Bound, nil
	}
	o, err := ParseOutputs(text)
	if err != nil {
		return "", fmt.Errorf("metadata %s: %w", OutputsKey, err)
	}
	return o, nil
}
