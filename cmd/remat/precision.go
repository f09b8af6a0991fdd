package main

// The flags that say which half type a graph computes in.

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision"
)

func precisionFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "precision", Value: "fp32", Usage: "`fp32|fp16|bf16`: the type to compute and keep values in; parameters stay fp32"},
		&cli.BoolFlag{Name: "stash-only", Usage: "compute in fp32, keep values for backward in half"},
		&cli.BoolFlag{Name: "emulate", Usage: "compute in fp32 on values rounded to half: same numbers on any machine"},
		&cli.StringFlag{Name: "overflow", Value: "auto", Usage: "`auto|all|parameter`: what an overflow keeps from being updated, with fp16"},
		&cli.StringSliceFlag{Name: "keep-fp32", Usage: "nodes or operator types that stay in fp32, `GLOB`"},
		&cli.StringSliceFlag{Name: "half", Usage: "nodes or operator types that run in half, `GLOB`"},
	}
}

// readPrecision is nil for fp32.
func readPrecision(e *env, c *cli.Context) (*precision.Options, error) {
	to, err := pipeline.ParseHalf(c.String("precision"))
	if err != nil {
		return nil, fmt.Errorf("--precision %w", err)
	}
	if to == onnx.Undefined {
		for _, name := range []string{"stash-only", "emulate", "overflow", "keep-fp32", "half"} {
			if c.IsSet(name) {
				return nil, fmt.Errorf("--%s: requires --precision fp16 or bf16", name)
			}
		}
		return nil, nil
	}
	if c.IsSet("overflow") && to != onnx.Float16 {
		return nil, fmt.Errorf("--overflow: requires --precision fp16: the loss is scaled for no other type")
	}
	overflow, err := precision.ParseOverflow(c.String("overflow"))
	if err != nil {
		return nil, fmt.Errorf("--overflow %w", err)
	}
	o := &precision.Options{
		To: to, StashOnly: c.Bool("stash-only"), Emulate: c.Bool("emulate"),
		KeepFP32: splitList(c.StringSlice("keep-fp32")), Half: splitList(c.StringSlice("half")), Provider: e.halfProvider(),
		Overflow: overflow,
	}
	o.Early = c.String("strategy") == "none"
	return o, nil
}
