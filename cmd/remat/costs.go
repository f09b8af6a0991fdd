package main

// Measured times in the place of estimated work: what --costs reads, a document of
// run --profile --json.

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
)

// readCosts reads times by node, in nanoseconds, from a run document.
func readCosts(path string) (map[string]int64, error) {
	var doc report.Run
	if err := readJSON(path, &doc); err != nil {
		return nil, err
	}
	if doc.NodeSeconds == nil {
		doc.NodeSeconds = map[string]float64{}
	}
	for _, t := range doc.TopTime { // all that a document without the others has
		if _, ok := doc.NodeSeconds[t.Node]; !ok {
			doc.NodeSeconds[t.Node] = t.Seconds
		}
	}
	costs := map[string]int64{}
	for _, node := range slices.Sorted(maps.Keys(doc.NodeSeconds)) {
		if seconds := doc.NodeSeconds[node]; !(seconds >= 0 && seconds < mostSeconds) {
			return nil, fmt.Errorf("%s: node %q took %v seconds: want 0 to %g", path, node, seconds, mostSeconds)
		}
		costs[node] = int64(doc.NodeSeconds[node] * float64(time.Second))
	}
	if len(costs) == 0 {
		return nil, fmt.Errorf("%s: contains no times: make it with run --profile --json", path)
	}
	return costs, nil
}

// mostSeconds is more than any node takes; sums of it in nanoseconds stay whole.
const mostSeconds = 1e6

// checkCosts refuses times of another graph.
func checkCosts(m *onnx.Model, p *pipeline.Planner, costs map[string]int64, path string) error {
	for _, n := range m.Graph.Nodes {
		if _, ok := costs[n.Name()]; ok {
			return nil
		}
	}
	for _, op := range p.Problem().Ops { // a graph that was normalized, or whose nodes had no names
		if _, ok := costs[op.Name]; ok {
			return nil
		}
	}
	return fmt.Errorf("%s: none of its nodes is in the graph: run --profile --json on this graph", path)
}
