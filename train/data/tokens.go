package data

// Tokens as whole numbers of any width, read and widened a sample at a time, and
// checked against the vocabulary.

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// A stream is tokens one after another.
type stream struct {
	*array
	name string // the file, for messages
	// tokenizer is what made the tokens of a text; empty where tokens were given.
	tokenizer string
	count     int64
	buf       []byte
}

// A RangeError is a token that the model does not know.
type RangeError struct {
	File     string
	Position int64 // of the token in the file, from 0
	Token    int64
	// Vocabulary is the number of tokens that the model knows.
	Vocabulary int64
	// Tokenizer is what made the token of a text, GPT2 or a file's hash; empty where
	// tokens were given.
	Tokenizer string
}

func (e *RangeError) Error() string {
	hint := "was the text tokenized for another model?"
	switch e.Tokenizer {
	case "":
	case GPT2:
		hint = "it is one of GPT-2's vocabulary: give the model's own with --tokenizer FILE.json"
	default:
		hint = "is --tokenizer that of another model?"
	}
	return fmt.Sprintf("%s: token %d at position %d is outside the model's vocabulary of %d (0 to %d): %s",
		e.File, e.Token, e.Position, e.Vocabulary, e.Vocabulary-1, hint)
}

// put writes tokens from position at on into dst, as elements of an input. They
// must lie below limit; 0: below what the type can hold.
func (s *stream) put(dst []byte, as onnx.DType, at, limit int64) error {
	width, size := s.kind.Size(), as.Size()
	n := int64(len(dst)) / size
	if at < 0 || at+n > s.count {
		return fmt.Errorf("%s: no tokens %d to %d, it has %d", s.name, at, at+n-1, s.count)
	}
	if int64(cap(s.buf)) < n*width {
		s.buf = make([]byte, n*width)
	}
	raw := s.buf[:n*width]
	if err := s.read(raw, at*width); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if limit <= 0 {
		limit = largest(as)
	}
	bad := int64(-1)
	switch {
	case s.kind == onnx.Uint16 && size == 8:
		bad = widen16(dst, raw, limit)
	case s.kind == onnx.Uint32 && size == 8:
		bad = widen32(dst, raw, limit)
	default:
		for i := range n {
			token := element(raw[i*width:], s.kind)
			if token < 0 || token >= limit {
				bad = i
				break
			}
			as.PutInt(dst[i*size:], token)
		}
	}
	if bad >= 0 {
		return &RangeError{File: s.name, Position: at + bad, Token: element(raw[bad*width:], s.kind), Vocabulary: limit, Tokenizer: s.tokenizer}
	}
	return nil
}

// widen16 copies uint16 as int64, and returns the first place of one that is not
// below limit, -1 where there is none. Of these two pairs of types are nearly all
// tokens; the general way takes six times as long.
func widen16(dst, src []byte, limit int64) int64 {
	for i := 0; len(src) >= 2 && len(dst) >= 8; i++ {
		x := binary.LittleEndian.Uint16(src)
		if int64(x) >= limit {
			return int64(i)
		}
		binary.LittleEndian.PutUint64(dst, uint64(x))
		src, dst = src[2:], dst[8:]
	}
	return -1
}

// widen32 is widen16 of uint32.
func widen32(dst, src []byte, limit int64) int64 {
	for i := 0; len(src) >= 4 && len(dst) >= 8; i++ {
		x := binary.LittleEndian.Uint32(src)
		if int64(x) >= limit {
			return int64(i)
		}
		binary.LittleEndian.PutUint64(dst, uint64(x))
		src, dst = src[4:], dst[8:]
	}
	return -1
}

// element reads one whole number; an unsigned one beyond int64 is -1.
func element(b []byte, d onnx.DType) int64 {
	n := d.Int(b)
	if d == onnx.Uint64 {
		n = max(n, -1)
	}
	return n
}

// largest is the number below which an integer type's values lie.
func largest(d onnx.DType) int64 {
	_, most := d.IntRange()
	return min(most, math.MaxInt64-1) + 1
}
