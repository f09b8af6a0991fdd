package main

import "fmt"

const shortened = "a file was shortened while it was being read: leave models and their weights as they are until the command is done, and run it again"

// panicLine is what a user reads of a panic, which is a bug, unless it is a
// fault: weights and inline data are mapped, and a page of a mapped file that
// somebody shortens meanwhile cannot be read any more. Where ONNX Runtime reads
// such a page, main has the process end with the same line.
func panicLine(p any) string {
	if fault, ok := p.(interface{ Addr() uintptr }); ok && fault.Addr() > 1<<16 {
		return shortened
	}
	return fmt.Sprintf("internal error: %v (run again with -d stack and report it)", p)
}
