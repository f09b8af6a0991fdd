package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/report"
)

func lowerCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "lower", Usage: "replaces the private gradient operators of ONNX Runtime training graphs", ArgsUsage: "T.onnx",
		Description: "Graphs from ONNX Runtime's training package contain operators that stock ONNX Runtime\n" +
			"refuses; this command replaces them by standard ones.\n\n" +
			"Example: remat lower training_model.onnx -o lowered.onnx",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the graph to `OUT.onnx`"},
		},
		Action: func(c *cli.Context) error {
			path, err := argument(c, "training graph")
			if err != nil {
				return err
			}
			out, err := output(c)
			if err != nil {
				return err
			}
			return lowerGraph(e, path, out)
		},
	}
}

// lowerGraph writes the graph at path without ONNX Runtime's private gradient
// operators.
func lowerGraph(e *env, path, out string) error {
	src, err := e.loadFor(path, out)
	if err != nil {
		return err
	}
	r, err := src.Lowered(out, e.dims, e.passed)
	if err != nil {
		return err
	}
	if e.json {
		return report.WriteJSON(e.stdout, map[string]any{"model": out, "lowered": r.Lowered, "nodes_before": r.Before, "nodes": r.After})
	}
	var ops []string
	for _, op := range slices.Sorted(maps.Keys(r.Lowered)) {
		ops = append(ops, fmt.Sprintf("%s %d", op, r.Lowered[op]))
	}
	e.say("%s: %d nodes, %d before", out, r.After, r.Before)
	if len(ops) > 0 {
		e.say("replaced: %s", strings.Join(ops, ", "))
	}
	return nil
}
