package hf

// Models: byte-pair encoding, and WordPiece.

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// parseModel reads the model and returns its vocabulary.
func (t *Tokenizer) parseModel(raw json.RawMessage) (map[string]int64, error) {
	var part struct {
		Type       string
		Vocab      json.RawMessage
		Merges     []json.RawMessage
		UnkToken   *string `json:"unk_token"`
		FuseUnk    bool    `json:"fuse_unk"`
		Fallback   bool    `json:"byte_fallback"`
		Ignore     bool    `json:"ignore_merges"`
		Prefix     *string `json:"continuing_subword_prefix"`
		Suffix     *string `json:"end_of_word_suffix"`
		Dropout    *float64
		MostLetter *int `json:"max_input_chars_per_word"`
	}
	if err := json.Unmarshal(raw, &part); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	isSet := func(s *string) bool { return s != nil && *s != "" }
	if part.Type == "" && part.Merges != nil {
		part.Type = "BPE" // files of old releases do not say
	}
	if part.Type != "BPE" && part.Type != "WordPiece" {
		return nil, unsupported("model %q", part.Type)
	}
	var vocabulary map[string]int64
	if err := json.Unmarshal(part.Vocab, &vocabulary); err != nil || len(vocabulary) == 0 {
		return nil, fmt.Errorf("model: its vocabulary is empty or no map of numbers: %v", err)
	}
	ids := make(map[string]uint32, len(vocabulary))
	for content, id := range vocabulary {
		ids[content] = uint32(id)
	}
	unknown := -1
	if part.UnkToken != nil {
		id, ok := ids[*part.UnkToken]
		if !ok {
			return nil, fmt.Errorf("model: the unknown token %q is not in the vocabulary", *part.UnkToken)
		}
		unknown = int(id)
	}
	if part.Type == "WordPiece" {
		w := &wordPiece{ids: ids, unknown: unknown, prefix: "##", most: 100}
		if part.Prefix != nil {
			w.prefix = *part.Prefix
		}
		if part.MostLetter != nil {
			w.most = *part.MostLetter
		}
		t.model = w
		return vocabulary, nil
	}
	switch {
	case part.Dropout != nil && *part.Dropout > 0:
		return nil, unsupported("byte-pair encoding with dropout")
	case isSet(part.Prefix):
		return nil, unsupported("byte-pair encoding with continuing_subword_prefix")
	case isSet(part.Suffix):
		return nil, unsupported("byte-pair encoding with end_of_word_suffix")
	}
	b := &bpe{ids: ids, unknown: unknown, fuse: part.FuseUnk, fallback: part.Fallback, whole: part.Ignore, merges: make(map[[2]uint32]rule, len(part.Merges))}
	for i, raw := range part.Merges {
		left, right, err := parseMerge(raw)
		if err != nil {
			return nil, fmt.Errorf("merge %d: %w", i, err)
		}
		l, ok1 := ids[left]
		r, ok2 := ids[right]
		to, ok3 := ids[left+right]
		if !ok1 || !ok2 || !ok3 {
			return nil, fmt.Errorf("merge %d: %q and %q, or what they make, is not in the vocabulary", i, left, right)
		}
		b.merges[[2]uint32{l, r}] = rule{uint32(i), to}
	}
	if b.fallback {
		for i := range b.bytes {
			id, ok := ids[fmt.Sprintf("<0x%02X>", i)]
			b.fallback = b.fallback && ok
			b.bytes[i] = id
		}
	}
	t.model = b
	return vocabulary, nil
}

// parseMerge reads "a b", or ["a", "b"].
func parseMerge(raw json.RawMessage) (left, right string, err error) {
	var pair []string
	if json.Unmarshal(raw, &pair) == nil && len(pair) == 2 {
		return pair[0], pair[1], nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return "", "", fmt.Errorf("neither a text nor a pair")
	}
	left, right, ok := strings.Cut(text, " ")
	if !ok || strings.Contains(right, " ") {
		return "", "", fmt.Errorf("%q is not a pair", text)
	}
	return left, right, nil
}

// bpe merges, again and again, the pair of neighbours whose merge was learnt first,
// the leftmost of several (Sennrich, Haddow and Birch, "Neural machine translation of
// rare words with subword units", 2016).
type bpe struct {
	ids      map[string]uint32
	merges   map[[2]uint32]rule
	unknown  int // -1: there is no such token
	fuse     bool
	fallback bool // characters that are unknown are tokens of their bytes
	whole    bool // a word that is a token is not merged
	bytes    [256]uint32
}

// A rule is when a pair was learnt and what it makes.
type rule struct{ rank, to uint32 }

// A symbol is a token of a word while it is merged, in a list.
type symbol struct {
	id         uint32
	prev, next int32
	gone       bool // it became part of the one before
}

