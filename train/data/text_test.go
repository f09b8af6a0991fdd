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

// Tokens that an earlier run kept, and those of a set too large to be looked through first,
// are still a tokenizer's: the hint names what to give.
func TestKeptTokensOutsideVocabulary(t *testing.T) {
	small := strings.Replace(lm, "50257", "300", -1)
	o := Options{Text: []string{file(t, "a.txt", []byte("The quick brown fox jumps over the lazy dog."))}, Folder: t.TempDir()}
	for _, run := range []string{"the first run", "the second"} {
		_, err := open(t, parse(t, small), o, Sizes{Batch: 1, Dims: map[string]int64{"seq": 4}})
		oneLine(t, err, "one of GPT-2's vocabulary: give the model's own with --tokenizer FILE.json")
		if files, _ := filepath.Glob(filepath.Join(o.Folder, "*")); len(files) != 1 {
			t.Fatalf("%s: %v in the folder", run, files)
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

func TestRecordsAsText(t *testing.T) {
	d, err := openLM(t, Options{Text: []string{file(t, "a.jsonl", []byte("{\"text\": \"one two three\"}\n"))}}, 1, 4)
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(d.Notes, "\n"); !strings.Contains(notes, "a.jsonl: a text as it stands, names and punctuation of its records included") {
		t.Error(notes)
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

// What is wrong with a text is said of the text, not of the tokens that are kept of it.
func TestTextNames(t *testing.T) {
	tokenizer := file(t, "t.json", []byte(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}`))
	text := file(t, "text.txt", []byte("abc"))
	_, err := Open(t.Context(), Options{Text: []string{text}, Tokenizer: tokenizer, Folder: t.TempDir()})
	oneLine(t, err, "--text text.txt: the tokenizer has no token")
	if err == nil || !strings.HasPrefix(err.Error(), "--text ") {
		t.Errorf("error %v, want one that begins with what was given", err)
	}
}
