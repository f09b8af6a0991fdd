package tile

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
)

type batchCase struct {
	row, name, body string
	exact           bool
	opset           string // 20 where none is said
}

// laid is a feed whose rows a constant puts in their places: it is computed whole, and
// what reads it is divided since what follows is.
const laid = "in l int64[4,3]\ninit o int64[4,3] = [0,0,0,0,0,0,0,0,0,0,0,0]\ninit p int64[4,1] = [0,1,2,3]\nids = ScatterND(o, p, l)\nc = Cast(ids) {to=1}\n"

// asList has the places i and the numbers g of a pool as lists, and zeros for them.
const asList = "init n int64[1] = [-1]\ni1 = Reshape(i, n)\ng1 = Reshape(g, n)\ninit s1 int64[1] = [288]\nz = ConstantOfShape(s1)\n"

// pooled puts the squares of a pool at the places that it picked.
const pooled = "a = Neg(x)\ny0, i = MaxPool(a) {kernel_shape=[2,2], strides=[2,2]}\ng = Mul(y0, y0)\n" + asList +
	"d1 = ScatterElements(z, i1, g1) {axis=0}\ninit s int64[4] = [4,2,6,6]\nd = Reshape(d1, s)\n"

// merged is a product of rows that have the batch behind another axis.
const merged = "a = Transpose(x) {perm=[1,0,2,3]}\ninit k int64[2] = [8,36]\nb = Reshape(a, k)\nin w F[36,5]\nin v F[5]\nc = Gemm(b, w, v)\ninit s int64[3] = [2,4,5]\nd = Reshape(c, s)\n"

// sequence has the batch behind eight steps of six numbers.
const sequence = "init k int64[3] = [4,12,6]\nz = Reshape(x, k)\ninit b0 int64[1] = [0]\ninit b8 int64[1] = [8]\ninit b1 int64[1] = [1]\nz8 = Slice(z, b0, b8, b1)\nq = Transpose(z8) {perm=[1,0,2]}\n"

// chosen has two columns before the batch.
const chosen = "a = Transpose(x) {perm=[1,3,0,2]}\ninit p int64[2,2] = [1,4,0,2]\nin v F[6]\nb = Mul(a, v)\nf = GatherND(b, p)\n"

// rows are those of the samples, six each.
const rows = "init k int64[2] = [24,12]\na = Reshape(x, k)\nin v F[12]\nh = Mul(a, v)\n"

// zeros24 are as many zeros as rows has numbers.
var zeros24 = "init Z F[24,12] = [0" + strings.Repeat(",0", 24*12-1) + "]\n"

// tokenOf is the place of a row that each sample finds among its own.
const tokenOf = rows + "init k3 int64[3] = [4,6,12]\nh3 = Reshape(h, k3)\ninit j int64[1] = [2]\ns = ReduceSum(h3, j) {keepdims=0}\nt = ArgMax(s) {axis=1, keepdims=0}\ninit o int64[4] = [0,6,12,18]\n"

