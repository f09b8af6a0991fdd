package step

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// AdaptersKey is the metadata entry that holds Adapters as JSON, of a training graph and
// of its states: what a state has of a pair is no use without its scale.
const AdaptersKey = "remat.adapters"

// Adapters are the low-rank pairs of a graph by the name of the weight: of the pair NAME
// the parameters are NAME.lora_A and NAME.lora_B.
type Adapters map[string]Adapter

// An Adapter says what a pair's product is multiplied by: Alpha / Rank.
type Adapter struct {
	Rank  int64   `json:"r"`
	Alpha float64 `json:"alpha"`
}

// Write makes the adapters the model's metadata entry; none leaves none.
func (a Adapters) Write(m *onnx.Model) error {
	if len(a) == 0 {
		return nil
	}
	return m.SetJSON(AdaptersKey, a)
}

// ParseAdapters reads the JSON form.
func ParseAdapters(text string) (a Adapters, err error) {
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return nil, fmt.Errorf("metadata %s: %w", AdaptersKey, err)
	}
	for name, x := range a {
		if x.Rank < 1 || !(x.Alpha > 0) || math.IsInf(x.Alpha, 0) {
			return nil, fmt.Errorf("metadata %s: %q: r %d and alpha %v make no sense", AdaptersKey, name, x.Rank, x.Alpha)
		}
	}
	return a, nil
}
