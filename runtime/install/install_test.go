package install

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wheel writes a wheel with the given files; hashes in RECORD are right except
// for the file named spoilt.
func wheel(t *testing.T, dir, spoilt string, files map[string]string) string {
	t.Helper()
	name := filepath.Join(dir, "p-1-py3-none-any.whl")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	var record strings.Builder
	for name, content := range files {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w.Write([]byte(content))
		if name == spoilt {
			content += "!"
		}
		sum := sha256.Sum256([]byte(content))
		record.WriteString(name + ",sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + ",1\n")
	}
	w, err := z.Create("p-1.dist-info/RECORD")
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(record.String()))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return name
}

var cudaFiles = map[string]string{
	"onnxruntime/capi/" + library:                            "lib",
	"onnxruntime/capi/libonnxruntime_providers_shared.so":    "shared",
	"onnxruntime/capi/libonnxruntime_providers_cuda.so":      "cuda",
	"onnxruntime/capi/libonnxruntime_providers_tensorrt.so":  "not wanted",
	"onnxruntime/capi/onnxruntime_pybind11_state.cpython.so": "not wanted",
	"nvidia/cu13/lib/libcudart.so.13":                        "cudart",
	"nvidia/cudnn/lib/libcudnn.so.9":                         "cudnn",
	"nvidia/cu13/include/cuda.h":                             "not wanted",
	"../../escape/nvidia/lib/libx.so":                        "not wanted",
}

func TestUnpack(t *testing.T) {
	dir := t.TempDir()
	wheel(t, dir, "", cudaFiles)
	out := filepath.Join(t.TempDir(), "lib")
	if err := unpackAll(context.Background(), dir, out, sources[CUDA]); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := "libcudart.so.13 libcudnn.so.9 " + library + " libonnxruntime_providers_cuda.so libonnxruntime_providers_shared.so"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUnpackRefuses(t *testing.T) {
	for _, c := range []struct {
		name, spoilt, want string
		files              map[string]string
	}{
		{"wrong hash", "onnxruntime/capi/" + library, "not the one in RECORD", cudaFiles},
		{"no library", "", "does not hold", map[string]string{"nvidia/cu13/lib/libcudart.so.13": "x"}},
	} {
		dir := t.TempDir()
		wheel(t, dir, c.spoilt, c.files)
		err := unpackAll(context.Background(), dir, filepath.Join(t.TempDir(), "lib"), sources[CUDA])
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestFind(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv(EnvVar, "")
	if _, err := Find(""); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "remat doctor --install cpu, or") {
		t.Errorf("nothing installed: %v", err)
	}
	lib := filepath.Join(Dir(CPU), library)
	if err := os.MkdirAll(filepath.Dir(lib), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lib, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "libonnxruntime.so.1.24.1")
	if err := os.WriteFile(other, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(path, want string) {
		t.Helper()
		if got, err := Find(path); err != nil || got != want {
			t.Errorf("Find(%q) with %q: got %q, %v, want %q", path, os.Getenv(EnvVar), got, err, want)
		}
	}
	check("", lib)
	t.Setenv(EnvVar, filepath.Dir(other))
	check("", other)
	t.Setenv(EnvVar, "/no/such/file")
	check(other, other)
	if _, err := Find(""); err == nil || !strings.Contains(err.Error(), EnvVar) {
		t.Errorf("a bad %s: %v", EnvVar, err)
	}
}

func TestNoHome(t *testing.T) {
	t.Setenv("HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	if dir := Dir(CPU); !strings.HasPrefix(dir, os.TempDir()) {
		t.Errorf("without HOME the folder is %s", dir)
	}
}

// TestInstallReplaces installs from wheels over a broken folder.
func TestInstallReplaces(t *testing.T) {
	base := t.TempDir()
	from, to := filepath.Join(base, "lib"), filepath.Join(base, "cpu")
	for dir, content := range map[string]string{from: "new", to: "old"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := replace(from, to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(to, "f")); err != nil || string(got) != "new" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestInstallWithoutPython(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	var log bytes.Buffer
	_, err := Install(context.Background(), CPU, &log)
	if err == nil || !strings.Contains(err.Error(), "python3 with pip is needed") {
		t.Errorf("got %v", err)
	}
	if _, err := Install(context.Background(), "rocm", &log); err == nil {
		t.Error("an unknown kind was installed")
	}
	left, err := os.ReadDir(filepath.Dir(Dir(CPU)))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
