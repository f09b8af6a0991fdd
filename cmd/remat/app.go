package main

// The whole program: arguments are sorted (args.go), urfave/cli finds the
// command, its function runs, and what comes back becomes an exit code:
//
//	0 done; 1 the work ran and its check failed; 2 bad input or usage, one
//	line on stderr; 130 interrupted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Exit codes of the contract.
const (
	exitDone        = 0
	exitCheckFailed = 1
	exitBadInput    = 2
	exitInterrupted = 130
)

// checkError says that the work ran and its check failed.
type checkError struct{ err error }

func (e *checkError) Error() string { return e.err.Error() }
func (e *checkError) Unwrap() error { return e.err }

// errInterrupted ends a command that was told to stop.
var errInterrupted = errors.New("interrupted")

// errHelped ends a run that only listed something.
var errHelped = errors.New("helped")

// commands is the table of commands, in the order of the flow.
func commands(e *env) []*cli.Command {
	return []*cli.Command{
		doctorCommand(e), modelCommand(e), inspectCommand(e), lossCommand(e), gradCommand(e),
		lowerCommand(e), planCommand(e), explainCommand(e), rewriteCommand(e), splitCommand(e),
		runCommand(e), trainCommand(e), evalCommand(e), applyCommand(e), compareCommand(e), sweepCommand(e), adviseCommand(e), demoCommand(e),
	}
}

// newApp builds the command-line interface over e.
func newApp(e *env) *cli.App {
	usage := func(c *cli.Context, err error, _ bool) error {
		return fmt.Errorf("%s; see remat %s --help", plainUsage(err), strings.TrimPrefix(c.Command.HelpName, "remat "))
	}
	cli.FlagStringer = flagHelp
	app := &cli.App{
		After: func(*cli.Context) error { return e.stopProfile() },
		Name:  "remat", Usage: "rewrite ONNX training graphs so that training fits",
		HideVersion: false, Version: version,
		Writer: e.stdout, ErrWriter: io.Discard,
		Flags:    globalFlags(),
		Commands: commands(e),
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return fmt.Errorf("%s; see remat --help", plainUsage(err))
		},
		ExitErrHandler:            func(*cli.Context, error) {},
		DisableSliceFlagSeparator: true,
		HideHelpCommand:           true,
		Before: func(c *cli.Context) error {
			if err := e.readGlobals(c); err != nil {
				return err
			}
			return e.startProfile()
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("no command %q; see remat --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = usage
		c.HideHelpCommand = true
	}
	return app
}

var (
	unknownFlag = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)
	badValue    = regexp.MustCompile(`^invalid (?:boolean )?value (".*") for (?:flag )?-([^:]*): (.*)$`)
)

// plainUsage says in our words what the flag parser found wrong.
func plainUsage(err error) string {
	text := err.Error()
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		return "no flag " + dashes(m[1])
	}
	m := badValue.FindStringSubmatch(text)
	switch {
	case m == nil:
		return text
	case strings.Contains(m[3], "out of range"):
		return dashes(m[2]) + " " + m[1] + ": out of range"
	case strings.Contains(m[3], "ParseBool"), strings.Contains(text, "boolean"):
		return dashes(m[2]) + " " + m[1] + ": not a boolean: write the flag alone, or with =true or =false"
	}
	return dashes(m[2]) + " " + m[1] + ": not a valid number"
}

var wrongJSON = regexp.MustCompile(`(?:json: )?cannot unmarshal ([a-z]+(?: [-+.0-9eE]+)?) into Go (?:struct field (\S+)|value) of type (struct \{[^}]*\}|[^\s:;,)]+)`)

// plainJSON says in our words what encoding/json found where it expected something else, which
// it says in words of Go's types.
func plainJSON(line string) string {
	return wrongJSON.ReplaceAllStringFunc(line, func(text string) string {
		m := wrongJSON.FindStringSubmatch(text)
		field, want := "", "an object"
		if _, name, ok := strings.Cut(m[2], "."); ok {
			field = fmt.Sprintf("%q: ", name)
		}
		switch kind := m[3]; {
		case kind == "string":
			want = "text"
		case kind == "bool":
			want = "true or false"
		case strings.HasPrefix(kind, "[]"):
			want = "a list"
		case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
			want = "a whole number"
		case strings.HasPrefix(kind, "float"):
			want = "a number"
		}
		return field + "wants " + want + ", got " + m[1]
	})
}

