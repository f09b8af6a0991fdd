package onnx

// A folder that is there as a whole or not at all: it is filled under a temporary name
// beside its place, and renamed. The system renames a folder over an empty one only, so
// no file of another folder goes.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// MakeFolder lets write fill a folder beside path and renames it into place when write
// succeeded; else nothing is left behind. At path there is nothing yet, or an empty folder.
func MakeFolder(path string, write func(dir string) error) (err error) {
	path = filepath.Clean(path)
	if err := Vacant(path); err != nil {
		return err
	}
	dir, err := nameBeside(path, func(name string) error { return os.Mkdir(name, 0o777) })
	if err != nil {
		return fmt.Errorf("%s: %w", path, PathCause(err))
	}
	defer func() {
		pending.Delete(dir)
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := write(dir); err != nil {
		return &folderError{err, dir, path}
	}
	switch err := syscall.Rename(dir, path); { // os.Rename refuses an empty folder
	case errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST):
		return notVacant(path)
	case err != nil:
		return fmt.Errorf("%s: %w", path, PathCause(err))
	}
	return nil
}

// A folderError is one of a file in a folder that was being made, and names it at its place.
type folderError struct {
	err       error
	dir, path string
}

func (e *folderError) Error() string { return strings.ReplaceAll(e.err.Error(), e.dir, e.path) }
func (e *folderError) Unwrap() error { return e.err }

// Vacant reports why no folder can be made at path: something is there, or the folder that
// is to hold it is missing.
func Vacant(path string) error {
	path = filepath.Clean(path)
	if err := hasFolder(path); err != nil {
		return err
	}
	at, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", path, PathCause(err))
	case !at.IsDir():
		return fmt.Errorf("%s: is no folder: choose another name", path)
	}
	entries, err := os.ReadDir(path)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", path, PathCause(err))
	case len(entries) > 0:
		return notVacant(path)
	}
	return nil
}

func notVacant(path string) error {
	return fmt.Errorf("%s: holds files: choose another name, or remove it", path)
}
