package grad

// Activations of recurrent nodes. Every one that ONNX names has a slope that its
// own output determines, so that what a kernel has put out is enough:
//
//	HardSigmoid  α strictly inside (0,1)       Softsign  (1-|y|)²
//	ScaledTanh   β (α - y²/α)                  Softplus  1-exp(-y)
//	Elu          y+α below zero, else 1
//
// activation_alpha and activation_beta hold a number for each activation that
// takes one, in their order; the others have their operator's own.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A squash is one activation with its numbers.
type squash struct {
	name        string
	alpha, beta float64
}

// squashes lists the activations of each direction, n a direction.
func (c *Context) squashes(directions int, defaults []string) [][]squash {
	node := c.Node
	var names []string
	for _, a := range node.Attr("activations").GetStrings() {
		names = append(names, string(a))
	}
	n := len(defaults)
	if len(names) == 0 {
		names = slices.Repeat(defaults, directions)
	}
	if len(names) != n*directions {
		c.Fail("%d activations, not %d", len(names), n*directions)
		return nil
	}
	alphas, betas := node.Attr("activation_alpha").GetFloats(), node.Attr("activation_beta").GetFloats()
	next := func(list *[]float32, otherwise float64) float64 {
		if len(*list) == 0 {
			return otherwise
		}
		x := (*list)[0]
		*list = (*list)[1:]
		return float64(x)
	}
	var all []squash
	for _, name := range names {
		s := squash{name: name}
		switch name {
		case "Sigmoid", "Tanh", "Relu", "Softsign", "Softplus":
		case "HardSigmoid":
			s.alpha, s.beta = next(&alphas, 0.2), next(&betas, 0.5)
		case "LeakyRelu":
			s.alpha = next(&alphas, 0.01)
		case "ThresholdedRelu":
			s.alpha = next(&alphas, 0) // in ONNX Runtime; the operator's own is 1
		case "Elu":
			s.alpha = next(&alphas, 1)
		case "Affine", "ScaledTanh": // operators that are gone, with their numbers
			if len(alphas) == 0 || len(betas) == 0 {
				c.Fail("activation %s without activation_alpha and activation_beta", name)
				return nil
			}
			s.alpha, s.beta = next(&alphas, 0), next(&betas, 0)
		default:
			c.Fail("activation %s is not one of ONNX's", name)
			return nil
		}
		all = append(all, s)
	}
	return slices.Collect(slices.Chunk(all, n))
}

// of is the activation of v.
func (s squash) of(c *Context, v *onnx.Value) *onnx.Value {
	alpha, beta := onnx.FloatAttr("alpha", s.alpha), onnx.FloatAttr("beta", s.beta)
	switch s.name {
	case "HardSigmoid":
		return c.Op(s.name, build.In(v), alpha, beta)
	case "LeakyRelu", "ThresholdedRelu", "Elu":
		return c.Op(s.name, build.In(v), alpha)
	case "Affine":
		return c.Plus(c.Do("Mul", v, c.Scalar(v, s.alpha)), c.Scalar(v, s.beta))
	case "ScaledTanh":
		return c.Do("Mul", c.Do("Tanh", c.Do("Mul", v, c.Scalar(v, s.beta))), c.Scalar(v, s.alpha))
	}
	return c.Do(s.name, v)
}

// slope is the activation's derivative where it yields y.
func (s squash) slope(c *Context, y *onnx.Value) *onnx.Value {
	number := func(x float64) *onnx.Value { return c.Scalar(y, x) }
	switch s.name {
	case "Sigmoid":
		return c.swing(y)
	case "Tanh":
		return c.bend(y)
	case "Relu":
		return c.Do("Sign", y)
	case "Softsign":
		rest := c.rest(c.Do("Abs", y))
		return c.Do("Mul", rest, rest)
	case "Softplus":
		return c.rest(c.Do("Exp", c.Do("Neg", y)))
	case "HardSigmoid":
		return c.Do("Mul", c.Do("Sign", c.swing(y)), number(s.alpha))
	case "LeakyRelu":
		return c.Do("Where", c.Do("Less", y, number(0)), number(s.alpha), number(1))
	case "ThresholdedRelu":
		return c.Do("Sign", c.Do("Abs", y))
	case "Elu":
		return c.Do("Where", c.Do("Less", y, number(0)), c.Plus(y, number(s.alpha)), number(1))
	case "ScaledTanh":
		return c.Minus(number(s.alpha*s.beta), c.Do("Mul", c.Do("Mul", y, y), number(s.beta/s.alpha)))
	}
	return c.e.filled(y.Type.Shape, y.Type.DType, s.alpha) // Affine
}
