package install

// Other Python packages, for the files in them: the same way as the library,
// pip ─▶ wheel ─▶ files checked against RECORD ─▶ a folder in the cache.

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// CacheDir is remat's folder in the user's cache folder.
func CacheDir() string { return filepath.Join(cacheDir(), "remat") }

// Package gets a Python package without what it depends on and returns the
// folder in the cache that holds the files that place gives a path. The folder
// appears as a whole or not at all; where it is there, nothing is done.
func Package(ctx context.Context, requirement, folder string, place func(name string) string, log io.Writer) (string, error) {
	dir := filepath.Join(CacheDir(), folder)
	if isDir(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("install: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return "", fmt.Errorf("install: %w", err)
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintf(log, "getting %s with pip\n", requirement)
	wheels, out := filepath.Join(tmp, "wheels"), filepath.Join(tmp, "files")
	if err := download(ctx, source{requirement: requirement}, wheels); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("install: pip downloaded %d wheels of %s, want one", len(files), requirement)
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return "", fmt.Errorf("install: %w", err)
	}
	if err := unpack(files[0], out, place); err != nil {
		return "", fmt.Errorf("install: %s: %w", filepath.Base(files[0]), err)
	}
	// Another process may have been faster; its folder is as good.
	if err := os.Rename(out, dir); err != nil && !isDir(dir) {
		return "", fmt.Errorf("install: %w", err)
	}
	return dir, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
