package unpack

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// A weight of random codes, as ONNX Runtime's tools lay it out.
type weight struct {
	n, k, block, bits int64
	zeros             string // "", "codes" or "floats"
}

func (w weight) blocks() int64 { return (w.k + w.block - 1) / w.block }

// add declares codes, scales and zero points, and returns their names.
func (w weight) add(g *onnx.Graph, rng *rand.Rand, rows []int64, flat bool) (codes, scales, zeros *onnx.Value) {
	random := func(n int64) []byte {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		return data
	}
	product := int64(1)
	for _, d := range rows {
		product *= d
	}
	codes = g.AddConstant("codes", onnx.NewTensor(onnx.Uint8, rows, random(product)))
	var list []float64
	for range w.n * w.blocks() {
		list = append(list, rng.Float64())
	}
	dims := []int64{w.n, w.blocks()}
	if flat {
		dims = []int64{w.n * w.blocks()}
	}
	scales = g.AddConstant("scales", onnx.FloatTensor(onnx.Float32, list, dims...))
	each := (w.blocks()*w.bits + 7) / 8
	switch w.zeros {
	case "codes":
		dims := []int64{w.n, each}
		if flat {
			dims = []int64{w.n * each}
		}
		zeros = g.AddConstant("zeros", onnx.NewTensor(onnx.Uint8, dims, random(w.n*each)))
	case "floats":
		for i := range list {
			list[i] = float64(rng.IntN(1 << w.bits))
		}
		zeros = g.AddConstant("zeros", onnx.FloatTensor(onnx.Float32, list, dims...))
	}
	return codes, scales, zeros
}

// compare runs the operator and what takes its place.
func compare(t *testing.T, name string, m *onnx.Model, tolerance float64) {
	t.Helper()
	after, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Model(after); err != nil || n != 1 || strings.Contains(after.Text(), microsoft+".") {
		t.Errorf("%s: %v, %d nodes", name, err, n)
		return
	}
	if err := after.Check(); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	feeds := ortest.RandomInputs(m)
	a, b := ortest.Run(t, m, 0, feeds)["y"], ortest.Run(t, after, 0, feeds)["y"]
	for i := range a {
		if len(a) != len(b) || !(math.Abs(a[i]-b[i]) <= tolerance*(1+math.Abs(a[i]))) {
			t.Errorf("%s: %v, want %v", name, b, a)
			return
		}
	}
}

