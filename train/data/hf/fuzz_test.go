package hf

import (
	"os"
	"testing"
	"unicode/utf8"
)

// FuzzTokenizer reads anything as tokenizer.json: it is an error, or it encodes any
// text into tokens that it has.
func FuzzTokenizer(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[{"id":3,"content":"<s>","normalized":true,"lstrip":true}]}`), "ab <s> ba")
	f.Add([]byte(`{"model":{"type":"WordPiece","unk_token":"?","vocab":{"?":0,"##a":1}},"pre_tokenizer":{"type":"BertPreTokenizer"},"normalizer":{"type":"NFD"}}`), "a, é")
	f.Add([]byte(`{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a*"},"behavior":"Removed","invert":true},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}`), "aab")
	for _, name := range []string{"llama3", "llama2_metaspace", "bert"} {
		content, err := os.ReadFile("../testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content, "Hello,  wörld\n<s>")
	}
	f.Fuzz(func(t *testing.T, content []byte, text string) {
		tok, err := Parse(content)
		if err != nil || !utf8.ValidString(text) {
			return
		}
		ids, err := tok.Encode(nil, text)
		if err != nil {
			return
		}
		for _, id := range ids {
			if int64(id) >= tok.Size() {
				t.Fatalf("token %d of %d", id, tok.Size())
			}
		}
		tok.Spaces()
	})
}
