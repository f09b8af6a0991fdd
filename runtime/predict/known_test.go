package predict

// What ONNX Runtime does not follow: an operator whose output it loses track
// of, then a value of known extents that would take over a dead buffer if its
// shape were known.

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// emptySlice is x3, an empty slice of x, as behind a barrier, of which ONNX Runtime does not know
// how many elements it has.
const emptySlice = `  init zero int64[1] = [0]
  init flat int64[1] = [-1]
  x1 = Reshape(x, flat)
  end = Sub(flat, flat)
  x2 = Slice(x1, zero, end, zero)
  x3 = Cast(x2) {to=7}
`

// TestLost: z dies before late is made, of the same extents. Each row says how
// the value that late is made from comes about from the feeds x [2,4,8],
// part [2,3,8], last [2,1,8] and numbers s, which are joined with emptySlice, so that
// ONNX Runtime does not know how many they are.
func TestLost(t *testing.T) {
	for _, c := range []struct {
		name, text string
		s          []int64
	}{
		{"a reshape", `m = Reshape(x, s)`, []int64{2, 4, 8}},
		{"a part of unknown rank", "r = Reshape(part, s)\n  m = Concat(r, last) {axis=1}", []int64{2, 3, 8}},
		{"parts of known rank", "r = Expand(part, s)\n  m = Concat(r, last) {axis=1}", []int64{2, 3, 8}},
		{"computed sizes", `m, rest = Split(x, s) {axis=2}`, []int64{1, 7}},
		{"a computed count", `m, where = TopK(x, s) {axis=2}`, []int64{1}},
		{"computed axes", "r = Unsqueeze(x, s)\n  m = Squeeze(r, s)", []int64{0}},
		{"a computed start", "m = Slice(x, s, two, zero)", []int64{0}},
		{"a computed end", "m = Slice(x, zero, s, zero)", []int64{2}},
		{"a start that the input tells", "b = Shape(x) {start=0,end=1}\n  i = Sub(b, b)\n  m = Slice(x, i, two, zero)", []int64{0}},
		{"an end that the input tells", "b = Shape(x) {start=0,end=1}\n  m = Slice(x, zero, b, zero)", []int64{0}},
		{"a transposed value of unknown rank", "r = Reshape(last, s)\n  t = Transpose(r) {perm=[3, 2, 1, 0]}\n  n = Shape(t)\n  m = Gather(x, n) {axis=1}", []int64{2, 2, 2, 2}},
		{"a flattened value of unknown rank", "c = ReduceSum(last) {keepdims=0}\n  r = Reshape(c, s)\n  f = Flatten(r)\n  m = Add(f, x)", []int64{1, 1}},
		{"depth of unknown rank", "c = ReduceSum(last) {keepdims=0}\n  r = Reshape(c, s)\n  d = DepthToSpace(r) {blocksize=1}\n  f = Squeeze(d, zero)\n  m = Add(f, x)", []int64{1, 1, 1, 1}},
		{"computed axes of a sum", `m = ReduceSum(x, s) {keepdims=1}`, []int64{2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := onnx.Parse(fmt.Sprintf(`model ir=10 opset=20
graph g {
  in  x float32[2,4,8]
  in  part float32[2,3,8]
  in  last float32[2,1,8]
  in  row float32[2,4,1]
  init k int64[%d] = %s
  init two int64[1] = [2]
`+emptySlice+`  s = Concat(k, x3) {axis=0}
  z = Exp(x)
  y = ReduceSum(z) {keepdims=0}
  %s
  waits = Add(m, y)
  late = Add(waits, row)
  later = Neg(late)
  loss = ReduceSum(later) {keepdims=0}
  out loss float32[]
}
`, len(c.s), strings.ReplaceAll(fmt.Sprint(c.s), " ", ", "), c.text))
			if err != nil {
				t.Fatal(err)
			}
			checkKnown(t, m, 0)
		})
	}
}

// TestPartsOfUnknownExtent: of a Split along an axis of unknown extent ONNX Runtime does not take
// the sizes: late takes over no z, though they have equal extents.
func TestPartsOfUnknownExtent(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float32[8,4]
  in  w float32[4,16]
  init k int64[2] = [4, 16]
  init sizes int64[2] = [8, 8]
` + emptySlice + `  s = Concat(k, x3) {axis=0}
  g = Reshape(w, s)
  v = Concat(x, x) {axis=1}
  z = Exp(v)
  y = ReduceSum(z) {keepdims=0}
  p = Gemm(x, g)
  a, b = Split(p, sizes) {axis=1}
  c = Add(a, b)
  late = Add(c, y)
  later = Neg(late)
  loss = ReduceSum(later) {keepdims=0}
  out loss float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	checkKnown(t, m, 0)
}