func model(t *testing.T, inputs string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse("model ir=10 opset=20 opset[com.microsoft]=1\ngraph g {\n" + inputs + "\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Standard operators compute what ONNX Runtime computes of a packed weight, whatever its
// bits, blocks and zero points, and where its last block is padded.
func TestProduct(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, bits := range []int64{2, 4, 8} {
		for _, k := range []int64{16, 32, 40, 96} {
			for _, block := range []int64{16, 32} {
				for i, zeros := range []string{"", "codes", "floats"} {
					w := weight{n: 5, k: k, block: block, bits: bits, zeros: zeros}
					if zeros == "floats" && bits != 4 {
						continue // the kernel has them for four bits
					}
					m := model(t, fmt.Sprintf("in x float32[2,3,%d]", k))
					codes, scales, zero := w.add(m.Graph, rng, []int64{w.n, w.blocks(), block * bits / 8}, i == 0)
					in := []*onnx.Value{m.Graph.Value("x"), codes, scales, zero}
					if i == 0 {
						in = append(in, nil, m.Graph.AddConstant("bias", onnx.FloatTensor(onnx.Float32, []float64{1, 2, -3, 4, 5}, 5)))
					}
					n := m.Graph.NewNode(microsoft, "MatMulNBits", "n", in, []string{"y"}, onnx.IntAttr("K", k), onnx.IntAttr("N", w.n), onnx.IntAttr("bits", bits), onnx.IntAttr("block_size", block))
					n.Outputs[0].Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape(2, 3, w.n))
					m.Graph.Append(n)
					m.Graph.AddOutput(n.Outputs[0])
					compare(t, fmt.Sprintf("%+v", w), m, 1e-5)
				}
			}
		}
	}
}

// The same of rows that are looked up; the codes may come through a Reshape, as those of a
// table that a product reads too.
func TestLookup(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, bits := range []int64{2, 4, 8} {
		for i, zeros := range []string{"", "codes"} {
			w := weight{n: 7, k: 64, block: 16, bits: bits, zeros: zeros}
			m := model(t, "in ids int64[2,3]")
			rows := []int64{w.n, w.k * bits / 8}
			if i == 0 {
				rows = []int64{w.n, w.blocks(), w.block * bits / 8}
			}
			codes, scales, zero := w.add(m.Graph, rng, rows, false)
			if i == 0 {
				r := m.Graph.NewNode("", "Reshape", "r", []*onnx.Value{codes, m.Graph.AddConstant("shape", onnx.Int64Tensor([]int64{w.n, w.k * bits / 8}, 2))}, []string{"flat"})
				m.Graph.Append(r)
				codes = r.Outputs[0]
			}
			n := m.Graph.NewNode(microsoft, "GatherBlockQuantized", "n", []*onnx.Value{codes, m.Graph.Value("ids"), scales, zero}, []string{"y"},
				onnx.IntAttr("bits", bits), onnx.IntAttr("block_size", w.block), onnx.IntAttr("gather_axis", 0), onnx.IntAttr("quantize_axis", 1))
			n.Outputs[0].Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape(2, 3, w.k))
			m.Graph.Append(n)
			m.Graph.AddOutput(n.Outputs[0])
			compare(t, fmt.Sprintf("%+v", w), m, 0)
		}
	}
}

// Zero points of two bits are taken off the codes, which two products may share that differ
// in these.
func TestCodesShared(t *testing.T) {
	m := model(t, "in x float32[3,16]\ninit c uint8[2,1,4] = [27, 228, 0, 255, 1, 2, 3, 4]\ninit s float32[2] = [1, 2]\ninit z uint8[2,1] = [1, 3]\ninit w uint8[2,1] = [2, 0]\n"+
		"a = com.microsoft.MatMulNBits(x, c, s, z) {K=16, N=2, bits=2, block_size=16}\nb = com.microsoft.MatMulNBits(x, c, s, w) {K=16, N=2, bits=2, block_size=16}\ny = Sub(a, b)\nout y float32[3,2]")
	after, err := m.Clone()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Model(after); err != nil {
		t.Fatal(err)
	}
	feeds := ortest.RandomInputs(m)
	a, b := ortest.Run(t, m, 0, feeds)["y"], ortest.Run(t, after, 0, feeds)["y"]
	for i := range a {
		if !(math.Abs(a[i]-b[i]) <= 1e-4) {
			t.Fatalf("%v, want %v", b, a)
		}
	}
}

// Codes and zero points of a type of four bits, whose zero is 0, in blocks of which a row
// holds no whole number.
func TestLookupOfFours(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	fours := func(d onnx.DType, dims ...int64) *onnx.Tensor {
		data := make([]byte, (dims[0]*dims[1]+1)/2)
		for i := range data {
			data[i] = byte(rng.IntN(256))
		}
		if dims[0]*dims[1]%2 == 1 {
			data[len(data)-1] &= 15
		}
		return onnx.NewTensor(d, dims, data)
	}
	for _, d := range []onnx.DType{onnx.Int4, onnx.Uint4} {
		for _, k := range []int64{32, 40} {
			for _, zeros := range []bool{false, true} {
				m := model(t, "in ids int64[2,3]")
				blocks := (k + 15) / 16
				var scales []float64
				for range 7 * blocks {
					scales = append(scales, float64(1+rng.IntN(8))/4)
				}
				in := []*onnx.Value{m.Graph.AddConstant("codes", fours(d, 7, k)), m.Graph.Value("ids"), m.Graph.AddConstant("scales", onnx.FloatTensor(onnx.Float32, scales, 7, blocks))}
				if zeros {
					in = append(in, m.Graph.AddConstant("zeros", fours(d, 7, blocks)))
				}
				n := m.Graph.NewNode(microsoft, "GatherBlockQuantized", "n", in, []string{"y"}, onnx.IntAttr("block_size", 16))
				n.Outputs[0].Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape(2, 3, k))
				m.Graph.Append(n)
				m.Graph.AddOutput(n.Outputs[0])
				compare(t, fmt.Sprintf("%s, %d, zeros %v", d, k, zeros), m, 0)
			}
		}
	}
}

