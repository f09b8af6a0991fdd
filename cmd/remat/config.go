package main

// Recipes: --config F.yaml gives any command its flags by name; config_write.go
// writes one.
//
//	optimizer: adamw        # for every command that has the flag
//	dim: [batch=2, seq=128] # a flag that may be repeated takes a list
//	train:                  # for this command alone; wins over the line above
//	  arguments: [gpt2.onnx]
//	  steps: 300
//
// A recipe becomes words before urfave/cli parses any: those of flags that were
// typed are left out, and the rest is parsed, checked and explained as if it had
// been typed. Every key and value is checked, those of other commands too, and an
// error says file and line.
//
// A training that is resumed takes what is not typed from the recipe that it left in
// its folder, as from one that --config names.
//
// YAML is read as nodes, never into Go values: aliases, tags and merge keys, which
// a recipe has no use for, are refused before anything grows.

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v4"

	"github.com/onnx-remat/remat/train"
)

const (
	configFlag = "config"
	// argumentsKey is the key of what stands on a command line beside its flags.
	argumentsKey = "arguments"
	// mostRecipeBytes is far above what flags take.
	mostRecipeBytes = 1 << 20
	// longestName of a key that is worth a suggestion.
	longestName = 64
)

// A recipe is a file of settings.
type recipe struct {
	path string
	flat []setting            // of every command that has the flag
	own  map[string][]setting // by command
	// left: it was not named, but left by the run that is resumed. Its arguments are
	// for the next recipe alone: a run that is resumed needs none.
	left      bool
	arguments []string
	// used are those that the command takes from it, by the flag's first name.
	used map[string]setting
}

// A setting gives a flag its value, or a command its arguments.
type setting struct {
	name   string
	line   int
	value  *yaml.Node
	values []string // the value's texts
}

// readRecipe reads the recipe of --config, or the one that a resumed run left, and adds
// what it says to the line.
func (e *env) readRecipe(app *cli.App, l *line) error {
	if l.help || l.command == nil {
		return nil
	}
	path, left := l.config, false
	if path == "" && l.command.Name == "train" && l.given["resume"] && l.folder != "" {
		path, left = filepath.Join(l.folder, recipeName), true
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if f := (&train.Folder{Dir: l.folder}); !f.Holds() {
				return noState(l.folder) // before anything is missed that a recipe has
			}
			return nil
		}
	}
	if path == "" {
		return nil
	}
	data, err := readRecipeFile(path)
	if err != nil && !left {
		err = fmt.Errorf("--config %w", err)
	}
	if err != nil {
		return err
	}
	r, err := parseRecipe(app, path, data)
	if err != nil {
		return err
	}
	e.recipe, r.left = r, left
	over := r.apply(app, l)
	switch {
	case left && len(r.used) > 0:
		e.remark = fmt.Sprintf("note: what is not given is as in %s", r.path)
	case len(over) > 0:
		e.remark = fmt.Sprintf("note: %s: not for %s: %s", r.path, l.command.Name, some(over))
	}
	return nil
}

// readRecipeFile reads a regular file of at most mostRecipeBytes.
func readRecipeFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil: // readFile says what
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > mostRecipeBytes:
		return nil, fmt.Errorf("%s: %d bytes, more than the %d that a recipe may have", path, info.Size(), mostRecipeBytes)
	}
	return readFile(path)
}

