//go:build linux && amd64

package nulldevice

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/ortversion"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// build makes a folder with a library that says it is ONNX Runtime of that version, and a
// provider of that source, "" for none.
func build(t *testing.T, version, provider string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "map")
	write(t, script, "VERS_"+version+" { global: *; };\n")
	library := compiled(t, "libonnxruntime.so", "int OrtGetApiBase() { return 0; }", "-Wl,--version-script="+script)
	if provider != "" {
		built := compiled(t, providerFile, provider, args...)
		if err := os.Rename(built, filepath.Join(filepath.Dir(library), providerFile)); err != nil {
			t.Fatal(err)
		}
	}
	return library
}

// TestCheck: each way in which a build cannot be used is one line that names what is wrong.
func TestCheck(t *testing.T) {
	old := like(t, "libcudart.so.12", "cudaMalloc")
	good := like(t, "libcudart.so.13", "cudaMalloc", "cudaFuture")
	broken := filepath.Join(t.TempDir(), "libonnxruntime.so")
	write(t, broken, "no library")
	for _, c := range []struct{ what, library, want string }{
		{"what is there", build(t, ortversion.Current, "int cudaMalloc(); int f() { return cudaMalloc(); }", good), ""},
		{"a symbol too many", build(t, ortversion.Current, "int cudaFuture(); int f() { return cudaFuture(); }", good),
			"needs cudaFuture@libcudart.so.13, which has no stand-in"},
		{"another version of CUDA", build(t, ortversion.Current, "int cudaMalloc(); int f() { return cudaMalloc(); }", old),
			"needs libcudart.so.12, which has no stand-in"},
		{"a symbol without a version", build(t, ortversion.Current, "int cuNew(); int f() { return cuNew(); }"), "needs cuNew, which has no stand-in"},
		{"another version", build(t, "1.99.0", "int f() { return 0; }"), "its symbols are of VERS_1.99.0: the null device is made for ONNX Runtime " + ortversion.Current},
		{"no CUDA", build(t, ortversion.Current, ""), "a build without CUDA: run remat doctor --install cuda"},
		{"no library", filepath.Join(t.TempDir(), "libonnxruntime.so"), "no such file"},
		{"no ELF", broken, "not a shared library"},
	} {
		err := Check(c.library)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.what, err)
			}
			continue
		}
		var setup *SetupError
		if !errors.As(err, &setup) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.what, err, c.want)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{}, {Memory: -1}, {Memory: 1, Devices: -1}, {Memory: 1, Devices: MaxDevices + 1}} {
		if _, err := Load(o); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestRefusedByTheProcess: where the process holds a real CUDA runtime already, or may not write
// files, loading refuses in one line; a real one on the path does not matter.
func TestRefusedByTheProcess(t *testing.T) {
	if os.Getenv("REMAT_TEST_LOAD") != "" {
		_, err := Load(Options{Memory: 1})
		if err == nil {
			os.Exit(0)
		}
		os.Stdout.WriteString(err.Error())
		os.Exit(3)
	}
	run := func(env string) string {
		cmd := exec.Command("sh", "-c", env+` exec "$0" -test.run=^TestRefusedByTheProcess$`, os.Args[0])
		cmd.Env = append(os.Environ(), "REMAT_TEST_LOAD=1")
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState.ExitCode() != 3 {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	real := like(t, "libcudart.so.13", "cudaMalloc")
	got := run("LD_PRELOAD=" + real)
	if !strings.Contains(got, "libcudart.so.13: a real one is loaded already, from "+real) || strings.Contains(got, "\n") {
		t.Errorf("%q", got)
	}
	if got := run("ulimit -f 1000;"); got != "null device: memory: the size of files is limited (ulimit -f unlimited is needed)" {
		t.Errorf("%q", got)
	}
	if got := run("LD_LIBRARY_PATH=" + filepath.Dir(real)); got != "" {
		t.Errorf("with a real one on the path: %q", got)
	}
}
