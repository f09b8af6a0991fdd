package data

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// parse reads a graph in text form.
func parse(t *testing.T, text string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// file writes a file into the test's folder.
func file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func archive(t *testing.T, arrays map[string]runtime.Tensor) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.npz")
	if err := runtime.WriteNPZ(path, arrays); err != nil {
		t.Fatal(err)
	}
	return path
}

// open opens data for a model; what it opened is closed with the test.
func open(t *testing.T, m *onnx.Model, o Options, sizes Sizes) (*Data, error) {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { s.Close() })
	return s.For(m, sizes)
}

func floats(from, n int64, shape ...int64) runtime.Tensor {
	var x []float32
	for i := range n {
		x = append(x, float32(from+i))
	}
	return runtime.FromFloat32s(x, shape...)
}

func ints(t runtime.Tensor) (out []int64) {
	size := t.Type.Size()
	for i := int64(0); i < int64(len(t.Data)); i += size {
		out = append(out, element(t.Data[i:], t.Type))
	}
	return out
}

func first(t runtime.Tensor) float32 {
	x, _ := t.Float64s()
	return float32(x[0])
}

// classifier reads rows of 3, and one of 4 classes for each.
const classifier = `model ir=10 opset=18
graph g {
  in x float32[batch,3]
  in y int64[batch]
  init w float32[3,4] = [1,2,3,4,5,6,7,8,9,10,11,12]
  z = MatMul(x, w)
  loss = SoftmaxCrossEntropyLoss(z, y) {ignore_index=-1}
  out loss float32[]
}
`

// TestArchiveRounds: a float32 array feeds an input of a half type, rounded, whether a
// batch reads it or all batches share it; numpy has no bfloat16. A note says so.
func TestArchiveRounds(t *testing.T) {
	for _, d := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
		m := parse(t, strings.ReplaceAll(`model ir=10 opset=18
graph g {
  in x HALF[batch,3]
  in all HALF[1,3]
  z = Mul(x, all)
  f = Cast(z) {to=1}
  loss = ReduceMean(f) {keepdims=0}
  out loss float32[]
}
`, "HALF", d.String()))
		path := archive(t, map[string]runtime.Tensor{"x": floats(0, 9, 3, 3), "all": runtime.FromFloat32s([]float32{1, 0.1, 2}, 1, 3)})
		got, err := open(t, m, Options{NPZ: path}, Sizes{Batch: 1})
		if err != nil {
			t.Fatalf("%s: %v", d, err)
		}
		b, err := got.Train.At(1)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := b["x"].Float64s()
		all, _ := b["all"].Float64s()
		tenth, _ := onnx.FloatTensor(d, []float64{0.1}).Scalar()
		if b["x"].Type != d || b["all"].Type != d || !slices.Equal(x, []float64{3, 4, 5}) || !slices.Equal(all, []float64{1, tenth, 2}) {
			t.Errorf("%s: x %v %v, all %v %v", d, b["x"], x, b["all"], all)
		}
		if !slices.ContainsFunc(got.Notes, func(n string) bool { return strings.HasSuffix(n, "rounded to the model's "+d.String()) }) {
			t.Errorf("%s: no note of it in %q", d, got.Notes)
		}
	}
}

