package data

// What identifies data: not its name, but its length and a hash of its bytes; and
// everything that decides which of them batch n holds.
//
// The hash is sha256, of all bytes of a file of up to 64 MiB, and of 64 blocks of a
// mebibyte of a larger one: the first, the last, and evenly between. So it takes a
// twentieth of a second whatever the file; a change of a larger file that keeps its
// length and misses every block is not noticed.

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
)

const (
	hashBlock  = 1 << 20
	hashBlocks = 64
)

// A FileID identifies the content of a file.
type FileID struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	path   string // as it was given, for messages alone
}

// An Identity is all that decides which batch a number stands for. Two runs with
// equal identities are fed the same.
type Identity struct {
	Kind      string            `json:"kind"` // text, tokens or npz
	Files     []FileID          `json:"files"`
	Tokenizer string            `json:"tokenizer,omitempty"` // gpt2, or the hash of its file
	TokenType string            `json:"token_type,omitempty"`
	Labels    string            `json:"labels,omitempty"` // same or next
	Inputs    map[string]string `json:"inputs"`
	Batch     int64             `json:"batch"`
	Length    int64             `json:"length,omitempty"`
	Samples   int64             `json:"samples"`
	Shuffle   bool              `json:"shuffle"`
	Seed      uint64            `json:"seed,omitempty"` // where Shuffle
}

// String is the identity as one line of JSON, the same for equal identities.
func (id Identity) String() string {
	text, err := json.Marshal(id)
	if err != nil {
		panic(err) // strings and integers alone
	}
	return string(text)
}

// Check compares with an identity that was kept, as String gives it. The error, one
// line, says what differs.
func (id Identity) Check(kept string) error {
	var was Identity
	if err := json.Unmarshal([]byte(kept), &was); err != nil {
		return fmt.Errorf("the identity of the data does not parse: %w", err)
	}
	var differ []string
	now, then := reflect.ValueOf(id), reflect.ValueOf(was)
	for i := range now.NumField() {
		name, _, _ := strings.Cut(now.Type().Field(i).Tag.Get("json"), ",")
		if name == "files" {
			if how := filesDiffer(was.Files, id.Files); how != "" {
				differ = append(differ, how)
			}
			continue
		}
		a, b := then.Field(i).Interface(), now.Field(i).Interface()
		if reflect.DeepEqual(a, b) {
			continue
		}
		differ = append(differ, fmt.Sprintf("%s: %v, was %v", strings.ReplaceAll(name, "_", " "), b, a))
	}
	if differ == nil {
		return nil
	}
	return fmt.Errorf("the data is not what the run was fed: %s", strings.Join(differ, "; "))
}

// filesDiffer says how files differ in content, "" where they do not.
func filesDiffer(was, now []FileID) string {
	if len(was) != len(now) {
		return fmt.Sprintf("%d files, were %d", len(now), len(was))
	}
	for i := range now {
		switch {
		case now[i].Bytes != was[i].Bytes:
			return fmt.Sprintf("%s has %d bytes, had %d", now[i].path, now[i].Bytes, was[i].Bytes)
		case now[i].SHA256 != was[i].SHA256:
			return fmt.Sprintf("%s has other content", now[i].path)
		}
	}
	return ""
}

// identify hashes a file of that size, which was given as path.
func identify(r io.ReaderAt, path string, size int64) (FileID, error) {
	h := sha256.New()
	copyAt := func(at, n int64) error {
		got, err := io.Copy(h, io.NewSectionReader(r, at, n))
		if err == nil && got < n {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if size <= hashBlock*hashBlocks {
		if err := copyAt(0, size); err != nil {
			return FileID{}, err
		}
		return FileID{size, hex.EncodeToString(h.Sum(nil)), path}, nil
	}
	for i := range int64(hashBlocks) {
		// In parts, so that the product cannot overflow.
		rest := size - hashBlock
		at := rest/(hashBlocks-1)*i + rest%(hashBlocks-1)*i/(hashBlocks-1)
		if err := copyAt(at, hashBlock); err != nil {
			return FileID{}, err
		}
	}
	return FileID{size, hex.EncodeToString(h.Sum(nil)), path}, nil
}

// contentID is the hash of bytes in memory.
func contentID(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