// batchCases lead from a batch x [4,2,6,6] to a loss, and to what is summed over the batch,
// through the row's operator.
var batchCases = []batchCase{
	{row: "Conv", body: "in w F[3,2,3,3]\nin b F[3]\ny = Conv(x, w, b) {pads=[1,1,1,1]}"},
	{row: "Conv", body: "a = Transpose(x) {perm=[1,0,2,3]}\ninit k int64[4] = [4,3,4,4]\nin w F[4,48]\nd = Reshape(w, k)\nc = Transpose(d) {perm=[1,0,2,3]}\ngradient = Conv(a, c)\ny = Neg(x)"},
	{row: "Conv", name: "of a group's gradient", body: "init k int64[5] = [4,3,2,4,3]\na = Reshape(x, k)\nb = Transpose(a) {perm=[2,1,0,3,4]}\ninit i int64[4] = [2,12,4,3]\nc = Reshape(b, i)\nin w F[4,6,2,2]\nv = Neg(w)\nd = Transpose(v) {perm=[1,0,2,3]}\ngradient = Conv(c, d) {group=3}\ny = Neg(x)"},
	{row: "Conv", name: "by filters of each sample's own", body: "init k int64[4] = [1,8,6,6]\nin q F[6]\nxq = Mul(x, q)\na = Reshape(xq, k)\nin f F[4,24]\nf2 = Tanh(f)\ninit v int64[4] = [12,2,2,2]\nw = Reshape(f2, v)\nc = Conv(a, w) {group=4}\ninit o int64[4] = [4,3,5,5]\ny = Reshape(c, o)"},
	{row: "Conv", name: "by filters of each channel of each sample", body: "init k int64[4] = [1,8,6,6]\nin q F[6]\nxq = Mul(x, q)\na = Reshape(xq, k)\nin f F[4,8]\nf2 = Tanh(f)\ninit v int64[4] = [8,1,2,2]\nw = Reshape(f2, v)\nc = Conv(a, w) {group=8}\ninit o int64[4] = [4,2,5,5]\ny = Reshape(c, o)"},
	{row: "ConvTranspose", name: "by filters of each sample's own", body: "init k int64[4] = [1,8,6,6]\nin q F[6]\nxq = Mul(x, q)\na = Reshape(xq, k)\nin f F[4,24]\nf2 = Tanh(f)\ninit v int64[4] = [8,3,2,2]\nw = Reshape(f2, v)\nc = ConvTranspose(a, w) {group=4}\ninit o int64[4] = [4,3,7,7]\ny = Reshape(c, o)"},
	{row: "ConvTranspose", body: "in w F[2,3,2,2]\ny = ConvTranspose(x, w) {strides=[2,2]}"},
	{row: "AveragePool", body: "y = AveragePool(x) {kernel_shape=[2,2], strides=[2,2]}"},
	{row: "MaxPool", body: "y = MaxPool(x) {kernel_shape=[2,2]}", exact: true},
	{row: "GlobalAveragePool", body: "y = GlobalAveragePool(x)"},
	{row: "GlobalMaxPool", body: "y = GlobalMaxPool(x)", exact: true},
	{row: "LpPool", body: "y = LpPool(x) {kernel_shape=[2,2]}"},
	{row: "Resize", body: "init s F[4] = [1,1,2,2]\ny = Resize(x, _, s) {mode=\"nearest\"}", exact: true},
	{row: "Resize", name: "to sizes", body: "init s int64[4] = [4,2,11,9]\ny = Resize(x, _, _, s) {mode=\"linear\"}"},
	{row: "Resize", name: "behind the channels", body: "a = Transpose(x) {perm=[1,0,2,3]}\ninit s int64[4] = [2,4,9,4]\nb = Resize(a, _, _, s) {mode=\"nearest\"}\ny = Transpose(b) {perm=[1,0,2,3]}", exact: true},
	{row: "Resize", name: "behind the channels, by scales", body: "a = Transpose(x) {perm=[1,0,2,3]}\ninit s F[4] = [1,1,1.5,2]\nb = Resize(a, _, s) {mode=\"linear\", coordinate_transformation_mode=\"align_corners\"}\ny = Transpose(b) {perm=[1,0,2,3]}"},
	{row: "Resize", name: "to the sizes of some axes", body: "init s int64[2] = [9,4]\ny = Resize(x, _, _, s) {mode=\"nearest\", axes=[3,0]}"},
	{row: "BatchNormalization", body: "in a F[2]\nin b F[2]\ninit c F[2] = [0.25,-0.5]\ninit d F[2] = [1,2]\ny = BatchNormalization(x, a, b, c, d)"},
	{row: "MaxPool", name: "and the gradient at its places", body: pooled + "y = Mul(d, x)", exact: true},
	{row: "ScatterElements", name: "at places of a pool that may repeat", body: "a = Neg(x)\ny0, i = MaxPool(a) {kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]}\ng = Mul(y0, y0)\n" + asList + "d = ScatterElements(z, i1, g1) {axis=0, reduction=\"add\"}\ninit s int64[4] = [4,2,6,6]\nd4 = Reshape(d, s)\ny = Mul(d4, x)"},
	{row: "ScatterElements", name: "at places of a pool, into zeros that wait for them", body: "a = Neg(x)\ny0, i = MaxPool(a) {kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]}\ng = Mul(y0, y0)\ninit n int64[1] = [-1]\ni1 = Reshape(i, n)\ng1 = Reshape(g, n)\n" +
		"init b int64[1] = [0]\ninit e int64[1] = [1]\nf = Slice(i1, b, e)\nt = Mul(f, b)\nc = Cast(t) {to=1}\ninit s int64[4] = [4,2,6,6]\nw = Expand(c, s)\nz = Reshape(w, n)\nd = ScatterElements(z, i1, g1) {axis=0, reduction=\"add\"}\nd4 = Reshape(d, s)\ny = Mul(d4, x)"},
	{row: "Mul", name: "by a range that is computed whole", body: "init a int64[] = 0\ninit e int64[] = 288\ninit o int64[] = 1\nr = Range(a, e, o)\nf = Cast(r) {to=1}\ninit k int64[4] = [4,2,6,6]\nw = Reshape(f, k)\ny = Mul(x, w)"},
	{row: "DepthToSpace", body: "init k int64[4] = [4,8,3,3]\nz = Reshape(x, k)\ny = DepthToSpace(z) {blocksize=2}", exact: true},
	{row: "SpaceToDepth", body: "y = SpaceToDepth(x) {blocksize=2}", exact: true},
	{row: "InstanceNormalization", body: "in a F[2]\nin b F[2]\ny = InstanceNormalization(x, a, b)"},
	{row: "LayerNormalization", body: "in a F[6]\ny = LayerNormalization(x, a)"},
	{row: "LayerNormalization", name: "by weights of each sample", body: "in w F[6]\nin b F[2,1,6]\ninit j int64[2] = [1,2]\nm = ReduceMean(x, j) {keepdims=1}\na = Mul(m, w)\ny = LayerNormalization(x, a, b)"},
	{row: "Einsum", body: "in w F[6,3]\ny = Einsum(x, w) {equation=\"...c,cd->...d\"}"},
	{row: "Einsum", name: "of several", body: "in w F[2,6,6,3]\nz = Neg(x)\ny = Einsum(x, w, z) {equation=\"b...c,...cd,b...c->d...b\"}"},
	{row: "Einsum", name: "of the same", body: "y = Einsum(x, x) {equation=\"bchw,bchk->bkw\"}"},
	{row: "Dropout", body: "init p F[] = 0\ninit on bool[] = true\nd, k = Dropout(x, p, on) {seed=7}\nm = Cast(k) {to=1}\ny = Mul(d, m)"},
	{row: "Dropout", name: "along the second axis", body: "init p F[] = 0\ninit on bool[] = true\na = Transpose(x) {perm=[1,0,2,3]}\nd, k = Dropout(a, p, on)\ny = Transpose(d) {perm=[1,0,2,3]}", exact: true},
	{row: "RandomNormalLike", body: "init o F[] = 0\nr = RandomNormalLike(x)\nz = Mul(r, o)\ny = Add(x, z)"},
	{row: "RandomUniformLike", body: "init o F[] = 0\nr = RandomUniformLike(x) {seed=3.0}\nz = Mul(r, o)\ny = Add(x, z)"},
	{row: "Bernoulli", body: "s = Sign(x)\np = Relu(s)\nb = Bernoulli(p)\ny = Mul(x, b)"},
	{row: "Slice", body: "init a int64[1] = [1]\ninit b int64[1] = [4]\ninit c int64[1] = [2]\ny = Slice(x, a, b, c)", exact: true},
	{row: "TopK", body: "init k int64[1] = [2]\nv, i = TopK(x, k) {axis=3}\nc = Cast(i) {to=1}\ny = Mul(v, c)", exact: true},
	{row: "CumSum", body: "init a int64[] = -1\ny = CumSum(x, a)"},
	{row: "Trilu", body: "init k int64[] = 1\ny = Trilu(x, k)"},
	{row: "Concat", body: "z = Neg(x)\ny = Concat(x, z) {axis=1}", exact: true},
	{row: "Split", body: "y, z = Split(x) {axis=1, num_outputs=2}\nloss2 = ReduceSum(z) {keepdims=0}", exact: true},
	{row: "Reshape", body: "a = Transpose(x) {perm=[1,0,2,3]}\ninit k int64[2] = [2,144]\nb = Reshape(a, k)\nin w F[4,108]\ninit j int64[2] = [144,3]\nc = Reshape(w, j)\ngradient = MatMul(b, c)\ny = Neg(x)", exact: true},
	{row: "Gemm", name: "behind a merge with the axis before the batch", body: merged + "y = Mul(d, d)\ninit t int64[2] = [8,5]\ng = Reshape(d, t)\ngradient = Gemm(b, g) {transA=1}\ninit j int64[1] = [0]\nbias = ReduceSum(g, j) {keepdims=0}"},
	{row: "Reshape", name: "that splits a merged axis elsewhere", body: merged + "init t int64[4] = [4,2,5,1]\ne = Reshape(c, t)\nq = Softmax(e) {axis=2}\ny = Mul(q, e)"},
	{row: "Reshape", name: "of all, with the batch within", body: merged + "init t int64[1] = [-1]\ne = Reshape(d, t)\ny = Mul(e, e)"},
	{row: "Split", name: "into stretches", body: merged + "e, f = Split(c) {axis=0, num_outputs=2}\ny = Mul(e, f)"},
	{row: "Split", name: "into stretches of given extents", body: merged + "init t int64[2] = [4,4]\ne, f = Split(c, t) {axis=-2}\ny = Mul(e, f)"},
	{row: "Concat", name: "of stretches", body: merged + "e, f = Split(c) {axis=0, num_outputs=2}\ng = Tanh(f)\nz = Concat(g, e, g) {axis=0}\nin u F[5,3]\no = Gemm(z, u)\ninit t int64[3] = [3,4,3]\ny = Reshape(o, t)"},
	{row: "Concat", name: "of two views", body: "z = Neg(x)\ny = Concat(x, z) {axis=0}"},
	{row: "LSTM", body: sequence + "in w F[1,20,6]\nin r F[1,20,5]\nin b F[1,40]\nin i F[1,4,5]\nin j F[1,4,5]\nin p F[1,15]\nl = Constant() {value_ints=[8,1,3,8]}\nm = Cast(l) {to=6}\ny, h, c = LSTM(q, w, r, b, m, i, j, p) {hidden_size=5}\nloss2 = ReduceSum(h) {keepdims=0}\nloss3 = ReduceSum(c) {keepdims=0}"},
	{row: "GRU", name: "both ways", body: sequence + "in w F[2,15,6]\nin r F[2,15,5]\ny, h = GRU(q, w, r) {hidden_size=5, direction=\"bidirectional\"}\nloss2 = ReduceSum(h) {keepdims=0}"},
	{row: "RNN", body: sequence + "in w F[1,5,6]\nin r F[1,5,5]\ny = RNN(q, w, r) {hidden_size=5}"},
	{row: "Squeeze", body: "init i int64[1] = [0]\ninit j int64[1] = [1]\ny = ReduceSum(x, j) {keepdims=1}\nz = Squeeze(y, j)\nloss2 = ReduceSum(z) {keepdims=0}", exact: true},
	{row: "Unsqueeze", body: "init j int64[1] = [1]\ny = Unsqueeze(x, j)", exact: true},
	{row: "Gather", body: "in ids int64[4,5]\nin w F[40,3]\ny = Gather(w, ids)", exact: true},
	{row: "Gather", name: "of another axis", body: "init i int64[2] = [1,0]\ny = Gather(x, i) {axis=1}", exact: true},
	{row: "Gather", name: "of a scalar index", body: "init i int64[] = 3\ny = Gather(x, i) {axis=2}", exact: true},
	{row: "Tile", body: "init r int64[4] = [1,2,1,3]\ny = Tile(x, r)", exact: true},
	{row: "GatherND", name: "of each sample's own rows", body: "init j int64[2] = [2,3]\ns = ReduceSum(x, j) {keepdims=0}\nm = ArgMax(s) {axis=1}\ny = GatherND(x, m) {batch_dims=1}"},
	{row: "GatherND", name: "of each sample by constants", body: "init i int64[4,3,2] = [0,1,1,5,1,0,0,0,1,2,0,3,1,1,0,2,0,4,1,5,0,0,1,3]\nz = Neg(x)\ny = GatherND(z, i) {batch_dims=1}"},
	{row: "GatherND", name: "of a table", body: "init j int64[2] = [2,3]\ns = ReduceSum(x, j) {keepdims=0}\nm = ArgMax(s) {axis=1}\nin w F[2,5]\ny = GatherND(w, m)"},
	{row: "GatherND", name: "of axes before the batch", body: "a = Transpose(x) {perm=[1,2,0,3]}\ninit i int64[3,2] = [0,5,1,2,1,0]\ny = GatherND(a, i)"},
	{row: "GatherND", name: "of what is computed whole", body: laid + "init i int64[4,2,1] = [0,2,1,1,2,0,0,1]\nin q F[3]\nin h F[4,2]\nv = Mul(c, q)\ne = GatherND(v, i) {batch_dims=1}\ny = Mul(h, e)"},
	{row: "GatherND", name: "of an axis of what is computed whole", body: laid + "init i int64[2,1] = [2,0]\nin q F[3]\nin h F[2,4]\nv = Mul(c, q)\nt = Transpose(v)\ne = GatherND(t, i)\nhh = Transpose(h)\nin z F[4,2]\nu = Mul(z, hh)\nut = Transpose(u)\ny = Mul(ut, e)"},
	{row: "ScatterElements", body: "in ids int64[4,1]\nin g F[4,3]\ninit e int64[2] = [4,3]\ni = Expand(ids, e)\ninit s int64[2] = [40,3]\nz = ConstantOfShape(s)\ngradient = ScatterElements(z, i, g) {axis=0, reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterElements", name: "into the gradient of tied weights", body: "in ids int64[4,1]\nin g F[4,3]\nin d F[4,40]\ninit e int64[2] = [4,3]\ni = Expand(ids, e)\nz = Gemm(d, g) {transA=1}\ngradient = ScatterElements(z, i, g) {axis=0, reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterElements", name: "twice into the gradient of tied weights", body: "in ids int64[4,1]\nin g F[4,3]\nin d F[4,40]\nin h F[4,3]\ninit e int64[2] = [4,3]\ni = Expand(ids, e)\nz = Gemm(d, g) {transA=1}\ng1 = Neg(g)\ng2 = Neg(g1)\ng3 = Neg(g2)\none = ScatterElements(z, i, g3) {axis=0, reduction=\"add\"}\nk = Neg(h)\ngradient = ScatterElements(one, i, k) {axis=0, reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterElements", name: "into the gradient of a penalty", body: "in ids int64[4,1]\nin g F[4,3]\nin w F[40,3]\ninit e int64[2] = [4,3]\ni = Expand(ids, e)\nz = Neg(w)\ngradient = ScatterElements(z, i, g) {axis=0, reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterElements", name: "twice into the gradient of a penalty", body: "in ids int64[4,1]\nin g F[4,3]\nin w F[40,3]\ninit e int64[2] = [4,3]\ni = Expand(ids, e)\nz = Neg(w)\nk = Neg(g)\none = ScatterElements(z, i, g) {axis=0, reduction=\"add\"}\ngradient = ScatterElements(one, i, k) {axis=0, reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterND", name: "at places of each sample's own", body: "in ids int64[4,2,1]\ninit b int64[4,1,1] = [0,1,2,3]\ninit e int64[3] = [1,2,1]\nbe = Expand(b, e)\ninit three int64[] = 3\nidm = Mod(ids, three)\nt = Concat(be, idm) {axis=2}\nin p F[6]\ninit s int64[3] = [4,12,6]\nz = Reshape(x, s)\nh = Mul(z, p)\nin m F[6]\ninit u int64[3] = [4,2,6]\ng = Expand(m, u)\nd = ScatterND(h, t, g)\ny = Mul(d, z)"},
	{row: "ScatterND", name: "into the gradient of a penalty", body: "in ids int64[4,1]\nin g F[4,3]\nin w F[40,3]\nz = Neg(w)\ngradient = ScatterND(z, ids, g) {reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterElements", name: "into a sum that no product makes", body: "in ids int64[4,3]\nin g F[4,3]\nin d F[4,40,3]\ninit j int64[1] = [0]\nz = ReduceSum(d, j) {keepdims=0}\ngradient = ScatterElements(z, ids, g) {axis=0, reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterElements", name: "into zeros that wait for the indices", body: "in ids int64[4,2]\ninit k int64[1] = [-1]\nf = Reshape(ids, k)\ninit a int64[1] = [0]\ninit b int64[1] = [1]\none = Slice(f, a, b)\ninit o int64[1] = [0]\nt = Mul(one, o)\nc = Cast(t) {to=1}\ninit s int64[2] = [40,3]\nz = Expand(c, s)\nw = Unsqueeze(f, b)\ninit e int64[2] = [8,3]\ni = Expand(w, e)\nin h F[4,2,3]\nin q F[3]\nv = Mul(h, q)\ninit r int64[2] = [8,3]\nu = Reshape(v, r)\ngradient = ScatterElements(z, i, u) {axis=0, reduction=\"add\"}\nin p F[6]\ny = Mul(x, p)"},
	{row: "ScatterElements", name: "into zeros that wait for places that are computed", body: "init j int64[2] = [2,3]\nin p F[6]\nxp = Mul(x, p)\ns = ReduceSum(xp, j) {keepdims=0}\nids = ArgMax(s) {axis=1}\ninit k int64[1] = [-1]\nf = Reshape(ids, k)\ninit a int64[1] = [0]\ninit b int64[1] = [1]\none = Slice(f, a, b)\ninit o int64[1] = [0]\nt = Mul(one, o)\nc = Cast(t) {to=1}\ninit zs int64[2] = [40,3]\nz = Expand(c, zs)\nz2 = Expand(c, zs)\ninit e int64[2] = [4,3]\ni = Expand(ids, e)\nin g F[4,3]\nh = Neg(g)\ngradient = ScatterElements(z, i, h) {axis=0, reduction=\"add\"}\nother = ScatterElements(z2, i, g) {axis=0, reduction=\"add\"}\ny = Neg(xp)"},
	{row: "ScatterElements", name: "by indices that are constants", body: "in g F[4,3]\ninit ids int64[4,3] = [0,7,2,2,7,1,0,7,3,0,5,2]\ninit s int64[2] = [40,3]\nz = ConstantOfShape(s)\nh = Neg(g)\ngradient = ScatterElements(z, ids, h) {axis=0, reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterElements", name: "along another axis, at places that are constants", body: "init j int64[1,1,2,1] = [3,1]\ninit e int64[4] = [4,2,2,6]\ni = Expand(j, e)\ninit a int64[1] = [0]\ninit b int64[1] = [2]\nu = Slice(x, a, b, b)\ninit s int64[4] = [4,2,6,6]\nz = ConstantOfShape(s)\nd = ScatterElements(z, i, u) {axis=2, reduction=\"add\"}\ny = Mul(d, x)"},
	{row: "ScatterElements", name: "along another axis", body: "in ids int64[4,1]\nin g F[4,1]\nin d F[4,40]\ny = ScatterElements(d, ids, g) {axis=1, reduction=\"add\"}"},
	{row: "ScatterND", body: "in ids int64[4,5,1]\nin g F[4,5,3]\ninit s int64[2] = [40,3]\nz = ConstantOfShape(s)\ngradient = ScatterND(z, ids, g) {reduction=\"add\"}\ny = Neg(x)"},
	{row: "ScatterND", name: "at places in the axes before the batch", body: chosen + "z = Tanh(a)\nh = ScatterND(z, p, f)\ny = Mul(h, a)"},
	{row: "ScatterND", name: "that adds there", body: chosen + "z = Tanh(a)\nh = ScatterND(z, p, f) {reduction=\"add\"}\ny = Mul(h, a)"},
	{row: "ScatterND", name: "into zeros there", body: chosen + "init s int64[4] = [2,6,4,6]\nz = ConstantOfShape(s)\nh = ScatterND(z, p, f)\ny = Mul(h, a)"},
	{row: "ScatterND", name: "of rows that are the same for all", body: chosen + "in u F[2,1,6]\ninit s int64[3] = [2,4,6]\nw = Expand(u, s)\nh = ScatterND(a, p, w)\ny = Mul(h, a)"},
	{row: "GatherND", name: "of the axes before the batch", body: chosen + "y = Tanh(f)"},
	{row: "GatherND", name: "where only the result is known to be divided", body: laid + "in u F[3]\nv = Mul(c, u)\nct = Transpose(v) {perm=[1,0]}\ninit q int64[2,1] = [2,0]\ne = GatherND(ct, q)\nin h F[2,4]\nin x2 F[4]\nd = Mul(x2, h)\ny = Mul(d, e)"},
	{row: "GatherND", name: "by divided places", body: "in ids int64[4,5,1]\nin w F[40,3]\nd = GatherND(w, ids)\ny = Mul(d, d)"},
	{row: "Tile", body: "init t int64[4] = [1,2,1,3]\ny = Tile(x, t)", exact: true},
	{row: "Div", name: "by the number of labels that count", body: "in l int64[4,6]\ninit p int64[4] = [0,-1,0,1]\ninit v int64[] = 7\ns = Pad(l, p, v)\nk = Equal(s, v)\nk2 = Not(k)\nw = Cast(k2) {to=1}\nn = ReduceSum(w) {keepdims=0}\ninit j int64[2] = [1,2]\nin q F[6]\nz = Mul(x, q)\nm = ReduceMean(z, j) {keepdims=0}\nt = Mul(m, w)\ny = Div(t, n)"},
	{row: "Gather", name: "by indices that are computed whole", body: laid + "in w F[40,5]\nin h F[4,3,5]\ne = Gather(w, ids)\ny = Mul(h, e)"},
	{row: "Gather", name: "of another axis of what is computed whole", body: laid + "init i int64[2] = [1,0]\nin q F[3]\nin h F[4,2]\nv = Mul(c, q)\ne = Gather(v, i) {axis=1}\ny = Mul(h, e)"},
	{row: "Gather", name: "of an axis before it", body: laid + "init i int64[1,2] = [1,0]\nin q F[3,1,1]\nin h F[1,2,4,3]\nv = Mul(c, q)\ne = Gather(v, i)\nin x2 F[4,3]\nd = Mul(x2, h)\ny = Mul(d, e)"},
	{row: "Conv", name: "of what is computed whole", body: laid + "init k int64[4] = [4,1,3,1]\nv = Reshape(c, k)\nin w F[2,1,1,1]\nin h F[4,2,3,1]\ne = Conv(v, w)\ny = Mul(h, e)"},
	{row: "InstanceNormalization", name: "of what is computed whole", body: laid + "init k int64[4] = [4,1,3,1]\nv = Reshape(c, k)\nin a F[1]\nin b F[1]\nin h F[4,1,3,1]\ne = InstanceNormalization(v, a, b)\ny = Mul(h, e)"},
	{row: "LayerNormalization", name: "of what is computed whole", body: laid + "in a F[3]\nin h F[4,3]\ne = LayerNormalization(c, a)\ny = Mul(h, e)"},
	{row: "Split", name: "of what is computed whole", body: laid + "in q F[3]\nin h F[4,2]\nv = Mul(c, q)\ne, f = Split(v) {axis=1, num_outputs=2}\ny = Mul(h, e)\nloss2 = ReduceSum(f) {keepdims=0}"},
	{row: "ReduceMax", name: "of what is computed whole", body: laid + "in q F[2,1,3]\nin h F[4]\nv = Mul(c, q)\ninit j int64[2] = [0,2]\ne = ReduceMax(v, j) {keepdims=0}\ny = Mul(h, e)"},
	{row: "Gather", name: "of the last row of each sample", body: rows + "init i int64[4] = [5,11,17,23]\nz = Gather(h, i)\ny = Mul(z, z)"},
	{row: "Gather", name: "of rows of each sample, some counted from the end", body: rows + "init i int32[4,3] = [0,5,5,6,-13,11,12,17,-9,-1,18,-2]\nz = Gather(h, i)\ny = Mul(z, z)"},
	{row: "Gather", name: "of columns of each sample", body: "init k int64[2] = [24,12]\na = Reshape(x, k)\nb = Transpose(a)\nin v F[12,1]\nh = Mul(b, v)\ninit i int64[1,8] = [0,5,6,7,12,17,18,19]\nz = Gather(h, i) {axis=1}\ny = Mul(z, z)"},
	{row: "Gather", name: "of the row that each sample finds", body: tokenOf + "i = Add(o, t)\nz = Gather(h, i)\ny = Mul(z, z)"},
	{row: "Gather", name: "of a row among those of each sample", body: tokenOf + "init c int64[1] = [3]\nt1 = Sub(t, c)\ninit six int64[] = 6\nt2 = Mod(t1, six)\nt3 = Cast(t2) {to=6}\no3 = Cast(o) {to=6}\ni = Add(t3, o3)\nq = Gather(h, i)\ny = Tanh(q)"},
	{row: "Gather", name: "of two rows that each sample finds", body: tokenOf + "u = ArgMin(s) {axis=1}\ninit k2 int64[2] = [4,1]\no2 = Reshape(o, k2)\nw = Add(u, o2)\nb = Gather(h, w)\ny = Mul(b, b)"},
	{row: "GatherND", name: "of the last row of each sample", body: rows + "init i int64[4,1] = [5,11,-7,23]\nz = GatherND(h, i)\ny = Mul(z, z)"},
	{row: "GatherND", name: "of an element of each sample's rows", body: rows + "init i int64[4,2,2] = [0,1,5,0,6,7,6,11,15,3,13,0,23,11,22,0]\nz = GatherND(h, i)\ny = Mul(z, z)"},
	{row: "GatherND", name: "by the column behind another", body: "b = Transpose(x) {perm=[1,0,2,3]}\nin v F[6]\nh = Mul(b, v)\ninit i int64[4,2] = [1,0,0,1,1,-2,0,3]\nz = GatherND(h, i)\ny = Mul(z, z)"},
	{row: "GatherND", name: "of the row that each sample finds", body: tokenOf + "i = Add(o, t)\ninit one int64[1] = [1]\ni1 = Unsqueeze(i, one)\nz = GatherND(h, i1)\ny = Mul(z, z)"},
	{row: "ScatterElements", name: "at rows of each sample", body: rows + "init k3 int64[3] = [4,6,12]\nh3 = Reshape(h, k3)\ninit j int64[1] = [1]\nu = ReduceMax(h3, j) {keepdims=0}\ninit i int64[4,1] = [5,11,-7,23]\ninit e int64[2] = [4,12]\ni12 = Expand(i, e)\nz = ConstantOfShape(k)\nd = ScatterElements(z, i12, u) {axis=0, reduction=\"add\"}\ny = Mul(d, h)"},
	{row: "ScatterElements", name: "at the row that each sample finds", body: tokenOf + "init j1 int64[1] = [1]\nu = ReduceMax(h3, j1) {keepdims=0}\nplace = Add(o, t)\np1 = Unsqueeze(place, j1)\ninit e int64[2] = [4,12]\ni12 = Expand(p1, e)\nz = ConstantOfShape(k)\nd = ScatterElements(z, i12, u) {axis=0}\ny = Mul(d, h)"},
	{row: "ScatterElements", name: "at rows of each sample, and at those of a table as large, into the same zeros", body: rows + "init k3 int64[3] = [4,6,12]\nh3 = Reshape(h, k3)\ninit j int64[1] = [1]\nu = ReduceMax(h3, j) {keepdims=0}\n" + zeros24 + "init i int64[4,1] = [5,11,17,23]\ninit e int64[2] = [4,12]\ni12 = Expand(i, e)\nin ids int64[4,1]\nid12 = Expand(ids, e)\nd = ScatterElements(Z, i12, u) {axis=0, reduction=\"add\"}\ny = Mul(d, h)\ngradient = ScatterElements(Z, id12, u) {axis=0, reduction=\"add\"}\n"},
	{row: "Div", name: "by the number of labels that count, which are constants", body: "init l int64[4,6] = [7,3,7,7,2,7,7,7,7,1,7,7,7,7,7,7,0,7,7,7,4,4,4,4]\ninit v int64[] = 7\nk = Equal(l, v)\nk2 = Not(k)\nw = Cast(k2) {to=1}\nn = ReduceSum(w) {keepdims=0}\ninit j int64[2] = [1,2]\nin q F[6]\nz = Mul(x, q)\nm = ReduceMean(z, j) {keepdims=0}\nt = Mul(m, w)\ny = Div(t, n)"},
	{row: "Div", name: "by the number of labels that are one for all", body: "init one int64[1] = [1]\ninit s int64[1] = [4]\nl = Expand(one, s)\ninit v int64[] = -100\nk = Equal(l, v)\nk2 = Not(k)\nw = Cast(k2) {to=1}\nn = ReduceSum(w) {keepdims=0}\ninit j int64[3] = [1,2,3]\nin q F[6]\nz = Mul(x, q)\nm = ReduceMean(z, j) {keepdims=0}\nt = Mul(m, w)\ny = Div(t, n)"},
	{row: "Concat", name: "with more beside it", body: "in u F[8,2,6,6]\ny = Concat(x, u) {axis=0}"},
	{row: "Conv", name: "of the gradient of groups that read one batch", body: "init k int64[5] = [4,3,2,4,3]\na = Reshape(x, k)\nb = Transpose(a) {perm=[2,1,0,3,4]}\ninit i int64[4] = [2,12,4,3]\nc = Reshape(b, i)\nin w F[4,6,2,2]\nv = Neg(w)\nd = Transpose(v) {perm=[1,0,2,3]}\nd2 = Concat(d, d, d) {axis=1}\nz = Conv(c, d2)\ny = Neg(x)"},
	{row: "Mul", name: "of stretches by rows from outside", body: merged + "in u F[8,5]\np = Mul(c, u)\nq = Reshape(p, s)\ny = Mul(d, q)"},
	{row: "Conv", name: "of the gradient of two batches that are joined", body: "u = Neg(x)\ne = Concat(x, u) {axis=0}\nin w F[3,2,3,3]\nc = Conv(e, w)\nin z F[8,3,4,4]\ng = Mul(c, z)\net = Transpose(e) {perm=[1,0,2,3]}\ngt = Transpose(g) {perm=[1,0,2,3]}\ngradient = Conv(et, gt)\ny = Tanh(g)"},
	{row: "Div", name: "by the number of labels that count, of two kinds that are split", body: "in l int64[4,2]\na, b = Split(l) {axis=1, num_outputs=2}\ninit v int64[] = 7\nk = Equal(a, v)\nk2 = Not(k)\nw = Cast(k2) {to=1}\nn = ReduceSum(w) {keepdims=0}\nf = Equal(b, v)\nf2 = Not(f)\ng = Cast(f2) {to=1}\ninit j int64[2] = [1,2]\nin q F[6]\nz = Mul(x, q)\nm = ReduceMean(z, j) {keepdims=0}\nt = Mul(m, w)\ny0 = Div(t, n)\ny = Mul(y0, g)"},
	{row: "GatherElements", name: "of two batches by labels that are constants", body: "u = Neg(x)\ne = Concat(x, u) {axis=0}\ninit j int64[2] = [1,2]\nr = ReduceSum(e, j) {keepdims=0}\ninit l int64[8,1] = [0,1,2,3,4,5,0,1]\ny = GatherElements(r, l) {axis=1}", exact: true},
	{row: "Div", name: "of two batches by the number of labels that count", body: "u = Neg(x)\nin v F[6]\ne = Concat(x, u) {axis=0}\nev = Mul(e, v)\ninit j int64[3] = [1,2,3]\nr = ReduceMean(ev, j) {keepdims=0}\ninit l int64[8] = [0,7,2,3,7,5,7,1]\ninit seven int64[] = 7\nk = Equal(l, seven)\nk2 = Not(k)\nf = Cast(k2) {to=1}\nn = ReduceSum(f) {keepdims=0}\nt = Mul(r, f)\ny = Div(t, n)"},
	{row: "Slice", name: "of a row of every six", body: rows + "init b int64[2] = [5,1]\ninit e int64[2] = [100,-1]\ninit s int64[2] = [6,2]\ninit ax int64[2] = [0,-1]\nz = Slice(h, b, e, ax, s)\ny = Mul(z, z)"},
	{row: "Slice", name: "of a row of every two", body: rows + "init b int64[1] = [1]\ninit e int64[1] = [24]\ninit s int64[1] = [2]\ninit ax int64[1] = [-2]\nz = Slice(h, b, e, ax, s)\ny = Mul(z, z)"},
	{row: "ScatterElements", name: "into rows of each sample", body: rows + "init k3 int64[3] = [4,6,12]\nh3 = Reshape(h, k3)\ninit j int64[1] = [1]\nu = ReduceMax(h3, j) {keepdims=0}\ninit i int64[4,1] = [5,11,12,20]\ninit e int64[2] = [4,12]\ni12 = Expand(i, e)\nd = ScatterElements(h, i12, u) {axis=0}\ny = Mul(d, d)"},
	{row: "Gather", name: "at places that are a shape, too", body: rows + "init i int64[4] = [4,7,13,19]\nz = Gather(h, i)\ninit j int64[3] = [1,2,3]\nm = ReduceMean(x, j)\ne = Expand(m, i)\nq = ReduceSum(e, j) {keepdims=0}\ninit one int64[1] = [1]\nq1 = Unsqueeze(q, one)\ny = Mul(z, q1)"},
	{row: "GatherND", name: "at tuples that are made of a shape", body: rows + "init i int64[4] = [4,7,13,19]\ninit one int64[1] = [1]\nt = Unsqueeze(i, one)\nz = GatherND(h, t)\ninit j int64[3] = [1,2,3]\nm = ReduceMean(x, j)\ne = Expand(m, i)\nq = ReduceSum(e, j) {keepdims=0}\nq1 = Unsqueeze(q, one)\ny = Mul(z, q1)"},
	{row: "MatMul", name: "with what another reads in parts", body: "in w F[4,6]\nb = Mul(x, x)\ninit j int64[2] = [1,3]\ns = ReduceSum(x, j) {keepdims=0}\nc = Mul(s, w)\nloss2 = ReduceSum(c) {keepdims=0}\ninit k int64[3] = [4,18,4]\na = Reshape(b, k)\ny = MatMul(a, w)"},
	{row: "Flatten", body: "y = Flatten(x) {axis=1}", exact: true},
	{row: "RMSNormalization", opset: "23", body: "in a F[6]\ny = RMSNormalization(x, a)"},
	{row: "SimplifiedLayerNormalization", body: "in a F[6]\ny = SimplifiedLayerNormalization(x, a)"},
	{row: "ReduceProd", body: "init a int64[2] = [1,-1]\ny = ReduceProd(x, a)"},
	{row: "ReduceProd", name: "of what is computed whole", body: laid + "in q F[2,1,3]\nin h F[4]\nv = Mul(c, q)\ninit j int64[2] = [0,2]\ne = ReduceProd(v, j) {keepdims=0}\ny = Mul(h, e)"},
	{row: "ReduceLogSum", body: "z = Exp(x)\ninit a int64[1] = [2]\ny = ReduceLogSum(z, a) {keepdims=0}"},
	{row: "Hardmax", body: "y = Hardmax(x)", exact: true},
	{row: "LpNormalization", body: "y = LpNormalization(x) {axis=1}"},
	{row: "LRN", body: "y = LRN(x) {size=3}"},
	{row: "GlobalLpPool", body: "y = GlobalLpPool(x)"},
	{row: "Col2Im", body: "init s int64[3] = [4,8,9]\nz = Reshape(x, s)\ninit i int64[2] = [4,4]\ninit b int64[2] = [2,2]\ny = Col2Im(z, i, b)"},
	{row: "DFT", body: "init s int64[4] = [4,36,2,1]\nz = Reshape(x, s)\ninit d int64[] = 1\ny = DFT(z, _, d) {onesided=1}"},
	{row: "DFT", name: "along the axis before the last", body: "init s int64[4] = [4,12,6,1]\nz = Reshape(x, s)\ny = DFT(z)"},
	{row: "DFT", name: "of opset 17", opset: "17", body: "init s int64[4] = [4,6,12,1]\nz = Reshape(x, s)\ny = DFT(z) {axis=2}"},
	{row: "STFT", body: "init s int64[3] = [4,72,1]\nz = Reshape(x, s)\ninit f int64[] = 6\ninit n int64[] = 8\nin w F[8]\ny = STFT(z, f, w, n)"},
	{row: "Attention", opset: "23", body: "init s int64[4] = [4,2,6,6]\nq = Reshape(x, s)\nin m F[6,6]\ny = Attention(q, x, x, m)"},
	{row: "Attention", name: "by a mask of each sample", opset: "23", body: "in k F[4,5,12]\nin m F[4,1,6,5]\ninit s int64[3] = [4,6,12]\nq = Reshape(x, s)\ny = Attention(q, k, k, m) {q_num_heads=2, kv_num_heads=2}"},
	{row: "Det", body: "y = Det(x)"},
	{row: "ReverseSequence", body: "in l int64[4]\na = Transpose(x) {perm=[2,0,1,3]}\ny = ReverseSequence(a, l)", exact: true},
	{row: "ReverseSequence", name: "of what is no batch", body: "init l int64[2] = [6,3]\nz = Transpose(x) {perm=[2,1,0,3]}\ny = ReverseSequence(z, l)", exact: true},
	{row: "RotaryEmbedding", opset: "23", body: "in p int64[4,6]\nin c F[40,3]\nin s F[40,3]\ny = RotaryEmbedding(x, c, s, p)"},
	{row: "RotaryEmbedding", name: "by angles of each token", opset: "23", body: "in c F[4,6,3]\nin s F[4,6,3]\ny = RotaryEmbedding(x, c, s)"},
	{row: "GroupNormalization", opset: "21", body: "in a F[2]\nin b F[2]\nm = GroupNormalization(x, a, b) {num_groups=2}\ny = Mul(m, x)"},
	{row: "MeanVarianceNormalization", body: "m = MeanVarianceNormalization(x) {axes=[1,3]}\ny = Mul(m, x)"},
	{row: "GridSample", body: "in g F[4,3,5,2]\nv = Tanh(g)\ny = GridSample(x, v)"},
	{row: "OneHot", body: "i = ArgMax(x) {axis=3, keepdims=0}\ninit d int64[] = 6\ninit v F[2] = [0.5,2]\no = OneHot(i, d, v)\ny = Mul(x, o)", exact: true},
	{row: "OneHot", name: "before the batch", body: "i = ArgMax(x) {axis=3, keepdims=0}\ninit d int64[] = 6\ninit v F[2] = [0.5,2]\no = OneHot(i, d, v) {axis=0}\nt = Transpose(o) {perm=[1,2,0,3]}\nz = Transpose(x) {perm=[0,1,3,2]}\ny = Mul(t, z)", exact: true},
}

