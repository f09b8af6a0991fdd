package infer

// Operators of ONNX Runtime's own domains: what its optimizer writes.

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/cpu"

	"github.com/onnx-remat/remat/onnx"
)

const (
	microsoft = "com.microsoft"
	nchwc     = "com.microsoft.nchwc"
)

var ortOperators = []row{
	{microsoft, "Attention", 1, 2, ortAttention, nil, "[batch,seq,hidden], present"},
	{microsoft, "BiasAdd", 1, 3, same, nil, "like X"},
	{microsoft, "BiasDropout", 1, 2, dropout, nil, "like X, and a bool mask"},
	{microsoft, "BiasGelu", 1, 2, same, nil, "like X"},
	{microsoft, "BiasSoftmax", 1, 2, same, nil, "like X"},
	{microsoft, "BitmaskBiasDropout", 1, 2, bitmaskDropout, nil, "like X, and a mask of 32 bits per element"},
	{microsoft, "BitmaskDropout", 1, 1, bitmaskDropout, nil, "like X, and a mask of 32 bits per element"},
	{microsoft, "EmbedLayerNormalization", 1, 1, embedLayerNorm, nil, "[batch,seq,hidden], int32 [batch], the sum"},
	{microsoft, "FastGelu", 1, 1, same, nil, "like X"},
	{microsoft, "FusedConv", 1, 2, conv, nil, "[n,m,...]"},
	{microsoft, "FusedGemm", 1, 2, gemm, nil, "[m,n]"},
	{microsoft, "FusedMatMul", 1, 2, matMul, nil, "[...,m,n]"},
	{microsoft, "FusedMatMulActivation", 1, 2, matMul, nil, "[...,m,n]"},
	{microsoft, "GatherBlockQuantized", 1, 3, gatherBlocks, nil, "the indices' shape, then [k]"},
	{microsoft, "Gelu", 1, 1, same, nil, "like X"},
	{microsoft, "GemmFastGelu", 1, 2, matMul, nil, "[...,m,n]"},
	{microsoft, "GroupQueryAttention", 1, 1, groupQuery, nil, "[batch,seq,hidden], present key and value"},
	{microsoft, "Inverse", 1, 1, same, nil, "like X"},
	{microsoft, "MatMulNBits", 1, 3, matMulBits, nil, "[...,m,N]"},
	{microsoft, "MultiHeadAttention", 1, 1, multiHead, nil, "[batch,seq,hidden], present key and value"},
	{microsoft, "QuickGelu", 1, 1, same, nil, "like X"},
	{microsoft, "RotaryEmbedding", 1, 4, ortRotary, nil, "like X"},
	{microsoft, "SkipLayerNormalization", 1, 3, skipNorm, nil, "like X, statistics, the sum"},
	{microsoft, "SkipSimplifiedLayerNormalization", 1, 3, skipNorm, nil, "like X, statistics, the sum"},
	{microsoft, "TransposeMatMul", 1, 2, matMul, nil, "[...,m,n]"},
	{microsoft, "Trilu", 1, 1, same, nil, "like X"},

	{nchwc, "AveragePool", 1, 1, pool, nil, "[n,c,...]"},
	{nchwc, "Conv", 1, 2, conv, nil, "[n,m,...]"},
	{nchwc, "GlobalAveragePool", 1, 1, ranked(globalPool), nil, "[n,c,1,...]"},
	{nchwc, "GlobalMaxPool", 1, 1, ranked(globalPool), nil, "[n,c,1,...]"},
	{nchwc, "MaxPool", 1, 1, pool, nil, "[n,c,...]"},
	{nchwc, "ReorderInput", 1, 1, reorderInput, nil, "channels rounded up to the machine's block"},
	{nchwc, "ReorderOutput", 1, 1, reorderOutput, nil, "channels as the attribute says"},
}

// skipNorm: output like X; statistics with the last dimension 1; the sum of
// input, skip and bias, like X.
func skipNorm(c *ctx) error {
	if err := c.normStats(onnx.Float32); err != nil {
		return err
	}
	c.like(3, 0)
	return nil
}

// embedLayerNorm: input_ids [batch, seq], word embedding [vocabulary, hidden].
func embedLayerNorm(c *ctx) error {
	ids, _, err := c.need(0, 2)
	if err != nil {
		return err
	}
	table, _, err := c.need(2, 2)
	if err != nil {
		return err
	}
	if ids == nil {
		ids = unknowns(2)
	}
	if table == nil {
		table = unknowns(2)
	}
	out := onnx.Shape{ids[0], ids[1], table[1]}
	c.set(0, c.dtype(2), out)
	c.set(1, onnx.Int32, ids[:1])
	c.set(2, c.dtype(2), out)
	return nil
}

// bitmaskDropout: the mask packs 32 elements into a uint32.
func bitmaskDropout(c *ctx) error {
	if s, ok := c.shape(0); ok {
		c.set(1, onnx.Uint32, onnx.Shape{ceilDiv(s.Elements(), 32)})
	}
	return same(c)
}

// ortAttention: input [batch, seq, in], weights [in, q+k+v].
func ortAttention(c *ctx) error {
	d := c.dtype(0)
	x, ok1, err := c.need(0, 3)
	if err != nil {
		return err
	}
	w, ok2, err := c.need(1, 2)
	if err != nil {
		return err
	}
	c.setDType(0, d)
	c.setDType(1, d)
	if !ok1 || !ok2 {
		return nil
	}
	hidden := w[1].Div(onnx.Static(3))
	if sizes := c.n.Ints("qkv_hidden_sizes"); len(sizes) == 3 {
		hidden = onnx.Static(sizes[2])
	}
	c.set(0, d, onnx.Shape{x[0], x[1], hidden})
	return nil
}

