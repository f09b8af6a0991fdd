// Package pyort runs models in plain Python onnxruntime, for the tests that
// show that a written file needs nothing of this project to run.
package pyort

// Python packages are put into a folder of the user's cache by pip, as it is
// configured:
//
//	pip install --target ─▶ cache/python/onnxruntime-1.31.1… ─▶ PYTHONPATH
//	examples/python/slab ─▶ a library of the test's ─▶ registered by python/run.py
//
// python/run.py runs the models; the library counts what sessions there
// allocate, to the byte. Weakness: it depends on the C API's table,
// whose places never change, and on a C compiler, which cgo needs anyway.

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ortversion"
)

//go:embed python/run.py
var runner string

// numpy is what onnxruntime's wheel of this version was tried with.
const numpy = "numpy>=1.26,<3"

// Python is an interpreter with onnxruntime.
type Python struct {
	// Executable is the interpreter, Packages what PYTHONPATH has to name.
	Executable, Packages string
}

// A Job is a model to run.
type Job struct {
	Model string `json:"model"`
	// Feeds and Out are archives, a key per input and per output.
	Feeds string `json:"feeds"`
	Out   string `json:"out"`
	Runs  int    `json:"runs"`
	// Threads is the number of intra-operator threads, 0 for the default.
	Threads int `json:"threads"`
	// MemPattern leaves ONNX Runtime's memory pattern on, its default.
	MemPattern bool `json:"mem_pattern"`
	// Bind names the input whose memory an output is bound to.
	Bind map[string]string `json:"bind"`
	// Arena is what onnxruntime.OrtArenaCfg takes; nil for the default. It
	// excludes a counter.
	Arena map[string]int64 `json:"arena"`
}

// An Answer says what a job took, in bytes.
type Answer struct {
	// Peaks are those of the runs, where a counter counts.
	Peaks []int64 `json:"peaks"`
	// Reserved is what the job's arena took from the system.
	Reserved int64 `json:"reserved"`
	// Inputs and Outputs are their numbers.
	Inputs  int `json:"inputs"`
	Outputs int `json:"outputs"`
	// ProcessPeak is the largest size of the process so far.
	ProcessPeak int64 `json:"process_peak"`
}

// packagesEnv names a folder of packages to take instead, with another release of
// onnxruntime (make test-ort).
const packagesEnv = "REMAT_PYTHON_PACKAGES"

// Find returns a Python with onnxruntime, after getting its packages through
// pip where the user's cache does not hold them yet.
func Find(ctx context.Context, log io.Writer) (*Python, error) {
	said, err := exec.CommandContext(ctx, "python3", "-c", "import sys; print(sys.implementation.cache_tag, sys.executable)").Output()
	if err != nil {
		return nil, fmt.Errorf("python3: %w: install it, with pip", err)
	}
	tag, executable, _ := strings.Cut(strings.TrimSpace(string(said)), " ")
	if dir := os.Getenv(packagesEnv); dir != "" {
		return &Python{executable, dir}, nil
	}
	dir := filepath.Join(install.CacheDir(), "python", "onnxruntime-"+ortversion.Current+"-"+tag)
	python := &Python{executable, dir}
	if _, err := os.Stat(dir); err == nil {
		return python, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintln(log, "getting onnxruntime and numpy with pip")
	out := filepath.Join(tmp, "packages")
	cmd := exec.CommandContext(ctx, executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
		"--only-binary=:all:", "--target", out, "onnxruntime=="+ortversion.Current, numpy)
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("python3 -m pip install onnxruntime: %w: %s", err, said)
	}
	// Another process may have been faster; its folder is as good.
	if err := os.Rename(out, dir); err != nil {
		if _, missing := os.Stat(dir); missing != nil {
			return nil, err
		}
	}
	return python, nil
}

// Counter compiles the allocator for Python into a folder, by the line of its README, and
// returns the library's path.
func Counter(ctx context.Context, dir string) (string, error) {
	folder, err := Slab()
	if err != nil {
		return "", err
	}
	readme, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		return "", err
	}
	_, line, _ := strings.Cut(string(readme), "\ngcc ")
	line, _, _ = strings.Cut(line, "\n")
	library := filepath.Join(dir, "libremat_slab.so")
	cc := cmp.Or(os.Getenv("CC"), "cc")
	cmd := exec.CommandContext(ctx, cc, strings.Fields(strings.Replace(line, "-o libremat_slab.so", "-o "+library, 1))...)
	cmd.Dir = folder
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", cc, err, said)
	}
	return library, nil
}

// Slab is the folder of the allocator for Python, in the module that tests run in.
func Slab() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return filepath.Join(dir, "examples", "python", "slab"), nil
		}
		if filepath.Dir(dir) == dir {
			return "", fmt.Errorf("no go.mod above the working folder")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// Run runs jobs in one process, in order. A counter, a path that Counter gave,
// counts what their sessions allocate; "" leaves them their own arena.
func (p *Python) Run(ctx context.Context, counter string, jobs []Job) ([]Answer, error) {
	args := []string{"-c", runner}
	if counter != "" {
		args = append(args, counter)
	}
	for i := range jobs {
		if jobs[i].Bind == nil {
			jobs[i].Bind = map[string]string{}
		}
	}
	in, err := json.Marshal(jobs)
	if err != nil {
		return nil, err
	}
	var said bytes.Buffer
	out, err := p.command(ctx, &said, bytes.NewReader(in), args...).Output()
	if err != nil {
		return nil, fmt.Errorf("python: %w: %s", err, said.String())
	}
	var answers []Answer
	if err := json.Unmarshal(out, &answers); err != nil || len(answers) != len(jobs) {
		return nil, fmt.Errorf("python answered %d of %d jobs: %v: %s", len(answers), len(jobs), err, out)
	}
	return answers, nil
}

// Script runs a program and returns what it prints.
func (p *Python) Script(ctx context.Context, path string, args ...string) ([]byte, error) {
	var said bytes.Buffer
	out, err := p.command(ctx, &said, nil, append([]string{"-B", path}, args...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", path, err, said.String())
	}
	return out, nil
}

func (p *Python) command(ctx context.Context, stderr io.Writer, stdin io.Reader, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.Executable, args...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+p.Packages)
	cmd.Stdin, cmd.Stderr = stdin, stderr
	return cmd
}
