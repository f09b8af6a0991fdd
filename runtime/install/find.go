// Package install finds ONNX Runtime's shared library, and gets it.
package install

// Where the library is looked for: the path that the user names, REMAT_ORT,
// the folder that this package installs into.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat/runtime/ortversion"
)

// EnvVar names the variable that holds the path of a library to use.
const EnvVar = "REMAT_ORT"

// ErrMissing is wrapped when no library is installed and none is named.
var ErrMissing = errors.New("no ONNX Runtime library")

// errNoBuild says that what is installed, if anything is, cannot be rehearsed with.
var errNoBuild = fmt.Errorf("%w for CUDA", ErrMissing)

// Find returns the library to load: path if it is not empty (the --ort flag),
// else what REMAT_ORT names, else the installed one, CUDA's before CPU's. The
// error says in one line what fixes it.
func Find(path string) (string, error) {
	return find(path, ErrMissing, CPU, CUDA, CPU, Rehearsal)
}

// FindRehearsal is Find for a rehearsal, which needs CUDA's build. What is named is
// taken as it is.
func FindRehearsal(path string) (string, error) {
	return find(path, errNoBuild, CUDA, CUDA, Rehearsal)
}

func find(path string, missing error, install Kind, kinds ...Kind) (string, error) {
	if path != "" {
		return named(path, "")
	}
	if path := os.Getenv(EnvVar); path != "" {
		return named(path, EnvVar+": ")
	}
	for _, k := range kinds {
		lib := filepath.Join(Dir(k), library)
		if info, err := os.Stat(lib); err == nil && info.Mode().IsRegular() {
			return lib, nil
		}
	}
	return "", fmt.Errorf("%w: run remat doctor --install %s, or name one with --ort or %s", missing, install, EnvVar)
}

// named accepts a file, or a folder that holds one libonnxruntime.so. An error begins with
// source.
func named(path, source string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s%w: name an existing libonnxruntime.so, or run remat doctor --install cpu", source, err)
	}
	if !info.IsDir() {
		return path, nil
	}
	found, err := filepath.Glob(filepath.Join(path, "libonnxruntime.so*"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("%sno libonnxruntime.so in %s: name the file, or run remat doctor --install cpu", source, path)
	}
	return found[0], nil
}

// Dir is the folder that a kind of library is installed into.
func Dir(k Kind) string {
	return filepath.Join(cacheDir(), "remat", "ort", ortversion.Current, string(k))
}

// cacheDir is the user's cache folder; without HOME it lies in the folder for
// temporary files, by user.
func cacheDir() string {
	if dir, err := os.UserCacheDir(); err == nil {
		return dir
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("remat-cache-%d", os.Getuid()))
}

// A Kind is a build of ONNX Runtime.
type Kind string

// The builds that can be installed.
const (
	CPU  Kind = "cpu"
	CUDA Kind = "cuda" // with NVIDIA's libraries
	// Rehearsal is CUDA's build alone, which a rehearsal needs.
	Rehearsal Kind = "cuda-build"
)

// library is the file name inside the Python package.
const library = "libonnxruntime.so." + ortversion.Current
