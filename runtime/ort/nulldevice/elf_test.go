//go:build linux && amd64

package nulldevice

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/ort/nulldevice/call"
)

// TestSymbols: each stand-in is found by its name and its version, and by no other.
func TestSymbols(t *testing.T) {
	device(t, Unlimited)
	seen := 0
	for _, l := range libraries() {
		for _, s := range l.symbols {
			seen++
			if got := lookUp(l.soname, s.name, l.version); got != s.address {
				t.Errorf("%s: %s is %#x, want %#x", l.soname, s.name, got, s.address)
			}
		}
		for _, no := range [][2]string{{"cudaMalloc_", l.version}, {"", l.version}, {"cudaMalloc", "libcudart.so.12"}} {
			if got := lookUp(l.soname, no[0], no[1]); got != 0 {
				t.Errorf("%s has %q of version %q", l.soname, no[0], no[1])
			}
		}
	}
	if seen < 115+66 {
		t.Errorf("%d symbols", seen)
	}
	if got := call.Call(lookUp("libcudnn.so.9", "cudnnGetVersion", "")); got/10000 != 9 {
		t.Errorf("cuDNN %d", got)
	}
}

// TestSharedLibraries: libraries of none, one and many symbols, with and without a version.
func TestSharedLibraries(t *testing.T) {
	device(t, Unlimited)
	answer := lookUp("libcudnn.so.9", "cudnnGetVersion", "")
	for i, n := range []int{0, 1, 2, 5000} {
		for _, version := range []string{"", "V_1"} {
			l := &sharedLibrary{soname: fmt.Sprintf("libremat-test%d%s.so", i, version), version: version}
			for k := range n {
				l.symbols = append(l.symbols, symbol{fmt.Sprintf("remat_test_%d", k), answer + uint64(k)})
			}
			if err := l.load(); err != nil { // looks each symbol up
				t.Fatal(err)
			}
			if n > 0 && version != "" && lookUp(l.soname, "remat_test_0", "V_2") != 0 {
				t.Error("a version that is not there was found")
			}
		}
	}
}

// TestElfFile: other readers of ELF agree on what was written.
func TestElfFile(t *testing.T) {
	l := &sharedLibrary{soname: "libx.so.1", version: "X_1", symbols: []symbol{{"one", 0x1234}, {"two", 0x5678}}}
	f, err := elf.NewFile(strings.NewReader(string(l.encode())))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Flags&elf.PF_X != 0 {
			t.Errorf("%v can be executed", p.Type)
		}
	}
}

// compiled makes a shared library from C, linked to others.
func compiled(t *testing.T, name, source string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("gcc", append([]string{"-shared", "-fPIC", "-w", "-x", "c", "-o", path, "-", "-x", "none"}, args...)...)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	return path
}

// like makes a real library of that name, whose functions of one version all return 42.
func like(t *testing.T, soname string, functions ...string) string {
	t.Helper()
	var source strings.Builder
	for _, f := range functions {
		fmt.Fprintf(&source, "int %s() { return 42; }\n", f)
	}
	script := filepath.Join(t.TempDir(), "map")
	write(t, script, soname+" { global: *; };\n")
	return compiled(t, soname, source.String(), "-Wl,-soname,"+soname, "-Wl,--version-script="+script)
}

// TestStandInsServeALinkedLibrary: a library that is linked to the real names gets the stand-ins, though
// a real library lies beside it.
func TestStandInsServeALinkedLibrary(t *testing.T) {
	device(t, Unlimited)
	real := like(t, "libcudart.so.13", "cudaSetDevice")
	user := compiled(t, "libuser.so", "int cudaSetDevice(int); int use(int d) { return cudaSetDevice(d); }",
		real, "-Wl,-soname,libuser.so", "-Wl,-rpath,"+filepath.Dir(real))
	if why := loadFile(user); why != "" {
		t.Fatal(why)
	}
	use := lookUp("libuser.so", "use", "")
	for d, want := range map[uintptr]uintptr{0: 0, 3: noSuchDevice} {
		if got := call.Call(use, d); got != want {
			t.Errorf("device %d: %d, want %d", d, got, want)
		}
	}
}
