package data

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// How fast text becomes tokens: the bytes of a second.
func BenchmarkText(b *testing.B) {
	alice, err := os.ReadFile("../../cmd/remat/demo/alice.txt")
	if err != nil {
		b.Fatal(err)
	}
	text := strings.Repeat(string(alice), 1+(4<<20)/len(alice))
	path := filepath.Join(b.TempDir(), "a.txt")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"gpt2", "llama3", "llama2", "bert"} {
		b.Run(name, func(b *testing.B) {
			tokenizer := name
			if name != GPT2 {
				tokenizer = filepath.Join("testdata", name+".json")
			}
			b.SetBytes(int64(len(text)))
			for range b.N {
				s, err := Open(context.Background(), Options{Text: []string{path}, Tokenizer: tokenizer})
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
		})
	}
}
