package data

// Tokens, from text or a file, onto the inputs of a language model. A sample is as
// many tokens as the model's length; samples follow each other without a gap, and
// what the last one leaves over is not read. Where a label is the next token, the
// last one of a sample is the first of the one after it.
//
// Validation data taken from the end share no token with the training data.

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/onnx-remat/remat/onnx"
)

func (s *Source) feedTokens(t *target) (*Data, error) {
	l, err := s.language(t)
	if err != nil {
		return nil, err
	}
	d := &Data{Mapping: l.Mapping}
	fixed, err := t.constants(l.Fill)
	if err != nil {
		return nil, err
	}
	train, err := t.stream(&s.train, s.o, l)
	if err != nil {
		return nil, err
	}
	total := train.samples(l, 0)
	what := train.flag + " " + s.train.name
	if s.o.Evaluate {
		if d.Val, err = s.tokenBatches(t, l, fixed, train, 0, total, true, what); err != nil {
			return nil, err
		}
		return t.done(s, l, d), nil
	}
	trained := total
	if s.share > 0 {
		if total < 2 {
			return nil, train.short(l, 2, what+" for training and validation")
		}
		if trained, err = s.divided(total); err != nil {
			return nil, err
		}
		for trained > 1 && train.samples(l, train.after(l, trained)) < 1 {
			trained--
		}
	}
	if d.Train, err = s.tokenBatches(t, l, fixed, train, 0, trained, false, what); err != nil {
		return nil, err
	}
	switch {
	case s.val != nil:
		val, err := t.stream(s.val, s.o, l)
		if err != nil {
			return nil, err
		}
		d.Val, err = s.tokenBatches(t, l, fixed, val, 0, val.samples(l, 0), true, "--val "+s.val.name)
		if err != nil {
			return nil, err
		}
	case s.share > 0:
		again, err := t.stream(&s.train, s.o, l) // a buffer of its own
		if err != nil {
			return nil, err
		}
		from := again.after(l, trained)
		d.Val, err = s.tokenBatches(t, l, fixed, again, from, again.samples(l, from), true, "--val "+s.o.Val)
		if err != nil {
			return nil, err
		}
	}
	return t.done(s, l, d), nil
}

// done adds what was settled on the way.
func (t *target) done(s *Source, l *language, d *Data) *Data {
	d.Dims, d.Notes = t.dims, slices.Concat(l.notes(), s.notes, t.notes)
	return d
}

// A tokenSet is a stream of tokens, or rows of them, for one model.
type tokenSet struct {
	stream
	set  *dataset
	flag string
	row  int64 // tokens in a row; 0: a stream
}

// stream gives the tokens of a set a type, and checks them against the vocabulary.
func (t *target) stream(d *dataset, o Options, l *language) (*tokenSet, error) {
	s := &tokenSet{set: d, flag: "--" + d.kind}
	a := *d.tokens
	if d.raw > 0 {
		kind, err := rawType(d, o.TokenType, l.Vocabulary)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", s.flag, d.name, err)
		}
		a.kind, a.shape = kind, []int64{d.raw / kind.Size()}
		if note := fmt.Sprintf("%s: read as %s", d.name, kind); o.TokenType == "" && !slices.Contains(t.notes, note) {
			t.notes = append(t.notes, note)
		}
	}
	s.array, s.name, s.tokenizer = &a, d.name, d.tokenizer
	s.count, _ = onnx.Elements(a.shape)
	if len(a.shape) == 2 {
		s.row = a.shape[1]
		if want := l.Length + l.extra(); s.row != want {
			return nil, fmt.Errorf("%s %s: rows of %d tokens, want %d", s.flag, d.name, s.row, want)
		}
	}
	return s, s.known(l.Vocabulary)
}

// rawType is the type of raw tokens: the one stated, or the smaller of uint16 and
// uint32 that holds the vocabulary.
func rawType(d *dataset, stated string, vocabulary int64) (onnx.DType, error) {
	kind := onnx.Uint32
	switch {
	case stated == "uint16":
		kind = onnx.Uint16
	case stated == "" && vocabulary == 0:
		return 0, errors.New("the model's vocabulary is not known: give --token-type uint16 or uint32")
	case stated == "" && vocabulary <= 1<<16:
		kind = onnx.Uint16
	}
	if what, instead := notTokens(d); stated == "" && what != "" {
		return 0, fmt.Errorf("looks like %s, not like tokens: %s, or --token-type uint16 or uint32 if it holds them", what, instead)
	}
	if d.raw%kind.Size() != 0 {
		return 0, fmt.Errorf("%d bytes are not a whole number of %s tokens: is the file cut short, or --token-type another?", d.raw, kind)
	}
	if stated == "" && kind == onnx.Uint16 && everySecondZero(d) {
		return 0, errors.New("read as uint16, every second token is 0: give --token-type uint32, or uint16 if that is so")
	}
	return kind, nil
}

// head is the beginning of raw tokens, nil for few.
func (d *dataset) head() []byte {
	head := make([]byte, min(d.raw, 4096)/4*4)
	if len(head) < 64 || d.tokens.read(head, 0) != nil {
		return nil
	}
	return head
}