func TestArchiveBySample(t *testing.T) {
	m := parse(t, classifier)
	y := []int64{0, 1, 2, 3, -1, 1, 2}
	path := archive(t, map[string]runtime.Tensor{"x": floats(0, 21, 7, 3), "in:y": runtime.FromInt64s(y, 7), "other": floats(0, 1, 1)})
	d, err := open(t, m, Options{NPZ: path}, Sizes{Batch: 2})
	if err != nil {
		t.Fatal(err)
	}
	if d.Dims["batch"] != 2 || d.Train.Samples() != 7 || d.Train.Len() != 3 || d.Train.In(2) != 7 || d.Mapping.Labels != "y" {
		t.Errorf("dims %v, %d samples, %d batches an epoch, %d in two, labels %q", d.Dims, d.Train.Samples(), d.Train.Len(), d.Train.In(2), d.Mapping.Labels)
	}
	var seen []int64
	for n := range int64(7) {
		b, err := d.Train.At(n)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(b["x"].Shape, []int64{2, 3}) {
			t.Fatalf("batch %d: %v", n, b["x"])
		}
		seen = append(seen, ints(b["y"])...)
		want := int64(2)
		if n == 2 || n == 5 { // each holds the label that is ignored
			want = 1
		}
		if got := d.Train.Tokens(b); got != want {
			t.Errorf("batch %d counts %d labels, want %d", n, got, want)
		}
	}
	// The epoch flows on into the next.
	if want := append(slices.Clone(y), y...); !slices.Equal(seen, want) {
		t.Errorf("labels %v, want %v", seen, want)
	}
}

// TestArchiveShared: what every batch gets is said; labels that happen to fill one batch
// are too few.
func TestArchiveShared(t *testing.T) {
	m := parse(t, strings.ReplaceAll(strings.ReplaceAll(classifier, "[batch", "[2"), "in y", "in s float32[2,3]\n  in y"))
	path := archive(t, map[string]runtime.Tensor{"x": floats(0, 12, 4, 3), "s": floats(0, 6, 2, 3), "y": runtime.FromInt64s([]int64{0, 1, 2, 3}, 4)})
	d, err := open(t, m, Options{NPZ: path}, Sizes{})
	if err != nil || !slices.Contains(d.Notes, "s: the same in every batch") {
		t.Errorf("%v, notes %q", err, d.Notes)
	}
	path = archive(t, map[string]runtime.Tensor{"x": floats(0, 12, 4, 3), "s": floats(0, 12, 4, 3), "y": runtime.FromInt64s([]int64{0, 1}, 2)})
	if _, err := open(t, m, Options{NPZ: path}, Sizes{}); err == nil || !strings.Contains(err.Error(), "has 2 rows of labels, other arrays have 4") {
		t.Errorf("labels for one batch: %v", err)
	}
}

