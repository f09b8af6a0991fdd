package main

// run --profile --by: the profile of all steps, summed up.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/runtime/ort"
)

func profileFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "by", Usage: "of --profile, `" + strings.Join(report.ProfileKeys, "|") + "`: sum it up by this"},
		&cli.StringFlag{Name: "sort", Usage: "of --profile, `" + strings.Join(report.ProfileSorts, "|") + "`; default: time"},
	}
}

// A profileWish is how the profile is summed up; by "" asks for the top operators.
type profileWish struct{ by, sort string }

func readProfileWish(c *cli.Context) (w profileWish, err error) {
	w = profileWish{c.String("by"), c.String("sort")}
	if (c.IsSet("by") || c.IsSet("sort")) && !c.Bool("profile") {
		return w, fmt.Errorf("--by and --sort say how a profile is shown: give --profile too")
	}
	if c.IsSet("by") && !slices.Contains(report.ProfileKeys, w.by) {
		return w, fmt.Errorf("--by %q: want one of %s", w.by, strings.Join(report.ProfileKeys, ", "))
	}
	if c.IsSet("sort") && !slices.Contains(report.ProfileSorts, w.sort) {
		return w, fmt.Errorf("--sort %q: want one of %s", w.sort, strings.Join(report.ProfileSorts, ", "))
	}
	if w.sort == "" {
		w.sort = "time"
	} else if w.by == "" {
		w.by = "node"
	}
	return w, nil
}

// sumUp makes the profile's table.
func (s *subject) sumUp(p *ort.Profile, w profileWish) {
	if w.by == "" {
		return
	}
	part := map[string]report.Part{}
	for _, n := range s.nodes {
		part[n.Node] = n.Part
	}
	runs := make([]report.NodeRun, len(p.Nodes))
	for i, n := range p.Nodes {
		runs[i] = report.NodeRun{Node: n.Node, Op: n.Op, Layer: s.layers[n.Node], Part: part[n.Node],
			Seconds: n.Duration.Seconds(), Bytes: n.OutputBytes, Shapes: report.ShapeText(shapesOf(n.Inputs), shapesOf(n.Outputs))}
	}
	s.run.Profile = report.NewProfile(runs, len(s.run.Steps), w.by, w.sort)
}

func shapesOf(list []ort.TypeShape) [][]int64 {
	var out [][]int64
	for _, t := range list {
		out = append(out, t.Shape)
	}
	return out
}
