package hf

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// golden holds what scripts/golden_tokens.py writes.
var golden = cmp.Or(os.Getenv("REMAT_TOKENS"), "../testdata") + "/"

// Tokenizers of every kind that is supported make the tokens of the library.
func TestGolden(t *testing.T) {
	names := []string{"byte_bpe", "llama3", "qwen", "llama2", "llama2_metaspace", "deepseek", "falcon", "gemma", "bert", "bert_cased"}
	if os.Getenv("REMAT_TOKENS") != "" {
		names = append(names, "gpt2")
	}
	for _, name := range names {
		tok := load(t, name)
		raw, err := os.ReadFile(golden + name + "_tokens.json")
		if err != nil {
			t.Fatal(err)
		}
		var list []struct {
			Text string
			IDs  []uint32
		}
		if err := json.Unmarshal(raw, &list); err != nil || len(list) < 30 {
			t.Fatal(len(list), err)
		}
		wrong := 0
		for _, g := range list {
			ids, err := tok.Encode(nil, g.Text)
			if err != nil || !slices.Equal(ids, g.IDs) {
				if wrong++; wrong > 5 {
					continue
				}
				t.Errorf("%s: %q: %v %v, want %v", name, g.Text, ids, err, g.IDs)
			}
		}
		t.Logf("%s: %d of %d wrong", name, wrong, len(list))
	}
}

func load(t testing.TB, name string) *Tokenizer {
	t.Helper()
	raw, err := os.ReadFile(golden + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(raw)
	if err != nil {
		t.Fatal(name, err)
	}
	return tok
}

// What is not known to make the library's tokens is refused by name.
func TestUnsupported(t *testing.T) {
	with := func(part string) []byte {
		return []byte(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}, ` + part + `}`)
	}
	model := func(part string) []byte {
		return []byte(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, ` + part + `}}`)
	}
	for _, c := range []struct {
		content []byte
		want    string
	}{
		{[]byte(`{"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}`), `the model "Unigram" is not supported`},
		{with(`"normalizer": {"type": "Precompiled"}`), `normalizer "Precompiled" is not supported`},
		{with(`"normalizer": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}`), "normalizer Replace by an expression"},
		{with(`"pre_tokenizer": {"type": "UnicodeScripts"}`), `pre-tokenizer "UnicodeScripts"`},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Else"}`), `behavior "Else"`},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}`), `the expression "(a"`},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\p{L}&&\\p{Lu}]"}, "behavior": "Isolated"}`), `the expression`},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a[bc]]"}, "behavior": "Isolated"}`), `the expression`},
		{with(`"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\h+"}, "behavior": "Isolated"}`), `the expression`},
		{with(`"added_tokens": [{"id": 3, "content": "x", "single_word": true}]`), `as a single word`},
		{with(`"added_tokens": [{"id": -3, "content": "x"}]`), `has number -3`},
		{model(`"merges": ["a b"]`), "merge 0"},
		{model(`"merges": ["a"]`), "not a pair"},
		{model(`"merges": [], "dropout": 0.1`), "dropout"},
		{model(`"merges": [], "end_of_word_suffix": "</w>"`), "end_of_word_suffix"},
		{model(`"merges": [], "unk_token": "?"`), `the unknown token "?"`},
		{[]byte(`{"model": {"type": "WordPiece", "vocab": {"a": 0}}}`), "WordPiece without"},
		{[]byte(`{"version": "1.0"}`), "no model"},
		{[]byte(`[`), "not a tokenizer.json"},
	} {
		_, err := Parse(c.content)
		if err == nil || !strings.Contains("the "+err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80s: %v, want %s", c.content, err, c.want)
		}
	}
	tok, err := Parse(with(`"normalizer": null`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tok.Encode(nil, "abc"); err == nil || !strings.Contains(err.Error(), `no token for "c"`) {
		t.Errorf("a character without a token: %v", err)
	}
}
