package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

const version = pipeline.Version

// env is what every command gets: where to write, and the global options.
type env struct {
	ctx            context.Context
	stdout, stderr io.Writer
	out            *keeper // what stdout is

	ort      string
	provider string
	device   int
	// rehearse runs CUDA's provider without a device, one of deviceMemory bytes;
	// 0: unlimited.
	rehearse     bool
	deviceMemory int64
	// asked is --provider as it was given; provider is what onCUDA settles it to.
	asked string
	tf32  bool

	threads int
	opt     int
	dims    map[string]int64
	json    bool
	quiet   bool
	debug   map[string]string
	// workspace is what inspect counts for each cuDNN workspace of unknown size, in bytes.
	workspace int64
	// sizes finds what data alone tells, nil where no data is given.
	sizes    pipeline.Sizes
	profile  *os.File // what -d cpu writes
	dumped   int      // graphs that -d dump has written
	closers  []func()
	collect  func()                      // garbage as before leaveGarbage; nil: none is left
	sources  map[string]*pipeline.Source // that were read
	loaded   *remat.Engine
	typed    string          // the command line
	command  *cli.Command    // nil: none was named
	words    []string        // of which it is
	archives []archive       // of --feeds and --data
	fed      []string        // files that readFeeds read
	startRSS int64           // resident bytes as the program began
	shown    *progress       // the one that has not finished
	recipe   *recipe         // of --config; nil: none
	remark   string          // what there is to say of it
	rates    map[string]bool // flags of rates that were given
	// measuring: steps run, and what they gave is to be printed.
	measuring atomic.Bool
	// finishing: a step is brought to its end and saved, however long that takes.
	finishing atomic.Bool
}

func newEnv(ctx context.Context, stdout, stderr io.Writer) *env {
	out := &keeper{to: stdout}
	start, _ := remat.RSS()
	return &env{startRSS: start, ctx: ctx, stdout: out, out: out, stderr: stderr, provider: "auto", opt: 1}
}

// A keeper passes on what is written, and keeps the first error.
type keeper struct {
	to  io.Writer
	err error
}

func (k *keeper) Write(p []byte) (int, error) {
	n, err := k.to.Write(p)
	if k.err == nil && err != nil {
		k.err = err
	}
	return n, err
}

// Width is how many letters stand in a line of the terminal, 0 where none is.
func (k *keeper) Width() int {
	f, ok := k.to.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

func (e *env) close() {
	e.collectGarbage()
	for path := range e.sources {
		e.unload(path)
	}
	for i := len(e.closers) - 1; i >= 0; i-- {
		e.closers[i]()
	}
}

// debugSwitches lists what -d knows.
var debugSwitches = map[string]string{
	"check":    "check every invariant of the graph after each pass",
	"stack":    "print the stack of an internal error",
	"dump":     "write the graph after each pass, and the planning problem, into a folder (-d dump=DIR)",
	"sessions": "print each ONNX Runtime session created: its purpose, level and seconds",
	"cpu":      "write a CPU profile for go tool pprof (-d cpu=FILE)",
}

func globalFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "ort", EnvVars: []string{"REMAT_ORT"}, Usage: "ONNX Runtime library `PATH`; default: the installed one"},
		&cli.StringFlag{Name: "provider", Value: "auto", Usage: "`auto|cpu|cuda`: where to run; auto uses CUDA if it works"},
		&cli.IntFlag{Name: "device", Usage: "number of the GPU, `N`"},
		&cli.BoolFlag{Name: "tf32", Usage: "on a GPU: products of float32 may round their factors to TF32, 10 bits of mantissa"},
		&cli.BoolFlag{Name: "rehearse", Usage: "with --provider cuda: measure memory without a GPU; no numbers are computed"},
		&cli.StringFlag{Name: "device-memory", Usage: "with --rehearse: the GPU's memory, `SIZE`; default: unlimited"},
		&cli.IntFlag{Name: "threads", Usage: "threads per operator, `N`; 0: the number of cores"},
		&cli.IntFlag{Name: "opt", Value: 1, Usage: "ONNX Runtime's optimization level, `0|1|99`"},
		&cli.StringSliceFlag{Name: "dim", Usage: "`NAME=N,…`: fixes symbolic dimensions, as in batch=2,seq=128"},
		&cli.StringFlag{Name: configFlag, Usage: "take flags from the recipe `F.yaml`; those that are typed win"},
		&cli.BoolFlag{Name: "json", Usage: "print one JSON document on stdout"},
		&cli.BoolFlag{Name: "quiet", Usage: "no progress and no notes"},
		&cli.StringSliceFlag{Name: "d", Usage: "debug switches, `KEY[=VAL],…`; -d help lists them"},
	}
}

// mostThreads of one operator: ONNX Runtime starts them all when a session is made.
const mostThreads = 1024

