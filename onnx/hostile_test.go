package onnx

// Files that are out to hurt: each must be refused with one clear line, within
// a second and 64 MiB above the file. Memory is that of a process of its own,
// which is this test binary told by the environment to load one file.

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

const hostileEnv = "REMAT_TEST_LOAD"

func TestMain(m *testing.M) {
	if path := os.Getenv(hostileEnv); path != "" {
		loadAlone(path)
		return
	}
	os.Exit(m.Run())
}

// loadAlone loads and checks one file and prints the peak of the process in
// kB, how long it took, and the error.
func loadAlone(path string) {
	start := time.Now()
	m, err := Load(path)
	if err == nil {
		err = m.Check()
	}
	took := time.Since(start)
	var format *FormatError
	if err != nil && !errors.As(err, &format) {
		err = fmt.Errorf("not a FormatError: %w", err)
	}
	if err != nil && format != nil && format.Path == "" {
		err = &FormatError{path, err}
	}
	fmt.Printf("%d %d %v\n", peakKB(), took.Milliseconds(), err)
}

func peakKB() (kb int64) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fmt.Sscanf(s.Text(), "VmHWM: %d kB", &kb)
	}
	return kb
}

// loadApart runs loadAlone in a process of its own.
func loadApart(t *testing.T, path string) (kb, ms int64, message string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), hostileEnv+"="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out[:min(len(out), 2000)])
	}
	if _, err := fmt.Sscan(string(out), &kb, &ms); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	fields := strings.SplitN(string(out), " ", 3)
	return kb, ms, strings.TrimSuffix(fields[2], "\n")
}

func field(num protowire.Number, body []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), body)
}

// wrap puts bytes into messages, the innermost field last.
func wrap(body []byte, nums ...protowire.Number) []byte {
	for i := len(nums) - 1; i >= 0; i-- {
		body = field(nums[i], body)
	}
	return body
}

// bomb repeats one small field a million times inside the given fields.
func bomb(item []byte, nums ...protowire.Number) []byte {
	return wrap(bytes.Repeat(item, 1_000_000), nums...)
}

const hostileHead = "model ir=10 opset=20\ngraph g {\n  in x float32[4]\n"

// hostileTexts are damaged models that the text form can say.
var hostileTexts = []struct{ name, body, want string }{
	{"cycle", "a = Add(x, b)\nb = Relu(a)\nout b float32[4]", "reads \"b\" before it is produced"},
	{"self", "a = Add(x, a)\nout a float32[4]", "before it is produced"},
	{"no type", "a = \"\"(x)\nout a float32[4]", "has no operator type"},
	{"other type", "in y float32[4]\na = Relu(x)\nout y float16[4]\nout a", "is float32[4], but declared float16[4]"},
	{"constant type", "init x float32[3] = [1.0, 2.0, 3.0]\na = Relu(x)\nout a", "declared float32[4]"},
	{"dims of 2^63", "init w float32[-9223372036854775808] = bytes()\na = Add(x, w)\nout a", "negative or too large"},
	{"dims that overflow", "init w float32[4611686018427387904,4611686018427387904] = bytes()\na = Add(x, w)\nout a", "negative or too large"},
	{"too little data", "init w float32[1000000000] = bytes(AAAA)\na = Add(x, w)\nout a", "holds 3 bytes where"},
	{"too little typed data", "init w float32[1000000000] = float_data [1.0]\na = Add(x, w)\nout a", "holds 1 elements"},
	{"unknown domain", "a = some.where.Op(x)\nout a", "imports no operator set of domain \"some.where\""},
	{"attribute twice", "a = Op(x) {k=1, k=2}\nout a", "attribute \"k\" has no name, or one that is taken"},
	{"shadow", "a = If(x) {then_branch=graph t {\nx = Constant()\nout x\n}}\nout a", "\"x\" is already produced elsewhere"},
	{"order inside", "a = If(x) {then_branch=graph t {\nb = Relu(c)\nc = Relu(x)\nout b\n}}\nout a", "reads \"c\" before it is produced"},
	{"inner output", "a = If(x) {then_branch=graph t {\nout nowhere\n}}\nout a", "reads \"nowhere\", which nothing produces"},
	{"no folder", "init w float32[4] = external(\"../w.bin\")\na = Add(x, w)\nout a", "outside the model's folder"},
	{"absolute", "init w float32[4] = external(\"/etc/passwd\")\na = Add(x, w)\nout a", "outside the model's folder"},
	{"link", "init w float32[4] = external(\"link\")\na = Add(x, w)\nout a", "outside the model's folder through a link"},
	{"pipe", "init w float32[4] = external(\"pipe\")\na = Add(x, w)\nout a", "not a regular file"},
	{"folder", "init w float32[4] = external(\".\")\na = Add(x, w)\nout a", "not a regular file"},
	{"missing", "init w float32[4] = external(\"none\")\na = Add(x, w)\nout a", "no such file"},
	{"beyond the end", "init w float32[4] = external(\"short\", 9223372036854775807)\na = Add(x, w)\nout a", "lie beyond the end"},
	{"length", "init w float32[4] = external(\"short\", 0, 99)\na = Add(x, w)\nout a", "external length 99 where float32[4] takes 16"},
	{"negative", "init w float32[4] = external(\"short\", -1)\na = Add(x, w)\nout a", "\"-1\" is not a size"},
	{"bad name", "\"a\\xff\" = Relu(x)\nout \"a\\xff\"", "is not UTF-8"},
	{"duplicate output", "a = Relu(x)\na = Relu(x)\nout a", "\"a\" is already produced elsewhere"},
	{"duplicate constant", "init w int8[] = 1\ninit w int8[] = 1\nout x", "two initializers are named \"w\""},
	{"nameless input", "in _\nout x", "a graph input has no name"},
}