// notTokens names what is no raw tokens, and what to do with it; small numbers are
// tokens of any vocabulary, so nothing else would show it.
func notTokens(d *dataset) (what, instead string) {
	head := d.head()
	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return "an archive", "give an array of it as .npy"
	case head != nil && isText(head):
		return "text", "give it with --text"
	}
	return "", ""
}

// isText reports characters, and no controls but white space. The last one may be cut.
func isText(b []byte) bool {
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			return len(b) < utf8.UTFMax
		}
		if unicode.IsControl(r) && !unicode.IsSpace(r) {
			return false
		}
		b = b[size:]
	}
	return true
}

// everySecondZero looks at the first tokens for uint32 that is taken for uint16.
func everySecondZero(d *dataset) bool {
	head := d.head()
	some := false
	for i := 0; i < len(head); i += 4 {
		some = some || head[i] != 0 || head[i+1] != 0
		if head[i+2] != 0 || head[i+3] != 0 {
			return false
		}
	}
	return some
}

// samples is how many there are from a token on.
func (s *tokenSet) samples(l *language, from int64) int64 {
	if s.row > 0 {
		return (s.count - from) / s.row
	}
	return max(0, s.count-from-l.extra()) / l.Length
}

// after is the first token that so many samples do not read.
func (s *tokenSet) after(l *language, samples int64) int64 {
	if s.row > 0 {
		return samples * s.row
	}
	return samples*l.Length + l.extra()
}

// short is the error for too few tokens.
func (s *tokenSet) short(l *language, samples int64, what string) error {
	return fmt.Errorf("%s: %s, but %d are needed for %s of %d: use more data, or a smaller batch or length",
		what, count(s.count, "token"), s.after(l, samples), count(samples, "sample"), l.Length)
}

// wholeCheck is the length in bytes up to which data is read as a whole before the first
// step: all tokens are checked against the vocabulary, and an array against its archive's
// checksum. Tokens of larger files are checked as they are read.
const wholeCheck = 64 << 20

// known checks tokens against the vocabulary.
func (s *tokenSet) known(vocabulary int64) error {
	if vocabulary > 0 && s.set.largest >= vocabulary {
		return &RangeError{File: s.name, Position: s.set.largestAt, Token: s.set.largest, Vocabulary: vocabulary, Tokenizer: s.tokenizer}
	}
	if vocabulary == 0 || s.set.checked == vocabulary || s.count*s.kind.Size() > wholeCheck {
		return nil
	}
	dst := make([]byte, 8<<16)
	for at := int64(0); at < s.count; at += 1 << 16 {
		if err := s.put(dst[:8*min(1<<16, s.count-at)], onnx.Int64, at, vocabulary); err != nil {
			return err
		}
	}
	s.set.checked = vocabulary
	return nil
}

// tokenBatches makes the batches of n samples from a token on.
func (s *Source) tokenBatches(t *target, l *language, fixed []part, set *tokenSet, from, n int64, once bool, what string) (*Batches, error) {
	if least := l.Batch; n < least && !(once && n > 0 && l.canFill()) {
		if once && l.canFill() {
			least = 1
		}
		return nil, set.short(l, least, what)
	}
	step := l.Length
	if set.row > 0 {
		step = set.row
	}
	shuffle := s.o.Shuffle && !once
	inputs := maps.Clone(l.Fill)
	inputs[l.Tokens] = fillTokens
	out := Batches{batch: l.Batch, samples: n, once: once, parts: slices.Clone(fixed), order: newOrder(n, shuffle, s.o.Seed)}
	add := func(v *onnx.Value, shift, limit int64, empty func([]byte)) {
		kind := v.Type.DType
		out.parts = append(out.parts, part{name: v.Name, kind: kind, shape: shapeOf(v), empty: empty,
			put: func(dst []byte, sample int64) error { return set.put(dst, kind, from+sample*step+shift, limit) }})
	}
	var emptyTokens func([]byte)
	if l.canFill() {
		emptyTokens = func(dst []byte) { clear(dst) }
	}
	add(l.tokens, 0, l.Vocabulary, emptyTokens)
	counts := l.tokens
	if l.labels != nil {
		counts = l.labels
		inputs[l.Labels] = fillLabels
		kind, ignored := l.labels.Type.DType, l.Ignored // not l, which keeps the model
		var empty func([]byte)
		if l.canFill() {
			empty = func(dst []byte) {
				for i := int64(0); i < int64(len(dst)); i += kind.Size() {
					kind.PutInt(dst[i:], ignored)
				}
			}
		}
		add(l.labels, l.extra(), l.limit, empty)
	}
	out.labels = labels{input: counts.Name, kind: counts.Type.DType, counted: l.counted, ignored: l.Ignored, ignores: l.Ignores}
	out.compared = []labels{out.labels}
	out.identity = Identity{Kind: set.set.kind, Files: set.set.files, Tokenizer: set.set.tokenizer, Labels: l.Kind, Inputs: inputs,
		Batch: l.Batch, Length: l.Length, Samples: n, Shuffle: shuffle}
	if set.set.raw > 0 {
		out.identity.TokenType = set.kind.String()
	}
	if shuffle {
		out.identity.Seed = s.o.Seed
	}
	return t.batches(out, what)
}
