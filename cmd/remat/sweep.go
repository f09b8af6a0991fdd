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
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
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
			&cli.StringFlag{Name: "jobs", Usage: "write a command for each point to `FILE`, a line each, for an array of jobs"},
			&cli.IntFlag{Name: "point", Usage: "with --jobs: make point `N` alone, the command of line N"},
			&cli.BoolFlag{Name: "collect", Usage: "with --jobs: print what the sweep prints, from the points that the commands made"},
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
	// jobs is the file of commands; point is the one point that is made, 0 for all;
	// collect reads all of them.
	jobs    string
	point   int
	collect bool
}

func readSweepOptions(e *env, c *cli.Context, first string) (o sweepOptions, err error) {
	o = sweepOptions{models: append([]string{first}, splitList([]string{c.String("model")})...), precisions: splitList([]string{c.String("precision")}),
		strategies: splitList([]string{c.String("strategy")}), measure: c.Bool("measure"), html: c.String("html"), png: c.String("png"),
		jobs: c.String("jobs"), point: c.Int("point"), collect: c.Bool("collect")}
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
	if err := o.checkJobs(c.IsSet("point")); err != nil {
		return o, err
	}
	return o, pipeline.CanWrite(nil, o.html, o.png)
}

// checkJobs refuses flags of jobs that do not go together, and a point that the sweep does not have.
func (o *sweepOptions) checkJobs(point bool) error {
	switch {
	case o.jobs == "" && o.collect:
		return errors.New("--collect: requires --jobs FILE, and the flags with which that was written")
	case o.jobs == "" && point:
		return errors.New("--point: requires --jobs FILE, and the flags with which that was written")
	case o.collect && point:
		return errors.New("--collect takes all points: leave --point out")
	case point && (o.point < 1 || o.point > o.count()):
		return fmt.Errorf("--point %d: the sweep has points 1 to %d", o.point, o.count())
	}
	return nil
}

// mostSize bounds a size on the command line.
const mostSize = 1 << 24

// readSizes reads numbers separated by commas; none for "".
func readSizes(flag, text string) ([]int64, error) {
	var list []int64
	for _, part := range splitList([]string{text}) {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || n < 1 || n > mostSize {
			return nil, fmt.Errorf("--%s %q: want numbers from 1 to %d, such as 1,2,4", flag, part, mostSize)
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
	if o.jobs != "" && o.point == 0 && !o.collect {
		return writeJobs(e, o)
	}
	e.leaveGarbage()
	all := o
	if o.point > 0 {
		o = o.only(o.point)
	}
	w, err := newSweeper(e, o)
	if err != nil {
		return err
	}
	defer w.close()
	doc := &report.Sweep{Over: o.over}
	if o.limit > 0 {
		doc.Limit = &o.limit
	}
	if o.collect {
		doc.Points, err = w.collect()
	} else {
		doc.Points, err = w.allPoints()
	}
	if err == nil && o.point > 0 {
		err = w.savePoint(&all, doc.Points[0])
	}
	if err != nil {
		return err
	}
	doc.Finish()
	if o.limit > 0 && o.over != "layers" && o.point == 0 {
		if err := w.searchLargest(doc); err != nil {
			return err
		}
	}
	return writeSweep(e, doc, o)
}

// allPoints predicts all points.
func (w *sweeper) allPoints() (list []report.SweepPoint, err error) {
	bar := w.e.progress(w.o.count(), "points")
	defer bar.Finish()
	for _, size := range w.o.sizes() {
		points, err := w.points(size, func() { bar.Add(1) })
		list = append(list, points...)
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// writeSweep prints the document and writes the pictures, which are of all points.
func writeSweep(e *env, doc *report.Sweep, o sweepOptions) error {
	if o.point > 0 {
		o.html, o.png = "", ""
	}
	page := &report.Page{Title: "Sweep of " + strings.Join(o.models, ", "), Sweep: doc}
	if err := e.draw(page, o.html, doc.PNG, o.png); err != nil {
		return err
	}
	if e.json {
		return report.WriteJSON(e.stdout, doc)
	}
	return doc.Text(e.stdout)
}
