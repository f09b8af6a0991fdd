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
var namesFile = map[string]bool{"o": true, "out": true, "save": true, "trace": true, "html": true, "png": true}

// sortArgs returns args in the order in which urfave/cli understands them.
func sortArgs(app *cli.App, args []string) ([]string, error) {
	global := flagTable(app.Flags)
	var front, own, rest []string
	var command *cli.Command
	local := map[string]bool{}
	help := false // remat help, remat help COMMAND
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if !strings.HasPrefix(word, "-") || word == "-" {
			if command == nil {
				if word == "help" && !help {
					help = true
					continue
				}
				if command = app.Command(word); command == nil {
					return nil, fmt.Errorf("no command %q; see remat --help", word)
				}
				local = flagTable(command.Flags)
				continue
			}
			rest = append(rest, word)
			continue
		}
		name, value, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
		target := &own
		takesValue, known := local[name]
		if !known {
			if takesValue, known = global[name]; known {
				target = &front
			}
		}
		if !known && command == nil {
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
	}
	out := front
	if command != nil {
		out = append(out, command.Name)
	}
	out = append(out, own...)
	if help {
		out = append(out, "--help")
	}
	if slices.ContainsFunc(out, func(w string) bool { return w == "--help" || w == "-h" }) {
		return out, nil
	}
	if len(rest) > 0 {
		out = append(append(out, "--"), rest...)
	}
	return out, nil
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