// multiHead: query [batch, seq, hidden], or with keys and values packed into
// a tensor of rank 5.
func multiHead(c *ctx) error {
	d := c.dtype(0)
	for o := range c.types {
		c.setDType(o, d)
	}
	q, ok := c.shape(0)
	if !ok {
		return nil
	}
	v, okV := c.shape(2)
	switch {
	case len(q) == 5:
		c.set(0, d, onnx.Shape{q[0], q[1], q[2].Mul(q[4])})
	case len(q) != 3:
		return fmt.Errorf("query of rank %d", len(q))
	case !c.has(2):
		c.set(0, d, q)
	case okV && len(v) == 3:
		c.set(0, d, onnx.Shape{q[0], q[1], v[2]})
	case okV && len(v) == 4:
		c.set(0, d, onnx.Shape{q[0], q[1], v[1].Mul(v[3])})
	}
	return nil
}

// groupQuery: query [batch, seq, heads*size], or with keys and values packed
// behind it.
func groupQuery(c *ctx) error {
	d := c.dtype(0)
	for o := range c.types {
		c.setDType(o, d)
	}
	q, ok, err := c.need(0, 3)
	if err != nil || !ok {
		return err
	}
	for i := 1; i < 3; i++ {
		if _, _, err := c.need(i, 3); err != nil {
			return err
		}
	}
	if c.has(1) != c.has(2) {
		return errors.New("keys without values, or values without keys")
	}
	if c.has(1) {
		c.set(0, d, q)
		return nil
	}
	heads, kv := c.n.Int("num_heads", 0), c.n.Int("kv_num_heads", 0)
	if heads < 1 || kv < 1 || heads > 1<<20 || kv > 1<<20 {
		return fmt.Errorf("num_heads %d, kv_num_heads %d", heads, kv)
	}
	c.set(0, d, onnx.Shape{q[0], q[1], q[2].Div(onnx.Static(heads + 2*kv)).Mul(onnx.Static(heads))})
	return nil
}

// ortRotary: X, positions [1] or [batch, seq], cosines and sines [positions, half a head].
func ortRotary(c *ctx) error {
	for i := 2; i < 4; i++ {
		if _, _, err := c.need(i, 2); err != nil {
			return err
		}
	}
	if s, ok := c.shape(1); ok && len(s) != 1 && len(s) != 2 {
		return fmt.Errorf("positions of rank %d, want 1 or 2", len(s))
	}
	return rotary(c)
}

// matMulBits: A [..., K], and a weight of N rows in codes.
func matMulBits(c *ctx) error {
	d := c.dtype(0)
	c.setDType(0, d)
	if a, ok := c.shape(0); ok && len(a) > 0 {
		c.set(0, d, append(slices.Clone(a[:len(a)-1]), onnx.Static(max(c.n.Int("N", 0), 0))))
	}
	return nil
}

// gatherBlocks: rows of codes [n, bytes], bits each, looked up along the first axis.
func gatherBlocks(c *ctx) error {
	d := c.dtype(2)
	c.setDType(0, d)
	codes, ok, err := c.need(0, 2)
	ids, known := c.shape(1)
	bits := c.n.Int("bits", 4)
	if err != nil || !ok || !known || bits < 1 || bits > 8 || c.n.Int("gather_axis", 0) != 0 {
		return err
	}
	width := codes[1]
	if c.dtype(0) == onnx.Uint8 {
		width = width.Mul(onnx.Static(8)).Div(onnx.Static(bits))
	}
	c.set(0, d, append(slices.Clone(ids), width))
	return nil
}

// blockedChannels is of what the blocked layout's channels are a multiple here: 16 with
// AVX-512, on other x86 machines 8 (MlasNchwcGetBlockSize). A graph in that layout was
// optimized on the machine that it runs on.
func blockedChannels() int64 {
	if runtime.GOARCH == "amd64" && !cpu.X86.HasAVX512F {
		return 8
	}
	return 16
}

// reorderInput: the channels are rounded up to a block; only whole ones are known to be
// as they were.
func reorderInput(c *ctx) error {
	s, ok, err := c.need(0, 4)
	if err != nil {
		return err
	}
	if !ok {
		c.setDType(0, c.dtype(0))
		return nil
	}
	out := append(onnx.Shape{}, s...)
	if c.n.Int("channels_last", 0) != 0 {
		out = onnx.Shape{s[0], s[3], s[1], s[2]}
	}
	if n, ok := out[1].Int(); !ok || n%blockedChannels() != 0 {
		out[1] = onnx.Dim{}
	}
	c.set(0, c.dtype(0), out)
	return nil
}

// reorderOutput: back to the plain layout, or channels last.
func reorderOutput(c *ctx) error {
	s, ok, err := c.need(0, 4)
	if err != nil {
		return err
	}
	if !ok {
		s = unknowns(4)
	}
	channels := onnx.Static(c.n.Int("channels", 0))
	if c.n.Int("channels_last", 0) != 0 {
		c.set(0, c.dtype(0), onnx.Shape{s[0], s[2], s[3], channels})
	} else {
		c.set(0, c.dtype(0), onnx.Shape{s[0], channels, s[2], s[3]})
	}
	return nil
}
