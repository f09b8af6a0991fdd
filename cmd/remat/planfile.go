package main

// A plan file is the planner's, with what is needed to prepare the same graph
// again: the source and its hash, normalization, dropped outputs, slices of
// the loss, dimensions. Both parts are checked on reading.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/cmd/internal/flow"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/report"
	"github.com/onnx-remat/remat/rewrite/precision"
)

// planSource is the part of a plan file that says what it was made from.
type planSource struct {
	// Path is relative to the plan file.
	Path        string           `json:"path"`
	SHA256      string           `json:"sha256"`
	Normalize   string           `json:"normalize"`
	Chunk       int              `json:"chunk_loss"`
	Tile        int              `json:"tile"`
	Rows        int              `json:"update_rows"`
	DropOutputs []string         `json:"drop_outputs"`
	Dims        map[string]int64 `json:"dims"`
	// Precision is how values were made half, nil where they were not.
	Precision *precision.Options `json:"precision,omitempty"`
}

const sourceKey = "source"

// writePlan writes the plan by names, for rewrite --plan and for people.
func writePlan(p *planned, source, out string) error {
	hash, err := flow.Hash(source)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(filepath.Dir(out), source)
	if err != nil {
		rel = source
	}
	o := p.prepared.Options
	src, err := json.Marshal(planSource{filepath.ToSlash(rel), hash, string(o.Normalize), o.Chunk, o.Tile, o.Rows, o.DropOutputs, o.Dims, o.Precision})
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if err := planner.WritePlan(&body, p.result.Problem, p.result.Plan); err != nil {
		return err
	}
	// The source comes first: {"source": …, and then what the planner wrote.
	text := append([]byte("{\n \""+sourceKey+"\": "), src...)
	text = append(append(text, ','), body.Bytes()[1:]...)
	return onnx.WriteFile(out, text)
}

// readPlanFile splits a plan file into its source and the planner's part.
func readPlanFile(path string) (planSource, []byte, error) {
	var src planSource
	data, err := readFile(path)
	if err != nil {
		return src, nil, err
	}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return src, nil, fmt.Errorf("%s: not a plan: %w", path, err)
	}
	if raw, ok := parts[sourceKey]; ok {
		if err := json.Unmarshal(raw, &src); err != nil {
			return src, nil, fmt.Errorf("%s: source: %w", path, err)
		}
		for _, parts := range []int{src.Chunk, src.Tile} {
			if parts != flow.AutoChunk && parts != 0 && parts < 2 {
				return src, nil, fmt.Errorf("%s: source: %d parts: want 0, %d for auto or at least 2", path, parts, flow.AutoChunk)
			}
		}
		delete(parts, sourceKey)
	}
	rest, err := json.Marshal(parts)
	return src, rest, err
}

// adopt takes over how the plan's graph was prepared, where the user says
// nothing else, and checks that it is the same graph.
func (s planSource) adopt(o *planOptions, graph, planPath string) error {
	if s.SHA256 != "" {
		hash, err := flow.Hash(graph)
		if err != nil {
			return fmt.Errorf("%s: no such file", graph)
		}
		if hash != s.SHA256 {
			return fmt.Errorf("%s: was made for another graph than %s: plan again", planPath, graph)
		}
	}
	if s.Normalize != "" {
		o.flow.Normalize = flow.Normalization(s.Normalize)
	}
	o.flow.Chunk, o.flow.Tile, o.flow.Rows, o.flow.DropOutputs = s.Chunk, s.Tile, s.Rows, s.DropOutputs
	if o.flow.Precision != nil && (s.Precision == nil || s.Precision.To != o.flow.Precision.To) {
		return fmt.Errorf("%s: already says the precision; leave out --precision, or plan again", planPath)
	}
	o.flow.Precision = s.Precision
	if len(o.flow.Dims) == 0 {
		o.flow.Dims = s.Dims
	}
	return nil
}

// followPlan writes the file that a plan on disk leads to.
func followPlan(p *flow.Planner, path string) (*flow.Planned, error) {
	_, body, err := readPlanFile(path)
	if err != nil {
		return nil, err
	}
	plan, err := planner.ReadPlan(bytes.NewReader(body), p.Problem())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p.Apply(plan)
}

func explainCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "explain", Usage: "says for each kept value of a plan why it is kept", ArgsUsage: "plan.json",
		Description: "The graph is the one that the plan was made from, unless --graph names it.\n\n" +
			"Example: remat explain plan.json",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "graph", Usage: "the `TRAIN.onnx` that the plan is for"},
		},
		Action: func(c *cli.Context) error {
			path, err := argument(c, "plan file")
			if err != nil {
				return err
			}
			return explain(e, path, c.String("graph"))
		},
	}
}

func explain(e *env, path, graph string) error {
	src, _, err := readPlanFile(path)
	if err != nil {
		return err
	}
	if graph == "" {
		if src.Path == "" {
			return errors.New(path + ": does not say which graph it is for: give --graph TRAIN.onnx")
		}
		if graph = filepath.FromSlash(src.Path); !filepath.IsAbs(graph) {
			graph = filepath.Join(filepath.Dir(path), graph)
		}
	}
	o := planOptions{strategy: "none", file: path, flow: e.flowOptions()}
	if err := src.adopt(&o, graph, path); err != nil {
		return err
	}
	p, err := makePlan(e, graph, o)
	if err != nil {
		return err
	}
	reasons, err := planner.Explain(p.result.Problem, p.result.Plan)
	if err != nil {
		return err
	}
	if e.json {
		return report.WriteJSON(e.stdout, map[string]any{"plan": path, "graph": graph, "kept": explained(reasons)})
	}
	e.say("%s for %s: %d values kept", p.result.Plan.Strategy, filepath.Base(graph), len(reasons))
	for i := range reasons {
		e.say("  %s", reasons[i].String())
	}
	return nil
}

// explained is a list of reasons for programs.
func explained(reasons []planner.Reason) []map[string]any {
	out := make([]map[string]any, len(reasons))
	for i, r := range reasons {
		out[i] = map[string]any{"value": r.Name, "bytes": r.Bytes, "boundary": r.Boundary, "must_stay": r.MustStay,
			"why": r.Why, "saved_flops": r.SavedFLOPs, "freed_bytes": r.Freed, "readers": r.Readers}
	}
	return out
}