func TestArchiveByStep(t *testing.T) {
	m := parse(t, strings.ReplaceAll(classifier, "[batch", "[2"))
	path := archive(t, map[string]runtime.Tensor{"x": floats(0, 30, 5, 2, 3), "y": runtime.FromInt64s(make([]int64, 10), 5, 2)})
	d, err := open(t, m, Options{NPZ: path, Val: "0.2"}, Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Train.Samples() != 4 || d.Val.Len() != 1 {
		t.Errorf("%d steps to train on, %d to validate", d.Train.Samples(), d.Val.Len())
	}
	b, err := d.Train.At(3)
	if err != nil || first(b["x"]) != 18 || b["x"].Shape[0] != 2 {
		t.Errorf("step 3: %v %v", b["x"], err)
	}
	if b, err = d.Val.At(0); err != nil || first(b["x"]) != 24 || d.Val.Tokens(b) != 2 {
		t.Errorf("validation: %v %v", b["x"], err)
	}
}

// What every batch gets is read once, and inputs without an array can be filled.
func TestArchiveForAll(t *testing.T) {
	m := parse(t, `model ir=10 opset=18
graph g {
  in x float32[2,3]
  in scale float32[1,3]
  in mask bool[2,3]
  a = Mul(x, scale)
  b = Where(mask, a, x)
  loss = ReduceMean(b) {keepdims=0}
  out loss float32[]
}
`)
	path := archive(t, map[string]runtime.Tensor{"x": floats(0, 18, 6, 3), "scale": floats(7, 3, 1, 3)})
	d, err := open(t, m, Options{NPZ: path, Fill: map[string]string{"mask": "ones"}, Shuffle: true, Seed: 1}, Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Train.At(1)
	if err != nil || first(b["scale"]) != 7 || !slices.Equal(b["mask"].Data, []byte{1, 1, 1, 1, 1, 1}) {
		t.Errorf("%v %v", b, err)
	}
	if d.Train.Tokens(b) != 2 {
		t.Errorf("a batch without labels counts %d samples, want 2", d.Train.Tokens(b))
	}
}

// A batch depends on its number alone, and two results stay beside each other.
func TestBatchIsAFunctionOfItsNumber(t *testing.T) {
	m := parse(t, classifier)
	path := archive(t, map[string]runtime.Tensor{"x": floats(0, 30, 10, 3), "y": runtime.FromInt64s(make([]int64, 10), 10)})
	d, err := open(t, m, Options{NPZ: path, Shuffle: true, Seed: 3}, Sizes{Batch: 3})
	if err != nil {
		t.Fatal(err)
	}
	at := func(n int64) []byte {
		b, err := d.Train.At(n)
		if err != nil {
			t.Fatal(err)
		}
		return b["x"].Data
	}
	var all [][]byte
	for n := range int64(20) {
		all = append(all, slices.Clone(at(n)))
	}
	for _, n := range []int64{19, 3, 0, 7, 7} {
		if !slices.Equal(at(n), all[n]) {
			t.Errorf("batch %d is another when asked again", n)
		}
	}
	a := at(4)
	at(5)
	if !slices.Equal(a, all[4]) {
		t.Error("a batch did not last until the second after it")
	}
	if n := testing.AllocsPerRun(20, func() { at(9) }); n > 0 {
		t.Errorf("%.0f allocations a batch", n)
	}
}

func TestArchiveErrors(t *testing.T) {
	fixed := strings.ReplaceAll(classifier, "[batch", "[2")
	good := func() map[string]runtime.Tensor {
		return map[string]runtime.Tensor{"x": floats(0, 18, 6, 3), "y": runtime.FromInt64s(make([]int64, 6), 6)}
	}
	change := func(key string, to runtime.Tensor) map[string]runtime.Tensor {
		a := good()
		a[key] = to
		return a
	}
	without := good()
	delete(without, "y")
	for _, c := range []struct {
		name, model string
		arrays      map[string]runtime.Tensor
		o           Options
		sizes       Sizes
		want        string
	}{
		{"no array", fixed, without, Options{}, Sizes{}, `input "y": data.npz has no array of that name (it has x)`},
		{"type", fixed, change("y", floats(0, 6, 6)), Options{}, Sizes{}, `input "y": the array in data.npz is float32, want int64`},
		{"shape", fixed, change("x", floats(0, 24, 6, 4)), Options{}, Sizes{}, `shape [6 4], want [samples, 3]`},
		{"rank", fixed, change("x", floats(0, 18, 18)), Options{}, Sizes{}, `shape [18], want [samples, 3]`},
		{"rows", fixed, change("y", runtime.FromInt64s(make([]int64, 5), 5)), Options{}, Sizes{}, `has 5 rows, others have 6`},
		{"empty", fixed, change("y", runtime.FromInt64s(nil, 0)), Options{}, Sizes{}, `empty`},
		{"few", fixed, map[string]runtime.Tensor{"x": floats(0, 3, 1, 3), "y": runtime.FromInt64s([]int64{0}, 1)}, Options{}, Sizes{}, `1 sample, fewer than the 2 of a batch`},
		{"free batch", classifier, good(), Options{}, Sizes{}, `--batch N`},
		{"other batch", fixed, good(), Options{}, Sizes{Batch: 3}, `--batch 3: the model's batch is 2`},
		{"class", fixed, change("y", runtime.FromInt64s([]int64{0, 1, 2, 3, 4, 0}, 6)), Options{}, Sizes{}, `key "y": 4 at row 4, want 0 to 3`},
		{"fill", fixed, good(), Options{Fill: map[string]string{"q": "ones"}}, Sizes{}, `no input of that name`},
		{"fill word", fixed, good(), Options{Fill: map[string]string{"y": "twos"}}, Sizes{}, `--fill y=twos: want one of`},
		{"share", fixed, good(), Options{Val: "1.5"}, Sizes{}, `between 0 and 1`},
		{"small val", fixed, good(), Options{Val: "1%"}, Sizes{}, `1 sample, fewer than the 2 of a batch`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.NPZ = archive(t, c.arrays)
			d, err := open(t, parse(t, c.model), c.o, c.sizes)
			for n := int64(0); err == nil && n < 3; n++ {
				_, err = d.Train.At(n)
			}
			oneLine(t, err, c.want)
		})
	}
}

// oneLine checks an error's text, whatever folder its files lie in.
func oneLine(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %q", want)
	}
	var words []string
	for _, w := range strings.Split(err.Error(), " ") {
		if strings.HasPrefix(w, "/") {
			w = filepath.Base(w)
		}
		words = append(words, w)
	}
	if text := strings.Join(words, " "); !strings.Contains(text, want) || strings.Contains(text, "\n") {
		t.Errorf("%q, want %q in one line", text, want)
	}
}

