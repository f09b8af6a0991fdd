package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/report"
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
	m, err := onnx.Load(path)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := canWrite(weightFiles(m, path), out); err != nil {
		return err
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := checkDims(e.dims, path, m); err != nil {
		return err
	}
	r, err := lower.Model(m)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := e.passed("lower", m); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	hash, err := flow.Hash(path)
	if err != nil {
		return err
	}
	// The version is left out: it would say that the graph is in the form that
	// no optimizer changes.
	m.SetMetadata(flow.SourceKey, hash)
	if _, err := infer.Model(m, infer.Options{Dims: e.dims}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := flow.SetRequires(m); err != nil {
		return err
	}
	if err := rebase(m, path, out); err != nil {
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
	ops := make([]string, 0, len(r.Lowered))
	for op, n := range r.Lowered {
		ops = append(ops, fmt.Sprintf("%s %d", op, n))
	}
	sort.Strings(ops)
	e.say("%s: %d nodes, %d before", out, r.After, r.Before)
	if len(ops) > 0 {
		e.say("replaced: %s", strings.Join(ops, ", "))
	}
	return nil
}
