package ort

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// temporary holds the folders that are in use for files that ONNX Runtime
// writes and that are read back.
var temporary = struct {
	sync.Mutex
	dirs  map[string]bool
	ended bool
}{dirs: map[string]bool{}}

// errEnding says that the program removed its temporary folders already.
var errEnding = errors.New("no temporary folder: the program is about to end")

// RemoveTemporary takes those folders away, for a program that is about to end, and
// lets no more be made.
func RemoveTemporary() {
	temporary.Lock()
	defer temporary.Unlock()
	temporary.ended = true
	for dir := range temporary.dirs {
		if os.RemoveAll(dir) != nil {
			os.RemoveAll(dir) // ONNX Runtime, which goes on, wrote one more file
		}
	}
}

// TemporaryDir makes such a folder, for DropTemporary to remove.
func TemporaryDir(pattern string) (string, error) {
	temporary.Lock()
	defer temporary.Unlock()
	if temporary.ended {
		return "", errEnding
	}
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", fmt.Errorf("folder for temporary files: %w; TMPDIR names another", err)
	}
	temporary.dirs[dir] = true
	return dir, nil
}

// DropTemporary removes a folder that TemporaryDir made.
func DropTemporary(dir string) error {
	temporary.Lock()
	defer temporary.Unlock()
	delete(temporary.dirs, dir)
	return os.RemoveAll(dir)
}
