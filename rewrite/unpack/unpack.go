// Package unpack writes what reads weights that ONNX Runtime's tools quantized with
// standard operators, whose gradient is known:
//
//	MatMulNBits(x, codes, scales, zeros) + bias
//	  ─▶ MatMul(x, Transpose(DequantizeLinear(codes, scales, zeros))) + bias
//	GatherBlockQuantized(codes, ids, scales, zeros)
//	  ─▶ DequantizeLinear(spread(Gather(codes, ids)), Gather(scales, ids), Gather(zeros, ids))
//
// No kernel gathers codes of less than a byte, so bytes are looked up, and spread to a
// code a byte afterwards: a row's elements by shifts and masks. So are codes of a type of
// four bits, as ONNX Runtime's quantizer writes them; signed ones move up by 8.
//
// Codes are [N, blocks, bytes], each block's from the lowest bits on, padded to whole
// blocks; ONNX packs [N, K] in the same order. So where K is whole blocks the bytes are
// taken as they lie, in an external file too. Without zeros, the middle of the range
// stands for 0.
//
// Source: ContribOperators.md of ONNX Runtime. Its kernel may round x to eight bits
// (accuracy_level 4), which a training step does not.
package unpack

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

const microsoft = "com.microsoft"

// Pass is what every node that is made notes as its origin (onnx.Origin).
const Pass = "unpack"

// most is the largest extent of a weight, so that no product of them overflows.
const most = 1 << 27

// opset is the first with blocks and with types of four bits.
const opset = 21

const noInitializers = "its codes, scales or zero points are no initializers"

// unpackers write an operator that reads packed weights, by its name.
var unpackers = map[string]func(*opener, *onnx.Node) (*onnx.Value, error){
	"MatMulNBits":          product,
	"GatherBlockQuantized": lookup,
}

// isNBits reports an operator that reads packed weights.
func isNBits(n *onnx.Node) bool {
	return n.Domain() == microsoft && unpackers[n.OpType()] != nil
}

// In reports a graph that reads packed weights.
func In(g *onnx.Graph) bool { return slices.ContainsFunc(g.Nodes, isNBits) }

// Model writes what reads packed weights in m with standard operators, in place, and
// brings m to an opset that has blocks. It returns the number of nodes.
func Model(m *onnx.Model) (int, error) {
	if !In(m.Graph) {
		return 0, nil
	}
	if err := upgrade.Model(m, opset); err != nil {
		return 0, fmt.Errorf("unpack: %w", err)
	}
	o := &opener{Builder: build.New(m.Graph, nil, Pass)}
	count := 0
	var order []*onnx.Node
	for _, n := range slices.Clone(m.Graph.Nodes) {
		if !isNBits(n) {
			order = append(order, n)
			continue
		}
		o.From(n, n.Label())
		y, err := unpackers[n.OpType()](o, n)
		if err == nil {
			err = o.Err()
		}
		if err != nil {
			return 0, fmt.Errorf("node %q (%s): %w", n.Label(), n.OpType(), err)
		}
		m.Graph.TakeOver(n.Out(0), y)
		order = append(append(order, o.Take()...), n)
		count++
	}
	m.Graph.Nodes = order
	m.Graph.RemoveDead()
	o.rename()
	return count, nil
}

// An opener writes the nodes.
type opener struct {
	*build.Builder
	// held are initializers in the place of others, by whose names people and states of
	// training know them.
	held []held
}

// held is an initializer in the place of another one.
type held struct {
	of, value *onnx.Value
	// less are zero points that were taken off, nil where none were.
	less *onnx.Value
	// factor: a product reads it.
	factor bool
}

// hold returns an initializer in the place of w, perhaps less zero points: one for all that
// read it alike.
func (o *opener) hold(w, less *onnx.Value, t *onnx.Tensor, factor bool) *onnx.Value {
	for _, h := range o.held {
		if h.of == w && h.less == less && h.factor == factor && h.value.Type.Same(t.Type()) {
			return h.value
		}
	}
	v := o.Graph.AddConstant(w.Name, t)
	o.held = append(o.held, held{of: w, value: v, less: less, factor: factor})
	return v
}

// rename gives initializers the names of those whose place they took, where these are
// gone: factors before what is looked up.
func (o *opener) rename() {
	for _, factors := range []bool{true, false} {
		for _, h := range o.held {
			if h.factor == factors && o.Graph.Value(h.of.Name) == nil {
				o.Graph.Rename(h.value, h.of.Name)
			}
		}
	}
}

