package infer

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// matMul: [..., m, k] × [..., k, n] with leading dimensions broadcast; vectors
// are given a dimension that goes again.
func matMul(c *ctx) error {
	d, err := c.sameDType(0, 1)
	if err != nil {
		return err
	}
	return c.product(d, 0, 1)
}

// matMulInteger: int32 from 8-bit inputs.
func matMulInteger(c *ctx) error {
	return c.product(onnx.Int32, 0, 1)
}

// qlinearMatMul: inputs 0 and 3, element type of the output's zero point.
func qlinearMatMul(c *ctx) error {
	return c.product(c.dtype(7), 0, 3)
}

// product types output 0 as the matrix product of two inputs, of which either may be turned by
// FusedMatMul's attributes.
func (c *ctx) product(d onnx.DType, i, j int) error {
	a, ok1 := c.shape(i)
	b, ok2 := c.shape(j)
	if !ok1 || !ok2 {
		c.setDType(0, d)
		return nil
	}
	a = operandView(a, c.n.Int("transA", 0) != 0, c.n.Int("transBatchA", 0) != 0)
	b = operandView(b, c.n.Int("transB", 0) != 0, c.n.Int("transBatchB", 0) != 0)
	out, err := productShape(a, b)
	if err != nil {
		return err
	}
	c.set(0, d, out)
	return nil
}

// operandView is the shape of an operand with its last two dimensions transposed (trans), or
// its first dimension moved before the last (batch).
func operandView(s onnx.Shape, trans, batch bool) onnx.Shape {
	n := len(s)
	if n < 2 || !trans && !batch {
		return s
	}
	out := append(onnx.Shape{}, s...)
	if batch {
		copy(out, s[1:n-1])
		out[n-2] = s[0]
	}
	if trans {
		out[n-2], out[n-1] = out[n-1], out[n-2]
	}
	return out
}

func productShape(a, b onnx.Shape) (onnx.Shape, error) {
	if len(a) == 0 || len(b) == 0 {
		return nil, fmt.Errorf("a product with a scalar")
	}
	rowVector, colVector := len(a) == 1, len(b) == 1
	one := onnx.Static(1)
	if rowVector {
		a = onnx.Shape{one, a[0]}
	}
	if colVector {
		b = onnx.Shape{b[0], one}
	}
	ra, rb := len(a), len(b)
	if _, err := unify(a[ra-1], b[rb-2]); err != nil {
		return nil, fmt.Errorf("%s × %s: inner %w", a, b, err)
	}
	lead, err := broadcast(a[:ra-2], b[:rb-2])
	if err != nil {
		return nil, err
	}
	out := append(onnx.Shape{}, lead...)
	if !rowVector {
		out = append(out, a[ra-2])
	}
	if !colVector {
		out = append(out, b[rb-1])
	}
	return out, nil
}

// gemm: [m,k] × [k,n] + C, either matrix transposed.
func gemm(c *ctx) error {
	d, err := c.sameDType(0, 1, 2)
	if err != nil {
		return err
	}
	a, ok1, err1 := c.need(0, 2)
	b, ok2, err2 := c.need(1, 2)
	if err1 != nil || err2 != nil {
		return fmt.Errorf("inputs of rank %d and %d, want matrices", len(c.in(0).Shape), len(c.in(1).Shape))
	}
	out := unknowns(2)
	var ka, kb onnx.Dim
	if ok1 {
		out[0], ka = a[0], a[1]
		if c.n.Int("transA", 0) != 0 {
			out[0], ka = a[1], a[0]
		}
	}
	if ok2 {
		kb, out[1] = b[0], b[1]
		if c.n.Int("transB", 0) != 0 {
			kb, out[1] = b[1], b[0]
		}
	}
	if _, err := unify(ka, kb); err != nil {
		return fmt.Errorf("%s × %s: inner %w", a, b, err)
	}
	if s, ok := c.shape(2); ok && ok1 && ok2 {
		sum, err := broadcast(out, s)
		if err != nil {
			return fmt.Errorf("bias: %w", err)
		}
		if len(sum) != 2 {
			return fmt.Errorf("bias of rank %d", len(s))
		}
		if _, err := unifyShapes(sum, out); err != nil {
			return fmt.Errorf("bias %s does not broadcast to %s", s, out)
		}
	}
	c.set(0, d, out)
	return nil
}

// einsum: extents by letter; an ellipsis broadcasts.
func einsum(c *ctx) error {
	d, err := c.sameDType()
	if err != nil {
		return err
	}
	eq, ok := traits.ParseEquation(c.n.Str("equation", ""))
	if !ok || len(eq.Terms) != len(c.n.Inputs) {
		return fmt.Errorf("equation %q for %d inputs", c.n.Str("equation", ""), len(c.n.Inputs))
	}
	letters := map[byte]onnx.Dim{}
	var dots onnx.Shape
	for i, term := range eq.Terms {
		s, ok := c.shape(i)
		if !ok {
			c.setDType(0, d)
			return nil
		}
		if dots, err = bindLetters(term, s, letters, dots); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
	}
	var out onnx.Shape
	for k := range len(eq.Result) {
		if eq.Result[k] == '.' {
			out = append(out, dots...)
			continue
		}
		e, ok := letters[eq.Result[k]]
		if !ok {
			return fmt.Errorf("equation %q: %c is in no input", c.n.Str("equation", ""), eq.Result[k])
		}
		out = append(out, e)
	}
	c.set(0, d, out)
	return nil
}

// bindLetters matches a term with a shape; what the ellipsis stands for is
// broadcast into dots, which is returned.
func bindLetters(term string, s onnx.Shape, letters map[byte]onnx.Dim, dots onnx.Shape) (onnx.Shape, error) {
	named := len(term) - strings.Count(term, ".")
	if named > len(s) || named == len(term) && named != len(s) {
		return nil, fmt.Errorf("%q for rank %d", term, len(s))
	}
	k := 0
	for i := 0; i < len(term); i++ {
		if term[i] == '.' {
			width := len(s) - named
			sum, err := broadcast(dots, s[k:k+width])
			if err != nil {
				return nil, err
			}
			dots, k = sum, k+width
			continue
		}
		d, seen := letters[term[i]]
		if !seen {
			d = s[k]
		}
		e, err := broadcastDim(d, s[k])
		if err != nil {
			return nil, fmt.Errorf("%c: %w", term[i], err)
		}
		if !e.Known() {
			if e, err = unify(d, s[k]); err != nil {
				return nil, err
			}
		}
		letters[term[i]] = e
		k++
	}
	return dots, nil
}
