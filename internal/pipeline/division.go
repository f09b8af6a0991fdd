package pipeline

// In how many parts something is computed that would otherwise exist whole.

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/onnx-remat/remat/internal/units"
)

// A Division says in how many parts something is computed; the zero value leaves
// it whole.
type Division struct {
	Mode DivisionMode
	// N is the number of parts of mode InParts, 2 or more.
	N int
	// Bytes is what a slice of the loss may hold, of mode WithinBytes.
	Bytes int64
}

// Divisions say what of a graph is computed in parts.
type Divisions struct {
	// Batch says in how many slices of the batch the step is computed.
	Batch Division `json:"micro_batches"`
	// Chunk says in how many slices the loss is computed.
	Chunk Division `json:"chunk_loss"`
	// Tile says in how many parts wide products inside layers are computed.
	Tile Division `json:"tile"`
	// Rows says in how many slices the next values of the largest parameters and
	// their state are computed, gradients included.
	Rows Division `json:"update_rows"`
}

// An Asked is one of Divisions, with the flag that asks for it, how that is read, and the
// pass that divides.
type Asked struct {
	Flag, Pass string
	Parse      func(string) (Division, error)
	*Division
}

// Flags lists the divisions, by reference.
func (d *Divisions) Flags() []Asked {
	return []Asked{
		{"micro-batches", "batch", parseMicroBatches, &d.Batch},
		{"chunk-loss", "chunk", ParseSlices, &d.Chunk},
		{"tile", "tile", ParseDivision, &d.Tile},
		{"update-rows", "rows", ParseDivision, &d.Rows},
	}
}

// Asked lists the divisions that are asked for.
func (d *Divisions) Asked() []Asked {
	return slices.DeleteFunc(d.Flags(), func(a Asked) bool { return a.Mode == Whole })
}

// A DivisionMode says who chooses the number of parts.
type DivisionMode int

// Modes of a Division. Coarse and Fine are for the loss, whose automatic number
// makes a slice no larger than what it comes from and leaves its products fast:
// fewer slices than that, or more, whether products stay fast or not. They are for the
// batch too: fewer slices, which read little again, or more, as many as are worth their nodes.
const (
	Whole DivisionMode = iota
	InParts
	Automatic
	Coarse
	Fine
	// WithinBytes is for the loss: as few slices as keep a workspace in bytes.
	WithinBytes
)

// auto lets the pass choose.
var auto = Division{Mode: Automatic}

// Parts divides into n parts; 0 leaves whole.
func Parts(n int) Division {
	if n == 0 {
		return Division{}
	}
	return Division{Mode: InParts, N: n}
}

// ParseDivision reads off, auto or a number of parts of at least 2; "" is off.
func ParseDivision(text string) (Division, error) {
	switch text {
	case "off", "":
		return Division{}, nil
	case "auto":
		return auto, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 2 {
		return Division{}, fmt.Errorf("want off, auto or a number of parts (at least 2)")
	}
	return Parts(n), nil
}

// ParseSlices is ParseDivision for the loss, whose slices may be given by what one of
// them holds, in bytes with a unit: 256MiB.
func ParseSlices(text string) (Division, error) {
	d, err := ParseDivision(text)
	if err == nil || text[len(text)-1] < 'A' {
		return d, err
	}
	size, err := units.ParseSize(text)
	if err != nil || size.Bytes == 0 {
		return Division{}, errors.New("want off, auto, a number of parts (at least 2), or what a slice may hold, such as 256MiB")
	}
	return Division{Mode: WithinBytes, Bytes: size.Bytes}, nil
}

// parseMicroBatches is ParseDivision for the batch, whose slices are given by their number.
func parseMicroBatches(text string) (Division, error) {
	d, err := ParseDivision(text)
	if err != nil || d.Mode == Automatic {
		return Division{}, errors.New("want off or a number of slices of the batch (at least 2)")
	}
	return d, nil
}

// String is what ParseDivision or ParseSlices reads.
func (d Division) String() string {
	switch d.Mode {
	case Whole:
		return "off"
	case InParts:
		return fmt.Sprint(d.N)
	case WithinBytes:
		return fmt.Sprintf("%dB", d.Bytes)
	}
	return "auto"
}

// or is the number of parts, or n where the pass chooses.
func (d Division) or(n int) int {
	if d.Mode == InParts {
		return d.N
	}
	return n
}

// autoNumber stands in plan files for a number of parts that the pass chooses.
const autoNumber = -1

// MarshalJSON writes the number of parts: 0 for none, -1 for automatic.
func (d Division) MarshalJSON() ([]byte, error) {
	n := autoNumber
	switch d.Mode {
	case Whole:
		n = 0
	case InParts:
		n = d.N
	}
	return json.Marshal(n)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (d *Division) UnmarshalJSON(data []byte) error {
	var n int
	if err := json.Unmarshal(data, &n); err != nil {
		return err
	}
	switch {
	case n == autoNumber:
		*d = auto
	case n == 0 || n >= 2:
		*d = Parts(n)
	default:
		return fmt.Errorf("%d parts: want 0, %d for auto or at least 2", n, autoNumber)
	}
	return nil
}