// Codes of whole blocks stay where they lie, and are the same bytes for a table and a
// product.
func TestBytesStay(t *testing.T) {
	m := model(t, "in x float32[3,32]\ninit codes uint8[2,2,8] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]\n"+
		"init scales float32[4] = [1, 2, 3, 4]\ny = com.microsoft.MatMulNBits(x, codes, scales) {K=32, N=2, bits=4, block_size=16}\nout y float32[3,2]")
	was, err := m.Graph.Value("codes").Init.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Model(m); err != nil {
		t.Fatal(err)
	}
	for _, v := range m.Graph.Initializers {
		if v.Type.DType == onnx.Uint4 && v.Type.Shape[1].Is(32) {
			if now, err := v.Init.Bytes(); err != nil || string(now) != string(was) {
				t.Errorf("%v, % x, was % x", err, now, was)
			}
			return
		}
	}
	t.Errorf("no codes in\n%s", m.Text())
}

func TestRefused(t *testing.T) {
	const codes = "in x float32[3,32]\ninit c uint8[1,2,8] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]\ninit s float32[2] = [1, 2]\ninit z float32[2] = [1, 0.5]\ninit i int32[32] = [" +
		"0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\nin w uint8[1,2,8]\ninit f int8[2,3] = [1, 2, 3, 4, 5, 6]\n"
	for _, c := range []struct{ node, want string }{
		{"com.microsoft.MatMulNBits(x, c, s, _, i) {K=32, N=1, bits=4, block_size=16}", "g_idx, is not supported"},
		{"com.microsoft.MatMulNBits(x, c, s, z) {K=32, N=1, bits=4, block_size=16}", "zero points that are no codes, such as 0.5"},
		{"com.microsoft.MatMulNBits(x, w, s) {K=32, N=1, bits=4, block_size=16}", "are no initializers"},
		{"com.microsoft.MatMulNBits(x, c, s) {K=32, N=1, bits=3, block_size=16}", "weights of 3 bits"},
		{"com.microsoft.MatMulNBits(x, c, s) {K=32, N=1, bits=4, block_size=24}", "block_size 24"},
		{"com.microsoft.MatMulNBits(x, c, s) {K=32, N=1, bits=4, block_size=16, weight_prepacked=1}", "packed for one device"},
		{"com.microsoft.MatMulNBits(x, c, s) {K=64, N=1, bits=4, block_size=16}", "scales are float32[2], want 4 floats"},
		{"com.microsoft.MatMulNBits(x, c, s) {K=32, N=1, bits=8, block_size=16}", "codes are uint8[1,2,8], want 32 bytes"},
		{"com.microsoft.GatherBlockQuantized(c, i, s) {bits=4, block_size=16}", "codes of shape [1 2 8]"},
		{"com.microsoft.GatherBlockQuantized(f, i, s) {bits=0, block_size=16}", "codes of int8 and 0 bits"},
		{"com.microsoft.GatherBlockQuantized(f, i, s) {bits=4, block_size=16}", "codes of int8 and 4 bits in rows of 3 are not supported"},
	} {
		m := model(t, codes+"y = "+c.node+"\nout y float32")
		if _, err := Model(m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.node, err, c.want)
		}
	}
}
