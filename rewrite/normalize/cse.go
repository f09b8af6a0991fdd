package normalize

// Equal nodes over equal inputs become one, as ONNX Runtime's own elimination
// of common subexpressions does from level 1 on: what it would merge is merged
// here, so that the order of a written file stands. Random operators differ in
// every run of theirs and are left alone.

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

func commons(s *state) error {
	s.count += MergeEqual(s.g)
	return nil
}

// MergeEqual merges equal nodes of a graph in file order and returns how many
// went, or are no longer read. A node that makes a graph output stays; others read it
// where it comes first.
func MergeEqual(g *onnx.Graph) int {
	first := map[string]*onnx.Node{}
	ids := map[*onnx.Value]int{}
	merged := 0
	for _, n := range g.Nodes {
		if traits.IsRandom(n) || len(n.Subgraphs()) > 0 || StoppedBy(n) != "" {
			continue
		}
		key := nodeKey(n, ids)
		f := first[key]
		if f == nil || !covers(f, n) {
			if f == nil {
				first[key] = n
			}
			continue
		}
		stays, read := false, false
		for i, v := range n.Returns() {
			stays = stays || v.IsOutput()
			if len(v.Uses()) > 0 {
				g.ReplaceUses(v, f.Outputs[i])
				read = true
			}
		}
		if read || !stays {
			merged++
		}
	}
	if merged > 0 {
		g.RemoveDead()
	}
	return merged
}

// covers reports that f has every output that n has.
func covers(f, n *onnx.Node) bool {
	for i := range n.Returns() {
		if f.Out(i) == nil {
			return false
		}
	}
	return true
}

// nodeKey is equal for nodes that compute the same.
func nodeKey(n *onnx.Node, ids map[*onnx.Value]int) string {
	var b strings.Builder
	b.WriteString(n.Domain() + "." + n.OpType() + "/" + strconv.Itoa(len(n.Outputs)))
	for _, v := range n.Inputs {
		id := 0
		if v != nil {
			if id = ids[v]; id == 0 {
				id = len(ids) + 1
				ids[v] = id
			}
		}
		b.WriteString("," + strconv.Itoa(id))
	}
	var attrs []string
	for _, a := range n.Proto.GetAttribute() {
		if a.DocString != nil {
			a = proto.CloneOf(a)
			a.DocString = nil
		}
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(a)
		if err != nil {
			data = []byte(n.Label())
		}
		attrs = append(attrs, string(data))
	}
	slices.Sort(attrs)
	b.WriteString(strings.Join(attrs, ";"))
	return b.String()
}
