package main

import (
	"fmt"
	"path"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/rewrite/optim"
)

// vectors is the word of --no-decay that stands for all parameters of fewer
// than two dimensions: biases and norms, as GPT-2 was trained.
const vectors = "vectors"

type optimizerOptions struct {
	kind string
	optim.Options
}

func optimizerFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "optimizer", Value: "none", Usage: "`none|sgd|adamw`: put the update into the graph"},
		&cli.Float64Flag{Name: "momentum", Usage: "momentum of sgd, `X`"},
		&cli.Float64Flag{Name: "weight-decay", Usage: "`X`: decay of the weights; left out, as PyTorch: 0 for sgd, 0.01 for adamw"},
		&cli.Float64Flag{Name: "beta1", Usage: "`X`: of adamw, how slowly the first moment moves; left out, 0.9"},
		&cli.Float64Flag{Name: "beta2", Usage: "`X`: of adamw, how slowly the second moment moves; left out, 0.999"},
		&cli.Float64Flag{Name: "eps", Usage: "`X`: of adamw, what is added to the root of the second moment; left out, 1e-8"},
		&cli.StringSliceFlag{Name: "no-decay", Usage: "`GLOB,…`: no weight decay for parameters that match; the word vectors is all of rank below 2"},
		&cli.Float64Flag{Name: "clip-norm", Usage: "`X`: clip the norm of the gradients to X"},
		&cli.StringFlag{Name: "clip-by", Value: string(optim.ClipGlobal), Usage: "`global|parameter|previous`: the norm of all gradients, of each by itself, or of all in the step before; with the last two no gradient waits for the others"},
		&cli.Int64Flag{Name: "accumulate", Usage: "`N`: update every N steps with the mean of their gradients"},
		&cli.BoolFlag{Name: "keep-grads", Usage: "return the gradients too"},
	}
}

// onlyOf are the flags that one optimizer alone reads.
var onlyOf = map[string]optim.Kind{"momentum": optim.SGD, "beta1": optim.AdamW, "beta2": optim.AdamW, "eps": optim.AdamW}

// readOptimizer reads the flags of the optimizer that grad puts into the graph.
func readOptimizer(c *cli.Context) (optimizerOptions, error) {
	kind, err := optim.ParseKind(c.String("optimizer"))
	if err != nil {
		return optimizerOptions{}, fmt.Errorf("--optimizer: %w", err)
	}
	o := optimizerOptions{kind: string(kind), Options: optim.Defaults(kind)}
	for _, f := range []struct {
		name string
		to   *float64
	}{
		{"momentum", &o.Momentum}, {"weight-decay", &o.WeightDecay}, {"beta1", &o.Beta1},
		{"beta2", &o.Beta2}, {"eps", &o.Eps}, {"clip-norm", &o.ClipNorm},
	} {
		if c.IsSet(f.name) {
			if kind == optim.None {
				return o, fmt.Errorf("--%s needs --optimizer sgd or adamw", f.name)
			}
			if only := onlyOf[f.name]; only != "" && only != kind {
				return o, fmt.Errorf("--%s is of --optimizer %s", f.name, only)
			}
			*f.to = c.Float64(f.name)
		}
	}
	if o.ClipBy, err = optim.ParseClip(c.String("clip-by")); err != nil {
		return o, fmt.Errorf("--clip-by: %w", err)
	}
	if c.IsSet("clip-by") && !(o.ClipNorm > 0) {
		return o, fmt.Errorf("--clip-by needs --clip-norm X, the norm to clip to")
	}
	o.Accumulate, o.KeepGrads = c.Int64("accumulate"), c.Bool("keep-grads")
	if o.Accumulate > 1 && kind == optim.None {
		return o, fmt.Errorf("--accumulate needs --optimizer sgd or adamw")
	}
	globs := splitList(c.StringSlice("no-decay"))
	for _, g := range globs {
		if _, err := path.Match(g, ""); err != nil {
			return o, fmt.Errorf("--no-decay %q: not a pattern", g)
		}
	}
	o.NoDecay = func(name string, rank int) bool {
		for _, g := range globs {
			if ok, _ := path.Match(g, name); ok || g == vectors && rank < 2 {
				return true
			}
		}
		return false
	}
	return o, nil
}
