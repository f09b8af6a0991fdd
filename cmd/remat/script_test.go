package main

// The commands as a user types them: testscript archives run through the real
// main, one folder each. Beside testscript's own commands there are
//
//	json FILE PATH [OP WANT]   a document's field: exists, or compares; WANT is
//	                           a number, a string, null, or @PATH of the same file
//	fails CODE CMD …           runs CMD, which exits with that code and one line
//	                           of remat's on stderr
//	interrupt SECONDS CMD …    starts CMD, sends SIGINT then, wants exit code 130
//	hangup SECONDS CMD …       the same with SIGHUP
//	killed SECONDS CMD …       the same with SIGKILL
//	same F1 PATH1 F2 PATH2     two documents' fields are equal
//	alike DIR1 DIR2            two folders hold the same files, byte for byte but
//	                           for the times in documents (fields …seconds)
//	clean DIR                  no temporary file lies in DIR
//	oldest                     what follows runs on the oldest ONNX Runtime that is
//	                           claimed, which pip gets
//	sample NAME…               copies testdata/models/NAME here
//	parsed TEXT FILE           writes the model that a text graph says
//	outside IN OUT FILE        moves the first initializer of IN into FILE
//
// FILE may be stdout or stderr, of the last exec.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/onnx-remat/remat/internal/pyort"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
	"github.com/onnx-remat/remat/runtime/ortversion"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"remat": main})
}

func TestScripts(t *testing.T) { runScripts(t, filepath.Join("testdata", "script")) }

func runScripts(t *testing.T, dir string, files ...string) {
	library, err := install.Find("")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	python, err := pyort.Find(context.Background(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	build := rehearsalBuild(t)
	p := testscript.Params{
		Setup: func(e *testscript.Env) error {
			e.Setenv("REMAT_ORT", library)
			e.Setenv("LIBRARY", library)
			e.Setenv("REHEARSAL", build)
			e.Setenv("ROOT", root)
			e.Setenv("PYTHON", python.Executable)
			e.Setenv("PYTHONPATH", python.Packages)
			return errors.Join(writeUnknown(filepath.Join(e.WorkDir, "unknown.onnx")), writeNewer(filepath.Join(e.WorkDir, "newer.onnx")),
				writeShifted(filepath.Join(e.WorkDir, "shifted.onnx")))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"json": jsonCommand, "alike": alikeCommand, "fails": failsCommand, "clean": cleanCommand,
			"sample": sampleCommand, "parsed": parsedCommand, "oldest": oldestCommand, "outside": outsideCommand, "given": givenCommand, "slab": slabCommand, "same": sameCommand,
			"interrupt": func(ts *testscript.TestScript, neg bool, args []string) { signalled(ts, args, syscall.SIGINT) },
			"hangup":    func(ts *testscript.TestScript, neg bool, args []string) { signalled(ts, args, syscall.SIGHUP) },
			"killed":    func(ts *testscript.TestScript, neg bool, args []string) { signalled(ts, args, syscall.SIGKILL) },
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "gpu":
				_, err := os.Stat("/dev/nvidiactl")
				return err == nil, nil
			case "rehearsal":
				return build != "", nil
			}
			return false, fmt.Errorf("no condition %q", cond)
		},
		RequireUniqueNames: true,
	}
	if len(files) > 0 {
		p.Files = files
	} else {
		p.Dir = dir
	}
	testscript.Run(t, p)
}

// rehearsalBuild is the GPU build of ONNX Runtime that a rehearsal runs on, "" where
// none is installed: it is 300 MB, which tests do not get by themselves.
func rehearsalBuild(t *testing.T) string {
	path, err := install.FindRehearsal("")
	if err == nil {
		err = nulldevice.Check(path)
	}
	if err != nil {
		t.Logf("without rehearsals: %v", err)
		return ""
	}
	return path
}

// oldestCommand sets REMAT_ORT to the oldest library that is claimed.
func oldestCommand(ts *testscript.TestScript, neg bool, args []string) {
	library := "libonnxruntime.so." + ortversion.Oldest
	dir, err := install.Package(context.Background(), "onnxruntime=="+ortversion.Oldest, "ort-"+ortversion.Oldest, func(name string) string {
		if path.Base(name) == library {
			return library
		}
		return ""
	}, os.Stderr)
	ts.Check(err)
	ts.Setenv("REMAT_ORT", filepath.Join(dir, library))
}

// writeUnknown writes a model with an operator that nobody knows.
func writeUnknown(path string) error {
	m := onnx.NewModel("unknown", 20)
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4)))
	n := m.Graph.NewNode("", "Frobnicate", "odd", []*onnx.Value{x}, []string{"y"})
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Outputs[0])
	data, err := m.Encode()
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// writeNewer writes a model of an operator set that is not known yet.
func writeNewer(path string) error {
	m := onnx.NewModel("newer", 99)
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4, 4)))
	w := m.Graph.AddInput("w", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4, 4)))
	product := m.Graph.NewNode("", "MatMul", "product", []*onnx.Value{x, w}, []string{"y"})
	mean := m.Graph.NewNode("", "ReduceMean", "mean", product.Outputs, []string{"loss"}, onnx.IntAttr("keepdims", 0))
	m.Graph.Append(product, mean)
	m.Graph.AddOutput(mean.Outputs[0])
	return m.Save(path)
}

