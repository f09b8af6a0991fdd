package step

import (
	"encoding/json"
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// ApartKey is the metadata entry that holds Apart as JSON, of a training graph and of its
// states: what a state has no value for is else taken to be tied to the parameter.
const ApartKey = "remat.apart"

// Noted are the entries of a training graph that its states have too.
var Noted = []string{AdaptersKey, ApartKey}

// Apart are the initializers that hold the numbers of a trained parameter, or its transpose,
// and stay as they are.
type Apart []string

// Write makes the names the model's metadata entry; none leaves none.
func (a Apart) Write(m *onnx.Model) error {
	if len(a) == 0 {
		return nil
	}
	return m.SetJSON(ApartKey, a)
}

// ParseApart reads the JSON form; an empty text holds none.
func ParseApart(text string) (a Apart, err error) {
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf("metadata %s: %w", ApartKey, err)
	}
	return a, nil
}
