package main

// How the help writes a flag: its name and what it takes, then what it is for,
// in lines that fit a terminal. The word between backticks in a flag's Usage is
// what it takes; where that word opens or ends the text it is not said twice.
//
//	--steps N      number of steps (default: 1)
//	--dim K=N,…    fixes symbolic dimensions, …; may be repeated

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// helpWidth is how many letters of a flag's text stand in a line.
const helpWidth = 78

// flagHelp is the line, or the lines, of one flag.
func flagHelp(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	takes, text := usageOf(d.GetUsage())
	name := ""
	for i, n := range f.Names() {
		if i > 0 {
			name += ", "
		}
		name += dashes(n)
	}
	if d.TakesValue() {
		name += " " + takes
	}
	switch value := strings.Trim(d.GetDefaultText(), `"`); value {
	case "", "0", "false":
	default:
		text += " (default: " + value + ")"
	}
	if s, ok := f.(cli.DocGenerationSliceFlag); ok && s.IsSliceFlag() && !strings.Contains(text, "may be repeated") {
		text += "; may be repeated"
	}
	for _, v := range d.GetEnvVars() {
		text += " [$" + v + "]"
	}
	return name + "\t" + strings.Join(wrapWords(text, helpWidth), "\n   \t")
}

// usageOf divides a flag's Usage into what it takes and the text.
func usageOf(usage string) (takes, text string) {
	before, rest, ok := strings.Cut(usage, "`")
	takes, after, closed := strings.Cut(rest, "`")
	switch {
	case !ok || !closed:
		return "VALUE", usage
	case before == "" && strings.HasPrefix(after, ": "):
		return takes, after[2:]
	case after == "" && strings.HasSuffix(before, ", "):
		return takes, strings.TrimSuffix(before, ", ")
	case strings.HasSuffix(before, ", ") && strings.ContainsAny(after[:1], ",;:"):
		return takes, strings.TrimSuffix(before, ", ") + after
	}
	return takes, before + takes + after
}

// wrapWords breaks a text into lines of at most width letters.
func wrapWords(text string, width int) []string {
	lines := []string{""}
	for w := range strings.FieldsSeq(text) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = w
		case len(*last)+1+len(w) > width:
			lines = append(lines, w)
		default:
			*last += " " + w
		}
	}
	return lines
}
