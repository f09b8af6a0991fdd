package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRehearsalsEnd runs every command of README and docs/gpu.md that runs a
// step, rehearsed, as often as REHEARSALS says, and each time once more with an
// interrupt at a random moment: it ends with its exit code, without a stack, and
// leaves no temporary file. make rehearsals runs it.
func TestRehearsalsEnd(t *testing.T) {
	times, _ := strconv.Atoi(os.Getenv("REHEARSALS"))
	if times < 1 {
		t.Skip("REHEARSALS is not set: make rehearsals")
	}
	build := rehearsalBuild(t)
	if build == "" {
		t.Fatal("no GPU build of ONNX Runtime: remat doctor --install cuda")
	}
	l := newLoop(t, build)
	commands := rehearsable(t)
	if len(commands) < 4 {
		t.Fatalf("%d commands", len(commands))
	}
	for i := range times {
		for _, c := range commands {
			took := l.run(t, c, 0)
			l.run(t, c, 1+time.Duration(rand.Int64N(int64(took))))
		}
		if (i+1)%10 == 0 {
			t.Logf("%d of %d rounds of %d commands, and as many interrupted", i+1, times, len(commands))
		}
	}
}

// rehearsable are the commands of the documents that run a step, as arguments.
func rehearsable(t *testing.T) [][]string {
	t.Helper()
	var all [][]string
	for _, path := range []string{"README.md", "docs/gpu.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
			for _, l := range strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n") {
				l, _, _ = strings.Cut(l, " #")
				l, _, _ = strings.Cut(l, " > ")
				if c := rehearsedArgs(strings.Fields(strings.TrimPrefix(l, "bin/"))); c != nil {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// rehearsedArgs are a command's arguments with --rehearse, nil for one that runs
// no step or needs numbers.
func rehearsedArgs(words []string) []string {
	if len(words) < 2 || words[0] != "remat" || !slices.ContainsFunc(words, func(w string) bool { return slices.Contains([]string{"run", "compare", "demo", "inspect"}, w) }) {
		return nil
	}
	args := []string{"--rehearse", "--provider", "cuda", "--quiet"}
	for i := 1; i < len(words); i++ {
		switch w := words[i]; w {
		case "--rehearse":
		case "--provider", "--out", "--save", "--tolerance":
			i++
		case "demo": // of the smallest model
			args = append(args, w, "--model", "gpt2-tiny", "--seq", "16", "--steps", "2")
		default:
			args = append(args, w)
		}
	}
	return args
}

// A loop is a folder with models, and the program.
type loop struct {
	program, dir, temp string
	env                []string
	runs               int
}

func newLoop(t *testing.T, build string) *loop {
	l := &loop{program: filepath.Join(t.TempDir(), "remat"), dir: t.TempDir(), temp: t.TempDir()}
	l.env = append(os.Environ(), "REMAT_ORT="+build, "TMPDIR="+l.temp)
	if out, err := exec.Command("go", "build", "-o", l.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, line := range prepare {
		if words := strings.Fields(line); words[0] == "exec" {
			c := exec.Command(l.program, words[2:]...)
			c.Dir, c.Env = l.dir, l.env
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
	}
	if err := writeBatch(filepath.Join(l.dir, "batch.npz")); err != nil {
		t.Fatal(err)
	}
	return l
}

var crashed = regexp.MustCompile(`SIG[A-Z]{3,}|goroutine |panic|terminate called|core dumped|internal error`)

// run runs a command, interrupts it after a time other than 0, and looks at what it
// left. It returns how long it took.
func (l *loop) run(t *testing.T, args []string, after time.Duration) time.Duration {
	t.Helper()
	l.runs++
	var out bytes.Buffer
	c := exec.Command(l.program, args...)
	c.Dir, c.Env, c.Stdout, c.Stderr = l.dir, l.env, &out, &out
	start := time.Now()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if after > 0 {
		time.Sleep(after)
		_ = c.Process.Signal(syscall.SIGINT) // it may have ended
	}
	_ = c.Wait()
	took := time.Since(start)
	code, what := c.ProcessState.ExitCode(), fmt.Sprintf("run %d, %q, interrupted after %v", l.runs, args, after)
	if code != 0 && (after == 0 || code != exitInterrupted && c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT) || crashed.Match(out.Bytes()) {
		t.Fatalf("%s: exit code %d\n%s", what, code, &out)
	}
	left, err := os.ReadDir(l.temp)
	left = slices.DeleteFunc(left, func(f os.DirEntry) bool { return f.Name() == ".ses" }) // ONNX Runtime's own
	if err != nil || len(left) > 0 {
		t.Fatalf("%s: left %v, %v", what, left, err)
	}
	files, err := filepath.Glob(filepath.Join(l.dir, "*", ".*"))
	more, err2 := filepath.Glob(filepath.Join(l.dir, ".*"))
	if files = append(files, more...); err != nil || err2 != nil || len(files) > 0 {
		t.Fatalf("%s: left %v", what, files)
	}
	return took
}
