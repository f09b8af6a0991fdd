package report

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

var update = flag.Bool("update", false, "rewrite testdata")

// golden compares with testdata/name; -update rewrites it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update rewrites it):\n%s", file, got)
	}
}

func TestText(t *testing.T) {
	c := fixtureCompare()
	failed := &Run{Model: "big.onnx", Provider: "cuda", Error: "out of memory: 3.1 GiB asked, 2.0 GiB left"}
	withFailed := &Compare{Models: append(c.Models[:1:1], failed), Pairs: []Pair{NewPair(c.Models[0], failed, Difference{})}}
	for name, write := range map[string]func(io.Writer) error{
		"run.txt": c.Models[1].Text, "plan.txt": c.Models[1].Plan.Text,
		"compare.txt": c.Text, "failed.txt": withFailed.Text, "failed_run.txt": failed.Text, "hostile.txt": fixtureHostile().Text,
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := write(&b); err != nil {
				t.Fatal(err)
			}
			golden(t, name, b.Bytes())
			for _, r := range b.String() {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Fatalf("text holds the character %U", r)
				}
			}
			for line := range strings.Lines(b.String()) {
				if strings.HasSuffix(line, " \n") {
					t.Errorf("space at the end of %q", line)
				}
			}
		})
	}
}

func TestCompactTable(t *testing.T) {
	table := Table{Columns: []string{"a", ">b", ">c"}}
	table.add("x", none, "1")
	table.add("y", none, none)
	if got := table.compact(); len(got.Columns) != 2 || got.Columns[1] != ">c" || len(got.Rows[0]) != 2 {
		t.Errorf("compact: %+v", got)
	}
}

// Empty documents print without a panic.
func TestEmptyText(t *testing.T) {
	for _, write := range []func(io.Writer) error{(&Run{}).Text, (&Plan{}).Text, (&Compare{}).Text, (&Compare{Models: []*Run{{}}}).Text} {
		if err := write(io.Discard); err != nil {
			t.Error(err)
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
