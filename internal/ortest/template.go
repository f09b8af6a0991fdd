package ortest

// Graphs over named extents, so that one text serves prime extents, which tell
// axes apart, and equal ones, which hide a mistake about them:
//
//	in x float32[@a,@b,@c]      extents by letter; @ab is a product
//	param w float32[@c,@d]      an initializer of that shape with random content

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// Extents are what the letters of a template stand for.
type Extents struct {
	Name       string
	A, B, C, D int64
}

// Shapes are the extents that a pattern is tried with.
var Shapes = []Extents{{"prime", 2, 3, 5, 7}, {"square", 4, 4, 4, 4}}

var letters = regexp.MustCompile(`@[a-d]+`)

// Fill writes numbers for the extents of a template.
func (e Extents) Fill(text string) string {
	by := map[rune]int64{'a': e.A, 'b': e.B, 'c': e.C, 'd': e.D}
	return letters.ReplaceAllStringFunc(text, func(s string) string {
		n := int64(1)
		for _, c := range s[1:] {
			n *= by[c]
		}
		return fmt.Sprint(n)
	})
}

// Template makes the model of a template's body, of one opset.
func (e Extents) Template(t testing.TB, opset int, body string) *onnx.Model {
	t.Helper()
	lines := strings.Split(e.Fill(body), "\n")
	var params []string
	for i, line := range lines {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "param "); ok {
			params = append(params, strings.Fields(rest)[0])
			lines[i] = "in " + rest
		}
	}
	text := fmt.Sprintf("model ir=8 opset=%d opset[com.microsoft]=1\ngraph g {\n%s\n}\n", opset, strings.Join(lines, "\n"))
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for _, name := range params {
		v := m.Graph.Value(name)
		x := randomTensor(rng, v.Type)
		m.Graph.RemoveInput(replaceByConstant(m.Graph, v, x))
	}
	return m
}

// replaceByConstant puts an initializer of v's name in v's place.
func replaceByConstant(g *onnx.Graph, v *onnx.Value, x *onnx.Tensor) *onnx.Value {
	name := v.Name
	g.Rename(v, g.FreshValueName(name+".in"))
	g.ReplaceUses(v, g.AddConstant(name, x))
	return v
}

// randomTensor draws floats between -2 and 2, and integers that are valid as
// positions: 0 or 1. Free extents become 2.
func randomTensor(rng *rand.Rand, t onnx.Type) *onnx.Tensor {
	dims := make([]int64, len(t.Shape))
	for i, d := range t.Shape {
		if n, ok := d.Int(); ok {
			dims[i] = n
		} else {
			dims[i] = 2
		}
	}
	n, _ := onnx.Elements(dims)
	switch {
	case t.DType == onnx.Bool:
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(rng.IntN(2))
		}
		return onnx.NewTensor(onnx.Bool, dims, data)
	case t.DType == onnx.Float32:
		values := make([]float32, n)
		for i := range values {
			values[i] = rng.Float32()*4 - 2
		}
		return onnx.Float32Tensor(values, dims...)
	case t.DType.IsFloat():
		values := make([]float64, n)
		for i := range values {
			values[i] = rng.Float64()*4 - 2
		}
		return onnx.FloatTensor(t.DType, values, dims...)
	}
	data := make([]byte, n*t.DType.Size())
	for i := range n {
		data[i*t.DType.Size()] = byte(rng.IntN(2))
	}
	return onnx.NewTensor(t.DType, dims, data)
}
