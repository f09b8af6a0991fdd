package data

// Text into a file of tokens, read, tokenized and written in parts, so that neither
// has to fit into memory. The file is an .npy array of uint16, or of uint32 for more
// than 65,536 tokens, which --tokens reads too.

import (
	"bufio"
	"bytes"
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
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/onnx-remat/remat/onnx"
	arrays "github.com/onnx-remat/remat/runtime"
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
		if why := notText(f); why != "" {
			return fmt.Errorf("%s %s: %s", flag, path, why)
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".csv", ".json", ".jsonl", ".ndjson", ".tsv":
			s.notes = append(s.notes, fmt.Sprintf("%s: a text as it stands, names and punctuation of its records included: write their texts into a file of their own if only these are meant", filepath.Base(path)))
		}
		id, err := identify(f, path, size)
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

// notText says by its first bytes why a file is no text in UTF-8, "" where it may be one:
// text in another encoding of one byte each may, whose bytes are counted as they are read.
func notText(f io.ReaderAt) string {
	head := make([]byte, 4096)
	n, _ := f.ReadAt(head, 0)
	head = head[:n]
	var zeros [2]int // bytes, at even and at odd places
	for i, b := range head {
		if b == 0 {
			zeros[i%2]++
		}
	}
	marked := bytes.HasPrefix(head, []byte{0xff, 0xfe}) || bytes.HasPrefix(head, []byte{0xfe, 0xff}) // no UTF-8 begins so
	if marked || min(zeros[0], zeros[1]) == 0 && max(zeros[0], zeros[1]) > n/4 {
		return "it is UTF-16, want UTF-8: convert it, as with iconv -f UTF-16 -t UTF-8"
	}
	controls := bytes.ContainsFunc(head, func(r rune) bool { return r < ' ' && !unicode.IsSpace(r) && r != '\x1b' })
	whole := head[:max(0, n-utf8.UTFMax)] // the last character may be cut
	for len(whole) > 0 && !utf8.RuneStart(head[len(whole)]) {
		whole = whole[:len(whole)-1]
	}
	if controls && !utf8.Valid(whole) || zeros[0]+zeros[1] > n/8 {
		return "it is no text in UTF-8: unpack what is compressed, and write the text of a table or a document into a file of its own"
	}
	return ""
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
		err := onnx.ReplaceFile(path, write)
		if of := (textError{}); errors.As(err, &of) { // not of the file that was being written
			return nil, of.error
		}
		if err != nil {
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

// A textError says what is wrong with a text, and which.
type textError struct{ error }

func (e textError) Unwrap() error { return e.error }

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
			return textError{fmt.Errorf("%s %s: %w", flag, text.path, err)}
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
		if _, err := w.out.Write(nil); err != nil { // of a write before, which Flush returns
			return nil
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
