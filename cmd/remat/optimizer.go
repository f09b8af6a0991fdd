package main

import (
	"fmt"
	"path"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// vectors is the word of --no-decay that stands for all parameters of fewer
// than two dimensions: biases and norms, as GPT-2 was trained.
const vectors = "vectors"

// optimizerFlags are those of the update; kind is the optimizer where none is named.
func optimizerFlags(kind optim.Kind) []cli.Flag {
	flags := []cli.Flag{
		&cli.StringFlag{Name: "optimizer", Value: string(kind), Usage: "`" + optimizerWords() + "`: put the update into the graph"},
	}
	for _, s := range optim.Settings() {
		flags = append(flags, &cli.Float64Flag{Name: s.Name, Usage: "`X`: " + s.Doc + "; by default " + defaultsOf(s)})
	}
	return append(flags,
		&cli.StringSliceFlag{Name: "no-decay", Usage: "`GLOB,…`: no weight decay for parameters that match; the word vectors is all of rank below 2"},
		&cli.Float64Flag{Name: "clip-norm", Usage: "`X`: clip the norm of the gradients to X"},
		&cli.StringFlag{Name: "clip-by", Value: string(optim.ClipGlobal), Usage: "`global|parameter|previous`: the norm of all gradients, of each by itself, or of all in the step before; with the last two no gradient waits for the others"},
		&cli.Int64Flag{Name: "accumulate", Usage: "`N`: update every N steps with the mean of their gradients"},
		&cli.BoolFlag{Name: "keep-grads", Usage: "return the gradients too"},
		&cli.BoolFlag{Name: "gradient-norm", Usage: "return the norm of all gradients, before they are clipped"},
	)
}

// optimizerWords are what --optimizer takes.
func optimizerWords() string {
	words := string(optim.None)
	for _, k := range optim.Kinds() {
		words += "|" + string(k)
	}
	return words
}

// defaultsOf says which optimizers read a setting, and what it is by default.
func defaultsOf(s *optim.Setting) string {
	var list []string
	for _, k := range s.Kinds() {
		v, _ := s.Default(k)
		list = append(list, fmt.Sprintf("%v for %s", v, k))
	}
	return strings.Join(list, ", ")
}

// needsOptimizer refuses a flag that says how to update where nothing updates.
func needsOptimizer(flag string) error {
	return fmt.Errorf("--%s needs --optimizer %s", flag, optim.List(optim.Kinds(), "or"))
}

// readSetting sets a number of the optimizer's that was given.
func readSetting(c *cli.Context, s *optim.Setting, o *optim.Options) error {
	if !c.IsSet(s.Name) {
		return nil
	}
	if o.Kind == optim.None {
		return needsOptimizer(s.Name)
	}
	if _, ok := s.Default(o.Kind); !ok {
		return fmt.Errorf("--%s applies only to --optimizer %s", s.Name, optim.List(s.Kinds(), "or"))
	}
	*s.Of(o) = c.Float64(s.Name)
	return nil
}

// readOptimizer reads the flags of the optimizer that grad puts into the graph.
func readOptimizer(c *cli.Context) (optim.Options, error) {
	kind, err := optim.ParseKind(c.String("optimizer"))
	if err != nil {
		return optim.Options{}, fmt.Errorf("--optimizer: %w", err)
	}
	o := optim.Defaults(kind)
	for _, s := range optim.Settings() {
		if err := readSetting(c, s, &o); err != nil {
			return o, err
		}
	}
	if c.IsSet("clip-norm") && kind == optim.None {
		return o, needsOptimizer("clip-norm")
	}
	o.ClipNorm = c.Float64("clip-norm")
	if o.ClipBy, err = optim.ParseClip(c.String("clip-by")); err != nil {
		return o, fmt.Errorf("--clip-by: %w", err)
	}
	if c.IsSet("clip-by") && !(o.ClipNorm > 0) {
		return o, fmt.Errorf("--clip-by needs --clip-norm X, the norm to clip to")
	}
	o.Accumulate, o.KeepGrads, o.Norm = c.Int64("accumulate"), c.Bool("keep-grads"), c.Bool("gradient-norm")
	if o.Norm && kind == optim.None {
		return o, needsOptimizer("gradient-norm")
	}
	if c.IsSet("accumulate") && o.Accumulate < 1 {
		return o, fmt.Errorf("--accumulate %d: want at least 1", o.Accumulate)
	}
	if c.IsSet("no-decay") && kind == optim.None {
		return o, needsOptimizer("no-decay")
	}
	if o.Accumulate > 1 && kind == optim.None {
		return o, needsOptimizer("accumulate")
	}
	for _, g := range splitList(c.StringSlice("no-decay")) {
		if _, err := path.Match(g, ""); err != nil {
			return o, fmt.Errorf("--no-decay %q: not a pattern", g)
		}
		o.NoDecay = append(o.NoDecay, optim.Exemption{Pattern: g, Has: func(name string, rank int) bool {
			return planner.Match(g, name) || g == vectors && rank < 2
		}})
	}
	return o, nil
}