// A merge is a pair that could be merged: the symbol at its left, and its rule.
type merge struct {
	at int32
	rule
}

// before orders merges by rank, then from left to right.
func (m merge) before(n merge) bool { return m.rank < n.rank || m.rank == n.rank && m.at < n.at }

// push and pop keep the queue a binary heap. container/heap would allocate for each
// merge, of which a text without words has as many as characters.
func (s *state) push(m merge) {
	q := append(s.queue, m)
	i := len(q) - 1
	for ; i > 0 && m.before(q[(i-1)/2]); i = (i - 1) / 2 {
		q[i] = q[(i-1)/2]
	}
	q[i] = m
	s.queue = q
}

func (s *state) pop() merge {
	q := s.queue
	top, m := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	for i := 0; len(q) > 0; {
		child := 2*i + 1
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if child >= len(q) || !q[child].before(m) {
			q[i] = m
			break
		}
		q[i] = q[child]
		i = child
	}
	s.queue = q
	return top
}

func (b *bpe) check() error { return nil }

func (b *bpe) word(s *state, dst []uint32, text string) ([]uint32, error) {
	if b.whole {
		if id, ok := b.ids[text]; ok {
			return append(dst, id), nil
		}
	}
	if err := b.symbols(s, text); err != nil {
		return nil, err
	}
	s.queue = s.queue[:0]
	for i := range s.symbols {
		b.offer(s, int32(i))
	}
	for len(s.queue) > 0 {
		top := s.pop()
		left := &s.symbols[top.at]
		if left.gone || left.next < 0 {
			continue
		}
		right := &s.symbols[left.next]
		if r, ok := b.merges[[2]uint32{left.id, right.id}]; !ok || r != top.rule {
			continue // the pair is another by now
		}
		left.id, right.gone = top.to, true
		if left.next = right.next; left.next >= 0 {
			s.symbols[left.next].prev = top.at
		}
		b.offer(s, top.at)
		if left.prev >= 0 {
			b.offer(s, left.prev)
		}
	}
	for _, x := range s.symbols {
		if !x.gone {
			dst = append(dst, x.id)
		}
	}
	return dst, nil
}

// offer queues the pair that begins at a symbol, where there is a rule for it.
func (b *bpe) offer(s *state, at int32) {
	if x := s.symbols[at]; x.next >= 0 {
		if r, ok := b.merges[[2]uint32{x.id, s.symbols[x.next].id}]; ok {
			s.push(merge{at, r})
		}
	}
}

// symbols makes the list that a word begins as: its characters.
func (b *bpe) symbols(s *state, text string) error {
	s.symbols = s.symbols[:0]
	add := func(id uint32) {
		n := int32(len(s.symbols))
		s.symbols = append(s.symbols, symbol{id: id, prev: n - 1, next: n + 1})
	}
	unknown := false // the last symbol is
	for i := 0; i < len(text); {
		_, size := utf8.DecodeRuneInString(text[i:])
		c := text[i : i+size]
		i += size
		id, ok := b.ids[c]
		switch {
		case ok:
			add(id)
		case b.fallback:
			for k := range len(c) {
				add(b.bytes[c[k]])
			}
		case b.unknown < 0:
			return fmt.Errorf("the tokenizer has no token for %q, and none for what is unknown", c)
		case b.fuse && unknown:
			continue
		default:
			add(uint32(b.unknown))
			unknown = true
			continue
		}
		unknown = false
	}
	if n := len(s.symbols); n > 0 {
		s.symbols[n-1].next = -1
	}
	return nil
}

// wordPiece takes the longest token that a word begins with, and so on with the rest,
// whose tokens are written with a prefix (Schuster and Nakajima, "Japanese and Korean
// voice search", 2012).
type wordPiece struct {
	ids     map[string]uint32
	unknown int
	prefix  string
	most    int // characters of a word; longer ones are unknown
}

func (w *wordPiece) check() error {
	if w.unknown < 0 {
		return fmt.Errorf("model: WordPiece without a token for what is unknown")
	}
	return nil
}

func (w *wordPiece) word(_ *state, dst []uint32, text string) ([]uint32, error) {
	from := len(dst)
	if utf8.RuneCountInString(text) > w.most {
		return append(dst, uint32(w.unknown)), nil
	}
	for start := 0; start < len(text); {
		end, id, ok := len(text), uint32(0), false
		for ; end > start; end-- {
			if end < len(text) && !utf8.RuneStart(text[end]) {
				continue
			}
			piece := text[start:end]
			if start > 0 {
				piece = w.prefix + piece
			}
			if id, ok = w.ids[piece]; ok {
				break
			}
		}
		if !ok {
			return append(dst[:from], uint32(w.unknown)), nil
		}
		dst, start = append(dst, id), end
	}
	return dst, nil
}