// TestPartsInHalf: late joins parts whose extents the file declares in half. By these ONNX Runtime
// knows its own, and it takes over z, though of the parts in float32, which it reads in the end,
// not even the rank is known.
func TestPartsInHalf(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float16[2,4,8]
  init k int64[3] = [2, 4, 8]
  init sizes int64[2] = [4, 4]
` + emptySlice + `  s = Concat(k, x3) {axis=0}
  z = Exp(x)
  y = ReduceSum(z) {keepdims=0}
  r = Reshape(x, s)
  q = Mul(r, y)
  a, b = Split(q, sizes) {axis=2}
  n = Neg(a)
  late = Concat(b, n) {axis=2}
  later = Mul(late, y)
  loss = ReduceSum(later) {keepdims=0}
  out loss float16[]
  value a float16[2,4,4]
  value b float16[2,4,4]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	checkKnown(t, m, 0)
}

// TestCutShapeOfTransposed: of a value of unknown rank, transposed, ONNX Runtime takes the whole shape before
// the Transpose, whose rank that tells, and gathers what was cut: the shape takes over z.
func TestCutShapeOfTransposed(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float32[2,4,8]
  in  j int64[3]
  value n int64[1]
` + emptySlice + `  z = Neg(j)
  y = ReduceSum(z) {keepdims=0}
  f = Cast(y) {to=1}
  p = Mul(x, f)
  r = Unsqueeze(p, x3)
  t = Transpose(r) {perm=[2, 0, 1]}
  n = Shape(t) {start=1, end=2}
  c = Cast(n) {to=1}
  loss = ReduceSum(c) {keepdims=0}
  out loss float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	checkKnown(t, m, 1)
}

// TestMovedTransposes: ONNX Runtime moves t behind the squares, and then behind their sum,
// where it is nothing. It knows the extents of the squares all the same, and has the second
// ones take over the first.
func TestMovedTransposes(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float32[2,4,8]
  value q float32[8,4]
  value late float32[8,4]
  init k int64[3] = [2, 4, 8]
  init axes int64[1] = [-1]
` + emptySlice + `  s = Concat(k, x3) {axis=0}
  r = Reshape(x, s)
  t = Transpose(r) {perm=[2, 1, 0]}
  q = ReduceSumSquare(t, axes) {keepdims=0}
  y = ReduceSum(q) {keepdims=0}
  r2 = Mul(r, y)
  t2 = Transpose(r2) {perm=[2, 1, 0]}
  late = ReduceSumSquare(t2, axes) {keepdims=0}
  loss = ReduceSum(late) {keepdims=0}
  out loss float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	checkKnown(t, m, 1)
}

// TestMovedTransposeOfASplit: ONNX Runtime moves t behind the halves, as where the halves of a
// query are rotated, and knows the extents of both: the later ones take over both.
func TestMovedTransposeOfASplit(t *testing.T) {
	m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float32[2,4,8]
  value a float32[2,8,2]
  value b float32[2,8,2]
  value a2 float32[2,8,2]
  value b2 float32[2,8,2]
  init k int64[3] = [2, 4, 8]
  init halves int64[2] = [2, 2]
` + emptySlice + `  s = Concat(k, x3) {axis=0}
  r = Reshape(x, s)
  t = Transpose(r) {perm=[0, 2, 1]}
  a, b = Split(t, halves) {axis=2}
  n = Exp(b)
  j = Concat(n, a) {axis=2}
  u = Transpose(j) {perm=[0, 2, 1]}
  y = ReduceSum(u) {keepdims=0}
  r2 = Mul(r, y)
  t2 = Transpose(r2) {perm=[0, 2, 1]}
  a2, b2 = Split(t2, halves) {axis=2}
  n2 = Exp(b2)
  j2 = Concat(n2, a2) {axis=2}
  u2 = Transpose(j2) {perm=[0, 2, 1]}
  loss = ReduceSum(u2) {keepdims=0}
  out loss float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	checkKnown(t, m, 1)
}

// TestMovedTransposeOfAnOutput: ONNX Runtime moves t behind the cast, whose output keeps its
// name, as it is one of the graph, and is what the Transpose makes then. What the cast
// makes is named after the node, and takes over z.
func TestMovedTransposeOfAnOutput(t *testing.T) {
	for _, name := range []string{"c", "another"} {
		m, err := onnx.Parse(`model ir=10 opset=20
graph g {
  in  x float32[2,4,8]
` + emptySlice + `  z = Exp(x)
  y = ReduceSum(z) {keepdims=0}
  q = Mul(x, y)
  h = Cast(q) {to=16}
  r = Unsqueeze(h, x3)
  t = Transpose(r) {perm=[1, 0, 2]}
  c = Cast(t) {to=1}
  loss = ReduceSum(c) {keepdims=0}
  out loss float32[]
  out c float32[4,2,8]
}
`)
		if err != nil {
			t.Fatal(err)
		}
		m.Graph.NameNodes()
		*m.Graph.Value("c").Producer.Proto.Name = name
		checkKnown(t, m, 1)
	}
}

// checkKnown holds a step of m, at an optimization level, to what is predicted.
func checkKnown(t *testing.T, m *onnx.Model, level int) {
	t.Helper()
	m.Graph.NameNodes()
	dir := t.TempDir()
	path := filepath.Join(dir, "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	o := ort.SessionOptions{Threads: 1, Level: level}
	real, err := measure(path, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := asExecuted(path, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := compare(p, real, true); diff != "" {
		t.Error(diff)
	}
}
