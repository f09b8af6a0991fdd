package main

// What a training or evaluation run is fed: the flags of train/data.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/train/data"
)

// dataFlags are the flags of data to train on.
func dataFlags() []cli.Flag {
	return append(evalDataFlags(),
		&cli.StringFlag{Name: "val", Usage: "validation data, `FILE|SHARE`: a file like the training data's, or a share of them from the end, such as 5%"},
		&cli.BoolFlag{Name: "shuffle", Usage: "read the samples of each epoch in an order of its own, by --seed"},
	)
}

// evalDataFlags are the flags of data to evaluate on.
func evalDataFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "text", Usage: "text, `FILE,…` in UTF-8, or a pattern such as 'data/*.txt'"},
		&cli.StringFlag{Name: "tokenizer", Usage: "with --text: `gpt2|FILE.json`, a tokenizer.json; default gpt2, which is built in"},
		&cli.StringFlag{Name: "tokens", Usage: "tokens, `FILE`: .npy, or raw uint16 or uint32"},
		&cli.StringFlag{Name: "token-type", Usage: "type of raw tokens, `uint16|uint32`; default: the smaller that holds the vocabulary"},
		&cli.StringFlag{Name: "data", Usage: "`F.npz`: an array for each input; the leading axis is the sample, or the step where there is an axis more than in the input"},
		&cli.StringFlag{Name: "labels", Usage: "`same|next`: labels are the tokens, or the token after each; default: as the model has it"},
		&cli.StringSliceFlag{Name: "fill", Usage: "`NAME=VALUE,…`: what an input gets: tokens, labels, ones, zeros or positions"},
		&cli.Int64Flag{Name: "batch", Usage: "samples in a batch, `N`, where the model leaves it free"},
		&cli.Uint64Flag{Name: "seed", Usage: "seed of --shuffle and of random operators, `N`"},
	}
}

// readData reads the flags. folder is the run's, where tokens of text are kept; ""
// keeps none.
func readData(c *cli.Context, folder string) (o data.Options, batch int64, err error) {
	o = data.Options{
		Tokenizer: c.String("tokenizer"), Tokens: c.String("tokens"), TokenType: c.String("token-type"), NPZ: c.String("data"),
		Val: c.String("val"), Shuffle: c.Bool("shuffle"), Seed: c.Uint64("seed"), Labels: c.String("labels"), Folder: folder,
	}
	if o.Text, err = expand(c.StringSlice("text")); err != nil {
		return o, 0, err
	}
	for _, pair := range splitList(c.StringSlice("fill")) {
		name, word, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return o, 0, fmt.Errorf("--fill %q: want NAME=VALUE", pair)
		}
		if o.Fill == nil {
			o.Fill = map[string]string{}
		}
		o.Fill[name] = word
	}
	batch = c.Int64("batch")
	if batch < 0 || c.IsSet("batch") && batch == 0 {
		return o, 0, fmt.Errorf("--batch %d: want at least 1", batch)
	}
	return o, batch, o.Check()
}

// expand lists the files that patterns match, in order of their names. What holds no
// pattern is a file.
func expand(list []string) ([]string, error) {
	var files []string
	for _, text := range list {
		parts := []string{text}
		if _, err := os.Stat(text); err != nil { // else a comma is one of its name's
			parts = splitList(parts)
		}
		for _, part := range parts {
			if !strings.ContainsAny(part, "*?[") {
				files = append(files, part)
				continue
			}
			found, err := filepath.Glob(part)
			if err != nil || len(found) == 0 {
				return nil, fmt.Errorf("--text %s: no file matches", part)
			}
			files = append(files, found...)
		}
	}
	return files, nil
}

// openData opens the data, and shows how far text is tokenized.
func openData(ctx context.Context, e *env, o data.Options) (*data.Source, error) {
	bar := e.progress(-1, "tokenizing")
	defer bar.Finish()
	o.Progress = func(done, total int64) { bar.Say(fmt.Sprintf("%s of %s", units.Bytes(done), units.Bytes(total))) }
	return data.Open(ctx, o)
}
