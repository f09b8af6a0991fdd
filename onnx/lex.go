package onnx

// Tokens of the text form. Newlines matter only where an optional part could
// be taken for the next statement, so each token knows whether it opens a line.

import (
	"fmt"
	"strconv"
)

type tokenKind int

const (
	endToken tokenKind = iota
	wordToken
	stringToken
	blobToken // ~base64, text without the ~
	punctToken
)

type token struct {
	kind tokenKind
	// text is the word, the unquoted string, the base64 or the sign.
	text      string
	line, col int
	first     bool // opens a line
}

func (t token) String() string {
	switch t.kind {
	case endToken:
		return "the end"
	case stringToken:
		return strconv.Quote(short(t.text))
	case blobToken:
		return "base64"
	}
	return short(t.text)
}

// short keeps messages on one line of a bearable length.
func short(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

// lexer cuts text into tokens. The first error ends the input.
type lexer struct {
	src       string
	pos       int
	line      int
	lineStart int
	err       error
}

func (l *lexer) next() token {
	first := l.pos == 0
	for l.err == nil && l.pos < len(l.src) {
		switch c := l.src[l.pos]; {
		case c == '\n':
			l.pos++
			l.line++
			l.lineStart, first = l.pos, true
		case c == ' ' || c == '\t' || c == '\r':
			l.pos++
		case c == '#':
			for l.pos < len(l.src) && l.src[l.pos] != '\n' {
				l.pos++
			}
		default:
			t := token{line: l.line, col: l.pos - l.lineStart + 1, first: first}
			l.scan(&t)
			return t
		}
	}
	return token{kind: endToken, line: l.line, col: l.pos - l.lineStart + 1, first: true}
}

func (l *lexer) scan(t *token) {
	start := l.pos
	c := l.src[start]
	switch {
	case wordByte(c):
		t.kind, t.text = wordToken, l.word()
	case c == '~':
		l.pos++
		t.kind, t.text = blobToken, l.word()
	case c == '"':
		t.kind, t.text = stringToken, l.quoted(t)
	case c > ' ' && c < 0x7f:
		l.pos++
		t.kind, t.text = punctToken, l.src[start:l.pos]
	default:
		l.fail(*t, "unexpected byte %#x; quote it", c)
	}
}

func (l *lexer) word() string {
	start := l.pos
	for l.pos < len(l.src) && wordByte(l.src[l.pos]) {
		l.pos++
	}
	return l.src[start:l.pos]
}

func (l *lexer) quoted(t *token) string {
	start := l.pos
	for l.pos++; l.pos < len(l.src); l.pos++ {
		switch l.src[l.pos] {
		case '\\':
			l.pos++
		case '\n':
			l.fail(*t, "string runs over the end of the line")
			return ""
		case '"':
			l.pos++
			s, err := strconv.Unquote(l.src[start:l.pos])
			if err != nil {
				l.fail(*t, "string with a bad escape")
			}
			return s
		}
	}
	l.fail(*t, "string without an end")
	return ""
}

// fail keeps the first error and ends the input.
func (l *lexer) fail(at token, format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf("line %d, column %d: %s", at.line, at.col, fmt.Sprintf(format, args...))
	}
	l.pos = len(l.src)
}