// product writes a MatMulNBits.
func product(b *opener, n *onnx.Node) (*onnx.Value, error) {
	codes, scales, zeros, block, err := b.packed(n)
	if err != nil {
		return nil, err
	}
	w := b.Op("DequantizeLinear", build.In(codes, scales, zeros), onnx.IntAttr("axis", 1), onnx.IntAttr("block_size", block))
	y := b.Op("MatMul", build.In(n.In(0), b.Op("Transpose", build.In(w), build.PermAttr(1, 0))))
	if bias := n.In(5); bias != nil {
		y = b.Op("Add", build.In(y, bias))
	}
	return y, nil
}

// packed are codes [N, K] of a product, scales and zeros [N, blocks], as initializers.
func (o *opener) packed(n *onnx.Node) (codes, scales, zeros *onnx.Value, block int64, err error) {
	k, rows, bits := n.Int("K", 0), n.Int("N", 0), n.Int("bits", 4)
	block = n.Int("block_size", 0)
	switch {
	case n.In(4) != nil:
		return nil, nil, nil, 0, fmt.Errorf("an order of groups, g_idx, is not supported")
	case n.Int("weight_prepacked", 0) != 0:
		return nil, nil, nil, 0, fmt.Errorf("a weight packed for one device is not supported")
	case bits != 2 && bits != 4 && bits != 8:
		return nil, nil, nil, 0, fmt.Errorf("weights of %d bits are not supported", bits)
	case k < 1 || rows < 1 || block < 16 || block > 1<<20 || block&(block-1) != 0 || k > most || rows > most:
		return nil, nil, nil, 0, fmt.Errorf("its K %d, N %d, block_size %d", k, rows, block)
	}
	p := packing{rows, k, (k + block - 1) / block, block, bits}
	w, s, z := n.In(1), n.In(2), n.In(3)
	if w == nil || s == nil || !w.IsConstant() || !s.IsConstant() || z != nil && !z.IsConstant() {
		return nil, nil, nil, 0, errors.New(noInitializers)
	}
	factors, err := p.scalesOf(s)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	c, zero, err := p.codes(w, z)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	var less *onnx.Value
	if zero == nil {
		less = z
	}
	codes = o.hold(w, less, c, true)
	scales = o.hold(s, nil, factors, true)
	if zero != nil {
		if z != nil {
			zeros = o.hold(z, nil, zero, true)
		} else {
			zeros = o.Const(zero)
		}
	}
	return codes, scales, zeros, block, nil
}

// lookup writes a GatherBlockQuantized.
func lookup(b *opener, n *onnx.Node) (*onnx.Value, error) {
	t, err := tableOf(n)
	if err != nil {
		return nil, err
	}
	rows := func(of *onnx.Value, t *onnx.Tensor) *onnx.Value {
		return b.Op("Gather", build.In(b.hold(of, nil, t, false), b.Op("Reshape", build.In(n.In(1), b.Ints(-1)))), onnx.IntAttr("axis", 0))
	}
	codes := spreadRows(b.Builder, rows(t.w, t.w.Init.As(onnx.Uint8, t.rows, t.bytes)), t.packing)
	if t.w.Type.DType == onnx.Int4 { // from -8…7 to 0…15
		codes = b.Op("BitwiseXor", build.In(codes, b.Const(onnx.NewTensor(onnx.Uint8, nil, []byte{8}))))
	}
	scales := rows(t.s, t.scales)
	var zeros *onnx.Value
	if t.z != nil {
		list, err := t.zerosOf(t.w.Type.DType, t.z)
		if err != nil {
			return nil, err
		}
		zeros = rows(t.z, onnx.NewTensor(onnx.Uint8, []int64{t.rows, t.blocks}, list))
	} else {
		all := b.Const(onnx.NewTensor(onnx.Uint8, []int64{1, 1}, []byte{t.middle}))
		zeros = b.Op("Expand", build.In(all, b.Op("Shape", build.In(scales))))
	}
	y := b.Op("DequantizeLinear", build.In(codes, scales, zeros), onnx.IntAttr("axis", 1), onnx.IntAttr("block_size", t.block))
	shape := b.Op("Concat", build.In(b.Op("Shape", build.In(n.In(1))), b.Ints(t.k)), onnx.IntAttr("axis", 0))
	return b.Op("Reshape", build.In(y, shape)), nil
}

// A table is what a GatherBlockQuantized looks up rows of: the initializers of its codes,
// scales and zero points, if it has any.
type table struct {
	packing
	w, s, z *onnx.Value
	scales  *onnx.Tensor
	bytes   int64 // of a row of codes
	middle  byte  // what stands for 0 without zero points
}

