package hf

// Pre-tokenizers split a text into words.

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// A splitter appends the words of a part of a text; first: it begins the text.
type splitter interface {
	split(dst []string, text string, first bool) ([]string, error)
}

type (
	// byteLevel writes bytes as the characters that byte-level vocabularies use.
	byteLevel struct {
		prefix bool
		words  *regexp2.Regexp
	}
	// pattern cuts at matches: of an expression, or where that is nil, of single
	// characters.
	pattern struct {
		by       *regexp2.Regexp
		of       func(rune) bool
		invert   bool // what lies between matches counts as a match, and the other way
		behavior string
	}
	metaspace struct {
		replacement string
		scheme      int
		words       bool // each replacement begins a word
	}
	bertWords struct{}
)

const (
	never = iota
	onlyFirst
	always
)

const gpt2Words = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

func parseSplitter(raw json.RawMessage) ([]splitter, error) {
	if absent(raw) {
		return nil, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	var part struct {
		PreTokenizers    []json.RawMessage `json:"pretokenizers"`
		AddPrefixSpace   *bool             `json:"add_prefix_space"`
		UseRegex         *bool             `json:"use_regex"`
		Pattern          struct{ String, Regex *string }
		Behavior         string
		Invert           bool
		IndividualDigits bool `json:"individual_digits"`
		Replacement      string
		PrependScheme    *string `json:"prepend_scheme"`
		Split            *bool
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, err
	}
	switch kind {
	case "Sequence":
		var all []splitter
		for _, raw := range part.PreTokenizers {
			s, err := parseSplitter(raw)
			if err != nil {
				return nil, err
			}
			all = append(all, s...)
		}
		return all, nil
	case "ByteLevel":
		b := byteLevel{prefix: part.AddPrefixSpace == nil || *part.AddPrefixSpace}
		if part.UseRegex == nil || *part.UseRegex {
			b.words, err = compile(gpt2Words)
		}
		return []splitter{b}, err
	case "Split":
		p := pattern{behavior: part.Behavior, invert: part.Invert}
		switch {
		case part.Pattern.Regex != nil:
			p.by, err = compile(*part.Pattern.Regex)
		case part.Pattern.String != nil && *part.Pattern.String != "":
			p.by, err = compile(regexp2.Escape(*part.Pattern.String))
		default:
			return nil, unsupported("pre-tokenizer Split without a pattern")
		}
		return []splitter{p}, cmp.Or(err, p.check(kind))
	case "Punctuation":
		p := pattern{of: isPunctuation, behavior: cmp.Or(part.Behavior, isolated)}
		return []splitter{p}, p.check(kind)
	case "Digits":
		p := pattern{of: unicode.IsNumber, behavior: contiguous}
		if part.IndividualDigits {
			p.behavior = isolated
		}
		return []splitter{p}, nil
	case "WhitespaceSplit":
		return []splitter{pattern{of: unicode.IsSpace, behavior: removed}}, nil
	case "Metaspace":
		m := metaspace{part.Replacement, always, part.Split == nil || *part.Split}
		if part.AddPrefixSpace != nil && !*part.AddPrefixSpace {
			m.scheme = never
		}
		if part.PrependScheme != nil {
			switch *part.PrependScheme {
			case "always":
				m.scheme = always
			case "first":
				m.scheme = onlyFirst
			case "never":
				m.scheme = never
			default:
				return nil, unsupported("pre-tokenizer Metaspace with scheme %q", *part.PrependScheme)
			}
		}
		if m.replacement == "" {
			return nil, unsupported("pre-tokenizer Metaspace without a replacement")
		}
		return []splitter{m}, nil
	case "BertPreTokenizer":
		return []splitter{bertWords{}}, nil
	}
	return nil, unsupported("pre-tokenizer %q", kind)
}

// What becomes of the matches of a pattern: words of their own, nothing, a part of the
// word before or behind, or of a word with matches beside them.
const (
	isolated   = "Isolated"
	removed    = "Removed"
	previous   = "MergedWithPrevious"
	next       = "MergedWithNext"
	contiguous = "Contiguous"
)

func (p pattern) check(kind string) error {
	switch p.behavior {
	case isolated, removed, previous, next, contiguous:
		return nil
	}
	return unsupported("pre-tokenizer %s with behavior %q", kind, p.behavior)
}

// longestMatch ends an expression that goes astray: a word takes microseconds.
const longestMatch = 30 * time.Second

// compile reads an expression in the syntax of Ruby, which the library has. What
// means something else here is refused: sets within sets, and escapes of Ruby's own.
// ^ and $ match at every line there.
func compile(expression string) (*regexp2.Regexp, error) {
	depth, refused := 0, false
	for i := 0; i < len(expression); i++ {
		switch c := expression[i]; {
		case c == '\\':
			i++
			refused = refused || i < len(expression) && strings.IndexByte("hHRXKGyYNO", expression[i]) >= 0
		case c == '[':
			refused = refused || depth > 0
			depth++
		case c == ']' && depth > 0:
			depth--
		case c == '&' && depth > 0 && strings.HasPrefix(expression[i:], "&&"):
			refused = true
		}
	}
	r, err := regexp2.Compile(expression, regexp2.Multiline)
	if err != nil || refused {
		return nil, unsupported("the expression %q", expression)
	}
	r.MatchTimeout = longestMatch
	return r, nil
}

// pieces yields the matches of an expression and what lies between them, in order.
func pieces(r *regexp2.Regexp, text string, yield func(piece string, match bool)) error {
	runes := []rune(text)
	from := 0
	err := r.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		at, length, _ := m.GroupRange(0)
		end := at + length
		if at > from {
			yield(string(runes[from:at]), false)
		}
		if end > at {
			yield(string(runes[at:end]), true)
		}
		from = end
		return true
	})
	if from < len(runes) {
		yield(string(runes[from:]), false)
	}
	return err
}

