package main

// A limit of the address space (ulimit -v). Go and ONNX Runtime reserve gigabytes of
// it beside what they use, and the Go runtime ends the process, with all its stacks,
// where it gets none. So under a limit the program runs as a child of itself:
//
//	parent ── same arguments ──▶ child
//	       ◀── its stderr ──────       up to where a runtime begins to print stacks
//
// and the parent says in one line what a crash means. Without a limit there is no child.

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// supervisedKey is set in the child's environment.
const supervisedKey = "REMAT_SUPERVISED"

// addressLimit is the limit of the address space in bytes, ok where there is one.
func addressLimit() (limit uint64, ok bool) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return 0, false
	}
	return l.Cur, true
}

// tightLine says what a crash under a limit means.
func tightLine(limit uint64) string {
	return fmt.Sprintf("out of memory: the address space is limited to %d MiB (ulimit -v), of which Go and ONNX Runtime reserve about 2 GiB beside the model: raise the limit, or limit memory with a control group", limit>>20)
}

// supervise runs the program in a child if the address space is limited, and returns
// the exit code; done is false where there is no limit, or this is the child.
func supervise() (code int, done bool) {
	limit, limited := addressLimit()
	if !limited || os.Getenv(supervisedKey) != "" {
		return 0, false
	}
	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Args[0] = os.Args[0]
	child.Env = append(os.Environ(), supervisedKey+"=1")
	child.Stdin, child.Stdout = os.Stdin, os.Stdout
	// A group of its own: a terminal's signal comes once, through the parent.
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	says, err := child.StderrPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "remat: "+tightLine(limit))
		return exitBadInput, true
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append(hangup(), os.Interrupt, syscall.SIGTERM)...)
	go func() {
		for s := range signals {
			_ = child.Process.Signal(s) // it may have ended
		}
	}()
	crashed := passOn(os.Stderr, says)
	err = child.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() < 0 {
		status, _ := exit.Sys().(syscall.WaitStatus)
		crashed = crashed || status.Signal() == syscall.SIGABRT || status.Signal() == syscall.SIGSEGV
	}
	if crashed {
		fmt.Fprintln(os.Stderr, "remat: "+tightLine(limit))
		return exitBadInput, true
	}
	return max(child.ProcessState.ExitCode(), 0), true
}

// crashMarks begin what a runtime prints as it ends a process.
var crashMarks = []string{"fatal error: ", "runtime: ", "runtime/cgo: ", "SIGABRT", "SIGSEGV", "SIGBUS", "terminate called", "panic: "}

// passOn copies lines until one begins a crash, and reports whether one did.
func passOn(to io.Writer, from io.Reader) (crashed bool) {
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadString('\n')
		for _, mark := range crashMarks {
			crashed = crashed || strings.HasPrefix(line, mark)
		}
		if !crashed {
			io.WriteString(to, line)
		}
		if err != nil {
			return crashed
		}
	}
}

// addressMarks are what a library says that found no address space.
var addressMarks = []string{"failed to map segment", "bad_alloc", "pthread_create failed", "cannot allocate memory"}

// tight is the error in words where it comes from a limited address space.
func tight(err error) error {
	limit, limited := addressLimit()
	text := strings.ToLower(err.Error())
	for _, mark := range addressMarks {
		if limited && strings.Contains(text, mark) {
			return errors.New(tightLine(limit))
		}
	}
	return err
}
