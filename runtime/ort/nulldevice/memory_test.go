//go:build linux && amd64

package nulldevice

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// resident is what this process takes of the machine's memory, in bytes: pages of its
// own and of files in memory.
func resident(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// TestDeviceSize: what does not fit fails as cudaMalloc does, and is on record.
func TestDeviceSize(t *testing.T) {
	d := device(t, 1<<30)
	before := d.Counters()
	p := alloc(t, 1<<29)
	q := new(uintptr)
	if r := do(t, "cudaMalloc", at(t, q), 1<<29+1); r != outOfMemory || *q != 0 {
		t.Errorf("one byte too much: error %d, pointer %#x", r, *q)
	}
	want := Refusal{Asked: 1<<29 + 1, Live: 1 << 29, Memory: 1 << 30}
	if got, ok := d.Refusal(); !ok || got != want {
		t.Errorf("refusal %+v, %v, want %+v", got, ok, want)
	}
	if text := want.Error(); text != "out of memory on the device: 536870913 bytes were asked for, 536870912 were live, it has 1073741824" {
		t.Error(text)
	}
	if r := do(t, "cudaMalloc", at(t, q), ^uintptr(0)); r != outOfMemory {
		t.Errorf("every byte there is: error %d", r)
	}
	free, total := new(uint64), new(uint64)
	must(t, "cudaMemGetInfo", at(t, free), at(t, total))
	if *free != 1<<29 || *total != 1<<30 {
		t.Errorf("%d of %d bytes free", *free, *total)
	}
	alloc(t, 1<<29) // exactly what is left
	c := d.Counters().Since(before)
	if c.Live != 1<<30 || c.Blocks != 2 || c.Allocations != 2 || c.Refused != 2 {
		t.Errorf("%+v", c)
	}
	if r := do(t, "cudaFree", p+1); r != invalidValue {
		t.Errorf("release of the middle of a block: error %d", r)
	}
}

// TestNoAddresses: what no process can address is refused by the process, and said so.
func TestNoAddresses(t *testing.T) {
	d := device(t, Unlimited)
	if r := do(t, "cudaMalloc", at(t, new(uintptr)), uintptr(Unlimited)); r != outOfMemory {
		t.Errorf("error %d", r)
	}
	if r, ok := d.Refusal(); !ok || !r.Host || r.Asked != Unlimited || !strings.Contains(r.Error(), "ulimit -v") {
		t.Errorf("%v, %v", r, ok)
	}
}

func TestReleaseTwice(t *testing.T) {
	d := device(t, Unlimited)
	p := made(t, "cudaMalloc", 100)
	must(t, "cudaFree", p)
	if r := do(t, "cudaFree", p); r != invalidValue {
		t.Errorf("second release: error %d", r)
	}
	must(t, "cudaFree", 0)
	if c := d.Counters(); c.Live != 0 || c.Blocks != 0 {
		t.Errorf("%+v", c)
	}
	h := made(t, "cudaMallocHost", 100)
	if r := do(t, "cudaFree", h); r != invalidValue {
		t.Errorf("host memory to cudaFree: error %d", r)
	}
	must(t, "cudaFreeHost", h)
}

// TestLargerThanTheMachine: addresses cost nothing until something is written.
func TestLargerThanTheMachine(t *testing.T) {
	d := device(t, Unlimited)
	before := resident(t)
	p := alloc(t, 1<<40)
	must(t, "cudaMemsetAsync", p, 0, 1<<40, 0)
	must(t, "cudaMemsetAsync", p, 7, 1<<40, 0)
	must(t, "cudaMemcpyAsync", p, p+1<<39, 1<<39, onDevice, 0)
	from := hostBytes(t, 64<<20)
	must(t, "cudaMemcpyAsync", p, address(from), uintptr(len(from)), toDevice, 0)
	must(t, "cudaMemcpyAsync", address(from), p, uintptr(len(from)), toHost, 0)
	if grown := resident(t) - before; grown > 16<<20 {
		t.Errorf("%d bytes of memory for nothing", grown)
	}
	if c := d.Counters(); c.Live != 1<<40 {
		t.Errorf("%d bytes live", c.Live)
	}
}

// TestSmallCopies: up to the threshold, what goes to the device comes back.
func TestSmallCopies(t *testing.T) {
	d := device(t, Unlimited)
	before := d.Counters()
	const n = 5000
	p, q := alloc(t, n), alloc(t, n)
	from, to := hostBytes(t, n), hostBytes(t, n)
	for i := range from {
		from[i] = byte(i%251 + 1)
	}
	must(t, "cudaMemcpyAsync", p+3, address(from), n-3, toDevice, 0)
	must(t, "cudaMemcpy", q+1, p+3, n-3, onDevice)
	must(t, "cudaMemcpyAsync", address(to), q, n, anywhere, 0)
	if to[0] != 0 || !bytes.Equal(to[1:n-2], from[:n-3]) || to[n-2] != 0 {
		t.Error("other bytes came back")
	}
	must(t, "cudaMemset", q, 9, 2)
	must(t, "cudaMemset", q+4096, 0, 10)
	must(t, "cudaMemcpy", address(to), q, n, toHost)
	if to[0] != 9 || to[1] != 9 || to[2] != from[1] || to[4095] != from[4094] || !bytes.Equal(to[4096:4106], make([]byte, 10)) || to[4106] != from[4105] {
		t.Error("other bytes after filling")
	}
	c := d.Counters().Since(before)
	if c.CopiesToDevice != 1 || c.BytesToDevice != n-3 || c.CopiesOnDevice != 1 || c.BytesOnDevice != n-3 ||
		c.CopiesToHost != 2 || c.BytesToHost != 2*n || c.Synchronizations != 2 {
		t.Errorf("%+v", c)
	}
	again := alloc(t, n)
	must(t, "cudaMemcpy", address(to), again, n, toHost)
	if !bytes.Equal(to, make([]byte, n)) {
		t.Error("fresh memory is not zero")
	}
}

// TestLargeCopies: above the threshold zeros are transferred, to the last byte and no further.
func TestLargeCopies(t *testing.T) {
	device(t, Unlimited)
	const n = 3<<20 + 123
	p := alloc(t, n+2)
	host := hostBytes(t, n+2)
	fill := bytes.Repeat([]byte{5}, n+2)
	copy(host, fill)
	for i := uintptr(0); i < n+2; i += 1 << 20 {
		must(t, "cudaMemcpy", p+i, address(host), min(1<<20, n+2-i), toDevice)
	}
	must(t, "cudaMemcpy", p+1, address(host), n, toDevice)
	edge := hostBytes(t, 4)
	must(t, "cudaMemcpy", address(edge), p, 2, toHost)
	must(t, "cudaMemcpy", address(edge)+2, p+n, 2, toHost)
	if !bytes.Equal(edge, []byte{5, 0, 0, 5}) {
		t.Errorf("edges on the device: %v", edge)
	}
	must(t, "cudaMemcpy", address(host)+1, p, n, toHost)
	if host[0] != 5 || host[n+1] != 5 || !bytes.Equal(host[1:n+1], make([]byte, n)) {
		t.Error("the host does not read zeros between its edges")
	}
}

// TestBadCopies: what would corrupt memory on a GPU is an error.
func TestBadCopies(t *testing.T) {
	d := device(t, Unlimited)
	p := alloc(t, 100)
	host := hostBytes(t, 4096)
	h := address(host)
	before := d.Counters()
	for _, c := range []struct {
		what string
		name string
		args []uintptr
	}{
		{"past the end", "cudaMemcpy", []uintptr{p + 1, h, 100, toDevice}},
		{"past the end, from", "cudaMemcpy", []uintptr{h, p + 50, 51, toHost}},
		{"fill past the end", "cudaMemset", []uintptr{p, 1, 101}},
		{"the wrong direction", "cudaMemcpy", []uintptr{h, p, 10, toDevice}},
		{"device to device from the host", "cudaMemcpyAsync", []uintptr{p, h, 10, onDevice, 0}},
		{"no such direction", "cudaMemcpy", []uintptr{p, h, 10, 9}},
		{"rows past the end", "cudaMemcpy2DAsync", []uintptr{p, 50, h, 50, 50, 3, toDevice, 0}},
		{"rows wider than their pitch", "cudaMemcpy2DAsync", []uintptr{p, 10, h, 20, 11, 2, toDevice, 0}},
		{"rows beyond all addresses", "cudaMemcpy2DAsync", []uintptr{p, 1 << 40, h, 1 << 40, 1, 1 << 40, toDevice, 0}},
		{"from nowhere", "cudaMemcpy", []uintptr{p, 0, 10, toDevice}},
	} {
		if r := do(t, c.name, c.args...); r != invalidValue {
			t.Errorf("%s: error %d", c.what, r)
		}
	}
	if c := d.Counters().Since(before); c.BytesToHost != 0 {
		t.Errorf("%+v", c)
	}
}

func TestRows(t *testing.T) {
	device(t, Unlimited)
	p := alloc(t, 64)
	from, to := hostBytes(t, 4096), hostBytes(t, 4096)
	copy(from, "abcXdefXghi")
	must(t, "cudaMemcpy2DAsync", p, 8, address(from), 4, 3, 3, toDevice, 0)
	must(t, "cudaMemcpy2DAsync", address(to), 3, p, 8, 3, 3, toHost, 0)
	if got := string(to[:9]); got != "abcdefghi" {
		t.Errorf("%q", got)
	}
}

// TestPointers: the kinds of memory are told apart.
func TestPointers(t *testing.T) {
	device(t, Unlimited)
	p, h := alloc(t, 100), made(t, "cudaHostAlloc", 100, 0)
	defer must(t, "cudaFreeHost", h)
	var a struct {
		kind, device     int32
		onDevice, onHost uintptr
		reserved         [8]int64
	}
	for _, c := range []struct {
		p    uintptr
		kind int32
	}{{p, 2}, {p + 99, 2}, {h + 1, 1}, {address(hostBytes(t, 1)), 0}} {
		must(t, "cudaPointerGetAttributes", at(t, &a), c.p)
		if a.kind != c.kind || c.kind == 2 && a.onHost != 0 || c.kind == 0 && a.onDevice != 0 {
			t.Errorf("%#x: %+v, want kind %d", c.p, a, c.kind)
		}
	}
}

// TestThreads: allocations and copies of many threads keep apart.
func TestThreads(t *testing.T) {
	d := device(t, Unlimited)
	before := d.Counters()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			host := hostBytes(t, 8192)
			for k := range 200 {
				n := uintptr(64 + 37*(k%200))
				p := made(t, "cudaMalloc", n)
				host[0], host[n-1] = byte(i+1), byte(k+1)
				must(t, "cudaMemcpyAsync", p, address(host), n, toDevice, 0)
				host[0], host[n-1] = 0, 0
				must(t, "cudaMemcpyAsync", address(host), p, n, toHost, 0)
				if host[0] != byte(i+1) && n > 1 || host[n-1] != byte(k+1) {
					t.Errorf("thread %d, copy %d: other bytes", i, k)
				}
				must(t, "cudaFree", p)
			}
		})
	}
	wg.Wait()
	c := d.Counters().Since(before)
	if c.Live != before.Live || c.Allocations != 1600 || c.Releases != 1600 || c.CopiesToHost != 1600 {
		t.Errorf("%+v", c)
	}
}
