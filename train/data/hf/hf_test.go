package hf

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// golden holds what scripts/golden_tokens.py writes.
var golden = cmp.Or(os.Getenv("REMAT_TOKENS"), "../testdata") + "/"

// Tokenizers of every kind that is supported make the tokens of the library.
func TestGolden(t *testing.T) {
	names := []string{"byte_bpe", "llama3", "qwen", "llama2", "llama2_metaspace", "bert", "bert_cased"}
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
