package main

// remat sweep: what a step takes at many sizes, with many strategies, predicted.
//
//	sizes ─▶ model, training graph ─▶ planner ─▶ each strategy's file, predicted
//	         once for each size       once for   ─▶ a point; with --measure it runs
//	                                  each type
//	points ─▶ line ─▶ a guess at the largest size ─▶ bisection on exact predictions
//
// A point is the file that model, grad and rewrite lead to at that size, so its
// figures are those that run measures.

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite/optim"
)

func sweepCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "sweep", Usage: "predicts a step at many sizes, and finds the largest that fits", ArgsUsage: "M.onnx|NAME",
		Description: "The model is a built-in one, a forward model or a training graph; a file needs free\n" +
			"dimensions for what is swept. Lists are separated by commas.\n\n" +
			"Example: remat sweep gpt2-tiny --batch 1,2,4 --strategy none,full --optimizer adamw --limit 4MiB",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "batch", Usage: "samples, `N,…`"},
			&cli.StringFlag{Name: "seq", Usage: "tokens a sample, `N,…`"},
			&cli.StringFlag{Name: "layers", Usage: "layers of a built-in model, `N,…`"},
			&cli.StringFlag{Name: "model", Usage: "built-in models beside the first, `NAME,…`"},
			&cli.StringFlag{Name: "precision", Value: "fp32", Usage: "`fp32|fp16|bf16,…`"},
			&cli.StringFlag{Name: "accumulate", Value: "1", Usage: "update every `N,…` steps"},
			&cli.StringFlag{Name: "strategy", Value: "none,full,optimal", Usage: "`S,…`: " + strategies()},
			&cli.StringFlag{Name: "optimizer", Value: string(optim.None), Usage: "`" + optimizerWords() + "`: the update in the graph; none returns the gradients"},
			&cli.StringFlag{Name: "limit", Usage: "the memory that there is, `SIZE`: what takes more is marked, and the largest that fits is found"},
			&cli.BoolFlag{Name: "measure", Usage: "run each point that fits, too"},
			&cli.StringFlag{Name: "html", Usage: "write the page to `F.html`"},
			&cli.StringFlag{Name: "png", Usage: "draw the chart to `F.png`"},
		},
		Action: func(c *cli.Context) error {
			first, err := argument(c, "model")
			if err != nil {
				return err
			}
			o, err := readSweepOptions(e, c, first)
			if err != nil {
				return err
			}
			return runSweep(e, o)
		},
	}
}

// sweepOptions are what is swept.
type sweepOptions struct {
	models, precisions, strategies     []string
	batches, seqs, layers, accumulates []int64
	optimizer                          optim.Kind
	limit                              int64
	measure                            bool
	html, png                          string
	// over is the size that grows along the chart.
	over string
}

func readSweepOptions(e *env, c *cli.Context, first string) (o sweepOptions, err error) {
	o = sweepOptions{models: append([]string{first}, splitList([]string{c.String("model")})...), precisions: splitList([]string{c.String("precision")}),
		strategies: splitList([]string{c.String("strategy")}), measure: c.Bool("measure"), html: c.String("html"), png: c.String("png")}
	for _, f := range []struct {
		flag string
		to   *[]int64
	}{{"batch", &o.batches}, {"seq", &o.seqs}, {"layers", &o.layers}, {"accumulate", &o.accumulates}} {
		if *f.to, err = readSizes(f.flag, c.String(f.flag)); err != nil {
			return o, err
		}
		if c.IsSet(f.flag) && len(*f.to) == 0 {
			return o, fmt.Errorf("--%s is empty: give sizes such as 1,2,4", f.flag)
		}
	}
	if len(o.strategies) == 0 || len(o.precisions) == 0 {
		return o, fmt.Errorf("--strategy and --precision need a value")
	}
	for _, s := range o.strategies {
		if _, _, err := planner.Find(s); err != nil {
			return o, err
		}
	}
	for _, p := range o.precisions {
		if _, err := pipeline.ParseHalf(p); err != nil {
			return o, fmt.Errorf("--precision %w", err)
		}
	}
	if o.optimizer, err = optim.ParseKind(c.String("optimizer")); err != nil {
		return o, fmt.Errorf("--optimizer: %w", err)
	}
	if o.optimizer == optim.None && c.IsSet("accumulate") && (len(o.accumulates) != 1 || o.accumulates[0] != 1) {
		return o, needsOptimizer("accumulate")
	}
	if o.limit, err = readOptional(c, "limit"); err != nil {
		return o, err
	}
	if o.measure {
		if err := e.refuseNumbers(c, "measure"); err != nil {
			return o, err
		}
	}
	switch {
	case len(o.batches) > 1:
		o.over = "batch"
	case len(o.seqs) > 1:
		o.over = "seq"
	case len(o.layers) > 1:
		o.over = "layers"
	default:
		o.over = "batch"
	}
	return o, pipeline.CanWrite(nil, o.html, o.png)
}

