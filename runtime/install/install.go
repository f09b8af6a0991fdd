package install

// Getting the library from its Python package.
//
//	pip download ─▶ wheels (zip) ─▶ shared libraries ─▶ sha256 against RECORD
//	                                                    (and ortversion.Libraries)
//	             ─▶ a folder beside the target ─▶ rename
//
// pip decides where packages come from, as it is configured; it checks what it
// fetches against the index, and this checks each file against the wheel's
// RECORD and the library against the hash that was seen when this was written.
// Weakness: only python3's pip is tried, and RECORD is as good as its wheel.

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/runtime/ortversion"
)

// pythonVersion is the interpreter whose wheels are asked for: any will do,
// the shared library in them is the same.
const pythonVersion = "3.12"

// A source is what pip is asked for, and what is taken out of it.
type source struct {
	requirement string
	deps        bool
	// wanted says which files of the wheels are kept; they land in one flat
	// folder, where the loader finds them beside one another.
	wanted func(name string) bool
	need   []string // files without which the result is useless
}

var sources = map[Kind]source{
	CPU: {
		requirement: "onnxruntime==" + ortversion.Current,
		wanted:      isRuntimeLibrary,
		need:        []string{library},
	},
	CUDA: {
		requirement: "onnxruntime-gpu[cuda,cudnn]==" + ortversion.Current,
		deps:        true,
		wanted:      func(name string) bool { return isRuntimeLibrary(name) || isNvidiaLibrary(name) },
		need:        cudaBuild,
	},
	Rehearsal: {
		requirement: "onnxruntime-gpu==" + ortversion.Current,
		wanted:      isRuntimeLibrary,
		need:        cudaBuild,
	},
}

var cudaBuild = []string{library, "libonnxruntime_providers_shared.so", "libonnxruntime_providers_cuda.so"}

func isRuntimeLibrary(name string) bool {
	base := path.Base(name)
	if path.Dir(name) != "onnxruntime/capi" || strings.Contains(base, "tensorrt") {
		return false
	}
	return base == library || strings.HasPrefix(base, "libonnxruntime_providers_") && strings.HasSuffix(base, ".so")
}

func isNvidiaLibrary(name string) bool {
	return strings.HasPrefix(name, "nvidia/") && strings.Contains(path.Base(name), ".so") && path.Base(path.Dir(name)) == "lib"
}

// Install gets the library of a kind, unless it is there, and returns its
// path. Progress is told to log, one line at a time.
func Install(ctx context.Context, k Kind, log io.Writer) (string, error) {
	src, ok := sources[k]
	if !ok {
		return "", fmt.Errorf("install %q: want cpu or cuda", k)
	}
	dir := Dir(k)
	if complete(dir, src) {
		return filepath.Join(dir, library), nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("install: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		return "", fmt.Errorf("install: %w", err)
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintf(log, "getting %s with pip\n", src.requirement)
	wheels := filepath.Join(tmp, "wheels")
	if err := download(ctx, src, wheels); err != nil {
		return "", err
	}
	out := filepath.Join(tmp, "lib")
	if err := unpackAll(ctx, wheels, out, src); err != nil {
		return "", err
	}
	if err := checkKnown(out, k); err != nil {
		return "", err
	}
	if err := replace(out, dir); err != nil && !complete(dir, src) {
		return "", fmt.Errorf("install: %w", err)
	}
	fmt.Fprintf(log, "installed %s\n", filepath.Join(dir, library))
	return filepath.Join(dir, library), nil
}

func complete(dir string, src source) bool {
	return !slices.ContainsFunc(src.need, func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err != nil || !info.Mode().IsRegular()
	})
}

// replace puts a finished folder in its place. When another process was
// faster, its folder stays.
func replace(from, to string) error {
	err := os.Rename(from, to)
	if err == nil {
		return nil
	}
	old := from + ".old"
	if err2 := os.Rename(to, old); err2 != nil {
		return err
	}
	return os.Rename(from, to)
}

func download(ctx context.Context, src source, to string) error {
	args := []string{"-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
		"--only-binary=:all:", "--python-version", pythonVersion, "--dest", to}
	if !src.deps {
		args = append(args, "--no-deps")
	}
	cmd := exec.CommandContext(ctx, "python3", append(args, src.requirement)...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("install: %w", ctx.Err())
		}
		if errors.Is(err, exec.ErrNotFound) {
			return errors.New("install: python3 with pip is needed to get ONNX Runtime: install it, or name a library with --ort")
		}
		return fmt.Errorf("install: python3 -m pip download %s: %s (check pip's configuration, or name a library with --ort)",
			src.requirement, lastLine(said.String(), err))
	}
	return nil
}

