package main

// Go's flag parser, which urfave/cli rests on, stops at the first word that is
// no flag, and knows global flags only before the command. People type
// `remat run M.onnx --json`. So the words are sorted first: global flags, the
// command, its flags, then everything else.

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

// sortArgs returns args in the order in which urfave/cli understands them.
func sortArgs(app *cli.App, args []string) ([]string, error) {
	global := flagTable(app.Flags)
	var front, own, rest []string
	var command *cli.Command
	local := map[string]bool{}
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if !strings.HasPrefix(word, "-") || word == "-" {
			if command == nil {
				if command = app.Command(word); command == nil {
					return nil, fmt.Errorf("no command %q; see remat --help", word)
				}
				local = flagTable(command.Flags)
				continue
			}
			rest = append(rest, word)
			continue
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
		target := &own
		takesValue, known := local[name]
		if !known {
			if takesValue, known = global[name]; known {
				target = &front
			}
		}
		*target = append(*target, word)
		if known && takesValue && !hasValue {
			if i+1 >= len(args) {
				return nil, fmt.Errorf("flag %s needs a value", word)
			}
			i++
			*target = append(*target, args[i])
		}
	}
	out := front
	if command != nil {
		out = append(out, command.Name)
	}
	out = append(out, own...)
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
