package data

// Text into a file of tokens, read, tokenized and written in parts, so that neither
// has to fit into memory. The file is an .npy array of uint16, or of uint32 for more
// than 65,536 tokens, which --tokens reads too.
//
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
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/onnx-remat/remat/onnx"
	arrays "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/train/data/hf"
)

// partBytes is how much text is tokenized at once by one goroutine, mostPart what
// may lie between two cuts.
const (
	partBytes = 256 << 10
	mostPart  = 16 << 20
)

// openText tokenizes text, or finds the tokens of a run before.
func (s *Source) openText(ctx context.Context, d *dataset, o Options, flag string) error {
	tok, err := openTokenizer(o.Tokenizer)
	if err != nil {
		return err
	}
	d.name, d.tokenizer = strings.Join(o.Text, ", "), tok.identity()
	if len(o.Text) > 3 {
		d.name = fmt.Sprintf("%s and %d other files", o.Text[0], len(o.Text)-1)
	}
	var files []textFile
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for _, path := range o.Text {
		f, size, err := openFile(flag, path)
		if err != nil {
			return err
		}
		files = append(files, textFile{f, path, size})
		id, err := identify(f, size)
		if err != nil {
			return fmt.Errorf("%s %s: %w", flag, path, err)
		}
		d.files = append(d.files, id)
	}
	w := &tokenWriter{tok: tok, progress: o.Progress}
	for _, f := range files {
		w.total += f.size
	}
	if w.kind = onnx.Uint16; tok.size() > 1<<16 {
		w.kind = onnx.Uint32
	}
	kept := ""
	if o.Folder != "" {
		kept = filepath.Join(o.Folder, "tokens-"+tokensKey(d)+".npy")
		if s.reuse(d, kept, w.kind) {
			return nil
		}
	}
	f, err := writeTokens(kept, func(f *os.File) error { return w.write(ctx, f, files, flag) })
	if err != nil {
		return err
	}
	s.files = append(s.files, f)
	d.tokens = &array{kind: w.kind, shape: []int64{w.count}, from: f, base: tokensHeader}
	d.largest, d.largestAt = w.largest, w.largestAt
	if w.count == 0 {
		return fmt.Errorf("%s %s: no tokens in it", flag, d.name)
	}
	if w.forced > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%s: no place to cut it into parts in %d stretches of 16 MiB: tokens there may be others than of the whole text", d.name, w.forced))
	}
	if w.invalid > 0 {
		s.notes = append(s.notes, fmt.Sprintf("%s: %s not UTF-8, the first at byte %d of %s: read as U+FFFD",
			d.name, count(w.invalid, "byte"), w.invalidAt, w.invalidIn))
	}
	return nil
}

