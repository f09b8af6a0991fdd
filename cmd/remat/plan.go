package main

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
)

func planCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "plan", Usage: "decides which values to keep and which to recompute", ArgsUsage: "TRAIN.onnx",
		Description: "Predicts the peak of the given file, of the same nodes reordered, and of the rewritten\n" +
			"file; the last is a promise that stock ONNX Runtime keeps.\n\n" +
			"Example: remat plan train.onnx --strategy sqrt -o plan.json",
		Flags: append(planFlags(),
			&cli.StringFlag{Name: "o", Usage: "write the plan to `plan.json`"},
			&cli.BoolFlag{Name: "pareto", Usage: "print peak against overhead as a curve"},
			&cli.StringFlag{Name: "png", Usage: "with --pareto: draw the curve to `F.png`"},
		),
		Action: func(c *cli.Context) error {
			path, err := argument(c, "training graph")
			if err != nil {
				return err
			}
			o, err := readPlanOptions(e, c)
			if err != nil {
				return err
			}
			if c.String("png") != "" && !c.Bool("pareto") {
				return fmt.Errorf("remat plan: --png requires --pareto")
			}
			src, err := e.load(path)
			if err != nil {
				return err
			}
			if err := pipeline.CanWrite(slices.Concat(src.Files(), []string{o.costs}, e.fed), c.String("o"), c.String("png")); err != nil {
				return err
			}
			p, err := makePlan(e, src, o)
			if p != nil && err != nil && e.json { // what comes closest to a budget that cannot be met
				return errors.Join(err, report.WriteJSON(e.stdout, p.document))
			}
			if err != nil {
				return err
			}
			if c.Bool("pareto") {
				if err := pareto(p, c.String("png")); err != nil {
					return err
				}
			}
			if out := c.String("o"); out != "" {
				if err := writePlan(p, o, out); err != nil {
					return err
				}
			}
			e.remarkPlan(c.Args().First(), p)
			if e.json {
				return report.WriteJSON(e.stdout, p.document)
			}
			return p.document.Text(e.stdout)
		},
	}
}

// pareto adds the curve of peak against overhead to the document: the plans that the
// search found, whose end is the strategy least, those of the strategies with one plan,
// and the plan itself.
func pareto(p *planned, png string) error {
	problem := p.result.Problem()
	points, err := planner.Pareto(problem)
	if err != nil {
		return err
	}
	for _, strategy := range []string{"none", "sqrt", "selective", "full"} {
		plan, err := planner.Solve(problem, strategy)
		if err != nil {
			continue // no layers, for instance: not a point
		}
		v, err := planner.Judge(problem, plan)
		if err != nil {
			return err
		}
		points = append(points, planner.ParetoPoint{Peak: v.Peak, Overhead: v.Overhead, Plan: plan})
	}
	points[0].Plan.Strategy = "least"
	for _, pt := range points {
		p.document.Pareto = append(p.document.Pareto, report.ParetoPoint{
			Strategy: pt.Plan.Strategy, PeakBytes: pt.Peak, Overhead: report.Float(pt.Overhead),
		})
	}
	p.document.Pareto = append(p.document.Pareto, report.ParetoPoint{
		Strategy: p.result.Plan.Strategy, PeakBytes: p.result.Verdict.Peak, Overhead: report.Float(p.result.Verdict.Overhead), Chosen: true,
	})
	report.MarkDominated(p.document.Pareto)
	if png == "" {
		return nil
	}
	return onnx.ReplaceFile(png, func(f *os.File) error { return report.ParetoPNG(f, p.document.Pareto) })
}
