package tile

// What one slice of the region holds at most: its own values, those of the logits' rows.
// Each lives from the node that makes it to the last of the region that reads it. What
// leaves the region, as the gradients of the hidden state and of the weights, is none of
// it; nor is what comes in.
//
// Weakness: the values of one size are counted apart from those of another, each at its
// most, since ONNX Runtime keeps a dead buffer for the next value of its size.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// Workspace is a bound on that, in bytes, when the region is computed in so many parts.
func (r *Region) Workspace(parts int) int64 {
	owner := r.owners()
	last := map[*onnx.Value]int{}
	for k, n := range r.Nodes {
		for _, v := range n.Inputs {
			if root := owner[v]; root != nil {
				last[root] = k
			}
		}
	}
	live, most := map[int64]int64{}, map[int64]int64{} // by the bytes of a whole value
	dying := make([][]int64, len(r.Nodes))
	for k, n := range r.Nodes {
		for _, o := range n.Outputs {
			if owner[o] != o || o == nil {
				continue
			}
			bytes := o.Type.KnownBytes()
			live[bytes] += bytes / int64(parts)
			most[bytes] = max(most[bytes], live[bytes])
			dying[max(k, last[o])] = append(dying[max(k, last[o])], bytes)
		}
		for _, bytes := range dying[k] {
			live[bytes] -= bytes / int64(parts)
		}
	}
	sum := int64(0)
	for _, bytes := range most {
		sum += bytes
	}
	return sum
}

// owners returns, of each value that is a slice's own, the value whose buffer it is in.
func (r *Region) owners() map[*onnx.Value]*onnx.Value {
	owner := map[*onnx.Value]*onnx.Value{}
	out := applier{Region: r}
	for _, n := range r.Nodes {
		for _, o := range n.Returns() {
			if r.shardingOf(o) >= 0 && !out.exits(o) {
				owner[o] = o
			}
		}
		t, _ := traits.Of(n)
		for _, a := range t.Alias {
			if in := n.In(a.Input); a.Output < len(n.Outputs) && owner[in] != nil && owner[n.Outputs[a.Output]] != nil {
				owner[n.Outputs[a.Output]] = owner[in]
			}
		}
	}
	return owner
}

// Within is the smallest number of parts whose workspace is at most so many bytes; false:
// not even the largest has one, which is returned.
func (r *Region) Within(bytes int64) (parts int, ok bool) {
	common := r.common()
	for k := int64(1); k <= common; k++ {
		if common%k == 0 {
			if parts = int(k); r.Workspace(parts) <= bytes {
				return parts, true
			}
		}
	}
	return parts, false
}
