package predict

// What a session holds before its first step, as measured:
//
//	initializer below 128 bytes   copied through the allocator, unless it lies in
//	                              a file of its own, which is mapped
//	bigger                        kept in the graph's own memory, not counted
//	weight that a kernel packs    a copy in the kernel's layout; one for all
//	                              kernels of the same type that pack it alike;
//	                              ConvTranspose's in the arena, others beside it
//
// A packed weight's original is given up where nothing else reads it, and
// weights that are packed into the same bytes are packed once, whatever their shapes
// and whether a Gemm reads one transposed. Each norm widens its own. The packed layout
// rounds the columns of a matrix up to 16 with zeros.
//
// On a device it holds all constants that nodes read there, and what kernels keep.
//
// Source: ONNX Runtime's MlasGemmPackBSize and the PrePack methods of its CPU
// kernels, 1.31.1. Weakness: the content of weights above a mebibyte is not
// compared, as that would read files of any size.

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// Session is what a session holds before its first step, in bytes.
type Session struct {
	// Initializers is the copy of small initializers that ONNX Runtime makes; on a
	// device, that of all.
	Initializers int64
	// Packed is the second copy of weights, in the kernels' own layout.
	Packed int64
	// InArena are the copies, part of Packed, that a kernel takes from the arena's
	// regions, and on a device the constants and what kernels hold. All else is taken from
	// the system directly.
	InArena []int64
	// Computed is what ONNX Runtime computed ahead, initializers that the file
	// does not have. It lies outside the allocator; Predict leaves it 0, as it
	// sees one graph only.
	Computed int64
}

// Bytes is the sum.
func (s Session) Bytes() int64 { return s.Allocated() + s.Computed }

// Allocated is what lies in the session's allocator.
func (s Session) Allocated() int64 { return s.Initializers + s.Packed }

// direct is what is taken from the system beside the arena's regions.
func (s Session) direct() int64 {
	direct := s.Allocated()
	for _, bytes := range s.InArena {
		direct -= bytes
	}
	return direct
}

const (
	packedColumns = 16
	packedDepth   = 256     // rows of one block of columns
	mostCompared  = 1 << 20 // bytes of one weight
)

// packed is the layout of one matrix: depth rows, columns rounded up.
func packed(depth, columns int64) int64 {
	return (columns + packedColumns - 1) / packedColumns * packedColumns * depth * 4
}

// panels is how a matrix lies packed: packedDepth rows at a time, of these packedColumns columns at
// a time, row by row, with zeros for columns that there are not.
func panels(data []byte, depth, columns int, transposed bool) []byte {
	const size = 4
	out := make([]byte, packed(int64(depth), int64(columns)))
	to := 0
	for top := 0; top < depth; top += packedDepth {
		for left := 0; left < columns; left += packedColumns {
			for k := top; k < min(top+packedDepth, depth); k++ {
				for j := left; j < min(left+packedColumns, columns); j++ {
					from := k*columns + j
					if transposed {
						from = j*depth + k
					}
					copy(out[to+(j-left)*size:][:size], data[from*size:])
				}
				to += packedColumns * size
			}
		}
	}
	return out
}

// A packing says how much of input i a kernel packs; 0: nothing. All pack
// float32, but for the norms, which widen half types.
type packing func(n *onnx.Node, i int, dims []int64) int64

// packings lists the kernels that pack constant float inputs.
var packings = map[[2]string]packing{
	{"", "MatMul"}:                   packMatMul,
	{"com.microsoft", "FusedMatMul"}: packMatMul,
	{"", "Gemm"}:                     packMatMul,
	{"com.microsoft", "FusedGemm"}:   packMatMul,
	{"", "ConvTranspose"}:            packConvTranspose,
	{"", "LayerNormalization"}:       packNorm,
	{"", "RMSNormalization"}:         packNorm,
	{"", "LSTM"}:                     packRecurrent,
	{"", "GRU"}:                      packGRU,
}

// packMatMul packs a matrix, the second input.
func packMatMul(n *onnx.Node, i int, dims []int64) int64 {
	if i != 1 || len(dims) != 2 {
		return 0
	}
	depth, columns := dims[0], dims[1]
	if n.Int("transB", 0) != 0 {
		depth, columns = columns, depth
	}
	return packed(depth, columns)
}

// packConvTranspose transposes the filters of each group, [channels in, channels
// out and their extents], where neither side is one.
func packConvTranspose(n *onnx.Node, i int, dims []int64) int64 {
	if i != 1 || len(dims) < 3 {
		return 0
	}
	in, out := dims[0]/max(n.Int("group", 1), 1), int64(1)
	for _, d := range dims[1:] {
		out *= d
	}
	if in == 1 || out == 1 {
		return 0
	}
	return 4 * dims[0] * out
}

// ofNorm reports a kernel that shares what it packs with no other.
func ofNorm(n *onnx.Node) bool { return n.Is("LayerNormalization", "RMSNormalization") }

// packNorm widens scale and bias.
func packNorm(_ *onnx.Node, i int, dims []int64) int64 {
	if i != 1 && i != 2 {
		return 0
	}
	n, _ := onnx.Elements(dims)
	return 4 * n
}

// packRecurrent packs the weights of all gates, of the input and of the state, by
// direction.
func packRecurrent(_ *onnx.Node, i int, dims []int64) int64 {
	if i != 1 && i != 2 || len(dims) != 3 {
		return 0
	}
	return dims[0] * packed(dims[2], dims[1])
}

