package report

import (
	"strconv"
	"strings"
	"unicode"

	"github.com/onnx-remat/remat/internal/units"
)

// none stands in a table for what does not apply.
const none = units.None

func itoa(n int) string { return strconv.Itoa(n) }

// clean makes a name from a file printable: control characters, terminal
// escapes, direction marks and broken UTF-8 become escapes.
func clean(s string) string {
	printable := true
	for _, r := range s {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			printable = false
			break
		}
	}
	if printable {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

// Shorten makes a name printable, in at most n letters: what is left out is in the
// middle, as names begin with where and end with what.
func Shorten(name string, n int) string { return elide(clean(name), n) }

// elide shortens to at most n runes, leaving out the middle.
func elide(s string, n int) string {
	r := []rune(s)
	if len(r) <= n || n < 3 {
		return s
	}
	head := (n - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}

// The functions below write nullable numbers.

// BytesOr writes a size, or that it is not known.
func BytesOr(n *int64) string {
	if n == nil {
		return none
	}
	return units.Bytes(*n)
}

func floatOr(f *Float, write func(float64) string) string {
	if f == nil {
		return none
	}
	return write(float64(*f))
}

func textOr(s string) string {
	if s == "" {
		return none
	}
	return clean(s)
}
