package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// drawing counts the nodes that draw random numbers, and lists their operators.
func drawing(g *onnx.Graph) (int, string) {
	nodes := traits.Drawing(g)
	count := map[string]int{}
	for _, n := range nodes {
		count[n.OpType()]++
	}
	var list []string
	for _, op := range slices.Sorted(maps.Keys(count)) {
		list = append(list, fmt.Sprintf("%d %s", count[op], op))
	}
	return len(nodes), strings.Join(list, ", ")
}
