package runtime

import (
	"os"
	"sync"
)

// temporary holds the folders that are in use for files that ONNX Runtime
// writes and that are read back.
var temporary sync.Map

// RemoveTemporary takes those folders away, for a program that is about to end.
func RemoveTemporary() {
	temporary.Range(func(dir, _ any) bool {
		os.RemoveAll(dir.(string))
		return true
	})
}

// temporaryDir makes such a folder, for dropTemporary to remove.
func temporaryDir(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err == nil {
		temporary.Store(dir, nil)
	}
	return dir, err
}

func dropTemporary(dir string) error {
	defer temporary.Delete(dir)
	return os.RemoveAll(dir)
}

// TemporaryDir makes a folder that RemoveTemporary takes away with the rest, for
// DropTemporary to remove.
func TemporaryDir(pattern string) (string, error) { return temporaryDir(pattern) }

// DropTemporary removes a folder of TemporaryDir.
func DropTemporary(dir string) error { return dropTemporary(dir) }
