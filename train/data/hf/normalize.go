package hf

// Normalizers change the text before it is split.

import (
	"encoding/json"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

type normalizer interface{ normal(text string) string }

type (
	form    norm.Form
	prepend string
	replace struct{ from, to string }
	lower   struct{}
	accents struct{}
	bert    struct{ clean, chinese, accents, lower bool }
)

var forms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

func parseNormalizer(raw json.RawMessage) ([]normalizer, error) {
	if absent(raw) {
		return nil, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	if f, ok := forms[kind]; ok {
		return []normalizer{form(f)}, nil
	}
	var part struct {
		Normalizers []json.RawMessage
		Prepend     string
		Pattern     struct{ String, Regex *string }
		Content     string

		CleanText          *bool `json:"clean_text"`
		HandleChineseChars *bool `json:"handle_chinese_chars"`
		StripAccents       *bool `json:"strip_accents"`
		Lowercase          *bool
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, err
	}
	isSet := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	switch kind {
	case "Sequence":
		var all []normalizer
		for _, raw := range part.Normalizers {
			n, err := parseNormalizer(raw)
			if err != nil {
				return nil, err
			}
			all = append(all, n...)
		}
		return all, nil
	case "Prepend":
		return []normalizer{prepend(part.Prepend)}, nil
	case "Replace":
		if part.Pattern.String == nil || *part.Pattern.String == "" {
			return nil, unsupported("normalizer Replace by an expression")
		}
		return []normalizer{replace{*part.Pattern.String, part.Content}}, nil
	case "Lowercase":
		return []normalizer{lower{}}, nil
	case "StripAccents":
		return []normalizer{accents{}}, nil
	case "BertNormalizer":
		low := isSet(part.Lowercase, true)
		return []normalizer{bert{isSet(part.CleanText, true), isSet(part.HandleChineseChars, true), isSet(part.StripAccents, low), low}}, nil
	}
	return nil, unsupported("normalizer %q", kind)
}

func (f form) normal(text string) string { return norm.Form(f).String(text) }

func (p prepend) normal(text string) string {
	if text == "" {
		return text
	}
	return string(p) + text
}

func (r replace) normal(text string) string { return strings.ReplaceAll(text, r.from, r.to) }

// normal is the lower case of each character by itself, a sigma at the end of a word
// included.
func (lower) normal(text string) string {
	// The one character whose lower case is two.
	return strings.Map(unicode.ToLower, strings.ReplaceAll(text, "İ", "i̇"))
}

func (accents) normal(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, text)
}

// normal does what BERT's own tokenizer begins with.
func (b bert) normal(text string) string {
	if b.clean {
		text = strings.Map(func(r rune) rune {
			switch {
			case r == '\t', r == '\n', r == '\r':
				return ' '
			case r == unicode.ReplacementChar, unicode.Is(unicode.C, r): // U+0085 too
				return -1
			case unicode.IsSpace(r):
				return ' '
			}
			return r
		}, text)
	}
	if b.chinese {
		var out strings.Builder
		for _, r := range text {
			if isChinese(r) {
				out.WriteRune(' ')
				out.WriteRune(r)
				out.WriteRune(' ')
			} else {
				out.WriteRune(r)
			}
		}
		text = out.String()
	}
	if b.accents {
		text = accents{}.normal(norm.NFD.String(text))
	}
	if b.lower {
		text = lower{}.normal(text)
	}
	return text
}

// isChinese reports the blocks of ideographs that BERT splits into characters.
func isChinese(r rune) bool {
	for _, block := range [][2]rune{{0x4E00, 0x9FFF}, {0x3400, 0x4DBF}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
		{0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF}, {0x2F800, 0x2FA1F}} {
		if r >= block[0] && r <= block[1] {
			return true
		}
	}
	return false
}
