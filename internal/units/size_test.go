package units

import (
	"math"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for _, c := range []struct {
		text string
		want Size
	}{
		{"0", Size{}},
		{"1048576", Size{Bytes: 1 << 20}},
		{"12B", Size{Bytes: 12}},
		{"512MiB", Size{Bytes: 512 << 20}},
		{" 4 GiB ", Size{Bytes: 4 << 30}},
		{"1.5GiB", Size{Bytes: 3 << 29}},
		{".5KiB", Size{Bytes: 512}},
		{"2.KiB", Size{Bytes: 2048}},
		{"200MB", Size{Bytes: 200e6}},
		{"1kB", Size{Bytes: 1000}},
		{"0.0001KiB", Size{}},
		{"9223372036854775807", Size{Bytes: math.MaxInt64}},
		{"50%", Size{Share: 0.5, IsShare: true}},
		{"12.5 %", Size{Share: 0.125, IsShare: true}},
		{"100%", Size{Share: 1, IsShare: true}},
	} {
		got, err := ParseSize(c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseSize(%q) = %+v, %v, want %+v", c.text, got, err, c.want)
		}
	}
}

func TestParseSizeRefuses(t *testing.T) {
	for _, text := range []string{"", " ", "MiB", "%", "-1", "+1MiB", "1e3", "0x10", "1_000", "1/2", "1..2", ".", "4G", "4gib", "1 2",
		"NaN", "inf", "0%", "9223372036854775808", "8388608TiB", "5 0%", "50%%", "١٢", strings.Repeat("1", 40), "1\nMiB2"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %+v, want an error", text, got)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("ParseSize(%q): error of more than one line: %q", text, err)
		}
	}
}

func TestSizeOf(t *testing.T) {
	for _, c := range []struct {
		text        string
		total, want int64
	}{
		{"50%", 1001, 500}, {"100%", 77, 77}, {"3MiB", 5, 3 << 20}, {"1000%", math.MaxInt64, math.MaxInt64},
	} {
		z, err := ParseSize(c.text)
		if got := z.Of(c.total); err != nil || got != c.want {
			t.Errorf("%s of %d = %d, %v, want %d", c.text, c.total, got, err, c.want)
		}
	}
}

// FuzzParseSize: no panic, nothing negative, and what String writes reads back
// as the same size.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"512MiB", "50%", "1.5 GiB", "9223372036854775807", "0.000000001%", "-3", "1e9", "", "..%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		z, err := ParseSize(s)
		if err != nil {
			return
		}
		if z.Bytes < 0 || z.Share < 0 || math.IsNaN(z.Share) || z.Of(1<<40) < 0 {
			t.Fatalf("ParseSize(%q) = %+v", s, z)
		}
		again, err := ParseSize(z.String())
		if z.IsShare && (z.Share < 1e-10 || z.Share > 1e10) {
			return // String keeps twelve decimals
		}
		if err != nil || again.Bytes != z.Bytes || math.Abs(again.Share-z.Share) > 1e-12*max(1, z.Share) {
			t.Fatalf("%q: %+v, written %q, read %+v, %v", s, z, z.String(), again, err)
		}
	})
}
