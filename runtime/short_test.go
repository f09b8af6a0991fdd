package runtime

import (
	"errors"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
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

// TestMissingKernel: what to do is said where ONNX Runtime has no kernel for bfloat16, where an
// operator of that version does not take it, and where random operators have none.
func TestMissingKernel(t *testing.T) {
	m, err := onnx.Parse("model ir=10 opset=18\ngraph g {\n  in x bfloat16[1,1,4]\n  in w bfloat16[1,1,1]\n  y = Conv(x, w)\n  out y bfloat16\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code    ort.Code
		message string
		helps   bool
	}{
		{ort.NotImplemented, "Could not find an implementation for Add(14)", true},
		{ort.InvalidGraph, "Type Error: Type 'tensor(bfloat16)' of input parameter (x) of operator (Conv) in node () is invalid.", true},
		{ort.InvalidGraph, "Type Error: Type 'tensor(float)' of input parameter (x) of operator (Gather) in node () is invalid.", false},
		{ort.Fail, "Type 'tensor(bfloat16)'", false},
	} {
		err := missingKernel(m.Graph, &ort.Error{Code: c.code, Message: c.message})
		if strings.Contains(err.Error(), "export the model in float32") != c.helps {
			t.Errorf("%v", err)
		}
	}
	err = missingKernel(m.Graph, &ort.Error{Code: ort.NotImplemented, Message: "Could not find an implementation for RandomUniformLike(22) node with name 'rand'"})
	if !strings.Contains(err.Error(), "export the model with opset_version=20") {
		t.Error(err)
	}
	// A part of constants may hold scalars alone.
	for kind, helps := range map[string]bool{"bfloat16": true, "float16": true, "float64": false} {
		if m, err = onnx.Parse("model ir=10 opset=18\ngraph g {\n  in c bool[2]\n  init x " + kind + "[] = 0\n  y = Where(c, x, x)\n  out y " + kind + "[2]\n}\n"); err != nil {
			t.Fatal(err)
		}
		err := missingKernel(m.Graph, &ort.Error{Code: ort.NotImplemented, Message: "Could not find an implementation for Where(16)"})
		if strings.Contains(err.Error(), "export the model in float32") != helps {
			t.Errorf("%s: %v", kind, err)
		}
	}
}
