package report

import "testing"

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
