package main

// The effective recipe of a command: every flag that was typed or taken from a
// recipe, and its arguments, so that the command runs again from it. Defaults stand
// below as comments: some flags refuse to be given where they do not apply.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v4"
)

// unsaved are global flags that change what is printed, not what is computed.
var unsaved = map[string]bool{configFlag: true, "json": true, "quiet": true, "d": true, "help": true, "version": true}

// effectiveRecipe is the recipe from which c's command, which makes a folder, runs again, in
// the same current folder; flags in without are left out.
func (e *env) effectiveRecipe(c *cli.Context, without ...string) ([]byte, error) {
	arguments := c.Args().Slice()
	if len(arguments) == 0 && e.recipe != nil && e.recipe.left {
		arguments = e.recipe.arguments
	}
	given, defaults := settingsOf(c, without...)
	text, err := recipeOf(c.Command.Name, arguments, given)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf("# remat %s: what %s ran with. Where that was typed, since paths start from there, it runs\n# again by\n#   remat %s --config THIS.yaml -o DIR2\n",
		version, c.Command.Name, c.Command.Name)
	if len(defaults) > 0 {
		text = append(text, "\n# By default:\n"...)
		for _, d := range defaults {
			text = fmt.Appendf(text, "#   %s: %v\n", d.name, d.value)
		}
	}
	return append([]byte(head), text...), nil
}

// recipeOf is the recipe of a command with its arguments and flags.
func recipeOf(command string, arguments []string, given []flagValue) ([]byte, error) {
	var set yaml.Node
	set.Kind = yaml.MappingNode
	if len(arguments) > 0 {
		given = append([]flagValue{{argumentsKey, arguments}}, given...)
	}
	for _, g := range given {
		var k, v yaml.Node
		k.SetString(g.name)
		if err := v.Encode(g.value); err != nil {
			return nil, fmt.Errorf("recipe: %s: %w", g.name, err)
		}
		if x, ok := g.value.(float64); ok {
			v.Value = strconv.FormatFloat(x, 'g', -1, 64)
		}
		set.Content = append(set.Content, &k, &v)
	}
	var key yaml.Node
	key.SetString(command)
	root := yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{&key, &set}}
	text, err := yaml.Dump(&root, yaml.WithFlowSimpleCollections(), yaml.WithLineWidth(-1))
	if err != nil {
		return nil, fmt.Errorf("recipe: %w", err)
	}
	return text, nil
}

// A flagValue is a flag and what it is set to.
type flagValue struct {
	name  string
	value any
}

// settingsOf are the flags that a command was given, by whatever way, and the values
// of the others; flags in without, and those that only change what is printed, are
// left out.
func settingsOf(c *cli.Context, without ...string) (given, defaults []flagValue) {
	set := c.FlagNames()
	for _, f := range append(slices.Clone(c.Command.Flags), c.App.Flags...) {
		name := f.Names()[0]
		switch {
		case slices.Contains(without, name), unsaved[name], fromEnvironment(c, f):
		case slices.ContainsFunc(f.Names(), func(n string) bool { return slices.Contains(set, n) }):
			given = append(given, flagValue{name, valueOf(c, f)})
		default:
			if text := defaultOf(f); text != "" {
				defaults = append(defaults, flagValue{name, text})
			}
		}
	}
	return given, defaults
}

// fromEnvironment reports that a flag's value is that of its variable.
func fromEnvironment(c *cli.Context, f cli.Flag) bool {
	text := environment(f)
	return text != "" && text == fmt.Sprint(valueOf(c, f))
}

// valueOf is a flag's value as YAML takes it.
func valueOf(c *cli.Context, f cli.Flag) any {
	name := f.Names()[0]
	switch f.(type) {
	case *cli.StringSliceFlag:
		return c.StringSlice(name)
	case *cli.IntSliceFlag:
		return c.IntSlice(name)
	case *cli.Int64SliceFlag:
		return c.Int64Slice(name)
	case *cli.Float64SliceFlag:
		return c.Float64Slice(name)
	case *cli.DurationFlag:
		return c.Duration(name).String()
	}
	return c.Value(name)
}

// defaultOf is the value of a flag that is not given, "" where that is none.
func defaultOf(f cli.Flag) string {
	d, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	switch text := strings.Trim(d.GetDefaultText(), `"`); text {
	case "", "0", "false", time.Duration(0).String():
		return ""
	default:
		return text
	}
}
