package data

// A text is cut where no tokenizer joins what lies on either side, so that the
// tokens are those of the whole text:
//
//	before white space that follows a letter or digit      "end| of"
//	behind a single newline, before a letter or digit      "end.\n|Of"
//
// and a cut is tried before it is made: the tokens of the characters around it must
// be those of the two sides. A tokenizer that puts a space before every text gets
// parts that begin with one, or behind one. Where a text has no place to cut for
// 16 MiB it is cut between two characters, and that is said.
//
// Bytes that are not UTF-8 become U+FFFD, one for each, and are counted.

import (
	"errors"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/onnx-remat/remat/train/data/hf"
)

// partBytes is how much text is tokenized at once by one goroutine, mostPart what
// may lie between two cuts.
const (
	partBytes = 256 << 10
	mostPart  = 16 << 20
)

// parts reads a text in parts.
type parts struct {
	from   io.Reader
	tok    textTokenizer
	spaces hf.Spaces
	size   int    // of a part, where the text can be cut
	buf    []byte // what is read and not yet given out
	ended  bool
	read   int64 // bytes read
	given  int64 // bytes given out
	forced int   // cuts between any two characters

	invalid, invalidAt int64
}

func newParts(from io.Reader, tok textTokenizer, size int) *parts {
	return &parts{from: from, tok: tok, spaces: tok.spaces(), size: size}
}

// next returns the next part as valid UTF-8; io.EOF where the text has ended.
func (p *parts) next() (string, error) {
	looked := 0 // there is no cut in so many bytes
	for want := p.size; ; want *= 2 {
		if err := p.fill(want); err != nil {
			return "", err
		}
		if p.ended {
			if len(p.buf) == 0 {
				return "", io.EOF
			}
			return p.take(len(p.buf), 0), nil
		}
		at, skip, err := p.cut(looked)
		switch {
		case err != nil:
			return "", err
		case at > 0:
			return p.take(at, skip), nil
		case want >= mostPart:
			p.forced++
			return p.take(runeStart(p.buf), 0), nil
		}
		looked = max(0, len(p.buf)-ahead)
	}
}

// cut is the last place behind so many bytes that proves to be one to cut at, 0 where
// none of the last few does.
func (p *parts) cut(from int) (at, skip int, err error) {
	at = len(p.buf) - ahead
	for range 16 {
		if at < 0 {
			return 0, 0, nil
		}
		if at, skip = cutAt(p.buf[:at], from, p.spaces); at == 0 {
			return 0, 0, nil
		}
		if ok, err := p.proves(at, skip); err != nil || ok {
			return at, skip, err
		}
	}
	return 0, 0, nil
}

// tried is how much text around a cut is tokenized to try it, ahead how much there is
// behind it at least: more than the longest added token.
const (
	tried = 256
	ahead = 64
)

// proves reports that the text around a cut has the tokens of its two sides. What
// is not valid there makes no difference: it is as much on either side.
func (p *parts) proves(at, skip int) (bool, error) {
	from, to := max(0, at-tried), min(len(p.buf), at+skip+tried)
	for from < at && !utf8.RuneStart(p.buf[from]) {
		from++
	}
	for to > at+skip && to < len(p.buf) && !utf8.RuneStart(p.buf[to]) {
		to--
	}
	text := func(from, to int) string { return strings.ToValidUTF8(string(p.buf[from:to]), "\ufffd") }
	whole, err := p.tok.encode(nil, text(from, to))
	if err != nil {
		return false, err
	}
	sides, err := p.tok.encode(nil, text(from, at))
	if err == nil {
		sides, err = p.tok.encode(sides, text(at+skip, to))
	}
	return slices.Equal(whole, sides), err
}

// fill reads until the buffer holds so many bytes, or the text has ended.
func (p *parts) fill(want int) error {
	for len(p.buf) < want && !p.ended {
		have := len(p.buf)
		p.buf = append(p.buf, make([]byte, want-have)...)
		n, err := io.ReadFull(p.from, p.buf[have:])
		p.buf = p.buf[:have+n]
		p.read += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			p.ended = true
		} else if err != nil {
			return err
		}
	}
	return nil
}

// take gives out the first bytes, and drops skip more.
func (p *parts) take(n, skip int) string {
	text := p.valid(p.buf[:n])
	p.given += int64(n + skip)
	p.buf = append(p.buf[:0], p.buf[n+skip:]...)
	return text
}

// valid copies bytes as text, with U+FFFD for each that is not UTF-8.
func (p *parts) valid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var text strings.Builder
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			if p.invalid == 0 {
				p.invalidAt = p.given + int64(i)
			}
			p.invalid++
		}
		text.WriteRune(r)
		i += size
	}
	return text.String()
}

// cutAt is the last place behind so many bytes at which a text may be cut, 0 where
// there is none. What is skipped there is the space that the tokenizer puts before
// the next part itself.
func cutAt(b []byte, from int, spaces hf.Spaces) (at, skip int) {
	for i := len(b) - utf8.UTFMax; i > max(from-utf8.UTFMax, utf8.UTFMax); i-- {
		if !utf8.RuneStart(b[i]) {
			continue
		}
		before, _ := utf8.DecodeLastRune(b[:i])
		here, size := utf8.DecodeRune(b[i:])
		after, _ := utf8.DecodeRune(b[i+size:])
		follows := isWord(before)
		switch {
		case spaces == hf.SpaceAlways:
			if here == ' ' && follows && !unicode.IsSpace(after) {
				return i, 1
			}
		case spaces == hf.SpaceIfNone:
			if here == ' ' && follows {
				return i, 0
			}
		case follows && unicode.IsSpace(here):
			return i, 0
		case before == '\n' && isWord(here):
			if earlier, _ := utf8.DecodeLastRune(b[:i-1]); !unicode.IsSpace(earlier) {
				return i, 0
			}
		}
	}
	return 0, 0
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// runeStart is the last place between two characters.
func runeStart(b []byte) int {
	for i := len(b) - 1; i > max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			return i
		}
	}
	return len(b)
}
