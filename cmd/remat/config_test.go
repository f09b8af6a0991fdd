package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
)

// captured parses what was typed as run does, with every command's work replaced
// by keeping what it was given.
func captured(t *testing.T, args ...string) (*cli.Context, error) {
	t.Helper()
	e := newEnv(context.Background(), io.Discard, io.Discard)
	app := newApp(e)
	var c *cli.Context
	app.Before, app.After = nil, nil
	for _, command := range app.Commands {
		command.Before = nil
		command.Action = func(given *cli.Context) error { c = given; return nil }
	}
	l, err := sortArgs(app, args)
	if err == nil {
		err = e.readRecipe(app, l)
	}
	if err == nil {
		err = app.Run(append([]string{"remat"}, l.words()...))
	}
	if err == nil && c == nil {
		t.Fatalf("%q: no command ran", args)
	}
	return c, err
}

// effective is the recipe of a command that named its own, if any.
func effective(c *cli.Context, without ...string) ([]byte, error) {
	return new(env).effectiveRecipe(c, without...)
}

// sample is a value of a flag as YAML, and as valueOf gives it.
func sample(t *testing.T, f cli.Flag) (text string, value any) {
	t.Helper()
	switch f.(type) {
	case *cli.StringFlag:
		return `"a: b"`, "a: b"
	case *cli.BoolFlag:
		return "true", true
	case *cli.IntFlag:
		return "3", 3
	case *cli.Int64Flag:
		return "3", int64(3)
	case *cli.UintFlag:
		return "3", uint(3)
	case *cli.Uint64Flag:
		return "3", uint64(3)
	case *cli.Float64Flag:
		return "1e-05", 1e-05
	case *cli.DurationFlag:
		return "90s", (90 * time.Second).String()
	case *cli.StringSliceFlag:
		return `[x, "y,z", "5"]`, []string{"x", "y,z", "5"}
	case *cli.IntSliceFlag:
		return "[1, 2]", []int{1, 2}
	case *cli.Int64SliceFlag:
		return "[1, 2]", []int64{1, 2}
	case *cli.Float64SliceFlag:
		return "[0.5, 2]", []float64{0.5, 2}
	}
	t.Errorf("flag %s: a recipe has no values of type %T", f.Names()[0], f)
	return "", nil
}

func writeRecipe(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// A recipe sets every flag of every command, in a section and outside, and what the
// command leaves as its effective recipe sets the same again.
func TestRecipeSetsEveryFlag(t *testing.T) {
	t.Setenv("REMAT_ORT", "")
	app := newApp(newEnv(context.Background(), io.Discard, io.Discard))
	for _, command := range app.Commands {
		want := map[string]any{}
		flat, section := "arguments: [m.onnx]\n", command.Name+":\n  arguments: m.onnx\n"
		for _, f := range append(slices.Clone(command.Flags), app.Flags...) {
			name := f.Names()[0]
			if name == configFlag {
				continue
			}
			text, value := sample(t, f)
			want[name] = value
			flat += name + ": " + text + "\n"
			section += "  " + name + ": " + text + "\n"
		}
		check := func(what, text string) *cli.Context {
			c, err := captured(t, command.Name, "--config", writeRecipe(t, text))
			if err != nil {
				t.Fatalf("%s, %s: %v", command.Name, what, err)
			}
			for _, f := range append(slices.Clone(command.Flags), app.Flags...) {
				name := f.Names()[0]
				if value, given := want[name]; given && (!c.IsSet(name) || fmt.Sprint(valueOf(c, f)) != fmt.Sprint(value)) {
					t.Errorf("%s, %s: %s is %v, want %v", command.Name, what, name, valueOf(c, f), value)
				}
			}
			if got := c.Args().Slice(); !slices.Equal(got, []string{"m.onnx"}) {
				t.Errorf("%s, %s: arguments %q", command.Name, what, got)
			}
			return c
		}
		check("flat", flat)
		c := check("section", section)
		for name := range unsaved {
			delete(want, name)
		}
		first, err := effective(c)
		if err != nil {
			t.Fatal(err)
		}
		second, err := effective(check("effective", string(first)))
		if err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s: the effective recipe does not give itself: %v\n%s\n%s", command.Name, err, first, second)
		}
	}
}

