// Command remat rewrites ONNX training graphs so that training fits.
//
// Each command is a row of the table in app.go and a file of its own: its
// options, and a function that runs them.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/onnx-remat/remat/runtime/ort"
)

func main() {
	if code, done := supervise(); done {
		os.Exit(code)
	}
	ort.EndOnFault("remat: "+shortened, exitBadInput)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if s := hangup(); s != nil { // of which a closed terminal and its shell may send several
		ctx, _ = signal.NotifyContext(ctx, s...)
	}
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// hangup is the signal of a terminal that is closed, none where nohup has it ignored.
func hangup() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return nil
	}
	return []os.Signal{syscall.SIGHUP}
}
