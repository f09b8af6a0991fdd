package main

// Go's flag parser, which urfave/cli rests on, stops at the first word that is
// no flag, and knows global flags only before the command. People type
// `remat run M.onnx --json`. So the words are sorted first: global flags, the
// command, its flags, then everything else.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// namesFile lists the flags that say where to write, for whom an empty word, as an
// unset variable of a shell, would mean nowhere.
var namesFile = map[string]bool{"o": true, "out": true, "save": true, "trace": true, "html": true, "png": true, "jobs": true, configFlag: true}

// A line is what was typed, sorted.
type line struct {
	global, own []string // flags and their values
	arguments   []string
	command     *cli.Command // nil: none was named
	given       map[string]bool
	config      string // the recipe that --config names
	folder      string // what -o names
	help        bool
}

// words are in the order in which urfave/cli understands them.
func (l *line) words() []string {
	out := slices.Clone(l.global)
	if l.command != nil {
		out = append(out, l.command.Name)
	}
	out = append(out, l.own...)
	if len(l.arguments) > 0 && !l.help {
		out = append(append(out, "--"), l.arguments...)
	}
	return out
}

// sortArgs sorts what was typed.
func sortArgs(app *cli.App, args []string) (*line, error) {
	l := &line{given: map[string]bool{}}
	global := flagTable(app.Flags)
	local := map[string]bool{}
	asked := false // remat help, remat help COMMAND
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "--" {
			l.arguments = append(l.arguments, args[i+1:]...)
			break
		}
		if !strings.HasPrefix(word, "-") || word == "-" {
			if l.command == nil {
				if word == "help" && !asked {
					asked = true
					continue
				}
				if l.command = app.Command(word); l.command == nil {
					return nil, fmt.Errorf("no command %q; see remat --help", word)
				}
				local = flagTable(l.command.Flags)
				continue
			}
			l.arguments = append(l.arguments, word)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
		target := &l.own
		takesValue, known := local[name]
		if !known {
			if takesValue, known = global[name]; known {
				target = &l.global
			}
		}
		if !known && l.command == nil {
			return nil, fmt.Errorf("no flag %s before a command; see remat --help", dashes(name))
		}
		*target = append(*target, word)
		if known && takesValue && !hasValue {
			if i+1 >= len(args) {
				return nil, fmt.Errorf("flag %s needs a value", word)
			}
			i++
			value = args[i]
			*target = append(*target, value)
		}
		if known && takesValue && namesFile[name] && value == "" {
			return nil, fmt.Errorf("%s is empty: name a file, or leave it out", strings.TrimSuffix(word, "="))
		}
		switch l.given[name] = true; name {
		case configFlag:
			l.config = value
		case "o":
			l.folder = value
		}
	}
	if asked {
		l.own = append(l.own, "--help")
	}
	isHelp := func(w string) bool { return w == "--help" || w == "-h" }
	l.help = slices.ContainsFunc(l.global, isHelp) || slices.ContainsFunc(l.own, isHelp)
	return l, nil
}

// flagTable maps each flag's names to whether it takes a value.
func flagTable(flags []cli.Flag) map[string]bool {
	table := map[string]bool{"help": false, "h": false, "version": false, "v": false}
	for _, f := range flags {
		_, isBool := f.(*cli.BoolFlag)
		for _, name := range f.Names() {
			table[name] = !isBool
		}
	}
	return table
}
