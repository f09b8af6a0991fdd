package data

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	arrays "github.com/onnx-remat/remat/runtime"
)

const lm = `model ir=10 opset=18
graph g {
  in ids int64[batch,seq]
  in targets int64[batch,seq]
  init flat int64[1] = [-1]
  init rows int64[2] = [-1,50257]
  init table int64[2] = [50257,1]
  wte = ConstantOfShape(table)
  h = Gather(wte, ids)
  t = Transpose(wte) {perm=[1,0]}
  z = MatMul(h, t)
  zr = Reshape(z, rows)
  y = Reshape(targets, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y) {ignore_index=-1}
  out loss float32[]
}
`

func openLM(t *testing.T, o Options, batch, seq int64) (*Data, error) {
	t.Helper()
	m := parse(t, lm)
	return open(t, m, o, Sizes{Batch: batch, Dims: map[string]int64{"seq": seq}})
}

// Validation data at the end share no token with the training data.
func TestValidationSharesNothing(t *testing.T) {
	var tokens []byte
	for i := range 1000 {
		tokens = append(tokens, byte(i), byte(i>>8))
	}
	path := file(t, "t.bin", tokens)
	for _, seq := range []int64{1, 7, 16, 100, 333} {
		for _, share := range []string{"1%", "0.3", "99%"} {
			d, err := openLM(t, Options{Tokens: path, Val: share, Shuffle: true}, 1, seq)
			if err != nil {
				t.Fatal(err)
			}
			most, least := int64(-1), int64(1000)
			for n := range d.Train.Samples() {
				b, err := d.Train.At(n)
				if err != nil {
					t.Fatal(err)
				}
				most = max(most, slices.Max(ints(b["targets"])))
			}
			for n := range d.Val.Len() {
				b, err := d.Val.At(n)
				if err != nil {
					t.Fatal(err)
				}
				least = min(least, slices.Min(ints(b["ids"])))
			}
			if most >= least || d.Val.Samples() < 1 || d.Train.Samples() < 1 {
				t.Errorf("length %d, %s: trained on tokens up to %d, validated from %d on", seq, share, most, least)
			}
		}
	}
}