func (b byteLevel) split(dst []string, text string, _ bool) ([]string, error) {
	if b.prefix && !strings.HasPrefix(text, " ") {
		text = " " + text
	}
	if b.words == nil {
		return append(dst, byteText(text)), nil
	}
	err := pieces(b.words, text, func(piece string, _ bool) { dst = append(dst, byteText(piece)) })
	return dst, err
}

// byteRunes are the characters that stand for bytes: printable ones for themselves,
// and the others from U+0100 on in order (Radford et al., 2019, encoder.py).
var byteRunes = func() (runes [256]rune) {
	next := rune(0x100)
	for b := range runes {
		r := rune(b)
		if r >= '!' && r <= '~' || r >= '¡' && r <= '¬' || r >= '®' && r <= 'ÿ' {
			runes[b] = r
		} else {
			runes[b] = next
			next++
		}
	}
	return runes
}()

func byteText(text string) string {
	var out strings.Builder
	out.Grow(2 * len(text))
	for i := range len(text) {
		out.WriteRune(byteRunes[text[i]])
	}
	return out.String()
}

func (p pattern) split(dst []string, text string, _ bool) ([]string, error) {
	type piece struct {
		text  string
		match bool
	}
	var list []piece
	add := func(text string, match bool) { list = append(list, piece{text, match != p.invert}) }
	if p.by != nil {
		if err := pieces(p.by, text, add); err != nil {
			return nil, err
		}
	} else {
		from := 0
		for i, r := range text {
			if p.of(r) {
				if i > from {
					add(text[from:i], false)
				}
				from = i + utf8.RuneLen(r)
				add(text[i:from], true)
			}
		}
		if from < len(text) {
			add(text[from:], false)
		}
	}
	for i, x := range list {
		before := i > 0 && list[i-1].match
		joins := false // the word before
		switch p.behavior {
		case removed:
			if x.match {
				continue
			}
		case previous:
			joins = x.match && i > 0 && !before
		case next:
			joins = !x.match && before
		case contiguous:
			joins = i > 0 && x.match == before
		}
		if joins {
			dst[len(dst)-1] += x.text
		} else {
			dst = append(dst, x.text)
		}
	}
	return dst, nil
}

func (m metaspace) split(dst []string, text string, first bool) ([]string, error) {
	text = strings.ReplaceAll(text, " ", m.replacement)
	if (m.scheme == always || m.scheme == onlyFirst && first) && !strings.HasPrefix(text, m.replacement) {
		text = m.replacement + text
	}
	if !m.words {
		return append(dst, text), nil
	}
	for i, part := range strings.Split(text, m.replacement) {
		if i > 0 {
			part = m.replacement + part
		}
		if part != "" {
			dst = append(dst, part)
		}
	}
	return dst, nil
}

// split takes words between white space, and punctuation as words of its own.
func (bertWords) split(dst []string, text string, _ bool) ([]string, error) {
	for _, word := range strings.FieldsFunc(text, unicode.IsSpace) {
		from := 0
		for i, r := range word {
			if !isPunctuation(r) {
				continue
			}
			if i > from {
				dst = append(dst, word[from:i])
			}
			from = i + len(string(r))
			dst = append(dst, word[i:from])
		}
		if from < len(word) {
			dst = append(dst, word[from:])
		}
	}
	return dst, nil
}

// isPunctuation reports Unicode's punctuation and ASCII's symbols.
func isPunctuation(r rune) bool {
	return r >= '!' && r <= '/' || r >= ':' && r <= '@' || r >= '[' && r <= '`' || r >= '{' && r <= '~' || unicode.IsPunct(r)
}