// packGRU packs the candidate gate of the recurrent weights by itself.
func packGRU(_ *onnx.Node, i int, dims []int64) int64 {
	switch {
	case len(dims) != 3:
		return 0
	case i == 1:
		return dims[0] * packed(dims[2], dims[1])
	case i == 2:
		hidden := dims[2]
		return dims[0] * (packed(hidden, 2*hidden) + packed(hidden, hidden))
	}
	return 0
}

// A pack is one packed weight: kernels of a type share those of equal content, but norms.
type pack struct {
	op    string
	bytes int64
}

// A layout is a constant as a kernel packs it: a transposed matrix by its columns.
type layout struct {
	v                  *onnx.Value
	matrix, transposed bool
	// key tells what is packed, where it was asked for; empty where that is not known.
	key string
}

// layoutOf is how n packs the constant v.
func layoutOf(n *onnx.Node, v *onnx.Value) *layout {
	return &layout{v: v, matrix: slices.Contains([]string{"MatMul", "Gemm", "FusedMatMul", "FusedGemm"}, n.OpType()), transposed: n.Int("transB", 0) != 0}
}

// session adds up what the kernels pack, and the small initializers of which
// somebody still reads the original.
func session(b *builder) Session {
	if b.options.places != nil {
		return deviceSession(b)
	}
	var s Session
	done := map[pack][]*layout{}
	unpacked := map[*onnx.Value]bool{} // still read in its own layout
	seen := map[*onnx.Value]bool{}
	for _, n := range b.Nodes {
		for i, v := range n.Inputs {
			if !v.Stored() {
				continue
			}
			seen[v] = true
			p, l := pack{n.OpType(), packedBytes(n, i, v)}, layoutOf(n, v)
			if p.bytes == 0 {
				unpacked[v] = true
			} else if ofNorm(n) || !slices.ContainsFunc(done[p], l.same) {
				done[p] = append(done[p], l)
				s.Packed += p.bytes
				if n.Is("ConvTranspose") {
					s.InArena = append(s.InArena, p.bytes)
				}
			}
		}
		for _, v := range n.Captures {
			if v.Stored() {
				seen[v], unpacked[v] = true, true
			}
		}
	}
	for _, v := range b.Values {
		if (v.IsOutput() || v.IsInput()) && v.Stored() { // one that is an input too stays where nothing reads it
			seen[v], unpacked[v] = true, true
		}
	}
	for v := range seen {
		if unpacked[v] && step.Copied(v) {
			size, _ := step.ConstantBytes(v)
			s.Initializers += size
		}
	}
	return s
}

// deviceSession adds up the constants on the device.
func deviceSession(b *builder) (s Session) {
	for _, v := range b.Values {
		if !v.Stored() {
			continue
		}
		if _, device := b.options.places.Constant(v); device {
			bytes := v.Type.KnownBytes()
			s.Initializers += bytes
			if bytes > 0 {
				s.InArena = append(s.InArena, bytes)
			}
		}
	}
	for _, n := range b.Nodes {
		k, _ := b.On().Scratch(n)
		if k == nil || b.options.places.HostNode(n) {
			continue
		}
		for _, bytes := range k.Held {
			s.Packed += bytes
			s.InArena = append(s.InArena, bytes)
		}
	}
	return s
}

// same compares what is packed of two constants, of equal size.
func (l *layout) same(m *layout) bool {
	if l.v == m.v && l.transposed == m.transposed {
		return true
	}
	a, b := l.content(), m.content()
	return a != "" && a == b
}

// content tells what is packed of a constant: of a matrix by its bytes, of others by their shape and
// elements. It is empty where the constant is too large to be compared.
func (l *layout) content() string {
	if l.key != "" {
		return l.key
	}
	t := compared(l.v)
	if t == nil {
		return ""
	}
	data, err := t.Bytes()
	if err != nil {
		return ""
	}
	dims, sum := t.Dims(), sha256.New()
	switch {
	case !l.matrix:
		fmt.Fprint(sum, dims)
	case l.transposed:
		data = panels(data, int(dims[1]), int(dims[0]), true)
	default:
		data = panels(data, int(dims[0]), int(dims[1]), false)
	}
	sum.Write(data)
	l.key = string(sum.Sum(nil))
	return l.key
}

// compared is a constant's content, nil where it is too large to be compared.
func compared(v *onnx.Value) *onnx.Tensor {
	if size, ok := v.Type.Bytes(); !ok || size > mostCompared {
		return nil
	}
	return v.Constant()
}

// Packed is how many bytes a session keeps of n's input i, a constant, in the
// layout of n's kernel on the CPU; 0 where the kernel reads it as it is.
func Packed(n *onnx.Node, i int) int64 { return packedBytes(n, i, n.In(i)) }

// packedBytes is what n's kernel packs of its input i, the constant v.
func packedBytes(n *onnx.Node, i int, v *onnx.Value) int64 {
	p, ok := packings[[2]string{n.Domain(), n.OpType()}]
	if !ok || !v.Fixed() {
		return 0
	}
	half := v.Type.DType.IsHalf()
	if norm := ofNorm(n); norm != half || !norm && v.Type.DType != onnx.Float32 {
		return 0
	}
	dims, ok := v.Type.Shape.Ints()
	if !ok {
		return 0
	}
	return p(n, i, dims)
}
