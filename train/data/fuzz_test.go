package data

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/runtime"
)

// FuzzTokens opens anything as tokens: it is an error, or every batch holds tokens of
// the vocabulary.
func FuzzTokens(f *testing.F) {
	f.Add(make([]byte, 100), true)
	f.Add(binary.LittleEndian.AppendUint32(bytes.Repeat([]byte{1, 0}, 60), 0xffffffff), false)
	var npy bytes.Buffer
	runtime.EncodeNPY(&npy, runtime.FromInt64s(make([]int64, 30), 30))
	f.Add(npy.Bytes(), false)
	npy.Reset()
	runtime.EncodeNPY(&npy, runtime.FromInt64s(make([]int64, 30), 6, 5))
	f.Add(npy.Bytes(), false)
	f.Fuzz(func(t *testing.T, content []byte, shuffle bool) {
		path := filepath.Join(t.TempDir(), "t.bin")
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Open(context.Background(), Options{Tokens: path, Shuffle: shuffle, Val: "20%"})
		if err != nil {
			return
		}
		defer s.Close()
		d, err := s.For(parse(t, lm), Sizes{Batch: 2, Dims: map[string]int64{"seq": 4}})
		if err != nil {
			return
		}
		for n := range min(8, d.Train.Len()+1) {
			b, err := d.Train.At(n)
			if err != nil {
				return // a larger file is checked as it is read
			}
			for _, name := range []string{"ids", "targets"} {
				for _, x := range ints(b[name]) {
					if x < 0 || x >= 50257 {
						t.Fatalf("%s holds %d", name, x)
					}
				}
			}
			d.Train.Tokens(b)
		}
		for n := range min(8, d.Val.Len()) {
			if _, err := d.Val.At(n); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzArchive opens anything as an .npz file.
func FuzzArchive(f *testing.F) {
	for _, name := range []string{"plain.npz", "compressed.npz", "columns.npz"} {
		content, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "d.npz")
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := Open(context.Background(), Options{NPZ: path, Shuffle: true})
		if err != nil {
			return
		}
		defer s.Close()
		d, err := s.For(parse(t, classifier), Sizes{Batch: 2})
		if err != nil {
			return
		}
		for n := range min(4, d.Train.Len()) {
			if b, err := d.Train.At(n); err == nil {
				d.Train.Tokens(b)
			}
		}
	})
}

// FuzzParts cuts anything into parts: together they are the text, and valid.
func FuzzParts(f *testing.F) {
	f.Add([]byte("one two\nthree\xff four  five 你好，世界\n\nsix"), 16)
	f.Fuzz(func(t *testing.T, content []byte, size int) {
		p := newParts(bytes.NewReader(content), &plainBytes{}, 1+size&0xff)
		var all []byte
		for {
			part, err := p.next()
			if err != nil {
				break
			}
			all = append(all, part...)
		}
		if want := bytes.ToValidUTF8(content, nil); p.invalid == 0 && !bytes.Equal(all, want) || p.given != int64(len(content)) {
			t.Fatalf("%q, want %q; %d bytes of %d", all, want, p.given, len(content))
		}
	})
}