// readGlobals reads the global options, before any command runs.
func (e *env) readGlobals(c *cli.Context) error {
	e.ort, e.device, e.tf32, e.threads = c.String("ort"), c.Int("device"), c.Bool("tf32"), c.Int("threads")
	e.json, e.quiet = c.Bool("json"), c.Bool("quiet")
	if e.remark != "" && !e.quiet {
		fmt.Fprintln(e.stderr, e.remark)
	}
	e.asked = c.String("provider")
	switch e.provider = e.asked; e.provider {
	case "auto", "cpu", "cuda":
	default:
		return fmt.Errorf("--provider %q: want auto, cpu or cuda", e.provider)
	}
	if err := e.readRehearsal(c); err != nil {
		return err
	}
	switch e.opt = c.Int("opt"); e.opt {
	case 0, 1, 99:
	default:
		return fmt.Errorf("--opt %d: want 0, 1 or 99", e.opt)
	}
	if e.threads < 0 || e.device < 0 {
		return fmt.Errorf("--threads and --device must not be negative")
	}
	if most := max(mostThreads, runtime.NumCPU()); e.threads > most {
		return fmt.Errorf("--threads %d: want at most %d", e.threads, most)
	}
	if e.threads == 0 { // predictions are for the threads that a run here has
		e.threads = runtime.NumCPU()
	}
	var err error
	if e.dims, err = parseDims(c.StringSlice("dim")); err != nil {
		return err
	}
	return e.readDebug(c.StringSlice("d"))
}

func parseDims(lists []string) (map[string]int64, error) {
	dims := map[string]int64{}
	for _, part := range splitList(lists) {
		name, value, ok := strings.Cut(part, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		n, err := strconv.ParseInt(value, 10, 64)
		if !ok || name == "" || err != nil || n < 1 || n > 1<<40 {
			return nil, fmt.Errorf("--dim %q: want NAME=SIZE with a size of at least 1, for example batch=2", part)
		}
		if other, twice := dims[name]; twice && other != n {
			return nil, fmt.Errorf("--dim %s: given twice, as %d and as %d", name, other, n)
		}
		dims[name] = n
	}
	return dims, nil
}

func (e *env) readDebug(lists []string) error {
	e.debug = map[string]string{}
	for _, part := range splitList(lists) {
		key, value, ok := strings.Cut(part, "=")
		if key == "help" {
			for _, k := range slices.Sorted(maps.Keys(debugSwitches)) {
				fmt.Fprintf(e.stdout, "%-9s %s\n", k, debugSwitches[k])
			}
			return errHelped
		}
		if debugSwitches[key] == "" {
			return fmt.Errorf("-d %s: no such switch; -d help lists them", key)
		}
		if !ok && (key == "dump" || key == "cpu") {
			return fmt.Errorf("-d %s: missing a path: write -d %s=PATH", key, key)
		}
		if !ok {
			value = "1"
		}
		e.debug[key] = value
	}
	return nil
}

// splitList splits each of the lists at its commas.
func splitList(lists []string) []string {
	var out []string
	for _, l := range lists {
		for part := range strings.SplitSeq(l, ",") {
			if part = strings.TrimSpace(part); part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

// say prints what a person wants to read, nothing under --json.
func (e *env) say(format string, args ...any) {
	if !e.json {
		fmt.Fprintf(e.stdout, format+"\n", args...)
	}
}

// argument returns the command's single argument.
func argument(c *cli.Context, what string) (string, error) {
	if c.Args().Len() != 1 {
		return "", fmt.Errorf("remat %s: want one %s, got %d arguments; see remat %s --help", c.Command.Name, what, c.Args().Len(), c.Command.Name)
	}
	if c.Args().First() == "" {
		return "", fmt.Errorf("remat %s: the %s has an empty name", c.Command.Name, what)
	}
	return c.Args().First(), nil
}

// output returns the value of -o, which must be given.
func output(c *cli.Context) (string, error) {
	if o := c.String("o"); o != "" {
		return o, nil
	}
	return "", fmt.Errorf("remat %s: missing -o FILE", c.Command.Name)
}

// onCUDA reports that steps run on a GPU: by --provider, or because auto finds that CUDA
// works, which settles it for the command. So what is planned is for where it runs.
func (e *env) onCUDA() bool {
	if e.provider == string(remat.Auto) {
		if engine, err := e.engine(); err == nil {
			if p, err := engine.Provider(remat.Auto, e.device); err == nil {
				e.provider = string(p)
			}
		}
	}
	return e.provider == string(ort.CUDA)
}

// canRun is nil where steps run as --provider says: for who would else plan for CUDA, perhaps
// for long, before a session says that there is none.
func (e *env) canRun() error {
	if !e.onCUDA() {
		return nil
	}
	engine, err := e.engine()
	if err != nil || e.rehearse {
		return err
	}
	return engine.TryCUDA(e.device)
}

// sessionOptions are the global options as a session wants them.
func (e *env) sessionOptions() remat.Options {
	return remat.Options{Level: e.opt, Threads: e.threads, Provider: ort.Provider(e.provider), Device: e.device, TF32: e.tf32, Dims: e.dims}
}

// halfProvider is whose kernels a half type is chosen for.
func (e *env) halfProvider() kernels.Provider {
	if e.onCUDA() {
		return kernels.CUDA
	}
	return kernels.CPU
}

// interrupted returns errInterrupted once the user asked to stop.
func (e *env) interrupted() error {
	if e.ctx.Err() != nil {
		return errInterrupted
	}
	return nil
}

// readBytes reads a flag that takes a size of at least that many bytes, and no share.
func readBytes(flag, text string, least int64) (int64, error) {
	size, err := units.ParseSize(text)
	if err != nil {
		return 0, fmt.Errorf("--%s: %w", flag, err)
	}
	if size.IsShare {
		return 0, fmt.Errorf("--%s %s: want a size, such as 64MiB or 24GiB", flag, text)
	}
	if size.Bytes < least {
		return 0, fmt.Errorf("--%s %s: want a size above 0, such as 24GiB", flag, text)
	}
	return size.Bytes, nil
}
