package step

// Running statistics. A normalization that takes the statistics of its batch keeps what the
// model is evaluated with: running' = m·running + (1−m)·statistic. A training graph has each
// as an input B and an output, its next value, and lists it among Roles.Buffers:
//
//	B ────────── × m ──────────┐
//	                           + ─▶ B.new
//	statistic ── × (1−m) ──────┘
//
// The sum is of the pass StatisticPass, with B as its Of and the batch's part as its second
// input, so that a graph that evaluates finds which value B is to stand for.

import "github.com/onnx-remat/remat/onnx"

// StatisticPass made a node that moves a running statistic.
const StatisticPass = "statistic"

// A Statistic is what a running statistic is moved by.
type Statistic struct {
	// Buffer names the input that keeps it; Batch is that of the batch.
	Buffer string
	Batch  *onnx.Value
}

// Statistics lists what the running statistics of a graph are moved by, in its order.
func Statistics(g *onnx.Graph) (list []Statistic) {
	for _, n := range g.Nodes {
		if !n.MadeBy(StatisticPass) || !n.Is("Add") {
			continue
		}
		share := n.In(1).Behind("Cast")
		if share == nil || share.Producer == nil || !share.Producer.Is("Mul") {
			continue
		}
		if batch := share.Producer.In(0).Behind("Cast"); batch != nil && batch.Producer != nil {
			list = append(list, Statistic{n.Origin().Of, batch})
		}
	}
	return list
}