// mostSize bounds a size on the command line.
const mostSize = 1 << 24

// readSizes reads numbers separated by commas; none for "".
func readSizes(flag, text string) ([]int64, error) {
	var list []int64
	for _, part := range splitList([]string{text}) {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || n < 1 || n > mostSize {
			return nil, fmt.Errorf("--%s %q: want numbers of at least 1, such as 1,2,4", flag, part)
		}
		list = append(list, n)
	}
	return list, nil
}

// or is the list, or one zero, which stands for the model's own size.
func or(list []int64) []int64 {
	if len(list) == 0 {
		return []int64{0}
	}
	return list
}

// A sweepSize is the sizes of one training graph; 0: the model's own.
type sweepSize struct {
	model                          string
	batch, seq, layers, accumulate int64
}

// sizes are all combinations, what grows innermost.
func (o *sweepOptions) sizes() []sweepSize {
	var list []sweepSize
	for _, m := range o.models {
		for _, l := range or(o.layers) {
			for _, s := range or(o.seqs) {
				for _, a := range or(o.accumulates) {
					for _, b := range or(o.batches) {
						list = append(list, sweepSize{m, b, s, l, a})
					}
				}
			}
		}
	}
	return list
}

func runSweep(e *env, o sweepOptions) error {
	defer leaveGarbage()()
	w, err := newSweeper(e, o)
	if err != nil {
		return err
	}
	defer w.close()
	doc := &report.Sweep{Over: o.over}
	if o.limit > 0 {
		doc.Limit = &o.limit
	}
	sizes := o.sizes()
	bar := e.progress(len(sizes)*len(o.precisions)*len(o.strategies), "points")
	for _, size := range sizes {
		points, err := w.points(size, func() { bar.Add(1) })
		doc.Points = append(doc.Points, points...)
		if err != nil {
			bar.Finish()
			return err
		}
	}
	bar.Finish()
	doc.Finish()
	if o.limit > 0 && o.over != "layers" {
		if err := w.searchLargest(doc); err != nil {
			return err
		}
	}
	return writeSweep(e, doc, o)
}

// writeSweep prints the document and writes the pictures.
func writeSweep(e *env, doc *report.Sweep, o sweepOptions) error {
	if o.html != "" {
		page := &report.Page{Title: "Sweep of " + strings.Join(o.models, ", "), Command: e.typed, Facts: machineFacts(e), Sweep: doc}
		if err := onnx.ReplaceFile(o.html, func(f *os.File) error { return page.HTML(f) }); err != nil {
			return err
		}
	}
	if o.png != "" {
		if err := onnx.ReplaceFile(o.png, func(f *os.File) error { return doc.PNG(f) }); err != nil {
			return err
		}
	}
	if e.json {
		return report.WriteJSON(e.stdout, doc)
	}
	return doc.Text(e.stdout)
}
