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
)

func main() {
	if code, done := supervise(); done {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