func batched(t *testing.T, body, opset string) (*onnx.Model, *infer.Result, []*onnx.Value) {
	m, types := parse(t, cmp.Or(opset, "20"), "in x F[4,2,6,6]\n"+body+"\nloss = ReduceMean(y) {keepdims=0}")
	var feeds []*onnx.Value
	for _, v := range m.Graph.Inputs {
		if v.Type.Shape[0].Is(4) {
			feeds = append(feeds, v)
		}
	}
	return m, types, feeds
}

// TestBatchRules: a graph over slices of its batch has the results of the whole, and no
// node of the row's operator sees all of the batch.
func TestBatchRules(t *testing.T) {
	for _, c := range batchCases {
		t.Run(c.row+" "+c.name, func(t *testing.T) {
			was, _, _ := batched(t, c.body, c.opset)
			m, types, feeds := batched(t, c.body, c.opset)
			r, err := Batch(m, feeds, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Apply(types, r.Parts(2)); err != nil {
				t.Fatal(err)
			}
			count := 0
			for _, n := range m.Graph.Nodes {
				if n.Is(c.row) {
					count++
				}
			}
			if count < 2 {
				t.Errorf("%d nodes of %s in\n%s", count, c.row, m.Text())
			}
			sameResults(t, was, m, c.exact)
		})
	}
}

// TestConstantsAreHeld: what constants alone lead to is computed whole where no rule divides it, and cut where it
// is read, as the angles of positions on three axes that are put in their places one after another.
func TestConstantsAreHeld(t *testing.T) {
	put := func(from, to string) string {
		return strings.NewReplacer("FROM", from, "TO", to).Replace(
			"a_TO = Gather(FROM, i0)\nb_TO = Gather(FROM, i1)\nat_TO = Transpose(a_TO)\nbt_TO = Transpose(b_TO)\np_TO = Slice(bt_TO, from, to, from)\n" +
				"d_TO = ScatterND(at_TO, places, p_TO)\ne_TO = Transpose(d_TO)\nf_TO = Unsqueeze(e_TO, from)\nTO = ScatterElements(FROM, first, f_TO) {axis=0}\n")
	}
	body := "init angles F[3,4,6] = [" + strings.TrimSuffix(strings.Repeat("0.1,0.7,-0.4,1.3,2,-1.1,0.9,0.3,", 9), ",") + "]\n" +
		"init first int64[1,4,6] = zeros\ninit i0 int64[] = 0\ninit i1 int64[] = 1\ninit from int64[1] = [0]\ninit to int64[1] = [3]\ninit places int64[3,1] = [1,2,4]\n" +
		"c = Cos(angles)\ns = Sin(angles)\n" + put("c", "c1") + put("c1", "c2") + put("s", "s1") + put("s1", "s2") +
		"g = Gather(c2, i0)\nk = Gather(s2, i0)\ninit shape int64[4] = [4,1,1,6]\nr = Reshape(g, shape)\nu = Reshape(k, shape)\nin w F[6]\nh = Mul(x, w)\ny1 = Mul(h, r)\ny2 = Mul(x, u)\ny = Add(y1, y2)"
	was, _, _ := batched(t, body, "")
	m, types, feeds := batched(t, body, "")
	r, err := Batch(m, feeds, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(types, r.Parts(2)); err != nil {
		t.Fatal(err)
	}
	scatters := 0
	for _, n := range m.Graph.Nodes {
		if n.Is("ScatterElements") {
			scatters++
		}
	}
	if scatters != 4 {
		t.Errorf("%d nodes of ScatterElements, want the four that are computed whole, in\n%s", scatters, m.Text())
	}
	sameResults(t, was, m, false)
}

// TestPartsDraw: each part draws by a seed of its own, the first by the one that there was; what
// draws without a seed does so in parts.
func TestPartsDraw(t *testing.T) {
	m, types, feeds := batched(t, "init p F[] = 0.5\ninit on bool[] = true\nd = Dropout(x, p, on) {seed=7}\ne = Dropout(d, p, on) {seed=8}\nr = RandomNormalLike(e)\ny = Add(e, r)", "")
	r, err := Batch(m, feeds, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(types, r.Parts(4)); err != nil {
		t.Fatal(err)
	}
	seeds := map[int64]bool{}
	for _, n := range traits.Drawing(m.Graph) {
		switch {
		case n.Is("Dropout"):
			seeds[n.Int("seed", 0)] = true
		case n.Has("seed"):
			t.Errorf("%s has a seed", n.Label())
		}
	}
	if len(seeds) != 8 || !seeds[7] || !seeds[8] {
		t.Errorf("seeds %v", seeds)
	}
}

// TestEveryBatchRuleHasACase: a row without one would never be run.
func TestEveryBatchRuleHasACase(t *testing.T) {
	for row := range batchRules {
		if !slices.ContainsFunc(batchCases, func(c batchCase) bool { return c.row == row }) {
			t.Errorf("rule %s has no case", row)
		}
	}
}

// TestBatchWhole: what mixes samples, or has no batch, is left as it is and says why.
func TestBatchWhole(t *testing.T) {
	for name, body := range map[string]string{
		"a mean over the batch that is read again":          "z = Concat(x, x, x) {axis=1}\ninit a int64[1] = [0]\nmean = ReduceMean(z, a)\ny = Sub(z, mean)",
		"a table that is not zero":                          "in ids int64[4,3]\nin g F[4,3]\nin w F[40,3]\ngradient = ScatterElements(w, ids, g) {axis=0, reduction=\"add\"}\ny = Neg(x)",
		"rows that replace others":                          "in ids int64[4,3]\nin g F[4,3]\ninit s int64[2] = [40,3]\nz = ConstantOfShape(s)\ngradient = ScatterElements(z, ids, g) {axis=0}\ny = Neg(x)",
		"a table's gradient that is read again":             "in ids int64[4,1]\nin g F[4,3]\nin d F[4,40]\ninit e int64[2] = [4,3]\ni = Expand(ids, e)\nz = Gemm(d, g) {transA=1}\nloss2 = ReduceSum(z) {keepdims=0}\ngradient = ScatterElements(z, i, g) {axis=0, reduction=\"add\"}\ny = Neg(x)",
		"padded along it":                                   "init p int64[2] = [0,1]\ninit a int64[1] = [0]\ny = Pad(x, p, _, a)",
		"put along it":                                      "init i int64[1,1] = [1]\nin u F[1,2,6,6]\nz = Neg(x)\ny = ScatterND(z, i, u)",
		"repeated along it":                                 "init t int64[4] = [2,1,1,1]\ny = Tile(x, t)",
		"gathered along it":                                 "init i int64[2] = [1,0]\ny = Gather(x, i)",
		"a softmax along it":                                "y = Softmax(x) {axis=0}",
		"split along it":                                    "y, z = Split(x) {axis=0, num_outputs=2}\nloss2 = ReduceSum(z) {keepdims=0}",
		"joined with less of it":                            "in u F[2,2,6,6]\ny = Concat(x, u) {axis=0}",
		"a row of every four, of six":                       rows + "init b int64[1] = [0]\ninit e int64[1] = [24]\ninit s int64[1] = [4]\ninit ax int64[1] = [0]\nz = Slice(h, b, e, ax, s)\ny = Neg(z)",
		"a row of every six, but for the last":              rows + "init b int64[1] = [5]\ninit e int64[1] = [23]\ninit s int64[1] = [6]\ninit ax int64[1] = [0]\nz = Slice(h, b, e, ax, s)\ny = Neg(z)",
		"a row of every six, from the end":                  rows + "init b int64[1] = [23]\ninit e int64[1] = [-25]\ninit s int64[1] = [-6]\ninit ax int64[1] = [0]\nz = Slice(h, b, e, ax, s)\ny = Neg(z)",
		"rows that are put among what is the next sample's": rows + "init k3 int64[3] = [4,6,12]\nh3 = Reshape(h, k3)\ninit j int64[1] = [1]\nu = ReduceMax(h3, j) {keepdims=0}\ninit i int64[4,1] = [6,12,18,0]\ninit e int64[2] = [4,12]\ni12 = Expand(i, e)\nd = ScatterElements(h, i12, u) {axis=0}\ny = Mul(d, d)",
		"the next sample's row":                             rows + "init i int64[4] = [6,12,18,0]\nz = Gather(h, i)\ny = Neg(z)",
		"the samples in another order":                      rows + "init i int64[4] = [23,17,11,5]\nz = Gather(h, i)\ny = Neg(z)",
		"rows of the first sample":                          rows + "init i int64[4] = [0,1,2,3]\nz = Gather(h, i)\ny = Neg(z)",
		"rows of pairs of samples":                          rows + "init i int64[4] = [6,0,18,12]\nz = Gather(h, i)\ny = Neg(z)",
		"three rows of four samples":                        rows + "init i int64[3] = [0,6,12]\nz = Gather(h, i)\ny = Neg(z)",
		"the row before the one that is found":              tokenOf + "init m int64[] = -1\nt1 = Add(t, m)\ni = Add(o, t1)\nz = Gather(h, i)\ny = Neg(z)",
		"a row that a feed tells":                           rows + "init o int64[4] = [0,6,12,18]\nin l int64[4]\ni = Add(o, l)\nz = Gather(h, i)\ny = Neg(z)",
		"a row among more than a sample has":                tokenOf + "init seven int64[] = 7\nt1 = Mod(t, seven)\ni = Add(o, t1)\nz = Gather(h, i)\ny = Neg(z)",
		"the next sample's row, by tuples":                  rows + "init i int64[4,1] = [6,12,18,0]\nz = GatherND(h, i)\ny = Neg(z)",
		"rows that are put among the next sample's":         rows + "init k3 int64[3] = [4,6,12]\nh3 = Reshape(h, k3)\ninit j int64[1] = [1]\nu = ReduceMax(h3, j) {keepdims=0}\ninit i int64[4,1] = [6,12,18,0]\ninit e int64[2] = [4,12]\ni12 = Expand(i, e)\nz = ConstantOfShape(k)\nd = ScatterElements(z, i12, u) {axis=0, reduction=\"add\"}\ny = Mul(d, h)",
		"filters of groups of samples":                      "init k int64[4] = [1,8,6,6]\nin q F[6]\nxq = Mul(x, q)\na = Reshape(xq, k)\nin f F[4,72]\nf2 = Tanh(f)\ninit v int64[4] = [4,4,3,6]\nw = Reshape(f2, v)\nw2 = Tanh(w)\ny = Conv(a, w2) {group=2}",
		"rows put in the next sample, by tuples":            "in ids int64[4,2,1]\ninit b int64[4,2,1] = [1,1,2,2,3,3,0,0]\nt = Concat(b, ids) {axis=2}\nin g F[4,2,6]\ninit s int64[3] = [4,12,6]\nz = Reshape(x, s)\nd = ScatterND(z, t, g)\ny = Neg(d)",
		"rows put where a feed tells the sample":            "in ids int64[4,2,1]\ninit b int64[4,2,1] = [0,0,1,1,2,2,3,3]\nt = Concat(ids, b) {axis=2}\nin g F[4,2,6]\ninit s int64[3] = [4,12,6]\nz = Reshape(x, s)\nd = ScatterND(z, t, g)\ny = Neg(d)",
		"rows behind a merge with the axis before":          merged + "init i int64[4] = [0,2,4,6]\nz = Gather(c, i)\ny = Neg(z)",
		"views of it that are compared":                     "init s int64[2] = [4,72]\nz = Reshape(x, s)\nq = Neg(z)\nc = Concat(z, q) {axis=0}\ny = Gemm(c, c) {transB=1}",
		"weights of a recurrent operator":                   sequence + "init p int64[3] = [1,48,6]\nw = Reshape(x, p)\nin r F[1,48,48]\ny, h = RNN(q, w, r) {hidden_size=48}",
		"a bias of the batch":                               "in b F[4]\nc = Neg(b)\nin w F[1,2,3,3]\nv = Concat(w, w, w, w) {axis=0}\ny = Conv(x, v, c)",
		"a bias of the batch, transposed":                   "in b F[4]\nin w F[2,4,3,3]\ny = ConvTranspose(x, w, b)",
		"a norm's factors that are a feed":                  "init k int64[4] = [4,4,3,6]\nz = Reshape(x, k)\nin a F[4]\nin b F[1]\nc = Neg(b)\ninit e int64[1] = [4]\nd = Expand(c, e)\ny = InstanceNormalization(z, a, d)",
		"the factors of a norm over layers":                 "init k int64[3] = [4,18,4]\nz = Reshape(x, k)\nin a F[4]\ny = LayerNormalization(z, a)",
		"by the batch's statistics":                         "in a F[2]\nin b F[2]\ninit c F[2] = [0,0]\ninit d F[2] = [1,1]\ny, m, v = BatchNormalization(x, a, b, c, d) {training_mode=1}",
		"resized along it":                                  "init s F[4] = [2,1,1,1]\ny = Resize(x, _, s) {mode=\"linear\"}",
		"scaled along it, with the same extent":             "init s F[4] = [1.2,1,1,1]\ny = Resize(x, _, s) {mode=\"linear\"}",
		"a window cut along it":                             "a = Transpose(x) {perm=[1,0,2,3]}\ninit r F[8] = [0,0.5,0,0,1,1,1,1]\ninit s int64[4] = [2,4,9,4]\nb = Resize(a, r, _, s) {mode=\"nearest\", coordinate_transformation_mode=\"tf_crop_and_resize\"}\ny = Transpose(b) {perm=[1,0,2,3]}",
		"places in it that are returned":                    "y, i = MaxPool(x) {kernel_shape=[2,2]}",
		"places in it that are counted with":                "a, i = MaxPool(x) {kernel_shape=[2,2]}\nc = Cast(i) {to=1}\ny = Mul(a, c)",
		"places in it that are gathered from":               pooled + "init o int64[1] = [-1]\nx1 = Reshape(x, o)\np = Gather(x1, i1)\ny1 = Mul(p, g1)\ny2 = Mul(d, x)\nt = ReduceSum(y1) {keepdims=0}\ny = Mul(y2, t)",
		"places of another list":                            "a, i = MaxPool(x) {kernel_shape=[2,2], strides=[2,2]}\ninit n int64[1] = [-1]\ni1 = Reshape(i, n)\ng1 = Reshape(a, n)\ninit s1 int64[1] = [300]\nz = ConstantOfShape(s1)\ngradient = ScatterElements(z, i1, g1) {axis=0, reduction=\"add\"}\ny = Neg(x)",
		"the largest along it":                              "init k int64[1] = [1]\nz, i = TopK(x, k) {axis=0}\ny = Neg(z)",
		"summed along it":                                   "init a int64[] = -4\ny = CumSum(x, a)",
		"a spectrum along it":                               "init a int64[] = 0\ninit s int64[3] = [4,72,1]\nz = Reshape(x, s)\ny = DFT(z, _, a)",
		"a determinant of samples":                          "init j int64[2] = [2,3]\nz = ReduceSum(x, j) {keepdims=0}\nin w F[2,4]\nzw = MatMul(z, w)\ny = Det(zw)",
		"a product of samples":                              "init a int64[1] = [0]\ny = ReduceProd(x, a)",
		"reversed along it":                                 "init l int64[2] = [4,2]\ny = ReverseSequence(x, l)",
		"tokens that look up a table that is divided":       "in p int64[4,6]\nin c F[4,3]\nd = Neg(c)\nin s F[4,3]\ny = RotaryEmbedding(x, d, s, p)",
		"a triangle along it":                               "init s int64[2] = [4,72]\nz = Reshape(x, s)\ny = Trilu(z)",
		"rows in two orders":                                merged + "in u F[6]\nxu = Mul(x, u)\nm = Reshape(xu, k)\nz = Mul(b, m)\ny = Neg(z)",
		"summed over in two orders":                         merged + "in u F[6]\nxu = Mul(x, u)\nm = Reshape(xu, k)\ngradient = Gemm(b, m) {transA=1}\ny = Neg(d)",
		"merged with an axis before, and returned":          merged + "p = Neg(c)\ny = Neg(d)",
		"looked up along it":                                "init i int64[3,1] = [3,0,1]\ny = GatherND(x, i)",
		"looked up in pairs along it":                       "init i int64[4,2] = [3,0,1,1,2,0,0,1]\ny = GatherND(x, i)",
		"two batches that look each other up":               "init j int64[3] = [1,2,3]\ns = ReduceSum(x, j) {keepdims=0}\nc = Cast(s) {to=7}\ninit z int64[] = 0\nd = Mul(c, z)\nt = Unsqueeze(d, o)\ninit o int64[1] = [1]\na = Transpose(x) {perm=[1,0,2,3]}\ny = GatherND(a, t)",
		"no rule":                                           "init s int64[4] = [4,2,4,4]\ny = CenterCropPad(x, s)",
		"normalized over it":                                "y = MeanVarianceNormalization(x)",
		"an equation that sums over it":                     "in w F[6,3]\nz = Einsum(x, w) {equation=\"bchw,wk->chk\"}\ny = Neg(z)",
		"an equation that takes a diagonal":                 "init k int64[4] = [4,4,3,6]\nz = Reshape(x, k)\ny = Einsum(z) {equation=\"bbhw->bhw\"}",
		"an equation of all pairs":                          "y = Einsum(x, x) {equation=\"bchw,dchw->bd\"}",
	} {
		m, _, feeds := batched(t, body, "")
		before := m.Text()
		var skip *SkipError
		if _, err := Batch(m, feeds, 0); !errors.As(err, &skip) {
			t.Errorf("%s: %v", name, err)
		}
		if m.Text() != before {
			t.Errorf("%s: the graph was changed", name)
		}
	}
	if _, err := Batch(&onnx.Model{Graph: &onnx.Graph{}}, nil, 0); err == nil {
		t.Error("no feeds: no error")
	}
}

// TestBatchFindsLabels: feeds that turn out to be divided count among those that are told, so that a sum over
// them is computed whole.
func TestBatchFindsLabels(t *testing.T) {
	const body = "in l int64[4]\nc = Cast(l) {to=1}\nk = Tanh(c)\nn = ReduceSum(k) {keepdims=0}\nq = Div(k, n)\ninit j int64[3] = [1,2,3]\nin p F[6]\nz = Mul(x, p)\nm = ReduceMean(z, j) {keepdims=0}\ny = Mul(m, q)"
	was, _, _ := batched(t, body, "")
	m, types, feeds := batched(t, body, "")
	r, err := Batch(m, feeds[:1], 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(types, r.Parts(2)); err != nil {
		t.Fatal(err)
	}
	sameResults(t, was, m, false)
}

// TestScatterWaitsForItsTable: before it is known how a table is divided, rows that are added to it
// are no reason to leave a step whole, as where encoder and decoder look up the projection's rows.
func TestScatterWaitsForItsTable(t *testing.T) {
	m, _, _ := batched(t, "in ids int64[4,3]\nin g F[4,3]\nin d F[4,40]\nz = Gemm(d, g) {transA=1}\none = ScatterElements(z, ids, g) {axis=0, reduction=\"add\"}\ngradient = ScatterElements(one, ids, g) {axis=0, reduction=\"add\"}\ny = Neg(x)", "")
	r := emptyRegion(m, batchPass, onnx.Places(m.Graph.Nodes))
	r.more = batchRules
	r.shardings[m.Graph.Value("ids")], r.shardings[m.Graph.Value("g")] = 0, 0
	n := m.Graph.Value("gradient").Producer
	if changed, err := r.ruled(n); changed || err != nil {
		t.Errorf("before the table is known: %t, %v", changed, err)
	}
	r.shardings[m.Graph.Value("one")] = partialSum
	if changed, err := r.ruled(n); !changed || err != nil || r.shardingOf(n.Out(0)) != partialSum {
		t.Errorf("once it is known: %t, %v, %d", changed, err, r.shardingOf(n.Out(0)))
	}
}

// TestLossOfEachSlice: the loss of each micro-batch is computed in parts of its own, and the
// projection's gradient goes on from part to part, and from slice to slice.
func TestLossOfEachSlice(t *testing.T) {
	const body = "in ids int64[4,5]\nin e F[40,3]\nh = Gather(e, ids)\ninit k int64[2] = [20,3]\nh2 = Reshape(h, k)\nlogits = Gemm(h2, e) {transB=1}\n" +
		"in l int64[4,5]\ninit j int64[2] = [20,1]\nl2 = Reshape(l, j)\nq = Softmax(logits)\npicked = GatherElements(q, l2) {axis=1}\ny = Log(picked)\n" +
		"de = Gemm(q, h2) {transA=1}\ndh = MatMul(q, e)\nloss2 = ReduceSum(dh) {keepdims=0}"
	was, _, _ := batched(t, body, "")
	m, types, feeds := batched(t, body, "")
	r, err := Batch(m, feeds, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Apply(types, 2); err != nil {
		t.Fatal(err)
	}
	list, err := Projections(m.Graph, m.Graph.Value("loss"))
	if err != nil || len(list) != 2 {
		t.Fatalf("%d projections: %v", len(list), err)
	}
	for _, n := range list {
		r, err := Around(m, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Apply(types, 5); err != nil {
			t.Fatal(err)
		}
	}
	largest, sums := int64(0), 0
	for _, n := range m.Graph.Nodes {
		if n.Is("Softmax") {
			largest = max(largest, n.Outputs[0].Type.KnownBytes())
		}
		if n.Is("Gemm") && n.In(2) != nil {
			sums++
		}
	}
	if largest != 2*40*4 || sums != 2*5-1 {
		t.Errorf("the largest softmax holds %d bytes, %d products go on with a sum, in\n%s", largest, sums, m.Text())
	}
	sameResults(t, was, m, false)
}