// An archive that is compressed, and one of big-endian columns, read the same.
func TestArchiveForms(t *testing.T) {
	for _, name := range []string{"plain.npz", "compressed.npz", "columns.npz"} {
		d, err := open(t, parse(t, classifier), Options{NPZ: filepath.Join("testdata", name)}, Sizes{Batch: 2})
		if err != nil {
			t.Fatal(err)
		}
		b, err := d.Train.At(1)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := b["x"].Float64s()
		if !slices.Equal(x, []float64{6, 7, 8, 9, 10, 11}) || !slices.Equal(ints(b["y"]), []int64{2, 3}) {
			t.Errorf("%s: %v %v", name, x, ints(b["y"]))
		}
	}
}

// An array whose bytes are not those that were written is refused, compressed or not.
func TestArchiveDamaged(t *testing.T) {
	for _, name := range []string{"plain.npz", "compressed.npz"} {
		whole, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		z, err := zip.NewReader(bytes.NewReader(whole), int64(len(whole)))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range z.File {
			at, err := entry.DataOffset()
			if err != nil {
				t.Fatal(err)
			}
			broken := slices.Clone(whole)
			broken[at+int64(entry.CompressedSize64)-12] ^= 4
			_, err = open(t, parse(t, classifier), Options{NPZ: file(t, name, broken)}, Sizes{Batch: 2})
			oneLine(t, err, "the archive is damaged")
			if _, err := runtime.ReadNPZ(file(t, name, broken)); err == nil {
				t.Errorf("%s of %s: the feeds were read", entry.Name, name)
			}
		}
	}
}

// A file that is cut short while it is read is an error, not a crash.
func TestArchiveCutShort(t *testing.T) {
	path := archive(t, map[string]runtime.Tensor{"x": floats(0, 30000, 10000, 3), "y": runtime.FromInt64s(make([]int64, 10000), 10000)})
	d, err := open(t, parse(t, classifier), Options{NPZ: path}, Sizes{Batch: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1000); err != nil {
		t.Fatal(err)
	}
	_, err = d.Train.At(4000)
	oneLine(t, err, "the file is shorter than when it was opened")
}

func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "no data"},
		{Options{NPZ: "a", Tokens: "b"}, "exclude each other"},
		{Options{NPZ: dir}, "is a folder"},
		{Options{NPZ: filepath.Join(dir, "none.npz")}, "no such file"},
		{Options{NPZ: file(t, "empty.npz", nil)}, "the file is empty"},
		{Options{NPZ: file(t, "text.npz", []byte("hello"))}, "not an .npz file"},
		{Options{NPZ: "/dev/null"}, "not a regular file"},
		{Options{NPZ: "a", Tokenizer: "gpt2"}, "--tokenizer applies only to --text"},
		{Options{NPZ: "a", Labels: "same"}, "--labels applies only to"},
	} {
		_, err := Open(context.Background(), c.o)
		oneLine(t, err, c.want)
	}
}

