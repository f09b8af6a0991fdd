package units

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
)

// Size is a size as a user writes it: bytes, or a share of something that is
// known later.
type Size struct {
	Bytes   int64
	Share   float64 // 0.5 for 50%
	IsShare bool
}

// sizeUnits are the units a size may have; the decimal ones mean what they say.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"B", 1}, {"", 1},
}

var errSize = errors.New("want a size such as 512MiB, 4GiB or 50%")

// ParseSize reads "512MiB", "1.5 GiB", "200MB", "1048576" or "50%". It
// refuses nothing-at-all, signs, exponents and what does not fit in 63 bits;
// a fraction of a byte is dropped.
func ParseSize(s string) (Size, error) {
	text := strings.TrimSpace(s)
	if number, ok := strings.CutSuffix(text, "%"); ok {
		r, err := decimal(number)
		if err != nil {
			return Size{}, fmt.Errorf("size %q: %w", s, err)
		}
		share, _ := r.Quo(r, big.NewRat(100, 1)).Float64()
		if share <= 0 || math.IsInf(share, 0) {
			return Size{}, fmt.Errorf("size %q: a share must be above 0%%", s)
		}
		return Size{Share: share, IsShare: true}, nil
	}
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		r, err := decimal(number)
		if err != nil {
			return Size{}, fmt.Errorf("size %q: %w", s, err)
		}
		r.Mul(r, new(big.Rat).SetInt64(u.bytes))
		whole := new(big.Int).Quo(r.Num(), r.Denom())
		if !whole.IsInt64() {
			return Size{}, fmt.Errorf("size %q: more than 2^63-1 bytes", s)
		}
		return Size{Bytes: whole.Int64()}, nil
	}
	return Size{}, fmt.Errorf("size %q: %w", s, errSize)
}

// ParseShare reads a share such as "10%" or "0%".
func ParseShare(s string) (float64, error) {
	if number, ok := strings.CutSuffix(strings.TrimSpace(s), "%"); ok {
		if r, err := decimal(number); err == nil {
			share, _ := r.Quo(r, big.NewRat(100, 1)).Float64()
			return share, nil
		}
	}
	return 0, fmt.Errorf("share %q: want a number of percent, such as 10%%", s)
}

// decimal reads digits with at most one point; 32 characters are plenty.
func decimal(s string) (*big.Rat, error) {
	s = strings.TrimRight(s, " ")
	if s == "" || len(s) > 32 || strings.Trim(s, "0123456789.") != "" || strings.Trim(s, ".") == "" {
		return nil, errSize
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil, errSize
	}
	return r, nil
}

// Of is the size in bytes; a share is taken of total and rounded down.
func (z Size) Of(total int64) int64 {
	if !z.IsShare {
		return z.Bytes
	}
	x := math.Floor(z.Share * float64(total))
	if x >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(x)
}

// String writes the size so that ParseSize reads it back.
func (z Size) String() string {
	if z.IsShare {
		return fmt.Sprintf("%s%%", TrimZeros(fmt.Sprintf("%.12f", z.Share*100)))
	}
	for i := 3; i >= 0; i-- {
		if u := sizeUnits[i]; z.Bytes != 0 && z.Bytes%u.bytes == 0 {
			return fmt.Sprintf("%d%s", z.Bytes/u.bytes, u.suffix)
		}
	}
	return fmt.Sprintf("%dB", z.Bytes)
}

// TrimZeros drops the zeros at the end of a decimal fraction.
func TrimZeros(s string) string {
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