// parseRecipe reads a recipe and checks every key and value against the flags of
// all commands.
func parseRecipe(app *cli.App, path string, data []byte) (*recipe, error) {
	r := &recipe{path: path, own: map[string][]setting{}, used: map[string]setting{}}
	var doc yaml.Node
	err := yaml.Load(data, &doc)
	var where *yaml.LoadError
	switch {
	case err == nil:
	case errors.As(err, &where) && where.Mark.Line > 0:
		return nil, r.wrong(where.Mark.Line, "invalid YAML: %s", where.Message)
	case len(strings.TrimSpace(string(data))) == 0 || strings.Contains(err.Error(), "no documents"):
		return r, nil
	case strings.Contains(err.Error(), "multiple"):
		return nil, fmt.Errorf("%s: more than one YAML document: a recipe is one", path)
	default:
		return nil, fmt.Errorf("%s: invalid YAML: %w", path, err)
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return r, nil // comments alone
	}
	every := slices.Clone(app.Flags)
	for _, c := range app.Commands {
		every = append(every, c.Flags...)
	}
	return r, r.mapping(doc.Content[0], func(key, value *yaml.Node) error {
		command := app.Command(key.Value)
		if command == nil || value.Kind != yaml.MappingNode {
			s, err := r.setting(key, value, every, "any command")
			r.flat = append(r.flat, s)
			return err
		}
		if _, twice := r.own[command.Name]; twice {
			return r.wrong(key.Line, "%s: given twice", command.Name)
		}
		flags := append(slices.Clone(command.Flags), app.Flags...)
		r.own[command.Name] = []setting{}
		return r.mapping(value, func(key, value *yaml.Node) error {
			s, err := r.setting(key, value, flags, command.Name)
			r.own[command.Name] = append(r.own[command.Name], s)
			return err
		})
	})
}

// wrong is an error at a line of the recipe.
func (r *recipe) wrong(line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", r.path, line, fmt.Sprintf(format, args...))
}

// mapping calls each for every key and value of a mapping.
func (r *recipe) mapping(n *yaml.Node, each func(key, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return r.wrong(n.Line, "want flags by name, as in steps: 10")
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || key.Style&yaml.TaggedStyle != 0 || key.Tag == "!!merge":
			return r.wrong(key.Line, "a key must be the name of a flag")
		case seen[key.Value] > 0:
			return r.wrong(key.Line, "%s: given twice, in line %d too", elided(key.Value), seen[key.Value])
		}
		seen[key.Value] = key.Line
		if err := each(key, value); err != nil {
			return err
		}
	}
	return nil
}

// setting reads a key and its value, which one of the flags must take; they are those
// of whose.
func (r *recipe) setting(key, value *yaml.Node, flags []cli.Flag, whose string) (setting, error) {
	s := setting{name: key.Value, line: key.Line, value: value}
	switch {
	case s.name == argumentsKey:
		var err error
		s.values, err = r.scalars(s.name, value, true)
		return s, err
	case s.name == configFlag:
		return s, r.wrong(s.line, "config: a recipe cannot name another")
	}
	var first error
	for _, f := range flags {
		if !slices.Contains(f.Names(), s.name) {
			continue
		}
		err := r.take(&s, f)
		if err == nil {
			return s, nil
		}
		first = cmp.Or(first, err)
	}
	switch {
	case first != nil:
		return s, first
	case len(s.name) > longestName:
		return s, r.wrong(s.line, "%s: no flag of %s", elided(s.name), whose)
	}
	return s, r.wrong(s.line, "%q: no flag of %s; the nearest is %q", s.name, whose,
		strings.TrimLeft(cli.SuggestFlag(flags, s.name, true), "-"))
}

// take gives the setting the flag's first name and the texts of its value, if the flag
// takes them.
func (r *recipe) take(s *setting, f cli.Flag) error {
	values, err := r.scalars(s.name, s.value, repeats(f))
	if err != nil {
		return err
	}
	if _, isBool := f.(*cli.BoolFlag); isBool && s.value.Tag != "!!bool" {
		return r.wrong(s.line, "%s: %q is not a boolean: write true or false", s.name, elided(s.value.Value))
	}
	name := f.Names()[0]
	if namesFile[name] && values[0] == "" {
		return r.wrong(s.line, "%s is empty: name a file, or leave it out", s.name)
	}
	taken := setting{name: name, line: s.line, value: s.value, values: values}
	// The flag's own parser judges the value.
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	if err := f.Apply(set); err != nil {
		return r.wrong(s.line, "%s: %v", s.name, err)
	}
	if err := set.Parse(taken.words()); err != nil {
		return r.wrong(s.line, "%s", plainUsage(err))
	}
	*s = taken
	return nil
}

