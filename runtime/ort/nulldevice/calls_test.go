//go:build linux && amd64

package nulldevice

// What the tests share: the device of this process, and calls into it by the names
// that the provider uses.

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/runtime/ort/nulldevice/call"
)

// The numbers of CUDA that tests need.
const (
	toDevice, toHost, onDevice, anywhere = 1, 2, 3, 4
	invalidValue, outOfMemory            = 1, 2
	noSuchDevice                         = 101
)

// device loads the device with that memory and puts it back to unlimited at the end.
func device(t testing.TB, memory int64) *Device {
	t.Helper()
	d, err := Load(Options{Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := Load(Options{Memory: Unlimited}); err != nil {
			t.Error(err)
		}
	})
	return d
}

// stand is the address of a stand-in, through the library that was loaded.
func stand(t testing.TB, name string) uint64 {
	t.Helper()
	for _, l := range libraries() {
		if f := lookUp(l.soname, name, l.version); f != 0 {
			return f
		}
	}
	t.Fatalf("no library has %s", name)
	return 0
}

// do calls a stand-in and returns its error, which it takes off the thread again: the provider
// asks there whether its own calls have failed.
func do(t testing.TB, name string, args ...uintptr) int {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := int(int32(call.Call(stand(t, name), args...)))
	if r != 0 {
		call.Call(stand(t, "cudaGetLastError"))
	}
	return r
}

// must is do for a call that succeeds.
func must(t testing.TB, name string, args ...uintptr) {
	t.Helper()
	if r := do(t, name, args...); r != 0 {
		t.Fatalf("%s: error %d", name, r)
	}
}

// at pins v until the test ends and returns its address.
func at[T any](t testing.TB, v *T) uintptr {
	t.Helper()
	var p runtime.Pinner
	p.Pin(v)
	t.Cleanup(p.Unpin)
	return uintptr(unsafe.Pointer(v))
}

// made calls a function that returns a pointer by its first argument.
func made(t testing.TB, name string, args ...uintptr) uintptr {
	t.Helper()
	p := new(uintptr)
	must(t, name, append([]uintptr{at(t, p)}, args...)...)
	return *p
}

// alloc takes device memory until the test ends.
func alloc(t testing.TB, n uintptr) uintptr {
	t.Helper()
	p := made(t, "cudaMalloc", n)
	t.Cleanup(func() { must(t, "cudaFree", p) })
	return p
}

// hostBytes maps host memory until the test ends.
func hostBytes(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