func TestTokenErrors(t *testing.T) {
	raw := func(n int) string { return file(t, "t.bin", make([]byte, n)) }
	wide := make([]byte, 400)
	for i := range 100 {
		wide[4*i] = byte(i)
	}
	high := slices.Repeat([]byte{1, 0}, 200)
	high[100], high[101] = 0xff, 0xff
	negative := npy(t, "<i8", "(100,)", append(make([]byte, 792), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff))
	for _, c := range []struct {
		name       string
		o          Options
		batch, seq int64
		want       string
	}{
		{"short", Options{Tokens: raw(100)}, 4, 16, "50 tokens, but 65 are needed for 4 samples of 16"},
		{"short text", Options{Text: []string{file(t, "a.txt", []byte("hello"))}}, 1, 16, "a.txt: 1 token, but 17 are needed for 1 sample of 16"},
		{"short val", Options{Tokens: raw(400), Val: raw(20)}, 1, 16, "--val t.bin: 10 tokens, but 17 are needed for 1 sample of 16"},
		{"odd", Options{Tokens: raw(101)}, 1, 4, "101 bytes are not a whole number of uint16 tokens"},
		{"wide", Options{Tokens: file(t, "w.bin", wide)}, 1, 4, "every second token is 0: give --token-type uint32"},
		{"text for tokens", Options{Tokens: file(t, "t.txt", []byte(strings.Repeat("naïve text\r\n", 500)))}, 1, 4, "t.txt: looks like text, not like tokens: give it with --text"},
		{"archive for tokens", Options{Tokens: archive(t, map[string]arrays.Tensor{"t": arrays.FromInt64s(make([]int64, 50), 50)})}, 1, 4, "looks like an archive, not like tokens: give an array of it as .npy"},
		{"UTF-16", Options{Text: []string{file(t, "u.txt", []byte("\xff\xfeh\x00i\x00"))}}, 1, 4, "u.txt: it is UTF-16, want UTF-8"},
		{"UTF-16 without a mark", Options{Text: []string{file(t, "u.txt", []byte(strings.Repeat("\x00h\x00i\x00\xe9", 9)))}}, 1, 4, "u.txt: it is UTF-16, want UTF-8"},
		{"archive for text", Options{Text: []string{archive(t, map[string]arrays.Tensor{"t": arrays.FromFloat32s(make([]float32, 50), 50)})}}, 1, 4, "it is no text"},
		{"compressed text", Options{Text: []string{file(t, "t.gz", []byte("\x1f\x8b\x08\x00\xfa\xcbv\x9c\xff\xcbH\xcd\xc9\xc9W(\xcf/\xcaIQ\xc8 \x9b"))}}, 1, 4, "it is no text"},
		{"high", Options{Tokens: file(t, "h.bin", high)}, 1, 4, "h.bin: token 65535 at position 50 is outside the model's vocabulary of 50257"},
		{"negative", Options{Tokens: negative}, 1, 4, "token -1 at position 99"},
		{"float", Options{Tokens: npy(t, "<f4", "(4,)", make([]byte, 16))}, 1, 4, "an array of float32, want whole numbers"},
		{"axes", Options{Tokens: npy(t, "<i4", "(2, 2, 1)", make([]byte, 16))}, 1, 4, "shape [2 2 1], want one axis"},
		{"rows", Options{Tokens: npy(t, "<i4", "(2, 7)", make([]byte, 56))}, 1, 4, "rows of 7 tokens, the model's length is 4"},
		{"rows without next", Options{Tokens: npy(t, "<i4", "(2, 4)", make([]byte, 32))}, 1, 4, "rows of 4 tokens, want 5"},
		{"no elements", Options{Tokens: npy(t, "<i4", "(0,)", nil)}, 1, 4, "no tokens in it"},
		{"longer than the file", Options{Tokens: npy(t, "<i4", "(9,)", make([]byte, 16))}, 1, 4, "longer than the file"},
		{"not npy", Options{Tokens: file(t, "a.npy", []byte("hello world"))}, 1, 4, "not an .npy file"},
		{"no tokenizer", Options{Text: []string{file(t, "a.txt", []byte("hello"))}, Tokenizer: "/no/such.json"}, 1, 4, "--tokenizer such.json"},
		{"folder", Options{Text: []string{t.TempDir()}}, 1, 4, "is a folder"},
		{"empty", Options{Text: []string{file(t, "a.txt", nil)}}, 1, 4, "the file is empty"},
		{"length", Options{Tokens: raw(400)}, 1, 0, "add --dim seq=N"},
		{"stated type", Options{Tokens: raw(400), TokenType: "int8"}, 1, 4, "--token-type int8: want uint16 or uint32"},
		{"all for validation", Options{Tokens: raw(18), Val: "50%"}, 1, 8, "9 tokens, but 17 are needed for 2 samples of 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := parse(t, lm)
			sizes := Sizes{Batch: c.batch}
			if c.seq > 0 {
				sizes.Dims = map[string]int64{"seq": c.seq}
			}
			_, err := open(t, m, c.o, sizes)
			oneLine(t, err, c.want)
		})
	}
}

// npy writes an .npy file by hand.
func npy(t *testing.T, descr, shape string, data []byte) string {
	t.Helper()
	header := "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }"
	header += strings.Repeat(" ", 117-len(header)) + "\n"
	return file(t, "t.npy", append([]byte("\x93NUMPY\x01\x00v\x00"+header), data...))
}

