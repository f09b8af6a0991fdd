package data

// Tokenizers: text to tokens. GPT-2's own vocabulary is built in; others come as
// Hugging Face's tokenizer.json.

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/tiktoken-go/tokenizer"

	"github.com/onnx-remat/remat/train/data/hf"
)

// A textTokenizer turns text into tokens. It may be used by several goroutines.
type textTokenizer interface {
	// encode appends the tokens of a part of a text: valid UTF-8, cut where cutAt says.
	encode(dst []uint32, text string) ([]uint32, error)
	// size is one more than the largest token.
	size() int64
	// end is the token that ends a text; false where there is none.
	end() (uint32, bool)
	// spaces says what the tokenizer puts before every text, so before every part.
	spaces() hf.Spaces
	// identity names the tokenizer, or is its file's hash.
	identity() string
}

// GPT-2's vocabulary: 50,256 tokens of bytes, and one that ends a text.
const (
	gpt2Size = 50257
	gpt2End  = 50256
	gpt2Mark = "<|endoftext|>"
)

type gpt2 struct{ codec tokenizer.Codec }

var loadGPT2 = sync.OnceValues(func() (*gpt2, error) {
	codec, err := tokenizer.Get(tokenizer.R50kBase)
	if err != nil {
		return nil, err
	}
	return &gpt2{codec}, nil
})

// EncodeGPT2 returns the tokens of a text in GPT-2's vocabulary. The text
// <|endoftext|> stands for the token that ends a text, as in the tokenizers of
// Hugging Face.
func EncodeGPT2(text string) ([]uint32, error) {
	g, err := loadGPT2()
	if err != nil {
		return nil, err
	}
	return g.encode(nil, text)
}

func (g *gpt2) encode(dst []uint32, text string) ([]uint32, error) {
	for {
		part, rest, marked := strings.Cut(text, gpt2Mark)
		var err error
		if dst, err = g.words(dst, part); err != nil {
			return nil, err
		}
		if !marked {
			return dst, nil
		}
		dst, text = append(dst, gpt2End), rest
	}
}

// del is a character that tokenizer v0.10.0 leaves out without a word, and its token.
// None of GPT-2's merges has it, nor a control character below 0x09, whose token is
// control and its code; so one of those stands in for it.
const (
	del      = "\x7f"
	delToken = 221
	control  = 188
)

// words tokenizes a text without marks.
func (g *gpt2) words(dst []uint32, text string) ([]uint32, error) {
	standIn := uint(0)
	if strings.Contains(text, del) {
		for standIn = 1; strings.ContainsRune(text, rune(standIn)); standIn++ {
			if standIn == 8 {
				return nil, errors.New("the text holds DEL (0x7f) beside every control character from 0x01 to 0x08: is it a text?")
			}
		}
		text = strings.ReplaceAll(text, del, string(rune(standIn)))
	}
	ids, _, err := g.codec.Encode(text)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if standIn > 0 && id == control+standIn {
			id = delToken
		}
		dst = append(dst, uint32(id))
	}
	return dst, nil
}

func (g *gpt2) size() int64         { return gpt2Size }
func (g *gpt2) end() (uint32, bool) { return gpt2End, true }
func (g *gpt2) spaces() hf.Spaces   { return hf.NoSpace }
func (g *gpt2) identity() string    { return GPT2 }

// fromFile is a tokenizer.json.
type fromFile struct {
	*hf.Tokenizer
	id string
}

// mostTokenizer bounds the length of a tokenizer.json.
const mostTokenizer = 512 << 20

// openTokenizer opens the tokenizer of that name or file.
func openTokenizer(name string) (textTokenizer, error) {
	if name == "" || name == GPT2 {
		return loadGPT2()
	}
	f, size, err := openFile("--tokenizer", name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > mostTokenizer {
		return nil, fmt.Errorf("--tokenizer %s: %d bytes are too many for a tokenizer.json", name, size)
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("--tokenizer %s: %w", name, err)
	}
	t, err := hf.Parse(content)
	if err != nil {
		return nil, fmt.Errorf("--tokenizer %s: %w", name, err)
	}
	return &fromFile{t, contentID(content)}, nil
}

func (t *fromFile) encode(dst []uint32, text string) ([]uint32, error) { return t.Encode(dst, text) }
func (t *fromFile) size() int64                                        { return t.Size() }
func (t *fromFile) spaces() hf.Spaces                                  { return t.Spaces() }
func (t *fromFile) identity() string                                   { return t.id }

// end takes the first token that the file has of those that end a text.
func (t *fromFile) end() (uint32, bool) {
	for _, mark := range []string{gpt2Mark, "<|end_of_text|>", "</s>", "<eos>", "[SEP]"} {
		if id, ok := t.Added(mark); ok {
			return id, true
		}
	}
	return 0, false
}
