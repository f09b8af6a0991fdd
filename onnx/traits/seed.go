package traits

// Random numbers. A node draws other ones in each run, from a generator that ONNX
// Runtime starts once a session: with the node's seed, or without one from the
// clock, plus the node's number. Nothing in its C API sets that. So what is to be
// the same in two sessions needs a seed in the graph; two nodes with the same seed
// draw the same numbers.

import (
	"hash/fnv"

	"github.com/onnx-remat/remat/onnx"
)

// Draws reports a node that draws random numbers when it runs. A Dropout that is
// not training does not.
func Draws(n *onnx.Node) bool {
	t, ok := Of(n)
	if !ok || t.Deterministic {
		return false
	}
	if !n.Is("Dropout") {
		return true
	}
	if n.Inputs == nil { // in a subgraph inputs are known by name
		in := n.Proto.GetInput()
		return len(in) > 2 && in[2] != ""
	}
	on, known := number(n.In(2))
	return !known || on != 0
}

// number is the content of a constant of one element; an input that is left out
// counts as zero.
func number(v *onnx.Value) (float64, bool) {
	if v == nil {
		return 0, true
	}
	return v.Number()
}

// Drawing lists the nodes of a graph that draw random numbers, those of subgraphs
// too.
func Drawing(g *onnx.Graph) []*onnx.Node {
	var list []*onnx.Node
	for n := range g.All() {
		if Draws(n) {
			list = append(list, n)
		}
	}
	return list
}

// Most seeds are attributes of type float, which holds integers up to 2^24; that
// of Dropout is an integer.
const (
	floatSeeds = 1 << 24
	intSeeds   = 1 << 31
)

// FixSeeds gives each of the nodes that has no seed one made from its label, and
// returns how many. No two are equal.
func FixSeeds(nodes []*onnx.Node) int {
	used := map[int64]bool{}
	for _, n := range nodes {
		if n.Has("seed") {
			used[seedOf(n)] = true
		}
	}
	count := 0
	for _, n := range nodes {
		if n.Has("seed") {
			continue
		}
		h := fnv.New32a()
		h.Write([]byte(n.Label()))
		seed := int64(h.Sum32())&(limitOf(n)-1) + 1
		for used[seed] {
			seed = seed%limitOf(n) + 1
		}
		used[seed] = true
		setSeed(n, seed)
		count++
	}
	return count
}

// ShiftSeeds moves the seeds of all nodes by a number made from by: equal ones stay
// equal, others differ.
func ShiftSeeds(nodes []*onnx.Node, by uint64) {
	const golden = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio: spreads small numbers
	step := int64(by * golden >> 33)
	for _, n := range nodes {
		setSeed(n, (seedOf(n)+step)&(limitOf(n)-1))
	}
}

// AdvanceSeeds moves seeds to where a session has them after so many runs, and returns
// of how many nodes: those of Dropout, which seeds a new generator in each run, from a
// seed that it counts up. Other operators keep one generator, whose state no seed sets.
func AdvanceSeeds(nodes []*onnx.Node, runs int) int {
	count := 0
	for _, n := range nodes {
		if runs > 0 && Counts(n) {
			setSeed(n, seedOf(n)+int64(runs))
			count++
		}
	}
	return count
}

// Counts reports a node whose random numbers depend on its seed and the number of the
// run alone.
func Counts(n *onnx.Node) bool { return n.Is("Dropout") }

func limitOf(n *onnx.Node) int64 {
	if n.Is("Dropout") {
		return intSeeds
	}
	return floatSeeds
}

func seedOf(n *onnx.Node) int64 {
	if n.Is("Dropout") {
		return n.Int("seed", 0)
	}
	return int64(n.Float("seed", 0))
}

func setSeed(n *onnx.Node, seed int64) {
	if n.Is("Dropout") {
		n.SetAttr(onnx.IntAttr("seed", seed))
		return
	}
	n.SetAttr(onnx.FloatAttr("seed", float64(seed)))
}