// What is typed wins over a section, a section over what stands outside, and the
// environment over the file.
func TestRecipeOrder(t *testing.T) {
	t.Setenv("REMAT_ORT", "/from/environment")
	path := writeRecipe(t, "ort: /from/recipe\nthreads: 3\nparams: [a, b]\nclip-norm: 2\nclip-by: parameter\ngrad:\n  clip-norm: 3\n  arguments: [r.onnx]\n")
	c, err := captured(t, "grad", "--params", "c", "--clip-by=previous", "--config", path, "typed.onnx")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(c.String("ort"), c.Int("threads"), c.StringSlice("params"), c.Float64("clip-norm"), c.String("clip-by"), c.Args().Slice())
	if want := "/from/environment3 [c] 3previous[typed.onnx]"; strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("got %s, want %s", got, want)
	}
	text, err := effective(c, "clip-by")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\ngrad:\n", "  arguments: [typed.onnx]\n", "  clip-norm: 3\n", "  params: [c]\n", "  threads: 3\n", "#   dialect: onnx\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the effective recipe lacks %q:\n%s", want, text)
		}
	}
	for _, not := range []string{"ort:", "config:", "clip-by:"} {
		if strings.Contains(string(text), not) {
			t.Errorf("the effective recipe has %q:\n%s", not, text)
		}
	}
}

// Of flags of which a command takes one, the typed one stands for all.
func TestRecipeAlternatives(t *testing.T) {
	path := writeRecipe(t, "train:\n  epochs: 3\n  data: d.npz\n  arguments: [r.onnx]\n")
	c, err := captured(t, "train", "--config", path, "--steps", "9", "--tokens", "t.npy")
	if err != nil {
		t.Fatal(err)
	}
	if c.IsSet("epochs") || c.IsSet("data") || c.Int64("steps") != 9 || c.String("tokens") != "t.npy" {
		t.Errorf("epochs %d, data %q beside steps %d, tokens %q", c.Int64("epochs"), c.String("data"), c.Int64("steps"), c.String("tokens"))
	}
	if c, err = captured(t, "train", "--config", path); err != nil || c.Int64("epochs") != 3 || c.String("data") != "d.npz" {
		t.Errorf("epochs %d, data %q: %v", c.Int64("epochs"), c.String("data"), err)
	}
}

