package analysis

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// A sketch writes forward graphs in the text form, with values of batch 2 and
// 5 tokens of width 8.
type sketch struct {
	head, body []string
	n          int
}

func (s *sketch) fresh(prefix string) string {
	s.n++
	return fmt.Sprintf("%s%d", prefix, s.n)
}

func (s *sketch) in(name, typ string) string {
	s.head = append(s.head, "  in "+name+" "+typ)
	return name
}

func (s *sketch) w(dims ...int) string {
	name, size := s.fresh("w"), 1
	var list []string
	for _, d := range dims {
		list = append(list, fmt.Sprint(d))
		size *= d
	}
	s.head = append(s.head, fmt.Sprintf("  init %s float32[%s] = [%s]", name, strings.Join(list, ","),
		strings.TrimSuffix(strings.Repeat("0.5, ", size), ", ")))
	return name
}

func (s *sketch) op(typ string, args ...string) string {
	attrs := ""
	if k := strings.IndexByte(typ, ' '); k >= 0 {
		typ, attrs = typ[:k], typ[k:]
	}
	out := s.fresh(strings.ToLower(typ))
	s.body = append(s.body, fmt.Sprintf("  %s = %s(%s)%s", out, typ, strings.Join(args, ", "), attrs))
	return out
}

func (s *sketch) ints(values ...int) string {
	name := s.fresh("i")
	text := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(values)), ", "), "[]")
	s.head = append(s.head, fmt.Sprintf("  init %s int64[%d] = [%s]", name, len(values), text))
	return name
}

func (s *sketch) norm(x string) string { return s.op("LayerNormalization", x, s.w(8), s.w(8)) }
func (s *sketch) dense(x string) string {
	return s.op("Add", s.op("MatMul", x, s.w(8, 8)), s.w(8))
}

// attention reads keys and values from y; bias may be empty.
func (s *sketch) attention(x, y, bias string) string {
	q, k, v := s.dense(x), s.dense(y), s.dense(y)
	score := s.op("MatMul", q, s.op("Transpose {perm=[0, 2, 1]}", k))
	if bias != "" {
		score = s.op("Add", score, bias)
	}
	return s.dense(s.op("MatMul", s.op("Softmax", score), v))
}

func (s *sketch) mlp(x string) string { return s.dense(s.op("Gelu", s.dense(x))) }

func (s *sketch) preNorm(x, bias string) string {
	n := s.norm(x)
	x = s.op("Add", x, s.attention(n, n, bias))
	return s.op("Add", x, s.mlp(s.norm(x)))
}

func (s *sketch) postNorm(x string) string {
	x = s.norm(s.op("Add", x, s.attention(x, x, "")))
	return s.norm(s.op("Add", x, s.mlp(x)))
}

// decoder layers read e beside x.
func (s *sketch) decoder(x, e, bias string) string {
	n := s.norm(x)
	x = s.op("Add", x, s.attention(n, n, bias))
	x = s.op("Add", x, s.attention(s.norm(x), e, ""))
	return s.op("Add", x, s.mlp(s.norm(x)))
}

func (s *sketch) embed(name string) string {
	return s.op("Gather", s.w(3, 8), s.in(name, "int64[2,5]"))
}

func repeat(n int, x string, f func(string) string) string {
	for range n {
		x = f(x)
	}
	return x
}

func (s *sketch) model(t *testing.T, x string) *onnx.Model {
	t.Helper()
	loss := s.op("ReduceMean {keepdims=0}", x)
	s.body[len(s.body)-1] = strings.Replace(s.body[len(s.body)-1], loss, "loss", 1)
	text := "model ir=10 opset=20\ngraph g {\n" + strings.Join(s.head, "\n") + "\n" + strings.Join(s.body, "\n") + "\n  out loss float32[]\n}\n"
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return m
}

func (s *sketch) conv(x string, in, out int) string {
	return s.op("Conv {pads=[1, 1, 1, 1]}", x, s.w(out, in, 3, 3))
}

func (s *sketch) images() string { return s.in("image", "float32[2,3,8,8]") }

// step is one step of an LSTM of its own operators.
func (s *sketch) step(x, h, c, wx, wh string) (string, string) {
	g := s.op("Add", s.op("MatMul", x, wx), s.op("MatMul", h, wh))
	part := func(k int) string {
		return s.op("Slice", g, s.ints(8*k), s.ints(8*k+8), s.ints(1))
	}
	i, f, o, n := s.op("Sigmoid", part(0)), s.op("Sigmoid", part(1)), s.op("Sigmoid", part(2)), s.op("Tanh", part(3))
	c = s.op("Add", s.op("Mul", f, c), s.op("Mul", i, n))
	return s.op("Mul", o, s.op("Tanh", c)), c
}

// lstm unrolls a layer over the 5 tokens of x.
func (s *sketch) lstm(x string) string {
	h, c := s.in(s.fresh("h"), "float32[2,8]"), s.in(s.fresh("c"), "float32[2,8]")
	wx, wh := s.w(8, 32), s.w(8, 32)
	var outs []string
	for t := range 5 {
		at := s.op("Squeeze", s.op("Slice", x, s.ints(t), s.ints(t+1), s.ints(1)), s.ints(1))
		h, c = s.step(at, h, c, wx, wh)
		outs = append(outs, s.op("Unsqueeze", h, s.ints(1)))
	}
	return s.op("Concat {axis=1}", outs...)
}
