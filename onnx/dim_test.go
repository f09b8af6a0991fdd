package onnx

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestDimArithmetic(t *testing.T) {
	b, s := Symbol("batch"), Symbol("seq")
	n := func(k int64) Dim { return Static(k) }
	big := n(math.MaxInt64)
	tests := []struct {
		got  Dim
		want string
	}{
		{b.Mul(s).Add(n(0)), "batch*seq"},
		{s.Sub(n(1)).Add(n(1)), "seq"},
		{s.Sub(s), "0"},
		{b.Mul(s).Mul(n(768)).Div(n(64)), "12*batch*seq"},
		{b.Mul(s).Div(s), "batch"},
		{b.Mul(s).Add(b).Div(b), "seq+1"},
		{s.Add(n(1)).Mul(b).Div(s.Add(n(1))), "batch"},
		{s.Div(n(2)), "floor((seq)/(2))"},
		{s.Div(n(2)).Sub(s.Div(n(2))), "0"},
		{n(-7).Div(n(2)), "-4"},
		{s.Div(n(0)), "?"},
		{Dim{}.Mul(n(0)), "0"},
		{Dim{}.Add(s), "?"},
		{big.Add(n(1)), "?"},
		{big.Mul(n(2)), "?"},
		{n(math.MinInt64).Mul(n(-1)), "?"},
		{n(math.MinInt64).Div(n(-1)), fmt.Sprint(int64(math.MaxInt64))},
		{s.Mul(big).Mul(n(4)), "?"},
		{b.Mul(s).Subst(map[string]int64{"batch": 3}), "3*seq"},
		{s.Div(n(2)).Subst(map[string]int64{"seq": 3}), "?"},
		{s.Div(n(2)).Subst(map[string]int64{"s": 3, "e": 1}), "floor((seq)/(2))"},
		{ParseDim("2*s0 + 1"), "2*s0+1"},
		{ParseDim("seq - 1"), "seq-1"},
		{ParseDim("a b"), "a b"},
		{ParseDim("?"), "?"},
		{Symbol("a\x01b"), "?"},
		{Symbol(strings.Repeat("a", 5000)), "?"},
	}
	for i, test := range tests {
		if test.got.String() != test.want {
			t.Errorf("case %d is %s, want %s", i, test.got, test.want)
		}
	}
}

// TestDimPrints reads polynomials back as they are printed.
func TestDimPrints(t *testing.T) {
	b, s := Symbol("batch"), Symbol("seq")
	for _, d := range []Dim{Static(12), b, b.Mul(s), s.Sub(Static(1)), b.Mul(s).Mul(Static(-3)).Add(b).Add(Static(7))} {
		if got := ParseDim(d.String()); got != d {
			t.Errorf("%s is read back as %s", d, got)
		}
	}
}

func TestDimAtLeast(t *testing.T) {
	s := Symbol("s")
	for _, test := range []struct {
		d    Dim
		n    int64
		want bool
	}{
		{s, 1, true}, {s, 2, false}, {s.Add(Static(1)), 2, true}, {s.Sub(Static(1)), 0, true},
		{s.Sub(Static(1)), 1, false}, {Static(1).Sub(s), -5, false}, {Static(4), 4, true}, {Dim{}, 0, false},
		{s.Div(Static(2)), 0, true}, {s.Div(Static(2)), 1, false}, {s.Mul(s), 1, true},
	} {
		if got := test.d.AtLeast(test.n); got != test.want {
			t.Errorf("%s at least %d: %v", test.d, test.n, got)
		}
	}
}

// TestDimBomb squares a polynomial again and again; it must become unknown
// instead of growing.
func TestDimBomb(t *testing.T) {
	d := Symbol("a").Add(Symbol("b")).Add(Symbol("c"))
	for range 64 {
		d = d.Mul(d)
	}
	if d.Known() {
		t.Errorf("%d bytes of polynomial", len(d.String()))
	}
	e := Symbol("a")
	for range 64 {
		e = e.Div(Static(3)).Add(e.Div(Static(2)))
	}
	if len(e.String()) > 10_000 {
		t.Errorf("%d bytes of polynomial", len(e.String()))
	}
}