// TestArchiveMeanOfAll: in a mean over all labels those that are ignored are zeros, so each
// batch weighs as much as it has labels; in one over what a condition picks it does not.
func TestArchiveMeanOfAll(t *testing.T) {
	for body, want := range map[string]int64{
		"loss = ReduceMean(l) {keepdims=0}":                                                                           6,
		"m = ReduceMean(l) {keepdims=1}\n  s = Mul(two, m)\n  loss = Reshape(s, scalar)":                              6,
		"m = ReduceMean(l) {keepdims=0}\n  k = Reshape(m, one)\n  loss = ReduceMean(k) {keepdims=0}":                  6,
		"p = Compress(l, some) {axis=0}\n  loss = ReduceMean(p) {keepdims=0}":                                         4,
		"n = ReduceSum(l) {keepdims=0}\n  c = Cast(some) {to=1}\n  d = ReduceSum(c) {keepdims=0}\n  loss = Div(n, d)": 4,
	} {
		m := parse(t, `model ir=10 opset=18
graph g {
  in x float32[batch,3]
  in y int64[batch]
  init w float32[3,4] = [1,2,3,4,5,6,7,8,9,10,11,12]
  init two float32[] = 2
  init ignored int64[] = -100
  init one int64[1] = [1]
  init scalar int64[0] = []
  z = MatMul(x, w)
  l = SoftmaxCrossEntropyLoss(z, y) {ignore_index=-100, reduction="none"}
  is = Equal(y, ignored)
  some = Not(is)
  `+body+`
  out loss float32[]
}
`)
		path := archive(t, map[string]runtime.Tensor{"x": floats(0, 18, 6, 3), "y": runtime.FromInt64s([]int64{0, 1, -100, 3, -100, 1}, 6)})
		d, err := open(t, m, Options{NPZ: path}, Sizes{Batch: 6})
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		b, err := d.Train.At(0)
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if n := d.Train.Tokens(b); n != want {
			t.Errorf("%s: a batch weighs %d, want %d", body, n, want)
		}
	}
}