// dashes writes a flag as the help does.
func dashes(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	e := newEnv(ctx, stdout, stderr)
	e.typed, e.words = commandLine(args), args
	defer e.close()
	defer context.AfterFunc(ctx, e.abandon)()
	defer func() {
		// A panic is a bug, but the user still gets one line and no stack,
		// unless the stack is asked for.
		if p := recover(); p != nil {
			fmt.Fprintf(stderr, "remat: %s\n", panicLine(p))
			if e.debug["stack"] != "" {
				stderr.Write(debug.Stack())
			}
			code = exitBadInput
		}
	}()
	debug.SetPanicOnFault(true) // see panicLine
	app := newApp(e)
	line, err := sortArgs(app, args)
	if err == nil {
		e.command = line.command
		err = e.readRecipe(app, line)
	}
	if err == nil {
		err = e.recipe.locate(app.RunContext(ctx, append([]string{"remat"}, line.words()...)))
	}
	return e.exitCode(err)
}

// commandLine is what was typed, for a shell.
func commandLine(args []string) string {
	words := []string{"remat"}
	for _, a := range args {
		if a == "" || strings.ContainsAny(a, " \t\n'\"\\$&|;<>()*?[]#~`!{}") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// startProfile begins to record where the processor's time goes, if -d cpu asks
// for it; stopProfile ends that.
func (e *env) startProfile() error {
	path := e.debug["cpu"]
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("-d cpu: %w", err)
	}
	e.profile = f
	return pprof.StartCPUProfile(f)
}

func (e *env) stopProfile() error {
	if e.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	return e.profile.Close()
}

// How long a command may go on after it was told to stop: to print what was
// measured, or else to notice by itself.
const (
	graceMeasuring = 15 * time.Second
	grace          = 500 * time.Millisecond
)

// abandon ends the program when a command does not stop by itself: in the
// midst of planning, or inside ONNX Runtime. Files that are being written go, and temporary ones.
func (e *env) abandon() {
	for time.Sleep(grace); e.finishing.Load(); time.Sleep(grace) {
	}
	if e.measuring.Load() {
		time.Sleep(graceMeasuring)
	}
	onnx.RemovePending()
	ort.RemoveTemporary()
	fmt.Fprintln(e.stderr, "remat: interrupted")
	os.Exit(exitInterrupted)
}

// roomHelp says how to name another folder for temporary files where a line is about one of them
// that found no room.
func roomHelp(err error, line string) string {
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	if !full || !strings.Contains(line, filepath.Join(os.TempDir(), "remat-")) {
		return ""
	}
	return "; TMPDIR names another folder for temporary files"
}

// exitCode reports an error on stderr, on one line, and returns its code.
func (e *env) exitCode(err error) int {
	if e.out.err != nil && (err == nil || err.Error() == e.out.err.Error()) { // a document may be lost, though the work was done
		err = fmt.Errorf("cannot write to stdout: %w", e.out.err)
	}
	if stopped, ok := errors.AsType[*interruptedError](err); ok {
		fmt.Fprintf(e.stderr, "remat: %s\n", stopped.text)
		return exitInterrupted
	}
	if e.ctx.Err() != nil {
		fmt.Fprintln(e.stderr, "remat: interrupted")
		return exitInterrupted
	}
	if err == nil || errors.Is(err, errHelped) {
		return exitDone
	}
	line := plainJSON(strings.Join(strings.Fields(tight(err).Error()), " "))
	if help := memoryHelp(err); !strings.Contains(line, help) {
		line += help
	}
	if help := roomHelp(err, line); !strings.Contains(line, "TMPDIR") {
		line += help
	}
	fmt.Fprintf(e.stderr, "remat: %s\n", line)
	var check *checkError
	var full *remat.DeviceMemoryError
	switch {
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.As(err, &check), errors.As(err, &full), beyondLimit(err) != nil:
		return exitCheckFailed
	}
	return exitBadInput
}
