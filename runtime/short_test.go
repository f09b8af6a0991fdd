package runtime

import (
	"errors"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestBlocksAreRefused: weights in blocks are refused on CUDA with the node's name, those
// of one scale or of one for each row are not.
func TestBlocksAreRefused(t *testing.T) {
	for attributes, want := range map[string]string{
		"{axis=0, block_size=2}": `node "widen": the CUDA provider has no kernel for weights in blocks`,
		"{axis=0}":               "",
	} {
		m, err := onnx.Parse("model ir=10 opset=21\ngraph g {\n  in x int8[4,6]\n  in scale float32[2,6]\n  y = DequantizeLinear(x, scale) " + attributes + " \"widen\"\n  out y float32[4,6]\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		err = NoKernel(m.Graph)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", attributes, err)
		}
	}
}

// TestShortProductsAreRefused: a product of which CUDA computes only some is found once
// free extents have numbers, and not where the extents are equal.
func TestShortProductsAreRefused(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=18
graph g {
  in a float32[N,1,4,6]
  in b float32[1,M,6,5]
  y = MatMul(a, b)
  out y float32
}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		n, m  int64
		short bool
	}{{2, 2, true}, {3, 3, true}, {2, 3, false}, {1, 2, false}, {1, 1, false}} {
		err := shortProducts(m, map[string]int64{"N": c.n, "M": c.m})
		var short *ShortProductError
		if errors.As(err, &short) != c.short || err != nil && !c.short {
			t.Errorf("[%d,1] x [1,%d]: %v", c.n, c.m, err)
		}
	}
	if err := shortProducts(m, nil); err != nil {
		t.Errorf("free extents: %v", err)
	}
}