// tableOf is that of a node, refused where it is none that can be written.
func tableOf(n *onnx.Node) (*table, error) {
	t := &table{w: stored(n.In(0)), s: stored(n.In(2)), z: stored(n.In(3))}
	if t.w == nil || t.s == nil || n.In(1) == nil || n.In(3) != nil && t.z == nil {
		return nil, errors.New(noInitializers)
	}
	extents := t.w.Init.Dims()
	if r := n.In(0).Producer; r != nil {
		extents = nil
		if t := r.In(1).Constant(); t != nil {
			extents, _ = t.Int64s()
		}
	}
	have, err := t.w.Init.Elements()
	if e, ok := onnx.Elements(extents); err != nil || !ok || e != have || len(extents) != 2 || extents[0] < 1 || extents[1] < 1 || max(extents[0], extents[1]) > most {
		return nil, fmt.Errorf("codes of shape %v are not supported", extents)
	}
	gather, quantize := n.Int("gather_axis", 0), n.Int("quantize_axis", 1)
	if gather != 0 && gather != -2 || quantize != 1 && quantize != -1 {
		return nil, fmt.Errorf("blocks along axis %d, rows along axis %d are not supported", quantize, gather)
	}
	bits, block := n.Int("bits", 4), n.Int("block_size", 128)
	t.packing, t.bytes = packing{rows: extents[0], k: extents[1], block: block, bits: bits}, extents[1]
	switch d := t.w.Type.DType; {
	case (d == onnx.Uint4 || d == onnx.Int4) && bits == 4 && t.k%2 == 0:
		t.bytes = t.k / 2
		if d == onnx.Int4 {
			t.middle = 8
		}
	case d == onnx.Uint8 && (bits == 2 || bits == 4 || bits == 8):
		t.k, t.middle = t.k*8/bits, 1<<(bits-1)
	default:
		return nil, fmt.Errorf("codes of %s and %d bits in rows of %d are not supported", d, bits, extents[1])
	}
	if block < 16 || block > 1<<20 {
		return nil, fmt.Errorf("blocks of %d are not supported", block)
	}
	t.blocks = (t.k + block - 1) / block
	t.scales, err = t.scalesOf(t.s)
	return t, err
}

// stored is the initializer that v is, perhaps in another shape, nil where it is none.
func stored(v *onnx.Value) *onnx.Value {
	for v != nil && v.Producer != nil && v.Producer.Is("Reshape") {
		v = v.Producer.In(0)
	}
	if v == nil || !v.IsConstant() {
		return nil
	}
	return v
}

// spreadRows gives each code of rows [n, bytes] a byte: [n, k].
func spreadRows(b *build.Builder, rows *onnx.Value, p packing) *onnx.Value {
	if p.bits == 8 {
		return rows
	}
	number := func(x byte) *onnx.Value { return b.Const(onnx.NewTensor(onnx.Uint8, nil, []byte{x})) }
	var parts []*onnx.Value
	for at := int64(0); at < 8; at += p.bits {
		x := rows
		if at > 0 {
			x = b.Op("BitShift", build.In(x, number(byte(at))), onnx.StringAttr("direction", "RIGHT"))
		}
		x = b.Op("BitwiseAnd", build.In(x, number(1<<p.bits-1)))
		parts = append(parts, b.Op("Unsqueeze", build.In(x, b.Ints(2))))
	}
	return b.Op("Reshape", build.In(b.Op("Concat", parts, onnx.IntAttr("axis", 2)), b.Ints(-1, p.k)))
}

// A packing is how codes of a weight [rows, k] lie: each row in blocks, each block in
// whole bytes, padded.
type packing struct {
	rows, k, blocks, block, bits int64
}

// scalesOf are the scales [rows, blocks].
func (p packing) scalesOf(s *onnx.Value) (*onnx.Tensor, error) {
	if e, err := s.Init.Elements(); err != nil || e != p.rows*p.blocks || !s.Type.DType.IsFloat() {
		return nil, fmt.Errorf("scales are %s, want %d floats", s.Type, p.rows*p.blocks)
	}
	return s.Init.As(s.Type.DType, p.rows, p.blocks), nil
}

