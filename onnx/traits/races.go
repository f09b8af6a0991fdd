package traits

// Nodes whose result may differ from run to run, though nothing in them is drawn
// at random: ONNX Runtime's CPU kernel of ScatterND runs the updates of a
// reduction in parallel, without atomics. Where two of them go to one place and
// two threads or more run, one may be lost (microsoft/onnxruntime issues 18048
// and 23396). ScatterElements runs in order.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// WhyRaces says of a node that races what that means, and what to do.
const WhyRaces = "ScatterND with a reduction loses updates of repeated indices in ONNX Runtime on the CPU with two threads or more: " +
	"run it with --threads 1, or use ScatterElements"

// Races reports a node whose updates ONNX Runtime may lose: a ScatterND with a
// reduction, unless its indices are constants that name each place once.
func Races(n *onnx.Node) bool {
	return n.Is("ScatterND") && n.Str("reduction", "none") != "none" && !distinct(n.In(1))
}

// Racing lists the labels of a graph's nodes that race, those of subgraphs too.
func Racing(g *onnx.Graph) []string {
	var list []string
	for n := range g.All() {
		if Races(n) {
			list = append(list, n.Label())
		}
	}
	return list
}

// distinct reports constant index tuples of which no two are the same; a negative
// index may name the place of another, so there must be none.
func distinct(idx *onnx.Value) bool {
	if idx == nil || !idx.Type.Ranked || len(idx.Type.Shape) == 0 {
		return false
	}
	last := len(idx.Type.Shape) - 1
	if tuples, ok := idx.Type.Shape[:last].Elements().Int(); ok && tuples <= 1 {
		return true
	}
	k, ok := idx.Type.Shape[last].Int()
	if !ok || k < 1 || !idx.IsConstant() {
		return false
	}
	list, err := idx.Init.Int64s()
	if err != nil {
		return false
	}
	seen := make(map[string]bool, len(list)/int(k))
	for i := 0; i+int(k) <= len(list); i += int(k) {
		key := ""
		for _, x := range list[i : i+int(k)] {
			if x < 0 {
				return false
			}
			key += fmt.Sprint(x, " ")
		}
		if seen[key] {
			return false
		}
		seen[key] = true
	}
	return true
}
