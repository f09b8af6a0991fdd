package report

import (
	"math"
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
		{59.996, "1 min 00 s"}, {125, "2 min 05 s"}, {math.NaN(), none}, {math.Inf(1), none},
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

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 9999: "9999", 12345: "12.3 k", 874_000_000_000: "874 G", 999_960: "1 M"} {
		if got := Count(n); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestClean(t *testing.T) {
	for s, want := range map[string]string{
		"/h.0/attn/MatMul": "/h.0/attn/MatMul", "größe": "größe", "a\x1b[31mb": `a\x1b[31mb`, "a\nb": `a\nb`,
		"\u202eevil": `\u202eevil`, "bad\xff": `bad\xff`, `quoted "name"` + "\t": `quoted "name"\t`,
	} {
		if got := clean(s); got != want {
			t.Errorf("clean(%q) = %q, want %q", s, got, want)
		}
	}
}

func TestElide(t *testing.T) {
	for _, c := range []struct {
		s    string
		n    int
		want string
	}{{"short", 10, "short"}, {"abcdefghij", 5, "ab…ij"}, {"äöüäöü", 4, "ä…öü"}} {
		if got := elide(c.s, c.n); got != c.want {
			t.Errorf("elide(%q, %d) = %q, want %q", c.s, c.n, got, c.want)
		}
	}
}

// TestShorten: names that are long and alike keep what tells them apart.
func TestShorten(t *testing.T) {
	const before, after = "runs/a-long-name-of-a-graph-with-strategy-", "-and-more-behind-it.onnx"
	names := []string{"train.onnx", before + "full" + after, before + "sqrt" + after, before + "segments=12" + after}
	want := []string{"train.onnx", "runs/a-l…full…-it.onnx", "runs/a-l…sqrt…-it.onnx", "runs/a-l…segments=12…-it.onnx"}
	got := shorten(names, 40)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%q became %q, want %q", names[i], got[i], want[i])
		}
	}
	for _, n := range []int{12, 26, 40} {
		for i, short := range shorten([]string{"", "ü", before, before + before, before + "x" + after}, n) {
			if c := len([]rune(short)); c > n {
				t.Errorf("name %d has %d letters, want %d at most: %q", i, c, n, short)
			}
		}
	}
}