func TestTokensOfEveryType(t *testing.T) {
	for descr, size := range map[string]int{"|u1": 1, "|i1": 1, "<u2": 2, ">u2": 2, "<i2": 2, "<u4": 4, "<i4": 4, ">i8": 8, "<u8": 8, "<i8": 8} {
		data := make([]byte, 40*size)
		for i := range 40 {
			at := i * size
			if descr[0] == '>' {
				at += size - 1
			}
			data[at] = byte(i)
		}
		d, err := openLM(t, Options{Tokens: npy(t, descr, "(40,)", data)}, 1, 8)
		if err != nil {
			t.Fatal(descr, err)
		}
		b, err := d.Train.At(2)
		if err != nil || !slices.Equal(ints(b["ids"]), []int64{16, 17, 18, 19, 20, 21, 22, 23}) {
			t.Errorf("%s: %v %v", descr, ints(b["ids"]), err)
		}
	}
	// A row is a sample, with the label after the last token in it.
	data := make([]byte, 4*27)
	for i := range 27 {
		data[4*i] = byte(i)
	}
	d, err := open(t, parse(t, lm), Options{Tokens: npy(t, "<i4", "(3, 9)", data)}, Sizes{Batch: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Train.At(1)
	if err != nil || d.Dims["seq"] != 8 || ints(b["ids"])[0] != 9 || ints(b["targets"])[7] != 17 {
		t.Errorf("rows: %v %v %v %v", d.Dims, ints(b["ids"]), ints(b["targets"]), err)
	}
}

func TestIdentity(t *testing.T) {
	tokens := make([]byte, 4000)
	for i := range tokens {
		tokens[i] = byte(i % 100 * (1 - i%2))
	}
	path := file(t, "t.bin", tokens)
	d, err := openLM(t, Options{Tokens: path, Shuffle: true, Seed: 1}, 2, 16)
	if err != nil {
		t.Fatal(err)
	}
	kept := d.Train.Identity()
	if err := d.Train.CheckIdentity(kept); err != nil {
		t.Error(err)
	}
	changed := slices.Clone(tokens)
	changed[1000]++
	for _, c := range []struct {
		o          Options
		batch, seq int64
		want       string
	}{
		{Options{Tokens: file(t, "t.bin", changed), Shuffle: true, Seed: 1}, 2, 16, "t.bin has other content"},
		{Options{Tokens: file(t, "t.bin", tokens[:3000]), Shuffle: true, Seed: 1}, 2, 16, "t.bin has 3000 bytes, had 4000"},
		{Options{Tokens: path, Shuffle: true, Seed: 2}, 2, 16, "seed: 2, was 1"},
		{Options{Tokens: path}, 2, 16, "shuffle: false, was true"},
		{Options{Tokens: path, Shuffle: true, Seed: 1}, 4, 16, "batch: 4, was 2"},
		{Options{Tokens: path, Shuffle: true, Seed: 1}, 2, 8, "length: 8, was 16"},
		{Options{Tokens: path, Shuffle: true, Seed: 1, Labels: LabelsSame}, 2, 16, "labels: same, was next"},
		{Options{Tokens: path, Shuffle: true, Seed: 1, Val: "10%"}, 2, 16, "samples: "},
	} {
		other, err := openLM(t, c.o, c.batch, c.seq)
		if err != nil {
			t.Fatal(err)
		}
		oneLine(t, other.Train.CheckIdentity(kept), c.want)
	}
	// Another name is the same data.
	same, err := openLM(t, Options{Tokens: file(t, "other.bin", tokens), Shuffle: true, Seed: 1}, 2, 16)
	if err != nil || same.Train.Identity() != kept {
		t.Error("a file of the same content is other data", err)
	}
}

// Tokens of any number are read where they lie.
func TestTokensLargerThanMemory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.bin")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	const size = 40 << 30 // a hole, but for one token
	const marked = 10_000_001
	if err := f.Truncate(size); err != nil {
		t.Skipf("no file of 40 GiB here: %v", err)
	}
	if _, err := f.WriteAt([]byte{7, 0}, 2*1024*marked); err != nil {
		t.Fatal(err)
	}
	f.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d, err := openLM(t, Options{Tokens: path, TokenType: "uint16", Val: "1%"}, 4, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(100) {
		if _, err := d.Train.At(n * 1000); err != nil {
			t.Fatal(err)
		}
	}
	b, err := d.Train.At(marked / 4)
	if err != nil || ints(b["ids"])[1024] != 7 || ints(b["targets"])[1023] != 7 {
		t.Errorf("sample %d does not begin with its token: %v", marked, err)
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.TotalAlloc - before.TotalAlloc); grown > 32<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
	if d.Train.Samples()+d.Val.Samples() < size/2/1024-2 {
		t.Errorf("%d and %d samples", d.Train.Samples(), d.Val.Samples())
	}
}