// TestArchiveIgnoredLabel: in a training graph the loss is taken apart, and the label that
// it leaves out, which need not be negative, is the one that is replaced on the way to it.
func TestArchiveIgnoredLabel(t *testing.T) {
	apart := func(body string) string {
		return `model ir=10 opset=18
graph g {
  in x float32[batch,3]
  in y int64[batch]
  init w float32[3,4] = [1,2,3,4,5,6,7,8,9,10,11,12]
  init ignored int64[] = IGNORED
  init zero int64[] = 0
  init one int64[1] = [1]
  z = MatMul(x, w)
  is = Equal(y, ignored)
` + body + `
  index = Unsqueeze(safe, one)
  picked = GatherElements(z, index) {axis=1}
  total = ReduceSum(picked) {keepdims=0}
  counts = Not(is)
  count = Cast(counts) {to=1}
  number = ReduceSum(count) {keepdims=0}
  loss = Div(total, number)
  out loss float32[]
}
`
	}
	for name, c := range map[string]struct {
		text    string
		label   int64
		ignores bool
	}{
		"kept where it differs":    {apart("  not = Not(is)\n  safe = Where(not, y, zero)"), 255, true},
		"replaced where it is":     {apart("  safe = Where(is, zero, y)"), 255, true},
		"one of the classes":       {apart("  safe = Where(is, zero, y)"), 2, true},
		"negative":                 {apart("  not = Not(is)\n  safe = Where(not, y, zero)"), -100, true},
		"kept where it is":         {apart("  safe = Where(is, y, zero)"), 255, false},
		"the loss says":            {strings.ReplaceAll(classifier, "ignore_index=-1", "ignore_index=IGNORED"), 255, true},
		"compared for a statistic": {strings.ReplaceAll(classifier, " {ignore_index=-1}", "\n  init c int64[] = IGNORED\n  e = Equal(y, c)"), 255, false},
	} {
		m := parse(t, strings.ReplaceAll(c.text, "IGNORED", fmt.Sprint(c.label)))
		y := []int64{0, 1, c.label, 3, c.label, 1}
		path := archive(t, map[string]runtime.Tensor{"x": floats(0, 18, 6, 3), "y": runtime.FromInt64s(y, 6)})
		d, err := open(t, m, Options{NPZ: path}, Sizes{Batch: 6})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b, err := d.Train.At(0)
		if !c.ignores {
			if err == nil {
				t.Errorf("%s: %d passes as a class", name, c.label)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if n := d.Train.Tokens(b); n != 4 || !d.Mapping.Ignores || d.Mapping.Ignored != c.label {
			t.Errorf("%s: %d labels count, want 4; ignored %d (%v), want %d", name, n, d.Mapping.Ignored, d.Mapping.Ignores, c.label)
		}
	}
}

// TestArchiveShiftedLabels: labels that a model shifts away do not count.
func TestArchiveShiftedLabels(t *testing.T) {
	m := parse(t, `model ir=10 opset=18
graph g {
  in x float32[batch,3,2]
  in y int64[batch,3]
  init w float32[2,4] = [1,2,3,4,5,6,7,8]
  init zero int64[1] = [0]
  init one int64[1] = [1]
  init last int64[1] = [-1]
  init end int64[1] = [9]
  init rows int64[2] = [-1,4]
  z = MatMul(x, w)
  before = Slice(z, zero, last, one)
  after = Slice(y, one, end, one)
  scores = Reshape(before, rows)
  labels = Reshape(after, last)
  loss = SoftmaxCrossEntropyLoss(scores, labels) {ignore_index=-100}
  out loss float32[]
}
`)
	path := archive(t, map[string]runtime.Tensor{"x": floats(0, 12, 2, 3, 2), "y": runtime.FromInt64s([]int64{0, 1, 2, -100, -100, 3}, 2, 3)})
	d, err := open(t, m, Options{NPZ: path}, Sizes{Batch: 2})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Train.At(0)
	if n := d.Train.Tokens(b); err != nil || n != 3 {
		t.Errorf("%d labels count, want 3: %v", n, err)
	}
}

// TestArchiveColumns: an integer input whose columns index tables of their own may hold in each
// what that one takes, two inputs of labels leave out what the loss of each ignores, and what is
// clipped first may be anything.
func TestArchiveColumns(t *testing.T) {
	for name, body := range map[string]string{
		"columns": "  i = Gather(y, first) {axis=1}\n  k = Gather(y, last) {axis=1}\n  p = Gather(v, i)\n  q = Gather(w, k)\n  s = Mul(p, q)\n  loss = ReduceMean(s) {keepdims=0}\n",
		"clipped": "  i = Clip(y, first, last)\n  q = Gather(v, i)\n  loss = ReduceMean(q) {keepdims=0}\n",
		"ignored": "  i = Gather(y, first) {axis=1}\n  k = Gather(z, last) {axis=1}\n  a = SoftmaxCrossEntropyLoss(x, y) {ignore_index=4}\n  b = SoftmaxCrossEntropyLoss(x, z) {ignore_index=9}\n  loss = Add(a, b)\n",
	} {
		m := parse(t, "model ir=10 opset=18\ngraph g {\n  in x float32[batch,3,2]\n  in y int64[batch,2]\n  in z int64[batch,2]\n  init v float32[5,1] = [1,2,3,4,5]\n  init w float32[3,1] = [1,2,3]\n"+
			"  init first int64[] = 0\n  init last int64[] = 1\n"+body+"  out loss float32[]\n}\n")
		path := archive(t, map[string]runtime.Tensor{
			"x": floats(0, 12, 2, 3, 2), "y": runtime.FromInt64s([]int64{4, 0, 2, 1}, 2, 2), "z": runtime.FromInt64s([]int64{9, 0, 2, 9}, 2, 2),
		})
		d, err := open(t, m, Options{NPZ: path}, Sizes{Batch: 2})
		if err == nil {
			_, err = d.Train.At(0)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
