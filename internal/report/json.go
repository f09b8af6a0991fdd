package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Float is a float64 that survives JSON: NaN and the infinities are the
// strings "NaN", "Infinity" and "-Infinity".
type Float float64

// MarshalJSON writes a number, or a string where JSON has none.
func (f Float) MarshalJSON() ([]byte, error) {
	x := float64(f)
	switch {
	case math.IsNaN(x):
		return []byte(`"NaN"`), nil
	case math.IsInf(x, 1):
		return []byte(`"Infinity"`), nil
	case math.IsInf(x, -1):
		return []byte(`"-Infinity"`), nil
	}
	return json.Marshal(x)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (f *Float) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case `"NaN"`:
		*f = Float(math.NaN())
		return nil
	case `"Infinity"`:
		*f = Float(math.Inf(1))
		return nil
	case `"-Infinity"`:
		*f = Float(math.Inf(-1))
		return nil
	case "null":
		return nil
	}
	x, err := strconv.ParseFloat(string(data), 64)
	if err != nil {
		return fmt.Errorf("report: %q is not a number", data)
	}
	*f = Float(x)
	return nil
}

// Text is a string whose absence is null in JSON.
type Text string

// MarshalJSON writes null for the empty text.
func (t Text) MarshalJSON() ([]byte, error) {
	if t == "" {
		return []byte("null"), nil
	}
	return json.Marshal(string(t))
}

// WriteJSON writes one document, indented, with a newline at its end.
func WriteJSON(w io.Writer, document any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(document); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}

// list makes an absent list an empty one: programs read [], not null.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
