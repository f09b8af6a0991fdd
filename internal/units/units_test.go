package units

import (
	"math"
	"slices"
	"testing"
)

func TestBytes(t *testing.T) {
	for _, c := range []struct {
		n    int64
		want string
	}{
		{0, "0 B"}, {1023, "1023 B"}, {1024, "1.0 KiB"}, {-4096, "-4.0 KiB"}, {512 << 20, "512.0 MiB"},
		{1<<20 - 1, "1.0 MiB"}, {1<<30 - 1, "1.00 GiB"}, {5 << 29, "2.50 GiB"}, {math.MaxInt64, "8.00 EiB"}, {math.MinInt64, "-8.00 EiB"},
	} {
		if got := Bytes(c.n); got != c.want {
			t.Errorf("Bytes(%d) = %q, want %q", c.n, got, c.want)
		}
	}
}

// TestDistinct: sizes that differ read differently.
func TestDistinct(t *testing.T) {
	for _, c := range []struct {
		sizes []int64
		want  []string
	}{
		{[]int64{1024, 5 << 20}, []string{"1.0 KiB", "5.0 MiB"}},
		{[]int64{5 << 20, 5<<20 + 4, 1024}, []string{"5242880 B", "5242884 B", "1024 B"}},
		{[]int64{1 << 30, 1 << 30}, []string{"1.00 GiB", "1.00 GiB"}},
	} {
		if got := Distinct(c.sizes...); !slices.Equal(got, c.want) {
			t.Errorf("Distinct(%v) = %q, want %q", c.sizes, got, c.want)
		}
	}
}

// TestBytesUp writes a size that is enough when it is read back, and not much more.
func TestBytesUp(t *testing.T) {
	for _, n := range []int64{0, 1, 1023, 1024, 1025, 41959440, 1<<20 - 1, 1<<30 + 1, 5 << 29, 1<<50 + 7, math.MaxInt64 / 2} {
		text := BytesUp(n)
		size, err := ParseSize(text)
		if err != nil || size.Bytes < n || float64(size.Bytes) > 1.011*float64(n)+1 {
			t.Errorf("BytesUp(%d) = %q, which is %d, %v", n, text, size.Bytes, err)
		}
	}
}

func TestSeconds(t *testing.T) {
	for _, c := range []struct {
		s    float64
		want string
	}{
		{0, "0 s"}, {12.34e-6, "12.3 µs"}, {0.00099996, "1.0 ms"}, {0.1234, "123.4 ms"}, {0.99996, "1.00 s"}, {5.391, "5.39 s"},
		{59.996, "1 min 00 s"}, {125, "2 min 05 s"}, {math.NaN(), None}, {math.Inf(1), None},
	} {
		if got := Seconds(c.s); got != c.want {
			t.Errorf("Seconds(%v) = %q, want %q", c.s, got, c.want)
		}
	}
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		x             float64
		plain, signed string
	}{
		{0.626, "62.6 %", "+62.6 %"}, {-0.0123, "-1.2 %", "-1.2 %"}, {0.0004, "0.0 %", "0.0 %"}, {-0.0004, "0.0 %", "0.0 %"}, {math.NaN(), "NaN", "NaN"}, {math.Inf(1), "∞", "+∞"},
	} {
		if got := Percent(c.x); got != c.plain {
			t.Errorf("Percent(%v) = %q, want %q", c.x, got, c.plain)
		}
		if got := Signed(c.x); got != c.signed {
			t.Errorf("Signed(%v) = %q, want %q", c.x, got, c.signed)
		}
	}
}

func TestSaved(t *testing.T) {
	for share, want := range map[float64]string{0.231: "23.1 % saved", 0: "0.0 % saved", -0.0004: "0.0 % saved", -0.861: "86.1 % more"} {
		if got := Saved(share); got != want {
			t.Errorf("Saved(%v) = %q, want %q", share, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 9999: "9999", 12345: "12.3 k", 874_000_000_000: "874 G", 999_960: "1 M"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}
