package data

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

type goldenText struct {
	Text string
	IDs  []uint32
}

func golden(t testing.TB, name string) []goldenText {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(cmp.Or(os.Getenv("REMAT_TOKENS"), "testdata"), name+"_tokens.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list []goldenText
	if err := json.Unmarshal(raw, &list); err != nil || len(list) < 30 {
		t.Fatal(len(list), err)
	}
	return list
}

func TestGoldenGPT2(t *testing.T) {
	for _, g := range golden(t, "gpt2") {
		ids, err := EncodeGPT2(g.Text)
		if err != nil || !slices.Equal(ids, g.IDs) {
			t.Errorf("%q: %v %v, want %v", g.Text, ids, err, g.IDs)
		}
	}
}

// anyText strings texts of all kinds together.
func anyText(r *rand.Rand, list []goldenText, n int) string {
	var b strings.Builder
	for b.Len() < n {
		switch r.IntN(8) {
		case 0:
			b.WriteString(strings.Repeat([]string{" ", "\n", "\t", "\r\n", "a", "。", "é"}[r.IntN(7)], r.IntN(5)))
		case 1:
			b.WriteRune(rune(r.IntN(0x3000)))
		default:
			words := strings.SplitAfter(list[r.IntN(len(list))].Text, " ")
			b.WriteString(words[r.IntN(len(words))])
		}
	}
	return strings.ToValidUTF8(b.String(), "�")
}

// inParts tokenizes a text in parts of about so many bytes.
func inParts(t *testing.T, tok textTokenizer, text string, size int) (ids []uint32, n int) {
	t.Helper()
	p := newParts(strings.NewReader(text), tok, size)
	for ; ; n++ {
		part, err := p.next()
		if err != nil {
			break
		}
		if ids, err = tok.encode(ids, part); err != nil {
			t.Fatal(err)
		}
	}
	return ids, n
}

// A text in parts has the tokens of the whole.
func TestTextInParts(t *testing.T) {
	for _, name := range []string{"gpt2", "byte_bpe", "llama3", "qwen", "llama2", "llama2_metaspace", "bert"} {
		r := rand.New(rand.NewPCG(1, 2))
		list := golden(t, name)
		path := name
		if name != GPT2 {
			path = filepath.Join("testdata", name+".json")
		}
		tok, err := openTokenizer(path)
		if err != nil {
			t.Fatal(err)
		}
		parts := 0
		for range 30 {
			text := anyText(r, list, 1+r.IntN(2000))
			want, err := tok.encode(nil, text)
			if err != nil {
				t.Fatal(err)
			}
			size := 16 + r.IntN(200)
			got, n := inParts(t, tok, text, size)
			if !slices.Equal(got, want) {
				t.Fatalf("%s, in %d parts of about %d bytes: other tokens of %q", name, n, size, text)
			}
			parts += n
		}
		if parts < 90 {
			t.Errorf("%s: 30 texts in %d parts", name, parts)
		}
	}
}

// plainBytes has a token for each byte.
type plainBytes struct{ gpt2 }

func (plainBytes) encode(dst []uint32, text string) ([]uint32, error) {
	for i := range len(text) {
		dst = append(dst, uint32(text[i]))
	}
	return dst, nil
}

// A text without a place to cut is still read.
func TestTextWithoutCuts(t *testing.T) {
	p := newParts(strings.NewReader(strings.Repeat("世", 7<<20)), &plainBytes{}, 1<<20)
	total, n := 0, 0
	for {
		part, err := p.next()
		if err != nil {
			break
		}
		if !utf8.ValidString(part) {
			t.Fatal("cut within a character")
		}
		total += len(part)
		n++
	}
	if total != 21<<20 || n != 2 || p.forced != 1 || p.invalid != 0 {
		t.Errorf("%d bytes in %d parts, %d invalid", total, n, p.invalid)
	}
}

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

func TestText(t *testing.T) {
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 40)
	want, err := EncodeGPT2(text)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Text: []string{file(t, "a.txt", []byte(text))}, Folder: t.TempDir(), Val: "0.25"}
	d, err := openLM(t, o, 2, 16)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(len(want)-1) / 16
	if d.Train.Samples()+d.Val.Samples() < n-1 || d.Mapping.Kind != LabelsNext || d.Mapping.Vocabulary != 50257 {
		t.Errorf("%d and %d samples of %d, labels %s, vocabulary %d", d.Train.Samples(), d.Val.Samples(), n, d.Mapping.Kind, d.Mapping.Vocabulary)
	}
	b, err := d.Train.At(1)
	if err != nil {
		t.Fatal(err)
	}
	ids, targets := ints(b["ids"]), ints(b["targets"])
	for i := range ids {
		if ids[i] != int64(want[32+i]) || targets[i] != int64(want[33+i]) {
			t.Fatalf("token %d: %d then %d, want %d then %d", i, ids[i], targets[i], want[32+i], want[33+i])
		}
	}
	// The last batch of validation is filled up with labels that the loss ignores.
	total := int64(0)
	for n := range d.Val.Len() {
		b, err := d.Val.At(n)
		if err != nil {
			t.Fatal(err)
		}
		total += d.Val.Tokens(b)
	}
	if total != d.Val.Samples()*16 || d.Val.Len() != (d.Val.Samples()+1)/2 {
		t.Errorf("validation counts %d tokens in %d batches of %d samples", total, d.Val.Len(), d.Val.Samples())
	}
	// A second run finds the tokens of the first.
	files, _ := filepath.Glob(filepath.Join(o.Folder, "*"))
	if len(files) != 1 {
		t.Fatalf("%v in the folder", files)
	}
	before, _ := os.Stat(files[0])
	o.Progress = func(_, _ int64) { t.Error("tokenized again") }
	again, err := openLM(t, o, 2, 16)
	if err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(files[0]); !os.SameFile(before, after) || again.Train.Identity() != d.Train.Identity() {
		t.Error("the tokens were written again, or are others")
	}
	// What was kept can be given as tokens.
	asTokens, err := openLM(t, Options{Tokens: files[0]}, 2, 16)
	if err != nil {
		t.Fatal(err)
	}
	c, err := asTokens.Train.At(1)
	if err != nil || !slices.Equal(ints(c["ids"]), ids) {
		t.Errorf("tokens of the kept file: %v %v", c["ids"], err)
	}
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

