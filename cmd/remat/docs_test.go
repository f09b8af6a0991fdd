package main

// The examples in README, docs and every command's help are executed, in the
// order in which they stand: of fenced blocks in sh each line that begins with
// remat, and python blocks, which are files by their first line. What they
// start from (a batch, a model) lies in the folder beforehand.

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pyort"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

var fence = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// prepare is what lies in the folder of the examples.
var prepare = []string{
	"given",
	"exec remat model gpt2-tiny --batch 1 --seq 32 -o gpt2.onnx",
	"cp gpt2.onnx model.onnx",
	"exec remat grad gpt2.onnx --optimizer adamw -o train.onnx",
	"exec remat rewrite train.onnx --strategy full -o small.onnx",
}

// prepared is what lies there for a document; where that trains on text, the model has
// the vocabulary of its tokens, and where it allocates in a slab, there is the library.
func prepared(of []string) []string {
	lines := prepare[:len(prepare):len(prepare)]
	text := strings.Join(of, "\n")
	if strings.Contains(text, "--text ") {
		lines = append(lines, "exec remat model gpt2-tiny --vocab 50257 --batch 1 --seq 32 -o model.onnx")
	}
	if strings.Contains(text, "libremat_slab.so") {
		lines = append(lines, "slab")
	}
	return lines
}

// TestReferenceListsCommands: the reference has a section for every command, and its list of
// contents leads to each.
func TestReferenceListsCommands(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	app := newApp(newEnv(context.Background(), io.Discard, io.Discard))
	for _, c := range app.Commands {
		if !strings.Contains(string(text), "\n## remat "+c.Name+"\n") {
			t.Errorf("docs/cli.md has no section on %s", c.Name)
		}
		if !strings.Contains(string(text), "["+c.Name+"](#remat-"+c.Name+")") {
			t.Errorf("the contents of docs/cli.md leave %s out", c.Name)
		}
	}
}

func TestHelpExamples(t *testing.T) {
	var own []string
	app := newApp(newEnv(context.Background(), io.Discard, io.Discard))
	for _, c := range app.Commands {
		_, example, ok := strings.Cut(c.Description, "Example: ")
		if !ok || !strings.HasPrefix(example, "remat "+c.Name) {
			t.Errorf("the help of %s has no example", c.Name)
			continue
		}
		own = append(own, "exec "+strings.TrimSpace(example))
	}
	runExamples(t, "help", append(prepared(own), own...))
}

func TestDocExamples(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := examples(string(text))
		if len(lines) == 0 {
			continue
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			runExamples(t, strings.TrimSuffix(filepath.Base(path), ".md"), append(prepared(lines), lines...))
		})
	}
}

// examples are the lines of a script that does what a document says.
func examples(text string) []string {
	var lines []string
	files := ""
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		switch m[1] {
		case "sh":
			for _, l := range strings.Split(strings.ReplaceAll(m[2], "\\\n", " "), "\n") {
				if l = strings.TrimPrefix(l, "bin/"); strings.Contains(l, " --install ") {
					continue // tests run on what is installed
				}
				if strings.HasPrefix(l, "remat ") {
					l, _, _ = strings.Cut(l, " #")
					l, file, redirected := strings.Cut(l, " > ")
					lines = append(lines, example(strings.TrimSpace(l))...)
					if redirected {
						lines = append(lines, "cp stdout "+strings.TrimSpace(file))
					}
				}
			}
		case "python":
			name := strings.TrimSpace(strings.TrimPrefix(strings.SplitN(m[2], "\n", 2)[0], "#"))
			files += "-- " + name + " --\n" + m[2]
			lines = append(lines, "exec $PYTHON "+name, "stdout .")
		}
	}
	if files != "" {
		lines = append(lines, files)
	}
	return lines
}

// example runs a line; one that rehearses runs on the build that can, if it is here.
func example(line string) []string {
	if !strings.Contains(line, " --rehearse ") {
		return []string{"exec " + line}
	}
	return []string{"env REMAT_ORT=$REHEARSAL", "[rehearsal] exec " + line, "env REMAT_ORT=$LIBRARY"}
}

func runExamples(t *testing.T, name string, lines []string) {
	path := filepath.Join(t.TempDir(), name+".txt")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	runScripts(t, "", path)
}

