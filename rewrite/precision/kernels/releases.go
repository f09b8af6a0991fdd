package kernels

// Which release of ONNX Runtime a file needs: the newest that one of these asks
// for.
//
//	IR version, opset    a release refuses files that are newer than its ONNX
//	kernels              each node has to find one of the CPU's for its types;
//	                     float16 may do with float32's, between casts that ONNX
//	                     Runtime inserts
//
// Source: the table of docs/Versioning.md, and which files onnxruntime 1.16.3,
// 1.17.3, 1.18.1 … 1.32.0 opened, one release after the other. Operators that a
// release has no kernel for but writes out as a function (Gelu before 1.18)
// count as missing there.
//
// Weakness: operators without a row (a caller's own) ask for nothing, and
// neither does what is in the bodies of control flow, except by its opset.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

// A Release of ONNX Runtime 1 by its number: 24 is 1.24.
type Release int

func (r Release) String() string { return fmt.Sprintf("1.%d", int(r)) }

// Releases that the table tells apart.
const (
	// Oldest is the first that has opset 20, to which graphs are brought; a
	// file that could do with an older one is said to need it.
	Oldest Release = 17
	// Relied is the one whose CPU kernels are relied on: a node that needs a
	// newer one's is computed in float32.
	Relied Release = 18
)

// A limit is the newest version that releases before the next row's open.
type limit struct {
	version int64
	since   Release
}

var (
	irVersions = []limit{{9, 17}, {10, 18}, {11, 23}, {13, 24}, {14, 32}}
	opsets     = []limit{{20, 17}, {21, 18}, {22, 21}, {23, 23}, {25, 24}, {26, 25}, {28, 32}}
)

// openedBy is the first release that opens the version; for one that is newer
// than all, that of the newest row.
func openedBy(version int64, limits []limit) Release {
	for _, l := range limits {
		if version <= l.version {
			return l.since
		}
	}
	return limits[len(limits)-1].since
}

// Needs is the oldest release whose provider runs a typed model. Kernels of
// other providers than the CPU's are not told apart.
func Needs(m *onnx.Model, p Provider) Release {
	need := max(openedBy(m.Proto.GetIrVersion(), irVersions), openedBy(m.Opset(""), opsets))
	if p != CPU {
		return need
	}
	for _, n := range m.Graph.Nodes {
		if since, ok := Since(n, m.Opset(n.Domain())); ok {
			need = max(need, since)
		}
	}
	return need
}

// Since is the oldest release in which the CPU runs the node with the types that
// its values have; false where no release has a kernel.
func Since(n *onnx.Node, opset int64) (Release, bool) {
	since, ok := served(CPU, n, opset, nil)
	if wide, found := served(CPU, n, opset, widened); found && (!ok || wide < since) {
		since, ok = wide, true
	}
	for _, a := range attributes {
		if n.Is(a.op) && n.Int(a.name, 0) != 0 {
			since = max(since, a.since)
		}
	}
	return since, ok
}

// attributes are those that kernels refused to compute before a release, though they
// had the types: 1.18.1 ends with an error in the step, 1.19.2 computes.
var attributes = []struct {
	op, name string
	since    Release
}{
	{"DequantizeLinear", "block_size", 19},
}

// widened is the type that a float16 value has between inserted casts.
func widened(v *onnx.Value) onnx.DType {
	if v.Type.DType == onnx.Float16 {
		return onnx.Float32
	}
	return v.Type.DType
}
