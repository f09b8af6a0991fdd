package main

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/train/data"
)

func dataFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "val", Usage: "validation data: `FILE|SHARE`"},
		&cli.BoolFlag{Name: "shuffle", Usage: "a random order of its own for each epoch"},
	}, evalDataFlags()...)
}

func evalDataFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "text", Usage: "`FILE` of text"},
		&cli.StringFlag{Name: "tokens", Usage: "`FILE` of tokens"},
		&cli.StringFlag{Name: "data", Usage: "`F.npz`: values of inputs by name"},
		&cli.Uint64Flag{Name: "seed", Usage: "seed of the order and of random operators, `N`"},
		&cli.Int64Flag{Name: "batch", Usage: "samples in a batch, `N`"},
	}
}

func readData(c *cli.Context, folder string) (data.Options, int64, error) {
	return data.Options{
		Text: c.StringSlice("text"), Tokens: c.String("tokens"), NPZ: c.String("data"), Val: c.String("val"),
		Shuffle: c.Bool("shuffle"), Seed: c.Uint64("seed"), Folder: folder,
	}, c.Int64("batch"), nil
}

func openData(ctx context.Context, e *env, o data.Options) (*data.Source, error) {
	return data.Open(ctx, o)
}
