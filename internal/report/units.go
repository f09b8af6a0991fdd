package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// none stands in a table for what does not apply.
const none = "–"

var binaryUnits = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Bytes writes a size with its binary unit: "812 B", "512.0 MiB", and from
// GiB on with two decimals, "2.33 GiB".
func Bytes(n int64) string {
	x := float64(n)
	if math.Abs(x) < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	unit := -1
	for math.Abs(x) >= 1024 && unit+1 < len(binaryUnits) {
		x /= 1024
		unit++
	}
	// 1023.96 KiB would round to 1024.0 KiB.
	if math.Abs(x) >= 1023.95 && unit+1 < len(binaryUnits) {
		x /= 1024
		unit++
	}
	digits := 1
	if unit >= 2 {
		digits = 2
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + " " + binaryUnits[unit]
}

// BytesUp writes a size, rounded up, as a flag takes it: "40.1MiB".
func BytesUp(n int64) string {
	unit, suffix := int64(1), "B"
	for i := 0; i < 4 && n/unit >= 1024; i++ {
		unit, suffix = unit<<10, binaryUnits[i]
	}
	if unit == 1 {
		return strconv.FormatInt(n, 10) + suffix
	}
	hundredths := (n/unit)*100 + (n%unit*100+unit-1)/unit
	text := fmt.Sprintf("%d.%02d", hundredths/100, hundredths%100)
	return trimZeros(text) + suffix
}

// Seconds writes a time with the unit that fits: µs, ms, s, minutes.
func Seconds(s float64) string {
	switch a := math.Abs(s); {
	case math.IsNaN(s) || math.IsInf(s, 0):
		return none
	case a == 0:
		return "0 s"
	case a < 0.9995e-3:
		return fmt.Sprintf("%.1f µs", s*1e6)
	case a < 0.9995:
		return fmt.Sprintf("%.1f ms", s*1e3)
	case a < 59.995:
		return fmt.Sprintf("%.2f s", s)
	}
	whole := int64(math.Round(s))
	return fmt.Sprintf("%d min %02d s", whole/60, max(whole%60, -(whole%60)))
}

// Percent writes a share, 0.626 as "62.6 %".
func Percent(share float64) string {
	if math.IsNaN(share) || math.IsInf(share, 0) {
		return Number(share)
	}
	return strconv.FormatFloat(noMinusZero(share*100, 0.05), 'f', 1, 64) + " %"
}

// Signed writes a share with its sign, as overheads are: "+6.0 %".
func Signed(share float64) string {
	s := Percent(share)
	if share > 0 && !strings.HasPrefix(s, "0.0") {
		return "+" + s
	}
	return s
}

// Number writes a float as short as it can be with six digits.
func Number(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case math.IsInf(x, 1):
		return "∞"
	case math.IsInf(x, -1):
		return "-∞"
	}
	return strconv.FormatFloat(x, 'g', 6, 64)
}

// Count writes a large count with its decimal prefix: 1234567 as "1.23 M".
func Count(n int64) string {
	x, prefixes := float64(n), []string{"", " k", " M", " G", " T", " P", " E"}
	if math.Abs(x) < 10000 {
		return strconv.FormatInt(n, 10)
	}
	i := 0
	for ; math.Abs(x) >= 999.5 && i+1 < len(prefixes); i++ {
		x /= 1000
	}
	return strconv.FormatFloat(x, 'g', 3, 64) + prefixes[i]
}

// noMinusZero drops the sign of what rounds to zero.
func noMinusZero(x, half float64) float64 {
	if math.Abs(x) < half {
		return 0
	}
	return x
}

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

func bytesOr(n *int64) string {
	if n == nil {
		return none
	}
	return Bytes(*n)
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