// writeShifted writes a classifier all of whose logits get one shift, k, that
// softmax takes off again: the gradient of k is zero but for rounding.
func writeShifted(path string) error {
	m := onnx.NewModel("shifted", 17)
	g := m.Graph
	x := g.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(64, 16)))
	labels := g.AddInput("labels", onnx.TensorOf(onnx.Int64, onnx.StaticShape(64)))
	weights := make([]float64, 16*32)
	for i := range weights {
		weights[i] = float64(i*7919%101)/50 - 1
	}
	w := g.AddConstant("w", onnx.FloatTensor(onnx.Float32, weights, 16, 32))
	k := g.AddConstant("k", onnx.FloatTensor(onnx.Float32, []float64{0.3}, 1, 1))
	shape := g.AddConstant("shape", onnx.Int64Tensor([]int64{64, 32}, 2))
	node := func(op, name string, inputs ...*onnx.Value) *onnx.Value {
		n := g.NewNode("", op, name, inputs, []string{name})
		g.Append(n)
		return n.Outputs[0]
	}
	logits := node("Add", "shifted", node("MatMul", "product", x, w), node("Expand", "shift", k, shape))
	g.AddOutput(node("SoftmaxCrossEntropyLoss", "loss", logits, labels))
	return m.Save(path)
}

// field finds a dotted path in a document; a number is an index into a list.
func field(doc any, path string) (any, bool) {
	for _, key := range strings.Split(path, "/") {
		switch d := doc.(type) {
		case map[string]any:
			v, ok := d[key]
			if !ok {
				return nil, false
			}
			doc = v
		case []any:
			if key == "len" {
				doc = float64(len(d))
				continue
			}
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(d) {
				return nil, false
			}
			doc = d[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

func jsonCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 && len(args) != 4 {
		ts.Fatalf("usage: json FILE PATH [OP WANT]")
	}
	var doc any
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	if err := dec.Decode(&doc); err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
	if dec.More() {
		ts.Fatalf("%s: more than one document", args[0])
	}
	got, ok := field(doc, args[1])
	holds := ok
	if ok && len(args) == 4 {
		want := wanted(ts, doc, args[3])
		holds = compareJSON(got, args[2], want)
	}
	if holds == neg {
		ts.Fatalf("json %s: got %v (present: %v)", strings.Join(args, " "), got, ok)
	}
}

func sameCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 4 {
		ts.Fatalf("usage: same FILE PATH FILE PATH")
	}
	var got [2]string
	for i := range got {
		var doc any
		ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[2*i])), &doc))
		v, ok := field(doc, args[2*i+1])
		if !ok {
			ts.Fatalf("%s: no field %s", args[2*i], args[2*i+1])
		}
		text, err := json.Marshal(v)
		ts.Check(err)
		got[i] = string(text)
	}
	if (got[0] == got[1]) == neg {
		ts.Fatalf("%s %s is %s, %s %s is %s", args[0], args[1], got[0], args[2], args[3], got[1])
	}
}

func wanted(ts *testscript.TestScript, doc any, word string) any {
	if path, ok := strings.CutPrefix(word, "@"); ok {
		v, ok := field(doc, path)
		if !ok {
			ts.Fatalf("no field %s", path)
		}
		return v
	}
	var v any
	if err := json.Unmarshal([]byte(word), &v); err != nil {
		return word
	}
	return v
}