// lastLine is the last line that pip wrote of an error.
func lastLine(s string, err error) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	slices.Reverse(lines)
	for _, l := range lines {
		if l = strings.TrimSpace(l); strings.HasPrefix(l, "ERROR:") || strings.Contains(l, "No module named") {
			return l
		}
	}
	if lines[0] != "" {
		return lines[0]
	}
	return err.Error()
}

func unpackAll(ctx context.Context, wheels, to string, src source) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(wheels, "*.whl"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("install: pip downloaded no wheel of %s", src.requirement)
	}
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("install: %w", err)
		}
		if err := unpack(f, to, flat(src.wanted)); err != nil {
			return fmt.Errorf("install: %s: %w", filepath.Base(f), err)
		}
	}
	if !complete(to, src) {
		return fmt.Errorf("install: %s does not hold %s", src.requirement, strings.Join(src.need, ", "))
	}
	return nil
}

// flat places the wanted files in one folder.
func flat(wanted func(string) bool) func(string) string {
	return func(name string) string {
		if wanted(name) {
			return path.Base(name)
		}
		return ""
	}
}

// unpack writes the files of one wheel that place gives a path under to, and
// checks each against RECORD.
func unpack(wheel, to string, place func(string) string) error {
	z, err := zip.OpenReader(wheel)
	if err != nil {
		return err
	}
	defer z.Close()
	record, err := readRecord(z)
	if err != nil {
		return err
	}
	for _, f := range z.File {
		name := place(f.Name)
		if name == "" || strings.HasSuffix(f.Name, "/") {
			continue
		}
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%s lies outside the folder", f.Name)
		}
		want, ok := record[f.Name]
		if !ok {
			return fmt.Errorf("%s is not in RECORD", f.Name)
		}
		target := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		got, err := extract(f, target)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if got != want {
			return fmt.Errorf("%s: sha256 is not the one in RECORD: download it again", f.Name)
		}
	}
	return nil
}

// readRecord maps file names to "sha256=<urlsafe base64>".
func readRecord(z *zip.ReadCloser) (map[string]string, error) {
	for _, f := range z.File {
		if dir, base := path.Split(f.Name); base != "RECORD" || !strings.HasSuffix(dir, ".dist-info/") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		rows, err := csv.NewReader(io.LimitReader(r, 64<<20)).ReadAll()
		if err != nil {
			return nil, fmt.Errorf("RECORD: %w", err)
		}
		record := map[string]string{}
		for _, row := range rows {
			if len(row) >= 2 {
				record[row[0]] = row[1]
			}
		}
		return record, nil
	}
	return nil, errors.New("the wheel has no RECORD")
}

func extract(f *zip.File, to string) (hash string, err error) {
	r, err := f.Open()
	if err != nil {
		return "", err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(w, h), r)
	return "sha256=" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)), errors.Join(err, w.Close())
}

func checkKnown(dir string, k Kind) error {
	if k == Rehearsal {
		k = CUDA // the same library
	}
	want, ok := ortversion.Libraries[runtime.GOOS+"/"+runtime.GOARCH+" "+string(k)]
	if !ok {
		return nil
	}
	f, err := os.Open(filepath.Join(dir, library))
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("install: %s has sha256 %s, want %s: not the library that pip should have got", library, got, want)
	}
	return nil
}
