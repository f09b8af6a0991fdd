package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
)

// inexact are cells of the sweep on CUDA, "model optimizer strategy precision level" as
// a pattern of path.Match, that are not exact, by the reason. The list may only shrink.
var inexact = map[string]string{}

// A sweep is which cells are run.
type sweep struct {
	models                                [][]string
	optimizers, strategies, types, levels []string
}

// small takes a minute of one core.
var small = sweep{
	models:     [][]string{{"gpt2-tiny", "--seq", "16"}},
	optimizers: []string{"none", "adamw"},
	strategies: []string{"none", "full", "optimal"},
	types:      []string{"fp32", "fp16", "bf16"},
	levels:     []string{"1"},
}

// whole is every model of the zoo, made small.
var whole = sweep{
	models: [][]string{
		{"gpt2-tiny"},
		{"gpt2-tiny", "--layers", "3", "--hidden", "24", "--heads", "3", "--vocab", "97", "--seq", "11", "--batch", "3"},
		{"encoder", "--layers", "2", "--hidden", "48", "--heads", "2", "--seq", "20", "--batch", "2"},
		{"mlp", "--layers", "5", "--hidden", "32", "--batch", "6"},
		{"heavy", "--layers", "5", "--hidden", "48", "--batch", "5"},
	},
	optimizers: []string{"none", "sgd", "adamw"},
	strategies: []string{"none", "sqrt", "full", "selective", "optimal"},
	types:      []string{"fp32", "fp16", "bf16"},
	levels:     []string{"0", "1", "99"},
}

// TestExactOnCUDA: what is predicted of a step on the CUDA provider is what three
// rehearsed ones measure: live, session and reserved bytes. REMAT_SWEEP=1 runs the
// whole sweep (make cuda-sweep).
func TestExactOnCUDA(t *testing.T) {
	c := rehearsing(t)
	s := small
	switch {
	case os.Getenv("REMAT_SWEEP") != "":
		s = whole
	case testing.Short():
		s.types, s.strategies = s.types[:2], s.strategies[2:]
	}
	for i, model := range s.models {
		c.model(t, fmt.Sprintf("%s.%d", model[0], i), model, s)
	}
	for pattern := range inexact {
		if os.Getenv("REMAT_SWEEP") != "" && !c.met[pattern] {
			t.Errorf("no cell that is not exact matches %q: take it off the list", pattern)
		}
	}
	t.Logf("%d cells, %d exact", c.run, c.exact)
}

// rehearsing returns the program, as it rehearses on CUDA in a folder of its own.
func rehearsing(t *testing.T) *cells {
	t.Helper()
	build := rehearsalBuild(t)
	if build == "" {
		t.Skip("no GPU build of ONNX Runtime: remat doctor --install cuda")
	}
	return &cells{
		program: built(t), dir: t.TempDir(), flags: []string{"--quiet", "--provider", "cuda", "--rehearse"},
		env: append(os.Environ(), "REMAT_ORT="+build), met: map[string]bool{},
	}
}

// built is the program.
func built(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "remat")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

// cells runs the program on the cells of a sweep.
type cells struct {
	program, dir string
	flags, env   []string // of every call
	run, exact   int
	met          map[string]bool // patterns of inexact
}

// remat runs the program.
func (c *cells) remat(args ...string) ([]byte, error) {
	cmd := exec.Command(c.program, append(slices.Clone(c.flags), args...)...)
	cmd.Dir, cmd.Env = c.dir, c.env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	return out, err
}

func (c *cells) must(t *testing.T, args ...string) {
	t.Helper()
	if _, err := c.remat(args...); err != nil {
		t.Fatal(err)
	}
}

func (c *cells) model(t *testing.T, name string, args []string, s sweep) {
	t.Helper()
	c.must(t, append([]string{"model", args[0], "-o", name + ".onnx"}, args[1:]...)...)
	for _, optimizer := range s.optimizers {
		train := name + "." + optimizer
		grad := []string{"grad", name + ".onnx", "-o", train + ".onnx"}
		if optimizer != "none" {
			grad = append(grad, "--optimizer", optimizer)
		}
		c.must(t, grad...)
		for _, strategy := range s.strategies {
			for _, precision := range s.types {
				file := train + ".s.onnx"
				rewrite := []string{"rewrite", train + ".onnx", "--strategy", strategy, "--precision", precision, "-o", file}
				if strategy == "optimal" {
					rewrite = append(rewrite, "--time-limit", "3s")
				}
				c.must(t, rewrite...)
				for _, level := range s.levels {
					c.cell(t, strings.Join([]string{name, optimizer, strategy, precision, level}, " "), file, level)
				}
			}
		}
	}
}

func (c *cells) cell(t *testing.T, name, file, level string) {
	t.Helper()
	c.run++
	err := c.differs(file, level)
	why := slices.IndexFunc(patterns(), func(p string) bool { ok, _ := filepath.Match(p, name); return ok })
	switch {
	case err == nil:
		c.exact++
	case why >= 0:
		c.met[patterns()[why]] = true
	default:
		t.Errorf("%s: %v", name, err)
	}
}

func patterns() []string {
	var list []string
	for p := range inexact {
		list = append(list, p)
	}
	slices.Sort(list)
	return list
}

// differs says how what was measured of a file differs from what was predicted.
func (c *cells) differs(file, level string) error {
	_, err := c.measured(file, level)
	return err
}

// measured is what three steps of a file took, with an error where something else was
// predicted.
func (c *cells) measured(file, level string) (*report.Memory, error) {
	d, err := c.ran(file, level)
	if err != nil {
		return nil, err
	}
	return &d.Memory, nil
}

// ran is the document of the same.
func (c *cells) ran(file, level string) (*report.Run, error) {
	out, err := c.remat("--opt", level, "--json", "run", file, "--steps", "3")
	if err != nil {
		return nil, err
	}
	var d report.Run
	if err := json.Unmarshal(out, &d); err != nil {
		return nil, err
	}
	m := &d.Memory
	for _, f := range []struct {
		name                string
		measured, predicted *int64
	}{
		{"live peak", m.LivePeakBytes, m.PredictedLivePeakBytes},
		{"session", m.SessionBytes, m.PredictedSessionBytes},
		{"reserved", m.ReservedBytes, m.PredictedReservedBytes},
		{"arena's reserved", m.ArenaReservedBytes, m.PredictedArenaReservedBytes},
	} {
		if f.measured == nil || f.predicted == nil {
			return nil, fmt.Errorf("%s bytes: measured %v, predicted %v", f.name, f.measured != nil, f.predicted != nil)
		}
		if *f.measured != *f.predicted {
			return nil, fmt.Errorf("%s: measured %d bytes, predicted %d", f.name, *f.measured, *f.predicted)
		}
	}
	return &d, nil
}
