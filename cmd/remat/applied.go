package main

// What the passes of a rewriting did, for people: one line of what was done, and
// one more for each pass that did less than it was asked, with the reason. What
// the user asked for by name, as --precision, always has its line.

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/rewrite"
)

// doneWords says what a pass did n times, "" for what matters to nobody.
var doneWords = map[string]func(n int, o *flow.Options) string{
	"recompute": func(n int, _ *flow.Options) string { return counted(n, "node") + " recomputed" },
	"chunk":     func(_ int, o *flow.Options) string { return fmt.Sprintf("the loss in %d parts", o.Chunk) },
	"tile":      func(n int, _ *flow.Options) string { return counted(n, "wide product") + " in parts" },
	"rows":      func(n int, _ *flow.Options) string { return counted(n, "large update") + " by rows" },
	"hold once": func(n int, _ *flow.Options) string { return counted(n, "frozen weight") + " held once" },
	"scatter":   func(int, *flow.Options) string { return "" },
	"anchor": func(n int, _ *flow.Options) string {
		return counted(n, "node") + " held in place by control dependencies"
	},
	"schedule": func(n int, _ *flow.Options) string { return counted(n, "node") + " in order" },
}

// counted writes a number of things.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// appliedLines are the reports of the passes in words.
func appliedLines(reports []rewrite.Report, o *flow.Options) []string {
	var done, lines []string
	for _, r := range reports {
		words, known := doneWords[r.Pass]
		if !known || len(r.Skipped) > 0 {
			lines = append(lines, r.String())
		} else if text := words(r.Applied, o); r.Applied > 0 && text != "" {
			done = append(done, text)
		}
	}
	if len(done) > 0 {
		lines = append(lines, "done: "+strings.Join(done, ", "))
	}
	return lines
}

// roundingLine says that a form that was chosen adds up in another order, "" where
// every result keeps its bits.
func roundingLine(reports []rewrite.Report, o *flow.Options) string {
	var why []string
	for _, r := range reports {
		switch r.Pass {
		case "chunk", "tile", "rows":
			if r.Applied > 0 {
				why = append(why, doneWords[r.Pass](r.Applied, o))
			}
		}
	}
	if len(why) == 0 {
		return ""
	}
	return "results may differ in the last bits: " + strings.Join(why, ", ")
}
