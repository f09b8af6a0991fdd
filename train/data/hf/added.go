package hf

// Added tokens are cut out of a text wherever they stand in it: at each place the
// longest that begins there.

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
)

type addedToken struct {
	content        string
	id             uint32
	lstrip, rstrip bool // takes white space before and after with it
}

// added are tokens by their first byte, the longest first.
type added struct {
	by  [256][]addedToken
	any bool
}

func (a *added) add(t addedToken) {
	a.by[t.content[0]] = append(a.by[t.content[0]], t)
	a.any = true
}

func (a *added) sort() {
	for _, list := range a.by {
		slices.SortStableFunc(list, func(x, y addedToken) int { return cmp.Compare(len(y.content), len(x.content)) })
	}
}

// at is the token that stands at a place of a text, nil where none does.
func (a *added) at(text string, i int) *addedToken {
	list := a.by[text[i]]
	for k := range list {
		if strings.HasPrefix(text[i:], list[k].content) {
			return &list[k]
		}
	}
	return nil
}

// cut yields what lies between added tokens, and these, until told to stop. Nothing
// is yielded of an empty text.
func (a *added) cut(text string, yield func(part string, id uint32, token bool) bool) {
	from := 0
	for i := 0; a.any && i < len(text); i++ {
		t := a.at(text, i)
		if t == nil {
			continue
		}
		start, end := i, i+len(t.content)
		if t.lstrip {
			start = from + len(strings.TrimRightFunc(text[from:start], unicode.IsSpace))
		}
		if t.rstrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if start > from && !yield(text[from:start], 0, false) || !yield("", t.id, true) {
			return
		}
		from, i = end, end-1
	}
	if from < len(text) {
		yield(text[from:], 0, false)
	}
}