// codes are the weight's as ONNX has them, and the zero points; nil where they are 0.
func (p packing) codes(w, z *onnx.Value) (codes, zeros *onnx.Tensor, err error) {
	size, err := w.Init.ByteSize()
	if want := p.rows * p.blocks * p.block * p.bits / 8; err != nil || size != want || w.Type.DType != onnx.Uint8 {
		return nil, nil, fmt.Errorf("codes are %s, want %d bytes", w.Type, want)
	}
	at, err := p.zeros(z)
	if err != nil {
		return nil, nil, err
	}
	if p.bits == 2 {
		return p.two(w, at)
	}
	d := onnx.Uint8
	if p.bits == 4 {
		d = onnx.Uint4
	}
	zeros = onnx.NewTensor(d, []int64{p.rows, p.blocks}, pack(at, p.bits))
	if p.k == p.blocks*p.block {
		return w.Init.As(d, p.rows, p.k), zeros, nil
	}
	data, err := w.Init.Bytes()
	if err != nil {
		return nil, nil, err
	}
	return onnx.NewTensor(d, []int64{p.rows, p.k}, pack(p.unpadded(spread(data, p.bits)), p.bits)), zeros, nil
}

// two are codes of two bits in four, less their zero points, which fits.
func (p packing) two(w *onnx.Value, at []byte) (codes, zeros *onnx.Tensor, err error) {
	data, err := w.Init.Bytes()
	if err != nil {
		return nil, nil, err
	}
	list := spread(data, 2)
	for i := range list {
		list[i] = (list[i] - at[int64(i)/p.block]) & 15
	}
	return onnx.NewTensor(onnx.Int4, []int64{p.rows, p.k}, pack(p.unpadded(list), 4)), nil, nil
}

// zeros are the zero points, one a byte: the middle of the range where z is nil.
func (p packing) zeros(z *onnx.Value) ([]byte, error) {
	n := p.rows * p.blocks
	if z == nil {
		return bytes.Repeat([]byte{1 << (p.bits - 1)}, int(n)), nil
	}
	if z.Type.DType.IsFloat() {
		values, err := z.Init.Float64s()
		if err != nil || int64(len(values)) != n {
			return nil, fmt.Errorf("zero points are %s, want %d", z.Type, n)
		}
		list := make([]byte, n)
		for i, x := range values {
			if list[i] = byte(min(max(x, 0), 255)); float64(list[i]) != x || x >= float64(int(1)<<p.bits) {
				return nil, fmt.Errorf("zero points that are no codes, such as %g, are not supported", x)
			}
		}
		return list, nil
	}
	data, err := z.Init.Bytes()
	each := (p.blocks*p.bits + 7) / 8 // bytes a row
	if err != nil || int64(len(data)) != p.rows*each || z.Type.DType != onnx.Uint8 {
		return nil, fmt.Errorf("zero points are %s, want %d bytes", z.Type, p.rows*each)
	}
	var list []byte
	for row := range slices.Chunk(data, int(each)) {
		list = append(list, spread(row, p.bits)[:p.blocks]...)
	}
	return list, nil
}

// zerosOf are zero points of codes of a type: those of four bits lie behind each other
// where the codes are of such a type too.
func (p packing) zerosOf(d onnx.DType, z *onnx.Value) ([]byte, error) {
	if d == onnx.Uint8 {
		return p.zeros(z)
	}
	data, err := z.Init.Bytes()
	n := p.rows * p.blocks
	if err != nil || z.Type.DType != d || int64(len(data)) != (n+1)/2 {
		return nil, fmt.Errorf("zero points are %s, want %d of %s", z.Type, n, d)
	}
	list := spread(data, 4)[:n]
	if d == onnx.Int4 {
		for i := range list {
			list[i] ^= 8
		}
	}
	return list, nil
}

// unpadded leaves out what pads each row's last block.
func (p packing) unpadded(list []byte) []byte {
	out := make([]byte, 0, p.rows*p.k)
	for row := range slices.Chunk(list, int(p.blocks*p.block)) {
		out = append(out, row[:p.k]...)
	}
	return out
}

// spread gives each code of that many bits a byte.
func spread(data []byte, bits int64) []byte {
	if bits == 8 {
		return slices.Clone(data)
	}
	list := make([]byte, 0, int64(len(data))*8/bits)
	for _, x := range data {
		for range 8 / bits {
			list = append(list, x&(1<<bits-1))
			x >>= bits
		}
	}
	return list
}

// pack puts codes of four or eight bits, one a byte, behind each other as ONNX has them.
func pack(list []byte, bits int64) []byte {
	if bits == 8 {
		return list
	}
	data := make([]byte, (len(list)+1)/2)
	for i, x := range list {
		data[i/2] |= x << (4 * (i % 2))
	}
	return data
}