func compareJSON(got any, op string, want any) bool {
	if op == "is" {
		return fmt.Sprintf("%T", got) == map[any]string{"number": "float64", "string": "string", "list": "[]interface {}", "object": "map[string]interface {}", "bool": "bool"}[want]
	}
	if op == "==" || op == "!=" {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		return (string(a) == string(b)) == (op == "==")
	}
	x, ok1 := got.(float64)
	y, ok2 := want.(float64)
	if !ok1 || !ok2 {
		return false
	}
	switch op {
	case "<":
		return x < y
	case "<=":
		return x <= y
	case ">":
		return x > y
	case ">=":
		return x >= y
	case "~": // within a part in a million
		return math.Abs(x-y) <= 1e-6*math.Max(math.Abs(x), math.Abs(y))
	}
	return false
}

// progressLine is what stderr may have beside an error where a machine is slow.
var progressLine = regexp.MustCompile(`(?m)^(planning|steps)[: ].*\n`)

func failsCommand(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != want {
		ts.Fatalf("%q: %v, want exit code %d", args[1:], err, want)
	}
	text := progressLine.ReplaceAllString(ts.ReadFile("stderr"), "")
	if strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "remat: ") || len(text) < 12 {
		ts.Fatalf("%q: stderr is not one line of remat's: %q", args[1:], text)
	}
}

func cleanCommand(ts *testscript.TestScript, neg bool, args []string) {
	for _, dir := range args {
		entries, err := os.ReadDir(ts.MkAbs(dir))
		ts.Check(err)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") && e.Name() != ".tmp" {
				ts.Fatalf("%s was left in %s", e.Name(), dir)
			}
		}
	}
}

func sampleCommand(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		data, err := os.ReadFile(filepath.Join(ts.Getenv("ROOT"), "testdata", "models", name))
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(filepath.Base(name)), data, 0o644))
	}
}

func parsedCommand(ts *testscript.TestScript, neg bool, args []string) {
	m, err := onnx.Parse(ts.ReadFile(args[0]))
	ts.Check(err)
	ts.Check(m.Save(ts.MkAbs(args[1])))
}

func outsideCommand(ts *testscript.TestScript, neg bool, args []string) {
	m, err := onnx.Load(ts.MkAbs(args[0]))
	ts.Check(err)
	defer m.Close()
	v := m.Graph.Initializers[0]
	data, err := v.Init.Bytes()
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[2]), data, 0o644))
	v.Init = onnx.ExternalTensor(v.Name, v.Init.DType(), v.Init.Dims(), args[2], 0, int64(len(data)))
	ts.Check(m.Save(ts.MkAbs(args[1])))
}

// signalled runs a program and sends it a signal after some seconds.
func signalled(ts *testscript.TestScript, args []string, sig syscall.Signal) {
	after, err := strconv.ParseFloat(args[0], 64)
	ts.Check(err)
	program, err := exec.LookPath(args[1])
	if err != nil {
		program = filepath.Join(filepath.SplitList(ts.Getenv("PATH"))[0], args[1])
	}
	cmd := exec.Command(program, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "REMAT_ORT="+ts.Getenv("REMAT_ORT"))
	stdout, err := os.Create(ts.MkAbs("signalled.stdout"))
	ts.Check(err)
	defer stdout.Close()
	stderr, err := os.Create(ts.MkAbs("signalled.stderr"))
	ts.Check(err)
	defer stderr.Close()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if signal.Ignored(sig) { // as under nohup, which a program would inherit
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, sig)
		defer signal.Stop(caught)
	}
	ts.Check(cmd.Start())
	time.Sleep(time.Duration(after * float64(time.Second)))
	ts.Check(cmd.Process.Signal(sig))
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		cmd.Process.Kill()
		ts.Fatalf("%q went on for 20 s after the signal", args[1:])
	}
	state := cmd.ProcessState.Sys().(syscall.WaitStatus)
	early := after < 0.1 && state.Signal() == syscall.SIGINT // on a busy machine it had not begun
	if (sig == syscall.SIGINT || sig == syscall.SIGHUP) && state.ExitStatus() != exitInterrupted && !early || sig == syscall.SIGKILL && state.Signal() != sig {
		out, _ := os.ReadFile(ts.MkAbs("signalled.stderr"))
		ts.Fatalf("%q ended with %d: %s", args[1:], state.ExitStatus(), out)
	}
}