// TestTrainingExample: README's train.py trains every kind of file that is written.
func TestTrainingExample(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, train, found := strings.Cut(string(text), "```python\n# train.py\n")
	train, _, _ = strings.Cut(train, "```")
	const firstScale = `"loss_scale": 65536`
	if !found || !strings.Contains(train, firstScale) {
		t.Fatal("README has no train.py that feeds a loss scale")
	}
	// Gradients wait in half, so this one's, of 0.4 at most, fit from a scale of 2^17 on.
	overflows := strings.Replace(train, firstScale, `"loss_scale": 2.0**22`, 1)
	script := append(prepare[:len(prepare):len(prepare)],
		"exec remat rewrite train.onnx --strategy full --precision fp16 -o small.onnx",
		"exec $PYTHON train.py", `stdout '^10 4\.\d+$'`, "! stdout nan",
		"exec $PYTHON overflows.py", `stdout '^1 6\.\d+\n1 6'`, `stdout '^2 5\.\d+$'`, "! stdout nan",
		"exec remat grad gpt2.onnx --optimizer none -o train.onnx", // returns gradients, and learns nothing
		"exec remat rewrite train.onnx --strategy full --precision fp16 -o small.onnx",
		"exec $PYTHON train.py", `stdout '^10 6\.\d+$'`, "! stdout nan",
		"exec remat grad gpt2.onnx --optimizer adamw8bit -o train.onnx", // whose state is of int8 and uint8
		"exec remat rewrite train.onnx --strategy full -o small.onnx",
		"exec $PYTHON train.py", `stdout '^10 4\.\d+$'`)
	runExamples(t, "training", append(script, "-- train.py --\n"+train, "-- overflows.py --\n"+overflows))
}

func writeBatch(path string) error {
	var ids []byte
	for i := range 32 {
		ids = binary.LittleEndian.AppendUint64(ids, uint64(i*7%256))
	}
	batch := remat.Tensor{Type: onnx.Int64, Shape: []int64{1, 32}, Data: ids}
	return remat.WriteNPZ(path, map[string]remat.Tensor{"input_ids": batch, "labels": batch})
}

// givenCommand writes what the examples start from.
func givenCommand(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(writeBatch(ts.MkAbs("batch.npz")))
	for name, sample := range map[string]string{"training_model.onnx": "ort_training/gpt2_tiny_mask.ts_op17.onnx", "logits.onnx": "genai/llama_int4.onnx"} {
		data, err := os.ReadFile(filepath.Join(ts.Getenv("ROOT"), "testdata", "models", filepath.FromSlash(sample)))
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(name), data, 0o644))
	}
	for _, name := range []string{"text.txt", "book.txt"} {
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(demoText), 0o644))
	}
	ts.Check(os.CopyFS(ts.MkAbs("recipes"), os.DirFS(filepath.Join(ts.Getenv("ROOT"), "recipes"))))
}

// slabCommand compiles the allocator for Python.
func slabCommand(ts *testscript.TestScript, neg bool, args []string) {
	_, err := pyort.Counter(context.Background(), ts.MkAbs("."))
	ts.Check(err)
}

// TestContract: docs/cli.md has a section for every command, which names every
// flag of it, or the commands from which it takes them, and no other flag.
func TestContract(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	app := newApp(newEnv(context.Background(), io.Discard, io.Discard))
	have := map[string]bool{"--help": true, "--version": true}
	check := func(command, section string, flags []cli.Flag) {
		for _, f := range flags {
			name := dashes(f.Names()[0])
			have[name] = true
			if name != "--help" && name != "--version" && !regexp.MustCompile(regexp.QuoteMeta(name)+`\b`).MatchString(section) {
				t.Errorf("docs/cli.md does not name %s of %s", name, command)
			}
		}
	}
	check("remat", string(text), globalFlags())
	for _, c := range app.Commands {
		section := docSection(string(text), "## remat "+c.Name)
		if !strings.HasPrefix(strings.TrimSpace(section), "`remat "+c.Name) {
			t.Errorf("docs/cli.md has no section \"## remat %s\" that opens with the synopsis", c.Name)
		}
		for _, from := range regexp.MustCompile("flags of `remat ([a-z]+)`").FindAllStringSubmatch(section, -1) {
			section += docSection(string(text), "## remat "+from[1])
		}
		check(c.Name, section, c.Flags)
	}
	for _, flag := range regexp.MustCompile(`--[a-z][a-z0-9-]*`).FindAllString(string(text), -1) {
		if !have[flag] {
			t.Errorf("docs/cli.md names %s, which no command has", flag)
		}
	}
	for _, row := range regexp.MustCompile(`(?m)^\|.*\|$`).FindAllString(string(text), -1) {
		for _, cell := range regexp.MustCompile(`[^\\]\|`).Split(row, -1) {
			if n := len([]rune(cell)); n > longestCell {
				t.Errorf("docs/cli.md has a cell of %d characters, more than %d: %s", n, longestCell, cell)
			}
		}
	}
}

// longestCell of a table in docs/cli.md, in characters: two lines on a page.
const longestCell = 180

// docSection is what stands between a heading of the second level and the next.
func docSection(text, heading string) string {
	_, rest, _ := strings.Cut(text, "\n"+heading+"\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	return section
}