// scalars are the texts of a value: of a scalar, or of a list where one may stand.
func (r *recipe) scalars(name string, n *yaml.Node, list bool) ([]string, error) {
	items := []*yaml.Node{n}
	switch {
	case n.Kind == yaml.SequenceNode && !list:
		return nil, r.wrong(n.Line, "%s: takes one value, not a list", name)
	case n.Kind == yaml.SequenceNode && n.Style&yaml.TaggedStyle == 0:
		items = n.Content
	}
	texts := []string{}
	for _, item := range items {
		switch {
		case item.Kind == yaml.AliasNode:
			return nil, r.wrong(item.Line, "%s: a recipe has no aliases: write the value again", name)
		case item.Style&yaml.TaggedStyle != 0:
			return nil, r.wrong(item.Line, "%s: a recipe has no tags, as %s is one", name, elided(item.Tag))
		case item.Kind == yaml.MappingNode:
			return nil, r.wrong(item.Line, "%s: want a value, found keys and values", name)
		case item.Kind != yaml.ScalarNode:
			return nil, r.wrong(item.Line, "%s: a list in a list", name)
		case item.Tag == "!!null":
			return nil, r.wrong(item.Line, "%s: has no value; leave it out, or write one", name)
		}
		texts = append(texts, item.Value)
	}
	return texts, nil
}

// words are the setting as it would be typed.
func (s setting) words() []string {
	var words []string
	for _, v := range s.values {
		words = append(words, dashes(s.name)+"="+v)
	}
	return words
}

// alternatives are flags of which a command takes one: where one is typed, the recipe's
// word on the others is as little asked for as on itself.
var alternatives = [][]string{{"steps", "epochs"}, {"text", "tokens", "data"}}

// typed reports that the line gives the flag, or one that stands for it.
func (l *line) typed(f cli.Flag) bool {
	names := f.Names()
	for _, list := range alternatives {
		if slices.Contains(list, names[0]) {
			names = list
		}
	}
	return slices.ContainsFunc(names, func(n string) bool { return l.given[n] })
}

// of is what the recipe says to a command, by name.
func (r *recipe) of(command string) map[string]setting {
	settings := map[string]setting{}
	for _, s := range append(slices.Clone(r.flat), r.own[command]...) {
		settings[s.name] = s
	}
	return settings
}

// apply adds to the line what it does not say itself, and returns the names that
// are not for the command. A section of the command wins over what stands
// outside, and the environment over both.
func (r *recipe) apply(app *cli.App, l *line) (over []string) {
	settings := r.of(l.command.Name)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		s := settings[name]
		if name == argumentsKey {
			if r.arguments = s.values; len(l.arguments) == 0 && !r.left {
				l.arguments = s.values
			}
			continue
		}
		target, f := &l.own, flagNamed(l.command.Flags, name)
		if f == nil {
			target, f = &l.global, flagNamed(app.Flags, name)
		}
		switch {
		case f == nil || r.take(&s, f) != nil: // another command's flag of that name may take it
			over = append(over, name)
		case l.typed(f) || environment(f) != "":
		default:
			r.used[name] = s
			*target = append(s.words(), *target...)
		}
	}
	return over
}

var flagFirst = regexp.MustCompile(`^--?([a-z0-9-]+)\b`)

// locate adds file and line to an error about a flag that the recipe gave.
func (r *recipe) locate(err error) error {
	if err == nil || r == nil {
		return err
	}
	if m := flagFirst.FindStringSubmatch(err.Error()); m != nil {
		if s, ok := r.used[m[1]]; ok {
			if r.left && errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s:%d: %w: paths there start from where the run began: go on from that folder, or give --%s", r.path, s.line, err, s.name)
			}
			return fmt.Errorf("%s:%d: %w", r.path, s.line, err)
		}
	}
	return err
}

// flagNamed finds a flag by any of its names; nil if there is none.
func flagNamed(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// repeats reports that a flag may be given more than once.
func repeats(f cli.Flag) bool {
	s, ok := f.(cli.DocGenerationSliceFlag)
	return ok && s.IsSliceFlag()
}

// environment is what a variable of the environment sets the flag to, "" where none does.
func environment(f cli.Flag) string {
	if d, ok := f.(cli.DocGenerationFlag); ok {
		for _, v := range d.GetEnvVars() {
			if text := os.Getenv(v); text != "" {
				return text
			}
		}
	}
	return ""
}

// elided is a text of the file, short enough for a line.
func elided(text string) string {
	if len(text) > longestName {
		return strconv.Quote(text[:longestName]) + "…"
	}
	return text
}