// Every error is one line with file and line, and exit code 2.
func TestRecipeErrors(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for _, c := range []struct{ text, want string }{
		{"clip-nrom: 1\n", `:1: "clip-nrom": no flag of any command; the nearest is "clip-norm"`},
		{"\n\ngrad:\n  optimiser: adamw\n", `:4: "optimiser": no flag of grad; the nearest is "optimizer"`},
		{"run:\n  strategy: full\n", `:2: "strategy": no flag of run;`},
		{"plan:\n  clip-norm: many\n", `:2: "clip-norm": no flag of plan`},
		{"clip-norm: many\n", `:1: --clip-norm "many": not a valid number`},
		{"steps: 1.5\n", `:1: --steps "1.5": not a valid number`},
		{"steps: 99999999999999999999\n", `:1: --steps "99999999999999999999": out of range`},
		{"steps: true\n", `:1: --steps "true": not a valid number`},
		{"keep-grads: yes\n", `:1: keep-grads: "yes" is not a boolean: write true or false`},
		{"keep-grads: 1\n", `:1: keep-grads: "1" is not a boolean`},
		{"time-limit: 5\n", `:1: --time-limit "5": not a valid`},
		{"steps: [1, 2]\n", `:1: steps: takes one value, not a list`},
		{"steps: {a: 1}\n", `:1: steps: want a value, found keys and values`},
		{"params: [[a]]\n", `:1: params: a list in a list`},
		{"steps:\n", `:1: steps: has no value`},
		{"steps: ~\n", `:1: steps: has no value`},
		{"o: ''\n", `:1: o is empty`},
		{"seed: 1\nsteps: 1\nseed: 2\n", `:3: seed: given twice, in line 1 too`},
		{"grad: {seed: 1}\n", `"seed": no flag of grad`},
		{"config: other.yaml\n", `:1: config: a recipe cannot name another`},
		{"- steps\n", `:1: want flags by name`},
		{"steps\n", `:1: want flags by name`},
		{"? [a]\n: b\n", `:1: a key must be the name of a flag`},
		{"<<: {steps: 1}\n", `:1: a key must be the name of a flag`},
		{"steps: &n 1\nseed: *n\n", `:2: seed: a recipe has no aliases`},
		{"steps: !!int 1\n", `:1: steps: a recipe has no tags`},
		{"o: !evil x\n", `:1: o: a recipe has no tags`},
		{"steps: 1\n---\nsteps: 2\n", `more than one YAML document`},
		{"steps: [1\n", `: invalid YAML: `},
		{"\tsteps: 1\n", `:1: invalid YAML: `},
		{"a\x00b: 1\n", `invalid YAML`},
		{long + ": 1\n", `…: no flag of any command`},
		{"clip-by: sideways\n", `:1: --clip-by: unknown norm "sideways"`}, // what the command itself finds
		{strings.Repeat("[", 900_000), `:1: invalid YAML: exceeded max depth`},
		{"a: " + strings.Repeat("{a: ", 200_000), `:1: invalid YAML: exceeded max depth`},
		{strings.Repeat("- ", 400_000), `:1: invalid YAML: exceeded max depth`},
		{strings.Repeat("# x\n", 200_000) + "stops: 1\n", `:200001: "stops": no flag of any command; the nearest is "stop"`},
		{"a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]\n", `:1: "a": no flag`},
		{"params: &a [x,x]\nfrozen: [*a,*a,*a,*a,*a,*a]\n", `:2: frozen: a recipe has no aliases`},
		{strings.Repeat("seed: 1 # x\n", 100_000), `bytes, more than the 1048576 that a recipe may have`},
	} {
		name := fmt.Sprintf("%.40q", c.text)
		var stdout, stderr bytes.Buffer
		start := time.Now()
		code := run(context.Background(), []string{"grad", "--config", writeRecipe(t, c.text), "m.onnx", "-o", "t.onnx"}, &stdout, &stderr)
		line := stderr.String()
		if code != exitBadInput || stdout.Len() > 0 || strings.Count(line, "\n") != 1 || len(line) > 600 || !strings.Contains(line, "r.yaml") || !strings.Contains(line, c.want) {
			t.Errorf("%s: exit %d, want one line with %q, got %.300q", name, code, c.want, line)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

// What is no small regular file ends at once: a gigabyte, a folder, a device.
func TestRecipeFiles(t *testing.T) {
	big := filepath.Join(t.TempDir(), "big.yaml")
	f, err := os.Create(big)
	if err == nil {
		err = f.Truncate(1 << 30)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for path, want := range map[string]string{
		big: "1073741824 bytes, more than the 1048576", t.TempDir(): "not a regular file",
		"/dev/zero": "not a regular file", "none.yaml": "no such file", "": "--config is empty: name a file, or leave it out",
	} {
		var stdout, stderr bytes.Buffer
		code := run(context.Background(), []string{"grad", "m.onnx", "--config", path}, &stdout, &stderr)
		if line := stderr.String(); code != exitBadInput || strings.Count(line, "\n") != 1 || !strings.Contains(line, want) {
			t.Errorf("%q: exit %d, %q; want %q", path, code, line, want)
		}
	}
}

// One file serves several commands: what is not for the one that runs is said once,
// what stands in another's section is not.
func TestRecipeShared(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "shared.yaml")
	text := fmt.Sprintf("# one recipe\nseed: 3\nstrategy: full\nmodel:\n  arguments: gpt2-tiny\n  batch: 1\n  seq: 16\n  o: %s\ngrad:\n  arguments: %s\n  o: %s\n  optimizer: sgd\n",
		filepath.Join(dir, "f.onnx"), filepath.Join(dir, "f.onnx"), filepath.Join(dir, "t.onnx"))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for command, note := range map[string]string{"model": "note: " + path + ": not for model: strategy\n"} {
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), []string{"--config", path, command}, &stdout, &stderr); code != 0 || stderr.String() != note {
			t.Errorf("%s: exit %d, %q, want %q", command, code, stderr.String(), note)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"grad", "--config", path, "--quiet"}, &stdout, &stderr); code != 0 || stderr.Len() > 0 || !strings.Contains(stdout.String(), "optimizer sgd") {
		t.Errorf("grad: exit %d, %q %q", code, stdout.String(), stderr.String())
	}
}

// The recipes that come with the project are for train, every flag of them, and differ
// in what they are named for.
func TestShippedRecipes(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "recipes", "*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	base := map[string]string{}
	for _, file := range append([]string{filepath.Join("..", "..", "recipes", "fp32.yaml")}, files...) {
		e := newEnv(context.Background(), io.Discard, io.Discard)
		app := newApp(e)
		l, err := sortArgs(app, []string{"train", "m.onnx", "--config", file})
		if err == nil {
			err = e.readRecipe(app, l)
		}
		if err != nil || e.remark != "" || len(e.recipe.own) > 0 {
			t.Errorf("%s: %v, %q", file, err, e.remark)
			continue
		}
		apart := map[string]bool{"strategy": true, "precision": true, "memory": true, "clip-by": true}
		for _, s := range e.recipe.flat {
			if value := strings.Join(s.values, ","); base[s.name] == "" {
				base[s.name] = value
			} else if value != base[s.name] && !apart[s.name] {
				t.Errorf("%s: %s is %s, elsewhere %s", file, s.name, value, base[s.name])
			}
		}
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "--config recipes/"+filepath.Base(file)) {
			t.Errorf("%s does not say how it is run: %v", file, err)
		}
	}
}
