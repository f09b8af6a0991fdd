package infer

import (
	"fmt"
	"regexp"

	"github.com/onnx-remat/remat/onnx"
)

// recurrent: X [seq, batch, in] → Y [seq, dirs, batch, hidden] and the last
// states [dirs, batch, hidden]; layout 1 puts the batch first. The weights hold the rows of all
// gates, one gate below the other.
func recurrent(c *ctx, gates int64) error {
	d, err := c.sameDType(0, 1, 2, 3, 5, 6, 7)
	if err != nil {
		return err
	}
	x, ok, err := c.need(0, 3)
	if err != nil {
		return err
	}
	if !ok {
		x = unknowns(3)
	}
	hidden := onnx.Dim{}
	if h := c.n.Int("hidden_size", 0); h > 0 {
		hidden = onnx.Static(h)
	} else if r, ok, err := c.need(2, 3); err == nil && ok {
		hidden = r[2]
	}
	dirs := onnx.Static(1)
	switch dir := c.n.Str("direction", "forward"); dir {
	case "forward", "reverse":
	case "bidirectional":
		dirs = onnx.Static(2)
	default:
		return fmt.Errorf("direction is %q", dir)
	}
	all, state := onnx.Shape{x[0], dirs, x[1], hidden}, onnx.Shape{dirs, x[1], hidden}
	if c.n.Int("layout", 0) != 0 {
		all, state = onnx.Shape{x[0], x[1], dirs, hidden}, onnx.Shape{x[0], dirs, hidden}
	}
	rows := hidden.Mul(onnx.Static(gates))
	for _, in := range []struct {
		i     int
		what  string
		shape onnx.Shape
	}{
		{1, "the weights of what is read", onnx.Shape{dirs, rows, x[2]}},
		{2, "the weights of the state", onnx.Shape{dirs, rows, hidden}},
		{3, "the bias", onnx.Shape{dirs, rows.Mul(onnx.Static(2))}},
		{5, "the state to begin with", state},
		{6, "the state to begin with", state},
	} {
		s, ok, err := c.need(in.i, len(in.shape))
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if _, err := unifyShapes(in.shape, s); err != nil {
			return fmt.Errorf("input %d, %s, is %s, where direction, rows and hidden_size ask for %s", in.i, in.what, s, in.shape)
		}
	}
	c.set(0, d, all)
	c.set(1, d, state)
	c.set(2, d, state)
	return nil
}

// gated is recurrent for an operator of so many gates.
func gated(gates int64) func(*ctx) error {
	return func(c *ctx) error { return recurrent(c, gates) }
}

// projected matches a call of a torch.nn.LSTM with proj_size, of which PyTorch's exporter makes
// nodes whose shapes do not fit.
var projected = regexp.MustCompile(`target=torch\.ops\.aten\.lstm\..*%p_\w*weight_hr_l\d`)

// advice is what to do about a node that does not fit, where that is known.
func advice(n *onnx.Node) string {
	if projected.MatchString(n.TorchCall()) {
		return "; ONNX's LSTM has no projection, and ONNX Runtime refuses the file too: export a model without proj_size"
	}
	return ""
}

// attention (opset 23): Q, K, V of rank 4 [batch, heads, seq, size] or rank 3
// [batch, seq, heads*size]; outputs Y, present key and value, and the scores.
func attention(c *ctx) error {
	d := c.dtype(0)
	var s [3]onnx.Shape
	for i := range s {
		t, ok := c.shape(i)
		if !ok {
			c.setDType(0, d)
			c.setDType(1, c.dtype(1))
			c.setDType(2, c.dtype(2))
			c.setDType(3, d)
			return nil
		}
		if len(t) != len(c.in(0).Shape) || len(t) != 3 && len(t) != 4 {
			return fmt.Errorf("input %d has rank %d; Q, K and V are of rank 3, or of rank 4", i, len(t))
		}
		heads := c.n.Int("kv_num_heads", 0)
		if i == 0 {
			heads = c.n.Int("q_num_heads", 0)
		}
		if s[i] = t; len(t) == 3 {
			if heads < 1 {
				return fmt.Errorf("q_num_heads and kv_num_heads must be given with inputs of rank 3")
			}
			h := onnx.Static(heads)
			s[i] = onnx.Shape{t[0], h, t[1], t[2].Div(h)}
		}
	}
	q, k, v := s[0], s[1], s[2]
	if len(c.in(0).Shape) == 4 {
		c.set(0, d, onnx.Shape{q[0], q[1], q[2], v[3]})
	} else {
		c.set(0, d, onnx.Shape{q[0], q[2], q[1].Mul(v[3])})
	}
	total, totalV := k[2], v[2]
	if c.has(4) {
		total, totalV = onnx.Dim{}, onnx.Dim{}
		if p, ok := c.shape(4); ok && len(p) == 4 {
			total, totalV = p[2].Add(k[2]), p[2].Add(v[2])
		}
	}
	c.set(1, c.dtype(1), onnx.Shape{k[0], k[1], total, k[3]})
	c.set(2, c.dtype(2), onnx.Shape{v[0], v[1], totalV, v[3]})
	c.set(3, d, onnx.Shape{q[0], q[1], q[2], total})
	return nil
}

// rotary: output 0 like input 0.
func rotary(c *ctx) error {
	if s, ok := c.shape(0); ok && len(s) != 3 && len(s) != 4 {
		return fmt.Errorf("input has rank %d, want 3 or 4", len(s))
	}
	return same(c)
}
