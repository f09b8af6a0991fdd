package runtime

// Values for inputs that nobody fed: the same for the same name and seed.
//
//	floats    normal, deviation 0.02 (as transformers are initialized)
//	integers  uniform below the smallest table that they index: Gather's axis,
//	          the classes of a loss, OneHot's depth; 1 where nothing tells;
//	          metadata remat.feeds comes first
//	bool      true
//
// The range is found by walking from the input through operators that keep
// integer values. Weakness: an index computed otherwise is not bounded.

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

const randomDeviation = 0.02

// randomTensor fills data, the memory of one tensor, for the input v.
// Integers lie below limit; 0: none is known.
func randomTensor(v *onnx.Value, d onnx.DType, data []byte, seed uint64, limit int64) {
	h := fnv.New64a()
	h.Write([]byte(v.Name))
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	le := binary.LittleEndian
	size := d.Size()
	if d.IsInt() {
		for i := int64(0); i+size <= int64(len(data)); i += size {
			n := int64(1)
			if limit > 0 {
				_, most := d.IntRange()
				n = r.Int64N(min(limit, most))
			}
			d.PutInt(data[i:], n)
		}
		return
	}
	for i := int64(0); i+size <= int64(len(data)); i += size {
		x := r.NormFloat64() * randomDeviation
		switch d {
		case onnx.Float32:
			le.PutUint32(data[i:], math.Float32bits(float32(x)))
		case onnx.Float64:
			le.PutUint64(data[i:], math.Float64bits(x))
		case onnx.BFloat16:
			le.PutUint16(data[i:], uint16(math.Float32bits(float32(x))>>16))
		case onnx.Float16:
			le.PutUint16(data[i:], halfBits(float32(x)))
		case onnx.Bool:
			data[i] = 1
		}
	}
}

// feedsOf are the feeds that the file's metadata describes, by input.
func feedsOf(m *onnx.Model) map[string]onnx.Fed {
	var feeds map[string]onnx.Fed
	if _, err := m.JSON(onnx.FeedsKey, &feeds); err != nil {
		return nil
	}
	return feeds
}

// FeedLimit is what integers of a feed may lie below anywhere: as the file's metadata says
// ({"NAME": {"below": N}}), else as the graph shows, else 0. A rewritten graph
// may hide the extents that tell.
func FeedLimit(m *onnx.Model, v *onnx.Value) int64 {
	if below := feedsOf(m)[v.Name].Below; below > 0 {
		return below
	}
	return indexLimit(v)
}

// DescribeFeeds notes in the model's metadata what the integers of each input
// lie below, where the graph shows it and nothing is noted yet: for a rewriting
// that may hide it.
func DescribeFeeds(m *onnx.Model) error {
	feeds := map[string]onnx.Fed{}
	if _, err := m.JSON(onnx.FeedsKey, &feeds); err != nil {
		return err
	}
	added := false
	for _, v := range m.Graph.Inputs {
		limit := indexLimit(v)
		if _, noted := feeds[v.Name]; v.Type.DType.IsInt() && !noted && limit > 0 {
			feeds[v.Name], added = onnx.Fed{Below: limit, Each: eachLimit(v)}, true
		}
	}
	if !added {
		return nil
	}
	return m.SetJSON(onnx.FeedsKey, feeds)
}

// halfBits rounds toward zero, for values of ordinary size.
func halfBits(f float32) uint16 {
	b := math.Float32bits(f)
	sign, exp := uint16(b>>16&0x8000), int(b>>23&0xff)-127+15
	if exp <= 0 {
		return sign
	}
	return sign | uint16(min(exp, 30))<<10 | uint16(b>>13&0x3ff)
}

// A bound says that an input of an operator indexes an axis of another one.
type bound struct {
	index, table int
	// axis of the table that is indexed; -1: the attribute axis.
	axis int
}

var bounds = map[string]bound{
	"Gather":                    {1, 0, -1},
	"GatherElements":            {1, 0, -1},
	"ScatterElements":           {1, 0, -1},
	"SoftmaxCrossEntropyLoss":   {1, 0, 1},
	"NegativeLogLikelihoodLoss": {1, 0, 1},
}

// indexLimit is the least extent that values of v index, 0 where none is found.
func indexLimit(v *onnx.Value) int64 {
	return leastLimit(v, func(_ *onnx.Value, u onnx.Use) bool { return HandsOn(u) })
}

// leastLimit is the least extent that v indexes, or what handsOn says uses of it hand on; 0
// where none is found.
func leastLimit(v *onnx.Value, handsOn func(v *onnx.Value, u onnx.Use) bool) int64 {
	limit := int64(0)
	eachUse(v, func(v *onnx.Value, u onnx.Use) bool {
		if step.DependencyOf(v, u) != step.Data {
			return false
		}
		if n := useLimit(u); n > 0 && (limit == 0 || n < limit) {
			limit = n
		}
		return handsOn(v, u)
	})
	return limit
}

// eachUse calls visit with each use of v, and of what a use that it says so of hands v on as.
func eachUse(v *onnx.Value, visit func(v *onnx.Value, u onnx.Use) (handsOn bool)) {
	seen := map[*onnx.Value]bool{v: true}
	for todo := []*onnx.Value{v}; len(todo) > 0; {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, u := range v.Uses() {
			if !visit(v, u) {
				continue
			}
			for _, o := range u.Node.Returns() {
				if !seen[o] {
					seen[o] = true
					todo = append(todo, o)
				}
			}
		}
	}
}

// useLimit is the number below which an index that is used so must stay; 0: none is
// known.
func useLimit(u onnx.Use) int64 {
	n := u.Node
	switch {
	case n.Domain() == "com.microsoft" && n.OpType() == "GatherBlockQuantized" && u.Index == 1:
		return extent(n.In(0), n.Int("gather_axis", 0))
	case u.Index == onnx.Captured || n.Domain() != "":
		return 0
	}
	if n.OpType() == "OneHot" && u.Index == 0 {
		if d := n.In(1); d != nil && d.Init != nil {
			if depth, ok := d.Init.Scalar(); ok && depth >= 1 {
				return int64(depth)
			}
		}
		return 0
	}
	b, ok := boundOf(u)
	if !ok {
		return 0
	}
	axis := int64(b.axis)
	if b.axis < 0 {
		axis = n.Int("axis", 0)
	}
	return extent(n.In(b.table), axis)
}

// boundOf is what a use as an index of an ONNX operator is bounded by.
func boundOf(u onnx.Use) (b bound, ok bool) {
	b, ok = bounds[u.Node.OpType()]
	return b, ok && u.Node.Domain() == "" && u.Index == b.index
}

// extent is the size of an axis, 0 where it is not a known number.
func extent(v *onnx.Value, axis int64) int64 {
	if v == nil {
		return 0
	}
	t := v.Type
	if v.Init != nil {
		t = v.Init.Type()
	}
	n, _ := t.Extent(axis)
	return n
}

// HandsOn reports a use that hands integers on as they are: elements of the node's
// output are elements of the value.
func HandsOn(u onnx.Use) bool {
	switch n := u.Node; {
	case u.Index == onnx.Captured:
		return false
	case n.Is("Concat", "Max", "Min"):
		return true
	case n.Is("Where"):
		return u.Index > 0
	case n.Is("Cast"):
		return n.Int("to", 0) != int64(onnx.Bool)
	default:
		return u.Index == 0 && (traits.Moves(n) || n.Is("Pad", "Clip"))
	}
}
