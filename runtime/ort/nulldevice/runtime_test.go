//go:build linux && amd64

package nulldevice

import (
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/runtime/ort/nulldevice/call"
)

// locked keeps the test on its thread, since errors and the current device are the thread's.
func locked(t *testing.T) {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}

func TestDevices(t *testing.T) {
	locked(t)
	device(t, 1<<30)
	if _, err := Load(Options{Memory: 1 << 30, Devices: 2}); err != nil {
		t.Fatal(err)
	}
	n := new(int32)
	must(t, "cudaGetDeviceCount", at(t, n))
	if *n != 2 {
		t.Fatalf("%d devices", *n)
	}
	for _, bad := range []int{2, 3, -1} {
		if r := do(t, "cudaSetDevice", uintptr(bad)); r != noSuchDevice {
			t.Errorf("device %d: error %d", bad, r)
		}
	}
	// Each device has its own memory.
	must(t, "cudaSetDevice", 1)
	p := made(t, "cudaMalloc", 1<<30)
	must(t, "cudaSetDevice", 0)
	q := made(t, "cudaMalloc", 1<<30)
	must(t, "cudaFree", p)
	must(t, "cudaFree", q)
	// A device that is gone cannot be used.
	must(t, "cudaSetDevice", 1)
	device(t, 1<<30)
	if r := do(t, "cudaMalloc", at(t, new(uintptr)), 1); r != noSuchDevice {
		t.Errorf("allocation on a device that is gone: error %d", r)
	}
	must(t, "cudaSetDevice", 0)
}

func TestProperties(t *testing.T) {
	device(t, 24<<30)
	p := new([1008]byte)
	must(t, "cudaGetDeviceProperties", at(t, p), 0)
	number := func(at, bytes int) (n uint64) {
		for i := bytes - 1; i >= 0; i-- {
			n = n<<8 | uint64(p[at+i])
		}
		return n
	}
	if name := unix.ByteSliceToString(p[:256]); name != "null device" {
		t.Errorf("name %q", name)
	}
	// Places of cudaDeviceProp in CUDA 13 and the attribute that says the same.
	for _, f := range []struct {
		what          string
		at, attribute int
	}{{"shared memory", 296, 8}, {"registers", 304, 12}, {"warp", 308, 10}, {"threads", 320, 1}, {"major", 360, 75},
		{"minor", 364, 76}, {"processors", 384, 16}, {"cache", 596, 38}, {"shared memory, opted in", 672, 97}} {
		v := new(int32)
		must(t, "cudaDeviceGetAttribute", at(t, v), uintptr(f.attribute), 0)
		if got := number(f.at, 4); got != uint64(*v) {
			t.Errorf("%s: %d in the properties, %d as attribute", f.what, got, *v)
		}
	}
	if got := number(288, 8); got != 24<<30 {
		t.Errorf("memory %d", got)
	}
}

// TestGraphs: captured launches count when the graph is launched.
func TestGraphs(t *testing.T) {
	d := device(t, Unlimited)
	before := d.Counters()
	s := made(t, "cudaStreamCreateWithFlags", 1)
	launch := func() { must(t, "cudaLaunchKernel", 1, 1, 1, 1, 1, 0, 0, s) }
	launch()
	must(t, "cudaStreamBeginCapture", s, 0)
	launch()
	launch()
	status := new(int32)
	must(t, "cudaStreamIsCapturing", s, at(t, status))
	if *status != 1 {
		t.Errorf("status %d", *status)
	}
	g := new(uintptr)
	must(t, "cudaStreamEndCapture", s, at(t, g))
	if c := d.Counters().Since(before); c.Kernels != 1 {
		t.Errorf("%d kernels while capturing, want 1", c.Kernels)
	}
	x := made(t, "cudaGraphInstantiate", *g, 0)
	must(t, "cudaGraphLaunch", x, s)
	must(t, "cudaGraphLaunch", x, s)
	if r := do(t, "cudaStreamEndCapture", s, at(t, g)); r == 0 {
		t.Error("a capture ended that never began")
	}
	must(t, "cudaGraphExecDestroy", x)
	must(t, "cudaGraphDestroy", *g)
	must(t, "cudaStreamSynchronize", s)
	must(t, "cudaDeviceSynchronize")
	e := made(t, "cudaEventCreate")
	must(t, "cudaEventSynchronize", e)
	must(t, "cudaEventDestroy", e)
	must(t, "cudaStreamDestroy", s)
	c := d.Counters().Since(before)
	if c.Kernels != 5 || c.Synchronizations != 3 || c.Handles != before.Handles {
		t.Errorf("%+v", c)
	}
}

func TestPools(t *testing.T) {
	d := device(t, 1<<20)
	before := d.Counters()
	props := new([64]byte)
	pool := made(t, "cudaMemPoolCreate", at(t, props))
	p := made(t, "cudaMallocFromPoolAsync", 1000, pool, 0)
	threshold, used := new(uint64), new(uint64)
	*threshold = 77
	must(t, "cudaMemPoolSetAttribute", pool, 4, at(t, threshold))
	*threshold = 0
	must(t, "cudaMemPoolGetAttribute", pool, 4, at(t, threshold))
	must(t, "cudaMemPoolGetAttribute", pool, 7, at(t, used))
	if *threshold != 77 || *used != uint64(before.Live)+1000 {
		t.Errorf("threshold %d, used %d", *threshold, *used)
	}
	must(t, "cudaFreeAsync", p, 0)
	must(t, "cudaMemPoolDestroy", pool)
	if c := d.Counters(); c.Live != before.Live || c.Handles != before.Handles {
		t.Errorf("%+v", c)
	}
}

// TestLastError: a thread keeps its error until it is asked for it.
func TestLastError(t *testing.T) {
	locked(t)
	device(t, Unlimited)
	last, peek := stand(t, "cudaGetLastError"), stand(t, "cudaPeekAtLastError")
	call.Call(stand(t, "cudaSetDevice"), 7)
	must(t, "cudaSetDevice", 0)
	for i, f := range []uint64{peek, peek, last, last, peek} {
		want := uintptr(noSuchDevice)
		if i > 2 {
			want = 0
		}
		if got := call.Call(f); got != want {
			t.Errorf("question %d: error %d, want %d", i, got, want)
		}
	}
}

func TestErrorText(t *testing.T) {
	device(t, Unlimited)
	for code, want := range map[uintptr]string{0: "no error", outOfMemory: "out of memory", noSuchDevice: "invalid device ordinal", 12345: "unknown error"} {
		if got := call.Text(stand(t, "cudaGetErrorString"), code); !strings.HasPrefix(got, want) {
			t.Errorf("%d: %q, want %q", code, got, want)
		}
	}
}