// tokensKey names the tokens of a text by its content and the tokenizer.
func tokensKey(d *dataset) string {
	h := sha256.New()
	fmt.Fprintln(h, "tokens 1", d.tokenizer)
	for _, f := range d.files {
		fmt.Fprintln(h, f.Bytes, f.SHA256)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// reuse opens the tokens of a run before; false where there are none, or no whole
// ones.
func (s *Source) reuse(d *dataset, path string, kind onnx.DType) bool {
	f, size, err := onnx.OpenRegular(path)
	if err != nil {
		return false
	}
	a, err := openNPY(f, path, size)
	if err != nil || a.kind != kind || len(a.shape) != 1 || a.shape[0] < 1 {
		f.Close()
		return false
	}
	s.files = append(s.files, f)
	d.tokens = a
	return true
}

// writeTokens writes a file beside path and then in its place, and opens it; with no
// path it is a temporary file that has lost its name.
func writeTokens(path string, write func(*os.File) error) (*os.File, error) {
	if path != "" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, fmt.Errorf("cannot create %s: %w", filepath.Dir(path), err)
		}
		if err := onnx.ReplaceFile(path, write); err != nil {
			return nil, err
		}
		f, _, err := onnx.OpenRegular(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return f, nil
	}
	f, err := os.CreateTemp("", "remat-tokens-*")
	if err != nil {
		return nil, fmt.Errorf("tokens: %w", err)
	}
	os.Remove(f.Name())
	if err := write(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// A textFile is an open text.
type textFile struct {
	*os.File
	path string
	size int64
}

// A tokenWriter tokenizes texts into a file.
type tokenWriter struct {
	tok      textTokenizer
	kind     onnx.DType
	progress func(done, total int64)
	out      *bufio.Writer

	done, total        int64 // bytes of text
	count              int64
	largest, largestAt int64
	invalid            int64
	invalidAt          int64
	invalidIn          string
	forced             int
}

// tokensHeader is the length of the header of a file of tokens, whatever their
// number: it is written last.
const tokensHeader = 128

func (w *tokenWriter) write(ctx context.Context, f *os.File, files []textFile, flag string) error {
	w.out = bufio.NewWriterSize(f, 1<<20)
	w.out.Write(make([]byte, tokensHeader))
	for i, text := range files {
		if i > 0 {
			if end, ok := w.tok.end(); ok {
				w.put([]uint32{end})
			}
		}
		if err := w.file(ctx, text); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%s %s: %w", flag, text.path, err)
		}
	}
	if err := w.out.Flush(); err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	var header strings.Builder
	err := arrays.EncodeNPY(&header, arrays.Tensor{Type: w.kind, Shape: []int64{w.count}})
	if err == nil && header.Len() != tokensHeader {
		err = fmt.Errorf("a header of %d bytes", header.Len())
	}
	if err == nil {
		_, err = f.WriteAt([]byte(header.String()), 0)
	}
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	return nil
}

// file tokenizes one text, a few parts at a time beside each other.
func (w *tokenWriter) file(ctx context.Context, f textFile) error {
	p := newParts(f, w.tok, partBytes)
	n := runtime.GOMAXPROCS(0)
	texts, tokens, errs := make([]string, 0, n), make([][]uint32, n), make([]error, n)
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return err
		}
		texts = texts[:0]
		for len(texts) < n && more {
			text, err := p.next()
			if errors.Is(err, io.EOF) {
				more = false
				break
			}
			if err != nil {
				return err
			}
			texts = append(texts, text)
		}
		var group sync.WaitGroup
		for i, text := range texts {
			group.Go(func() { tokens[i], errs[i] = w.tok.encode(tokens[i][:0], text) })
		}
		group.Wait()
		for i := range texts {
			if errs[i] != nil {
				return errs[i]
			}
			w.put(tokens[i])
		}
		if _, err := w.out.Write(nil); err != nil { // of a write before
			return fmt.Errorf("writing tokens: %w", err)
		}
		if w.progress != nil {
			w.progress(w.done+p.read, w.total)
		}
	}
	if p.invalid > 0 && w.invalid == 0 {
		w.invalidAt, w.invalidIn = p.invalidAt, filepath.Base(f.path)
	}
	w.invalid += p.invalid
	w.forced += p.forced
	w.done += f.size
	return nil
}

// put writes tokens. An error stays in the writer, and Flush returns it.
func (w *tokenWriter) put(tokens []uint32) {
	var b [4]byte
	size := w.kind.Size()
	for _, t := range tokens {
		if int64(t) > w.largest {
			w.largest, w.largestAt = int64(t), w.count
		}
		w.count++
		binary.LittleEndian.PutUint32(b[:], t)
		w.out.Write(b[:size])
	}
}

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
		at, skip, err := p.cut()
		switch {
		case err != nil:
			return "", err
		case at > 0:
			return p.take(at, skip), nil
		case want >= mostPart:
			p.forced++
			return p.take(runeStart(p.buf), 0), nil
		}
	}
}

// cut is the last place that proves to be one to cut at, 0 where none of the last
// few does.
func (p *parts) cut() (at, skip int, err error) {
	at = len(p.buf) - ahead
	for range 16 {
		if at < 0 {
			return 0, 0, nil
		}
		if at, skip = cutAt(p.buf[:at], p.spaces); at == 0 {
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

// cutAt is the last place at which a text may be cut, 0 where there is none. What is
// skipped there is the space that the tokenizer puts before the next part itself.
func cutAt(b []byte, spaces hf.Spaces) (at, skip int) {
	for i := len(b) - utf8.UTFMax; i > utf8.UTFMax; i-- {
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
