// Package units writes sizes, times, shares and counts as people read them, and reads
// sizes as people write them.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// None stands for what is no number.
const None = "–"

// Binary are the units of Bytes from 1024 bytes on.
var Binary = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}

// Bytes writes a size with its binary unit: "812 B", "512.0 MiB", and from
// GiB on with two decimals, "2.33 GiB".
func Bytes(n int64) string {
	x := float64(n)
	if math.Abs(x) < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	unit := -1
	for math.Abs(x) >= 1024 && unit+1 < len(Binary) {
		x /= 1024
		unit++
	}
	// 1023.96 KiB would round to 1024.0 KiB.
	if math.Abs(x) >= 1023.95 && unit+1 < len(Binary) {
		x /= 1024
		unit++
	}
	digits := 1
	if unit >= 2 {
		digits = 2
	}
	return strconv.FormatFloat(x, 'f', digits, 64) + " " + Binary[unit]
}

// Distinct writes sizes that one sentence compares: as Bytes does, or in bytes where two
// that differ would read the same.
func Distinct(sizes ...int64) []string {
	text, size := make([]string, len(sizes)), map[string]int64{}
	for i, n := range sizes {
		text[i] = Bytes(n)
		if other, ok := size[text[i]]; ok && other != n {
			for i, n := range sizes {
				text[i] = strconv.FormatInt(n, 10) + " B"
			}
			return text
		}
		size[text[i]] = n
	}
	return text
}

// BytesUp writes a size, rounded up, as a flag takes it: "40.1MiB".
func BytesUp(n int64) string {
	unit, suffix := int64(1), "B"
	for i := 0; i < 4 && n/unit >= 1024; i++ {
		unit, suffix = unit<<10, Binary[i]
	}
	if unit == 1 {
		return strconv.FormatInt(n, 10) + suffix
	}
	hundredths := (n/unit)*100 + (n%unit*100+unit-1)/unit
	text := fmt.Sprintf("%d.%02d", hundredths/100, hundredths%100)
	return TrimZeros(text) + suffix
}

// Seconds writes a time with the unit that fits: µs, ms, s, minutes.
func Seconds(s float64) string {
	switch a := math.Abs(s); {
	case math.IsNaN(s) || math.IsInf(s, 0):
		return None
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
	return strconv.FormatFloat(NoMinusZero(share*100, 0.05), 'f', 1, 64) + " %"
}

// Signed writes a share with its sign, as overheads are: "+6.0 %".
func Signed(share float64) string {
	s := Percent(share)
	if share > 0 && !strings.HasPrefix(s, "0.0") {
		return "+" + s
	}
	return s
}

// Saved writes what share of a size is saved, "23.1 % saved", or how much more there is.
func Saved(share float64) string {
	s := Percent(share)
	if more, ok := strings.CutPrefix(s, "-"); ok {
		return more + " more"
	}
	return s + " saved"
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

// Counted writes a number of things, whose plural ends in s.
func Counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
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

// NoMinusZero drops the sign of what rounds to zero.
func NoMinusZero(x, half float64) float64 {
	if math.Abs(x) < half {
		return 0
	}
	return x
}
