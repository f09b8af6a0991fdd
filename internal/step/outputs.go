package step

// The two ways in which a runtime hands out a step's next values.
//
//	bound      P.new is written over P: one memory, given beforehand
//	returned   P.new is a new value, which lives beside P until the run ends
//
// Where the caller can bind outputs, the first takes less. Browsers cannot, and a plain
// session.run does not.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// Outputs is one of the two ways; "" leaves it to the file.
type Outputs string

// The ways of outputs.
const (
	Bound    Outputs = "bound"
	Returned Outputs = "returned"
)

// OutputsKey is the metadata entry that says for which way a file was written.
const OutputsKey = "remat.outputs"

// ParseOutputs reads a name; "" is "".
func ParseOutputs(text string) (Outputs, error) {
	switch o := Outputs(text); o {
	case "", Bound, Returned:
		return o, nil
	}
	return "", fmt.Errorf("%q: want returned or bound", text)
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
