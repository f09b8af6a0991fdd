package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/report"
	"github.com/onnx-remat/remat/rewrite"
)

func rewriteCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "rewrite", Usage: "writes the graph that follows a plan", ArgsUsage: "TRAIN.onnx",
		Description: "Takes --plan, or the flags of plan. Says what was done, and why anything was skipped.\n\n" +
			"Example: remat rewrite train.onnx --strategy full -o small.onnx",
		Flags: append(planFlags(),
			&cli.StringFlag{Name: "o", Usage: "write the graph to `OUT.onnx`"},
			&cli.StringFlag{Name: "plan", Usage: "`plan.json`: follow this plan instead of --strategy"},
		),
		Action: func(c *cli.Context) error {
			path, err := argument(c, "training graph")
			if err != nil {
				return err
			}
			out, err := output(c)
			if err != nil {
				return err
			}
			o, err := readPlanOptions(e, c)
			if err != nil {
				return err
			}
			if o.file = c.String("plan"); c.IsSet("plan") {
				if err := planAlone(c); err != nil {
					return err
				}
			}
			reads := append(filesOf(path)[1:], o.file, o.costs)
			var skipped []rewrite.Report
			var src planSource
			if o.file != "" {
				var body []byte
				if src, body, err = readPlanFile(o.file); err != nil {
					return err
				}
				o.budget, o.total = src.Budget, src.BudgetTotal
				other, err := src.adopt(&o, c.IsSet, path, o.file)
				if err != nil {
					return err
				}
				if len(other) > 0 {
					again, err := src.askAgain(&o, body, other)
					if err != nil {
						return err
					}
					skipped = append(skipped, again)
				}
			}
			if err := canWrite(reads, out); err != nil {
				return err
			}
			p, err := makePlan(e, path, o)
			if err != nil {
				return err
			}
			if o.file != "" {
				src.describe(p, e.opt)
			}
			for _, r := range skipped {
				p.result.Reports = slices.Insert(p.result.Reports, 0, r)
				p.document.Notes = slices.Insert(p.document.Notes, 0, note(r.Pass, r.Requested, r.Applied, r.Skipped))
			}
			if err := writeGraph(e, p, path, out); err != nil {
				return err
			}
			if e.json {
				return report.WriteJSON(e.stdout, p.document)
			}
			for _, line := range appliedLines(p.result.Reports, &p.prepared.Options) {
				e.say("%s", line)
			}
			if line := roundingLine(p.result.Reports, &p.prepared.Options); line != "" {
				e.say("%s", line)
			}
			if p.limited != "" {
				e.say("plan: %s", p.limited)
			}
			e.say("%s: live peak %s as given, %s as written (%s saved), %s more work",
				out, report.Bytes(p.document.PeakBytesBefore), report.Bytes(p.document.PeakBytesAfter),
				report.Percent(float64(p.document.Saving)), report.Percent(float64(p.document.Overhead)))
			return nil
		},
	}
}

// planAlone refuses flags that ask for another plan than the file's.
func planAlone(c *cli.Context) error {
	for _, flag := range []string{"strategy", "budget", "budget-total", "costs", "time-limit"} {
		if c.IsSet(flag) {
			return fmt.Errorf("remat rewrite: --plan already decides this: leave out --%s, or plan again with it", flag)
		}
	}
	if c.String("plan") == "" {
		return fmt.Errorf("remat rewrite: --plan is empty: name the plan.json to follow")
	}
	return nil
}

// writeGraph writes the rewritten graph with its metadata.
func writeGraph(e *env, p *planned, source, out string) error {
	m := p.prepared.Model
	hash, err := flow.Hash(source)
	if err != nil {
		return err
	}
	m.SetMetadata(flow.VersionKey, version)
	m.SetMetadata(flow.SourceKey, hash)
	session := map[string]any{"enable_mem_pattern": false, "execution_order": "default", "opt_level": e.opt, "intra_op_num_threads": e.threads}
	if pr := p.result.Prediction; pr != nil && pr.Exact() {
		arena := pr.Arena()
		session["arena"] = arena.Setup
		m.SetMetadata(flow.ReservedKey, fmt.Sprint(arena.Reserved))
	}
	plan := p.document
	plan.SolverSeconds, plan.PlanSeconds = 0, 0 // one graph gives one file, byte for byte
	for _, entry := range []struct {
		key   string
		value any
	}{{flow.PlanKey, plan}, {flow.SessionKey, session}, {flow.RolesKey, foundRoles(p.result.Analysis.Roles)}} {
		if err := flow.SetJSON(m, entry.key, entry.value); err != nil {
			return err
		}
	}
	if err := flow.SetRequires(m); err != nil {
		return err
	}
	if err := rebase(m, source, out); err != nil {
		return err
	}
	flow.SetPromise(m, p.result.Peak)
	return m.Save(out)
}

// rebase keeps references to external data right when the written file lies in
// another folder than its source: that folder must hold the source's, because
// a model may only refer to files below it.
func rebase(m *onnx.Model, source, out string) error {
	rel, err := between(out, source)
	if err != nil || rel == "." {
		return err
	}
	outside := rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator))
	used, err := m.RebaseExternal(rel)
	if err != nil {
		return err
	}
	moved, err := rebaseParameters(m, rel)
	if err != nil {
		return err
	}
	if (used || moved) && outside {
		return fmt.Errorf("%s: its weights are in %s, outside the output's folder: write the output next to %s", out, filepath.Dir(source), filepath.Base(source))
	}
	return nil
}

// between is the way from the folder of one file to that of another.
func between(from, to string) (string, error) {
	a, err1 := filepath.Abs(filepath.Dir(from))
	b, err2 := filepath.Abs(filepath.Dir(to))
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	return filepath.Rel(a, b)
}
