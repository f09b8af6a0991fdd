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

// TestRehearsalsEnd runs every command of README and docs/gpu.md, rehearsed, as often
// as REHEARSALS says, and each time once more with an interrupt at a random moment: it
// ends with its exit code, without a stack, and leaves no temporary file. Models are
// small, so that a round takes 15 s of one core. make rehearsals runs it.
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
	if len(commands) < 12 {
		t.Fatalf("%d commands", len(commands))
	}
	start := time.Now()
	for i := range times {
		for _, c := range commands {
			if c.refused {
				l.run(t, c, 0)
				continue
			}
			took := l.run(t, c, 0)
			l.run(t, c, 1+time.Duration(rand.Int64N(int64(took))))
		}
		if (i+1)%10 == 0 || i+1 == times {
			t.Logf("%v: %d of %d rounds of %d commands, started %d times, interrupted %d", time.Since(start).Round(time.Second), i+1, times, len(commands), l.runs, l.stopped)
		}
	}
}

// A rehearsal is a command's arguments, and whether it is refused because it needs
// numbers.
type rehearsal struct {
	args    []string
	refused bool
}

// rehearsable are the commands of the documents. One that asks for numbers stands
// twice, as it is and without.
func rehearsable(t *testing.T) []rehearsal {
	t.Helper()
	var all []rehearsal
	for _, path := range []string{"README.md", "docs/gpu.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
			for _, l := range strings.Split(strings.ReplaceAll(m[1], "\\\n", " "), "\n") {
				l, _, _ = strings.Cut(l, " #")
				l, _, _ = strings.Cut(l, " > ")
				words := strings.Fields(strings.TrimPrefix(l, "bin/"))
				if len(words) < 2 || words[0] != "remat" || slices.Contains(words, "--install") { // which fetches what this runs on
					continue
				}
				whole, refused := rehearsedArgs(words[1:], nil)
				if all = append(all, rehearsal{whole, refused}); refused {
					args, _ := rehearsedArgs(words[1:], needNumbers)
					all = append(all, rehearsal{args, false})
				}
			}
		}
	}
	return all
}

// needNumbers are the flags of the documents that a rehearsal refuses.
var needNumbers = []string{"--out", "--save", "--tolerance"}

// rehearsedArgs are a command's arguments with --rehearse, but for flags that are left
// out with their values, and whether a flag needs numbers.
func rehearsedArgs(words, without []string) (args []string, refused bool) {
	args = []string{"--rehearse", "--provider", "cuda", "--quiet"}
	for i := 0; i < len(words); i++ {
		refused = refused || slices.Contains(needNumbers, words[i])
		switch w := words[i]; {
		case w == "--rehearse":
		case w == "--provider" || slices.Contains(without, w):
			i++
		case w == "demo": // of the smallest model
			args = append(args, w, "--model", "gpt2-tiny", "--layers", "1", "--seq", "16", "--steps", "1")
		default:
			args = append(args, w)
		}
	}
	return args, refused
}

// A loop is a folder with models, and the program.
type loop struct {
	program, dir, temp string
	env                []string
	runs, stopped      int
}

func newLoop(t *testing.T, build string) *loop {
	l := &loop{program: filepath.Join(t.TempDir(), "remat"), dir: t.TempDir(), temp: t.TempDir()}
	l.env = append(os.Environ(), "REMAT_ORT="+build, "TMPDIR="+l.temp)
	if out, err := exec.Command("go", "build", "-o", l.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if err := writeBatch(filepath.Join(l.dir, "batch.npz")); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"model gpt2-tiny --layers 1 --batch 1 --seq 32 -o model.onnx",
		"grad model.onnx --optimizer adamw -o train.onnx",
		"rewrite train.onnx --strategy full -o small.onnx",
		"run small.onnx --feeds batch.npz --save state.safetensors", // with numbers, on the CPU
	} {
		c := exec.Command(l.program, strings.Fields(line)...)
		c.Dir, c.Env = l.dir, l.env
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	return l
}

var crashed = regexp.MustCompile(`SIG[A-Z]{3,}|goroutine |panic|terminate called|core dumped|internal error`)

// run runs a command, interrupts it after a time other than 0, and looks at what it
// left. It returns how long it took.
func (l *loop) run(t *testing.T, r rehearsal, after time.Duration) time.Duration {
	t.Helper()
	l.runs++
	var out bytes.Buffer
	c := exec.Command(l.program, r.args...)
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
	code, what := c.ProcessState.ExitCode(), fmt.Sprintf("run %d, %q, interrupted after %v", l.runs, r.args, after)
	want := 0
	if r.refused {
		want = exitBadInput
	}
	interrupted := after > 0 && (code == exitInterrupted || c.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGINT)
	if interrupted {
		l.stopped++
	}
	if code != want && !interrupted || crashed.Match(out.Bytes()) {
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
