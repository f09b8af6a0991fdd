// Package hf reads tokenizer.json, the form in which Hugging Face's tokenizers
// library keeps a tokenizer, and encodes text as that library does without special
// tokens around it:
//
//	text ─▶ added tokens ─▶ normalizer ─▶ added tokens ─▶ pre-tokenizer ─▶ model
//	       cut out verbatim              cut out of the     words           tokens
//	                                     normalized text
//
// Supported are the parts that language models use: byte-pair encoding over bytes
// (GPT-2, Llama 3, Qwen), over characters with bytes for what is unknown (Llama 1
// and 2, Mistral, Gemma), and WordPiece (BERT). Every other part, and every option
// that is not known to give the library's tokens, is an error that names it: a
// tokenizer that is almost right trains a model on other text.
//
// Expressions run in regexp2 with the Unicode tables of Go; the library's are of
// Oniguruma and Rust, so that characters added to Unicode in between may be split
// otherwise.
package hf

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
)

// A Tokenizer encodes text. It may be used by several goroutines.
type Tokenizer struct {
	verbatim, normalized added // tokens cut out before and after normalization
	normalize            []normalizer
	split                []splitter
	model                model
	largest              uint32
	ids                  map[string]uint32 // of added tokens

	pool sync.Pool // of *state
}

// A model makes the tokens of a word.
type model interface {
	// word appends them; it may keep what it needs in s.
	word(s *state, dst []uint32, text string) ([]uint32, error)
	// check refuses a vocabulary in which the model could not work.
	check() error
}

// state is what one goroutine needs while it encodes: the tokens of words met before,
// and room for a model's work.
type state struct {
	seen    map[string][]uint32
	symbols []symbol
	queue   []merge
}

// Words that are remembered, and how long one may be.
const (
	mostSeen    = 1 << 16
	longestSeen = 64
)

// file is the JSON.
type file struct {
	AddedTokens []struct {
		ID         int64
		Content    string
		SingleWord bool `json:"single_word"`
		LStrip     bool
		RStrip     bool
		Normalized bool
	} `json:"added_tokens"`
	Normalizer   json.RawMessage
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Model        json.RawMessage
}

// An UnsupportedError names a part of a tokenizer that is not supported.
type UnsupportedError struct{ Part string }

func (e *UnsupportedError) Error() string {
	return e.Part + " is not supported: tokenize with the tokenizers library, and give the tokens"
}

func unsupported(format string, args ...any) error {
	return &UnsupportedError{fmt.Sprintf(format, args...)}
}

// Parse reads tokenizer.json.
func Parse(data []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	if absent(f.Model) {
		return nil, errors.New("not a tokenizer.json: it has no model")
	}
	t := &Tokenizer{ids: map[string]uint32{}}
	t.pool.New = func() any { return &state{seen: map[string][]uint32{}} }
	var err error
	if t.normalize, err = parseNormalizer(f.Normalizer); err != nil {
		return nil, err
	}
	if t.split, err = parseSplitter(f.PreTokenizer); err != nil {
		return nil, err
	}
	vocabulary, err := t.parseModel(f.Model)
	if err != nil {
		return nil, err
	}
	for content, id := range vocabulary {
		if id < 0 || id > math.MaxInt32 {
			return nil, fmt.Errorf("token %q has number %d", content, id)
		}
		t.largest = max(t.largest, uint32(id))
	}
	for _, a := range f.AddedTokens {
		switch {
		case a.ID < 0 || a.ID > math.MaxInt32:
			return nil, fmt.Errorf("added token %q has number %d", a.Content, a.ID)
		case a.Content == "":
			return nil, fmt.Errorf("added token %d is empty", a.ID)
		case a.SingleWord:
			return nil, unsupported("added token %q as a single word", a.Content)
		}
		id := uint32(a.ID)
		t.largest = max(t.largest, id)
		t.ids[a.Content] = id
		token := addedToken{a.Content, id, a.LStrip, a.RStrip}
		if !a.Normalized {
			t.verbatim.add(token)
			continue
		}
		if token.content = t.normal(token.content); token.content != "" {
			t.normalized.add(token)
		}
	}
	t.verbatim.sort()
	t.normalized.sort()
	return t, t.model.check()
}

// absent reports a field that is left out or null.
func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// kindOf is the field "type" of a part.
func kindOf(raw json.RawMessage) (string, error) {
	var part struct{ Type string }
	err := json.Unmarshal(raw, &part)
	return part.Type, err
}

// Size is one more than the largest token.
func (t *Tokenizer) Size() int64 { return int64(t.largest) + 1 }

// Added is the number of an added token, such as <|endoftext|>.
func (t *Tokenizer) Added(content string) (uint32, bool) {
	id, ok := t.ids[content]
	return id, ok
}

// Spaces says what the tokenizer puts before a text: nothing, a space before a text
// that begins with none, or a space in any case.
type Spaces int

// What a tokenizer puts before a text.
const (
	NoSpace Spaces = iota
	SpaceIfNone
	SpaceAlways
)

// Spaces says what is put before a text.
func (t *Tokenizer) Spaces() Spaces {
	s := NoSpace
	for _, n := range t.normalize {
		if _, ok := n.(prepend); ok {
			s = SpaceAlways
		}
	}
	for _, p := range t.split {
		switch p := p.(type) {
		case byteLevel:
			if p.prefix {
				s = max(s, SpaceIfNone)
			}
		case metaspace:
			if p.scheme != never {
				s = max(s, SpaceIfNone)
			}
		}
	}
	return s
}

// Encode appends the tokens of a text, which must be valid UTF-8.
func (t *Tokenizer) Encode(dst []uint32, text string) ([]uint32, error) {
	s := t.pool.Get().(*state)
	defer t.pool.Put(s)
	var err error
	first := true
	t.verbatim.cut(text, func(part string, id uint32, token bool) bool {
		if token {
			dst = append(dst, id)
			first = false
			return true
		}
		t.normalized.cut(t.normal(part), func(part string, id uint32, token bool) bool {
			if token {
				dst = append(dst, id)
			} else {
				dst, err = t.words(s, dst, part, first)
			}
			first = false
			return err == nil
		})
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	return dst, nil
}

// normal normalizes a text.
func (t *Tokenizer) normal(text string) string {
	for _, n := range t.normalize {
		text = n.normal(text)
	}
	return text
}

// words splits a part of a text into words and appends their tokens. first: the part
// begins the text.
func (t *Tokenizer) words(s *state, dst []uint32, text string, first bool) ([]uint32, error) {
	words := []string{text}
	for _, p := range t.split {
		var next []string
		for i, w := range words {
			var err error
			if next, err = p.split(next, w, first && i == 0); err != nil {
				return nil, err
			}
		}
		words = next
	}
	for _, w := range words {
		if w == "" {
			continue
		}
		if ids, ok := s.seen[w]; ok {
			dst = append(dst, ids...)
			continue
		}
		from := len(dst)
		var err error
		if dst, err = t.model.word(s, dst, w); err != nil {
			return nil, err
		}
		if len(w) <= longestSeen {
			if len(s.seen) >= mostSeen {
				clear(s.seen)
			}
			s.seen[w] = append([]uint32(nil), dst[from:]...)
		}
	}
	return dst, nil
}
