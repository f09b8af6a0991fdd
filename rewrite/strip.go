package rewrite

import (
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// Names of what passes put into a graph.
const (
	barrierPrefix = "remat/barrier/"
	concealPrefix = "remat/conceal/"
	recomputePass = "recompute"
)

func isBarrier(n *onnx.Node) bool { return strings.HasPrefix(n.Name(), barrierPrefix) }

// StripBarriers takes the barriers of an earlier rewriting off, so
// that the graph can be planned anew: each is a view of its input. A graph that
// holds recomputed nodes keeps them, because they are all that tells a clone
// from its original. It returns the number of views taken off.
func StripBarriers(g *onnx.Graph) int {
	for _, n := range g.Nodes {
		if n.MadeBy(recomputePass) {
			return 0
		}
	}
	count := 0
	for _, n := range g.Nodes {
		if !n.Is("Reshape", "Unsqueeze") || len(n.Inputs) != 2 || n.Inputs[0] == nil || n.Outputs[0] == nil || n.Outputs[0].IsOutput() {
			continue
		}
		// What a barrier's second input waits for is computed.
		waits := n.Inputs[1]
		if waits == nil || waits.Producer == nil || !isBarrier(n) {
			continue
		}
		if n.Is("Unsqueeze") || waits.Producer.Is("Concat") {
			x := n.Inputs[0]
			if p := x.Producer; p != nil && isBarrier(p) && p.Is("Flatten") {
				x = p.Inputs[0]
			}
			g.ReplaceUses(n.Outputs[0], x)
			count++
		}
	}
	g.RemoveDead()
	return count
}
