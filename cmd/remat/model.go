package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/models"
)

func modelCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "model", Usage: "writes a built-in forward graph with its loss; without a name, lists them", ArgsUsage: "[NAME]",
		Description: "Weights come from the seed or from --weights, and are written next to the graph, to\n" +
			"NAME.safetensors. Sizes default to the model's own, as remat model lists them." +
			"\n--batch 0 and --seq 0 leave these dimensions symbolic.\n\n" +
			"Example: remat model gpt2-tiny --batch 1 --seq 32 -o gpt2.onnx",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the graph to `F.onnx`"},
			&cli.Int64Flag{Name: "layers", Usage: "layers, `N`"},
			&cli.Int64Flag{Name: "hidden", Usage: "width, `N`"},
			&cli.Int64Flag{Name: "heads", Usage: "attention heads, `N`"},
			&cli.Int64Flag{Name: "vocab", Usage: "tokens in the vocabulary, `N`"},
			&cli.Int64Flag{Name: "seq", Usage: "tokens per sample, `N`; 0: symbolic"},
			&cli.Int64Flag{Name: "batch", Usage: "samples, `N`; 0: symbolic"},
			&cli.Float64Flag{Name: "dropout", Usage: "probability of dropout, `P`"},
			&cli.Uint64Flag{Name: "seed", Usage: "seed of the weights, `N`"},
			&cli.StringFlag{Name: "weights", Usage: "take the weights from `F.safetensors`"},
			&cli.BoolFlag{Name: "no-weights", Usage: "record only shapes and the seed"},
			&cli.BoolFlag{Name: "logits", Usage: "return the prediction too"},
		},
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return listModels(e)
			}
			return writeModel(e, c)
		},
	}
}

func listModels(e *env) error {
	if e.json {
		return report.WriteJSON(e.stdout, zooDocument())
	}
	for _, r := range models.Rows {
		d := r.Default
		e.say("%-12s %s; %d layers, width %d, batch %d", r.Name, r.Doc, d.Layers, d.Hidden, d.Batch)
	}
	return nil
}

func zooDocument() []map[string]any {
	var out []map[string]any
	for _, r := range models.Rows {
		out = append(out, map[string]any{"name": r.Name, "doc": r.Doc, "default": r.Default})
	}
	return out
}

// widths are the flags that say how large a built-in model is; its data have a length and a
// batch beside.
var widths = []string{"layers", "hidden", "heads", "vocab"}

// builtInModel is the built-in model of a name; a file is none.
func builtInModel(name string) (row models.Row, builtIn bool, err error) {
	if row, err = models.Find(name); err == nil {
		return row, true, nil
	}
	if _, ferr := os.Stat(name); ferr != nil && !strings.Contains(name, ".") {
		return row, false, err // a name rather than a file
	}
	return row, false, nil
}

// A modelSize is a number of a built-in model's configuration, by its flag; 0 where the model
// has no such size.
type modelSize struct {
	flag string
	of   *int64
}

func sizesOf(c *models.Config) []modelSize {
	return []modelSize{
		{"layers", &c.Layers}, {"hidden", &c.Hidden}, {"heads", &c.Heads},
		{"vocab", &c.Vocab}, {"seq", &c.Seq}, {"batch", &c.Batch},
	}
}

// resized is the row's default with the sizes that are given.
func resized(r models.Row, given func(flag string) (n int64, ok bool)) (models.Config, error) {
	cfg := r.Default
	for _, s := range sizesOf(&cfg) {
		n, ok := given(s.flag)
		if !ok {
			continue
		}
		if *s.of == 0 {
			return cfg, fmt.Errorf("model %s has no --%s", r.Name, s.flag)
		}
		*s.of = n
	}
	return cfg, nil
}

// modelConfig is the row's default with the flags that were given.
func modelConfig(c *cli.Context, r models.Row) (models.Config, error) {
	cfg, err := resized(r, func(flag string) (int64, bool) { return c.Int64(flag), c.IsSet(flag) })
	if err != nil {
		return cfg, err
	}
	cfg.Dropout, cfg.Seed, cfg.Logits = c.Float64("dropout"), c.Uint64("seed"), c.Bool("logits")
	return cfg, nil
}

// writeModel builds a model of the zoo and writes it, with weights drawn, taken from a
// file, or left out.
func writeModel(e *env, c *cli.Context) error {
	name, err := argument(c, "model name")
	if err != nil {
		return err
	}
	out, err := output(c)
	if err != nil {
		return err
	}
	row, err := models.Find(name)
	if err != nil {
		return err
	}
	cfg, err := modelConfig(c, row)
	if err != nil {
		return err
	}
	weights, bare := c.String("weights"), c.Bool("no-weights")
	if weights != "" && bare {
		return fmt.Errorf("remat model: --weights and --no-weights exclude each other")
	}
	var reads []string
	if weights != "" {
		reads = append(reads, weights)
	}
	if err := pipeline.CanWrite(reads, out); err != nil {
		return err
	}
	built, err := row.Build(cfg)
	if err != nil {
		return err
	}
	built.Model.SetMetadata(pipeline.VersionKey, version)
	switch {
	case bare:
		err = built.SaveBare(out)
	case weights != "":
		err = built.SaveWith(out, weights)
	default:
		err = built.Save(out)
	}
	if err != nil {
		return err
	}
	var elements int64
	for _, p := range built.Params {
		elements += p.Elements()
	}
	if e.json {
		return report.WriteJSON(e.stdout, map[string]any{"model": out, "name": name, "config": cfg, "parameters": elements, "nodes": len(built.Model.Graph.Nodes)})
	}
	e.say("%s: %s, %s parameters, %d nodes", out, name, units.Count(elements), len(built.Model.Graph.Nodes))
	return nil
}