func TestTextFilesAndBytes(t *testing.T) {
	o := Options{Text: []string{file(t, "a.txt", []byte("one two")), file(t, "b.txt", []byte("three \xff\xfe four five"))}}
	d, err := openLM(t, o, 1, 4)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Train.At(0)
	if err != nil {
		t.Fatal(err)
	}
	if ids := ints(b["ids"]); ids[2] != gpt2End {
		t.Errorf("%v: no end of text between the files", ids)
	}
	if notes := strings.Join(d.Notes, "\n"); !strings.Contains(notes, "2 bytes not UTF-8, the first at byte 6 of b.txt") {
		t.Error(notes)
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
		{"short", Options{Tokens: raw(100)}, 4, 16, "50 tokens, but 4 samples of 16 need 65"},
		{"short text", Options{Text: []string{file(t, "a.txt", []byte("hello"))}}, 1, 16, "a.txt: 1 token, but 1 samples of 16 need 17"},
		{"short val", Options{Tokens: raw(400), Val: raw(20)}, 1, 16, "--val t.bin: 10 tokens, but 1 samples of 16 need 17"},
		{"odd", Options{Tokens: raw(101)}, 1, 4, "101 bytes are not a whole number of uint16 tokens"},
		{"wide", Options{Tokens: file(t, "w.bin", wide)}, 1, 4, "every second token is 0: give --token-type uint32"},
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
		{"all for validation", Options{Tokens: raw(18), Val: "50%"}, 1, 8, "9 tokens, but 2 samples of 8 need 17"},
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
		{Options{Tokens: file(t, "t.bin", changed), Shuffle: true, Seed: 1}, 2, 16, "file 1 has other content"},
		{Options{Tokens: file(t, "t.bin", tokens[:3000]), Shuffle: true, Seed: 1}, 2, 16, "file 1 has 3000 bytes, had 4000"},
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

func TestInterruptedText(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	_, err := Open(ctx, Options{Text: []string{file(t, "a.txt", []byte("hello"))}, Folder: dir})
	if files, _ := os.ReadDir(dir); !errors.Is(err, context.Canceled) || len(files) > 0 {
		t.Error(err, files)
	}
}
