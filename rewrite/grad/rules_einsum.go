package grad

// Einsum as the products that it is. Of two operands every index is one of
//
//	batch    in both and in the result       bh in  bhqd,bhkd->bhqk
//	summed   in both, not in the result      d
//	rows     in the left and in the result   q
//	columns  in the right and in the result  k
//	lonely   in one operand alone            summed before
//
// so that with the axes grouped it is one batched product. ONNX Runtime's own
// kernel does the same with three inner buffers. More operands are contracted
// from the left. Of an operand that repeats an index its diagonal is taken first:
// every n+1st of the n*n elements of the two axes.

import (
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A labelled value has one letter an axis.
type labelled struct {
	v    *onnx.Value
	axes string
}

// einsum emits the node's product.
func einsum(c *Context) *onnx.Value {
	terms, result, ok := einsumTerms(c)
	if !ok || c.e.b.Err() != nil {
		return nil
	}
	acc := terms[0]
	for i, t := range terms[1:] {
		keep := result
		for _, later := range terms[i+2:] {
			keep += later.axes
		}
		acc = c.contract(acc, t, keep)
	}
	acc = c.sumLonely(acc, result)
	return c.arrange(acc, result).v
}

// einsumTerms reads the equation; an ellipsis becomes upper-case letters that
// the equation does not use.
func einsumTerms(c *Context) ([]labelled, string, bool) {
	text := c.Node.Str("equation", "")
	eq, ok := traits.ParseEquation(text)
	if !ok || len(eq.Terms) != len(c.Node.Inputs) {
		c.Fail("equation %q for %d operands", text, len(c.Node.Inputs))
		return nil, "", false
	}
	extra := 0
	for i, term := range eq.Terms {
		if strings.Contains(term, ".") {
			extra = max(extra, c.Rank(c.In(i))-len(term)+1)
		}
	}
	var spare strings.Builder
	for r := 'A'; spare.Len() < extra && r <= 'Z'; r++ {
		if !strings.ContainsRune(text, r) {
			spare.WriteRune(r)
		}
	}
	var terms []labelled
	for i, term := range eq.Terms {
		own := min(max(c.Rank(c.In(i))-len(term)+1, 0), spare.Len())
		axes := strings.Replace(term, ".", spare.String()[spare.Len()-own:], 1)
		if len(axes) != c.Rank(c.In(i)) {
			c.Fail("operand %d as %q", i, strings.Replace(term, ".", "...", 1))
			return nil, "", false
		}
		terms = append(terms, c.diagonal(labelled{c.In(i), axes}))
	}
	return terms, strings.Replace(eq.Result, ".", spare.String(), 1), true
}

// diagonal takes the elements whose places along the axes of one letter are the same.
func (c *Context) diagonal(t labelled) labelled {
	for i, j := twice(t.axes); i >= 0 && c.e.b.Err() == nil; i, j = twice(t.axes) {
		n, known := t.v.Type.Shape[i].Int()
		if m, alike := t.v.Type.Shape[j].Int(); !known || !alike || m != n {
			c.Fail("the diagonal of a value of shape %s: give --dim", t.v.Type.Shape)
			break
		}
		axes, perm, shape := t.axes[i:i+1], []int{i, j}, onnx.Shape{onnx.Static(n * n)}
		for k := range t.axes {
			if k != i && k != j {
				axes, perm, shape = axes+t.axes[k:k+1], append(perm, k), append(shape, t.v.Type.Shape[k])
			}
		}
		flat := c.ReshapeDims(c.Transpose(t.v, perm...), shape)
		t = labelled{c.Do("Slice", flat, c.IntList(0), c.IntList(n*n), c.IntList(0), c.IntList(n+1)), axes}
	}
	return t
}

// twice returns the first two axes of one letter, -1 where each has its own.
func twice(axes string) (i, j int) {
	for i := range axes {
		if j := strings.IndexByte(axes[i+1:], axes[i]); j >= 0 {
			return i, i + 1 + j
		}
	}
	return -1, -1
}

// sumLonely sums the axes that nothing else reads.
func (c *Context) sumLonely(t labelled, keep string) labelled {
	var axes []int
	rest := ""
	for i, r := range t.axes {
		if strings.ContainsRune(keep, r) {
			rest += string(r)
		} else {
			axes = append(axes, i)
		}
	}
	return labelled{c.Sum(t.v, false, axes...), rest}
}

// arrange permutes the axes.
func (c *Context) arrange(t labelled, want string) labelled {
	if len(t.axes) != len(want) {
		c.Fail("the result %q of axes %q", want, t.axes)
		return t
	}
	perm := make([]int, len(want))
	for i := range want {
		if perm[i] = strings.IndexByte(t.axes, want[i]); perm[i] < 0 {
			c.Fail("the result's axis %q is in no operand", want[i:i+1])
			return t
		}
	}
	return labelled{c.Transpose(t.v, perm...), want}
}

// contract multiplies two operands; keep are the axes that are read later.
func (c *Context) contract(a, b labelled, keep string) labelled {
	a, b = c.sumLonely(a, keep+b.axes), c.sumLonely(b, keep+a.axes)
	var batch, rows, sums, columns string
	for _, r := range a.axes {
		s := string(r)
		switch inB, kept := strings.Contains(b.axes, s), strings.Contains(keep, s); {
		case inB && kept:
			batch += s
		case inB:
			sums += s
		default:
			rows += s
		}
	}
	for _, r := range b.axes {
		if !strings.ContainsRune(a.axes, r) {
			columns += string(r)
		}
	}
	if c.e.b.Err() != nil {
		return a
	}
	dims := map[byte]onnx.Dim{}
	for _, t := range []labelled{a, b} {
		for i := range t.axes {
			if d := t.v.Type.Shape[i]; dims[t.axes[i]] == (onnx.Dim{}) || dims[t.axes[i]].Is(1) {
				dims[t.axes[i]] = d
			}
		}
	}
	left, swapLeft := c.grouped(a, dims, batch, rows, sums)
	right, swapRight := c.grouped(b, dims, batch, sums, columns)
	p := c.Product(left, swapLeft, right, swapRight)
	axes := batch + rows + columns
	shape := onnx.Shape{}
	for i := range axes {
		shape = append(shape, dims[axes[i]])
	}
	return labelled{c.ReshapeDims(p, shape), axes}
}

// grouped gives an operand the form [batch, p, q], or [batch, q, p] where its
// axes lie so already, which swap reports.
func (c *Context) grouped(t labelled, dims map[byte]onnx.Dim, batch, p, q string) (v *onnx.Value, swap bool) {
	for i := range t.axes {
		if t.v.Type.Shape[i] != dims[t.axes[i]] {
			t.v = c.stretch(t, dims)
			break
		}
	}
	if t.v == nil {
		return nil, false
	}
	want := batch + p + q
	if t.axes == batch+q+p {
		want, swap = t.axes, true
		p, q = q, p
	}
	group := func(letters string) onnx.Dim {
		n := onnx.Static(1)
		for i := range letters {
			n = n.Mul(dims[letters[i]])
		}
		return n
	}
	v = c.arrange(t, want).v
	if batch == "" {
		return c.ReshapeDims(v, onnx.Shape{group(p), group(q)}), swap
	}
	return c.ReshapeDims(v, onnx.Shape{group(batch), group(p), group(q)}), swap
}

// stretch expands axes of extent one that the other operand has longer.
func (c *Context) stretch(t labelled, dims map[byte]onnx.Dim) *onnx.Value {
	shape := onnx.Shape{}
	for i := range t.axes {
		shape = append(shape, dims[t.axes[i]])
	}
	target := c.e.shapeValue(shape)
	if target == nil {
		c.Fail("an operand of shape %s stretched to %s: give --dim", t.v.Type.Shape, shape)
		return nil
	}
	return c.Op("Expand", build.In(t.v, target))
}