// hostileFiles are damaged models as bytes. Numbers are fields: 7 graph, 1 node,
// 5 attribute, 6 subgraph, 5 initializer, 13 value_info.
func hostileFiles() map[string][]byte {
	deep := []byte{}
	for range 3000 {
		deep = wrap(deep, 1, 5, 6)
	}
	return map[string][]byte{
		"empty":                    {},
		"text":                     []byte("this is no model\n"),
		"length beyond the file":   {0x3a, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x00},
		"deep subgraphs":           field(7, deep),
		"a million nodes":          bomb([]byte{0x0a, 0}, 7),
		"a million attributes":     bomb([]byte{0x2a, 0}, 7, 1),
		"a million inputs":         bomb([]byte{0x0a, 0}, 7, 1),
		"a million constants":      bomb([]byte{0x2a, 0}, 7),
		"a million types":          bomb([]byte{0x6a, 2, 0x12, 0}, 7),
		"a million metadata":       bomb([]byte{0x72, 0}),
		"a million functions":      bomb([]byte{0xca, 1, 0}),
		"a million subgraphs":      bomb([]byte{0x5a, 0}, 7, 1, 5),
		"a million sparse tensors": bomb([]byte{0x7a, 2, 0x0a, 0}, 7),
		"graph as a number":        {0x38, 1},
		"groups":                   bytes.Repeat([]byte{0x3b}, 100_000),
	}
}

var updateHostile = flag.Bool("update-hostile", false, "write the small hostile files to testdata/hostile, for the command's tests")

func keepHostile(t *testing.T, name string, data []byte) {
	t.Helper()
	if !*updateHostile || len(data) > 1<<16 {
		return
	}
	path := filepath.Join("..", "testdata", "hostile", strings.ReplaceAll(name, " ", "_")+".onnx")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestHostileFiles(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "model")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{"w.bin": "0123456789abcdef", "model/short": "0123456789abcdef"} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("../w.bin", filepath.Join(folder, "link")), syscall.Mkfifo(filepath.Join(folder, "pipe"), 0o644)); err != nil {
		t.Fatal(err)
	}
	base, _, _ := loadApart(t, filepath.Join(folder, "none"))
	try := func(name string, data []byte, want string) {
		t.Run(name, func(t *testing.T) {
			keepHostile(t, name, data)
			path := filepath.Join(folder, "model.onnx")
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
			kb, ms, message := loadApart(t, path)
			t.Logf("%d kB %d ms %s", kb-base-int64(len(data))/1024, ms, message)
			if !strings.HasPrefix(message, path+": ") || !strings.Contains(message, want) || strings.Contains(message, "\n") {
				t.Errorf("got %q, want %q", message, want)
			}
			if grew := kb - base - int64(len(data))/1024; grew > 64<<10 || ms > 1000 {
				t.Errorf("took %d kB above the file and %d ms", grew, ms)
			}
		})
	}
	for _, c := range hostileTexts {
		p := &parser{lex: lexer{src: hostileHead + c.body + "\n}\n", line: 1}, budget: 1 << 30}
		p.advance()
		m := p.model()
		if p.lex.err != nil {
			t.Fatalf("%s: %v", c.name, p.lex.err)
		}
		data, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		try(c.name, data, c.want)
	}
	for name, data := range hostileFiles() {
		try(name, data, "")
	}
}

// TestNotAFile expects an answer, not a wait, for what cannot be mapped.
func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir, filepath.Join(dir, "none"), "/dev/zero"} {
		var format *FormatError
		if _, err := Load(path); !errors.As(err, &format) || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("Load(%q): %v", path, err)
		}
	}
}

// TestDamage cuts a sample and flips its bits. It need not be refused, but must
// not panic, and what is accepted must survive saving.
func TestDamage(t *testing.T) {
	good, err := os.ReadFile(filepath.Join("..", "testdata", "models", "lstm_char.ts.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewSource(1))
	for i := range 400 {
		data := good[:rng.Intn(len(good))]
		if i%2 == 0 {
			data = bytes.Clone(good)
			for range 1 + i/50 {
				data[rng.Intn(len(data))] ^= 1 << rng.Intn(8)
			}
		}
		survive(t, data)
	}
}

// survive loads and checks data; what loads must come out as it went in.
func survive(t *testing.T, data []byte) {
	t.Helper()
	m, err := Decode(data, "testdata")
	if err != nil {
		if strings.Contains(err.Error(), "\n") {
			t.Fatalf("more than one line: %q", err)
		}
		return
	}
	defer m.Close()
	if err := m.Check(); err != nil && strings.Contains(err.Error(), "\n") {
		t.Fatalf("more than one line: %q", err)
	}
	saved, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want, got := &pb.ModelProto{}, &pb.ModelProto{}
	if err := proto.Unmarshal(data, want); err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(saved, got); err != nil {
		t.Fatal(err)
	}
	if !sameMessage(want, got) {
		t.Fatal("load and save changed the model")
	}
	text := m.Text()
	back, err := Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, excerpt(text))
	}
	if !sameMessage(want, back.ToProto()) {
		t.Fatalf("print and parse changed the model:\n%s", excerpt(text))
	}
}

// sameMessage compares messages by their deterministic bytes, in which NaN
// equals itself.
func sameMessage(a, b proto.Message) bool {
	opt := proto.MarshalOptions{Deterministic: true}
	x, err := opt.Marshal(a)
	y, err2 := opt.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}
