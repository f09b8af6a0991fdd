package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/lower"
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
	src, err := e.load(path)
	if err != nil {
		return err
	}
	if err := pipeline.CanWrite(src.DataFiles(), out); err != nil {
		return err
	}
	m := src.Model
	if err := m.Check(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := checkDims(e.dims, src); err != nil {
		return err
	}
	r, err := lower.Model(m)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := e.passed("lower", m); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	// The version is left out: it would say that the graph is in the form that
	// no optimizer changes.
	m.SetMetadata(pipeline.SourceKey, src.Hash())
	if _, err := infer.Model(m, infer.Options{Dims: e.dims}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := pipeline.SetRequires(m); err != nil {
		return err
	}
	if err := pipeline.Rebase(m, path, out); err != nil {
		return err
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := m.Save(out); err != nil {
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
