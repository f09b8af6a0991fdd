package onnx

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

func TestSamplesPrintAndParse(t *testing.T) {
	for _, path := range samples(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, err := Load(path)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			assertTextRoundTrip(t, m)
		})
	}
}

// assertTextRoundTrip prints a model, parses the text and expects the same
// message, and the same text again.
func assertTextRoundTrip(t *testing.T, m *Model) {
	t.Helper()
	text := m.Text()
	back, err := Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, excerpt(text))
	}
	if !proto.Equal(m.ToProto(), back.ToProto()) {
		t.Errorf("print and parse changed the model:\n%s", excerpt(text))
	}
	if again := back.Text(); again != text {
		t.Errorf("a second print differs:\n%s\n%s", excerpt(text), excerpt(again))
	}
}

func excerpt(s string) string { return s[:min(len(s), 2000)] }

const plainText = `model ir=10 opset=20 opset[com.microsoft]=1 producer="remat"
meta remat.version = "1"
graph main {
  in    x float32[batch,64]
  in    value int64
  init  w float32[64,64] = external("w.bin", 0, 16384)
  init  b float32[] = 1.5
  init  ids int64[3] = [1, -2, 3]
  init  z float32[4,4] = zeros
  h, _ = com.microsoft.FusedMatMul(x, w, _) {alpha=1.0, axes=[1, 2], mode="a b", empty=ints[]} "node/name"
  c = Constant() {value=tensor "t"(bool[2] = [true, false])}
  i = If(c) {then_branch=graph yes {
    a = Add(h, b)
    out   a float32["1",?]
  }} doc "why" meta {k="v"}
  "out", in = TopK(value)
  "odd.op name" = "a.b"@"my domain"(i)
  out   h float32[batch,64]
  out   i seq(opt(map(string, float32)))
  value c bool[2]
}
`

func TestPlainTextIsStable(t *testing.T) {
	m, err := Parse(plainText)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Text(); got != plainText {
		t.Errorf("printed\n%s\nwant\n%s", got, plainText)
	}
	assertTextRoundTrip(t, m)
}

func TestParseErrors(t *testing.T) {
	graph := func(body string) string { return "model opset=20\ngraph g {\n" + body + "\n}\n" }
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "line 1, column 1: got the end, want the word model"},
		{"no graph", "model opset=20", "want a graph"},
		{"unknown header", "model color=1\ngraph g {}", "column 7: a model has no color"},
		{"unclosed", "model\ngraph g {", `want "}"`},
		{"bad string", "model producer=\"\\q\"", "line 1, column 16: string with a bad escape"},
		{"open string", "model producer=\"abc", "string without an end"},
		{"bad type", graph("in x float31[2]"), `line 3, column 13: unknown element type "float31"`},
		{"two on a line", graph("a = Relu(b) c = Relu(a)"), "line 3, column 13: got c, want the end of the line"},
		{"overflow", graph("init a int8[1] = [300]"), "300 does not fit int8"},
		{"mixed list", graph(`a = Op() {l=[1, "b"]}`), "does not fit the list"},
		{"empty list", graph(`a = Op() {l=[]}`), "an empty list is written ints[]"},
		{"zero bomb", graph("init a float32[99999999999,9] = zeros"), "more than 67108864 bytes"},
		{"no base64", graph("a = Op() ~CgV"), "line 3, column 10: the base64 is not a NodeProto"},
		{"after the end", "model\ngraph g {\n}\nx", "line 4, column 1: x after the end of the graph"},
		{"nothing makes", graph("a = Relu(b)"), `reads "b", which nothing produces`},
		{"deep type", graph("in x " + strings.Repeat("seq(", 1000)), "nested more than 100 deep"},
		{"deep graph", graph(strings.Repeat("a = If() {b=graph g {\n", 1000)), "nested more than 100 deep"},
		{"control byte", "model \x01", "unexpected byte 0x1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %v", err)
			}
		})
	}
}
