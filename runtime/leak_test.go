package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// large is the elements of each value of the graphs below: what one failure
// leaves shows after a few hundred.
const large = "65536"

const leakHead = "model ir=9 opset=20\ngraph g {\nin x float32[" + large + "]\nin W float32[" + large + "]\nin W.m float32[" + large + "]\n"

const leakTail = "W.m.new = Add(W.m, p)\nW.new = Sub(W, W.m.new)\nloss = ReduceSum(p) {keepdims=0}\n" +
	"out loss float32[]\nout W.new float32[" + large + "]\nout W.m.new float32[" + large + "]\n}\n"

// TestSessionsLeaveNothing opens, steps and closes a thousand sessions, with values
// that are mapped, made, fed back in place and by way of a copy.
func TestSessionsLeaveNothing(t *testing.T) {
	const body = "p = Mul(x, W)\n"
	for _, provider := range providers(t) {
		t.Run(string(provider), func(t *testing.T) {
			path := saveLeaky(t, t.TempDir(), body, `{"W": {"file": "w.bin", "offset": 0, "bytes": 262144}}`)
			round := func() {
				s, err := testEngine.OpenFile(path, Options{Provider: provider, Threads: 1, Level: 1, Trace: true})
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if _, err := s.Step(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				if _, _, err := s.Input("W"); err != nil {
					t.Fatal(err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			leavesNothing(t, 30, 1000, round)
		})
	}
}

// leavesNothing runs a round some times to warm up, then as often as given: the
// process holds what it held. One file more may be one that is opened once, or that is yet to be
// closed; of what leaks there are more after as many rounds again.
func leavesNothing(t *testing.T, warm, times int, round func()) {
	t.Helper()
	for range warm {
		round()
	}
	before := held(t)
	for range times {
		round()
	}
	after := held(t)
	if after.files > before.files {
		before.files = after.files
		for range times {
			round()
		}
		after.files = held(t).files
	}
	if grown := after.memory - before.memory; grown > 8<<20 {
		t.Errorf("the process grew by %d bytes", grown)
	}
	if after.files > before.files || after.maps > before.maps || after.goroutines > before.goroutines || after.device != before.device {
		t.Errorf("held before %+v, after %+v", before, after)
	}
}

// saveLeaky writes a model with that body between head and tail into a folder,
// beside w.bin.
func saveLeaky(t *testing.T, dir, body, parameters string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "w.bin"), make([]byte, 4*65536), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Parse(leakHead + body + leakTail)
	if err != nil {
		t.Fatal(err)
	}
	m.SetMetadata(ParametersKey, parameters)
	path := filepath.Join(dir, "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// providers are the CPU, and CUDA where it works.
func providers(t *testing.T) []ort.Provider {
	t.Helper()
	if err := testEngine.TryCUDA(0); err != nil {
		t.Logf("on the CPU only: %v", err)
		return []ort.Provider{ort.CPU}
	}
	return []ort.Provider{ort.CPU, ort.CUDA}
}

// TestFailuresLeaveNothing opens and runs what fails at every stage, again and
// again: memory, mapped files, open files, temporary files and goroutines stay
// what they were.
func TestFailuresLeaveNothing(t *testing.T) {
	temp, dir := t.TempDir(), t.TempDir()
	all := providers(t)
	t.Setenv("TMPDIR", temp)
	const located = `{"W": {"file": "w.bin", "offset": 0, "bytes": 262144}}`
	long := FromFloat32s(make([]float32, 65536), 65536)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range []struct {
		name, body, parameters string
		o                      Options
		ctx                    context.Context
		want                   string // of Open's error, else of the first step's
		steps                  bool
		host                   bool // it fails on the CPU alone
	}{
		{name: "no such operator", body: "p = Frobnicate(x)\n", o: Options{Profile: true}, want: "Frobnicate"},
		{name: "no kernel", body: "a = Cast(x) {to=16}\nb = Erf(a)\np = Cast(b) {to=1}\n", o: Options{Level: 1}, want: "Erf", host: true},
		{name: "shapes that disagree", body: "init k float32[3] = [1,2,3]\np = Add(x, k)\n", o: Options{Level: 99}, want: "ncompatible"},
		{name: "another feed's shape", body: "p = Mul(x, W)\n", o: Options{Feed: map[string]Tensor{"x": FromFloat32s([]float32{1}, 1)}}, want: "shape"},
		{name: "no file", body: "in V float32[" + large + "]\nq = Mul(x, W)\np = Mul(q, V)\n", o: Options{Profile: true},
			parameters: `{"W": {"file": "w.bin", "offset": 0, "bytes": 262144}, "V": {"file": "v.bin", "offset": 0, "bytes": 262144}}`, want: "v.bin"},
		{name: "a short file", body: "in V float32[" + large + "]\nq = Mul(x, W)\np = Mul(q, V)\n", o: Options{Level: 1},
			parameters: `{"W": {"file": "w.bin", "offset": 0, "bytes": 262144}, "V": {"file": "w.bin", "offset": 8, "bytes": 262144}}`, want: "lie outside"},
		{name: "roles", body: "p = Mul(x, W)\n", o: Options{Roles: &Roles{New: map[string]string{"W": "nothing"}}}, want: "nothing"},
		{name: "an index out of bounds", body: "in i int64[1]\nq = Gather(x, i)\np = Mul(x, q)\n", o: Options{Profile: true, Trace: true,
			Feed: map[string]Tensor{"i": FromInt64s([]int64{1 << 20}, 1)}}, want: "lies outside of what it indexes", steps: true, host: true},
		{name: "no memory", body: "p = Mul(x, W)\n", o: Options{MemoryLimit: 900_000, Level: 1, Feed: map[string]Tensor{"x": long}}, want: "more than the limit", steps: true, host: true},
		{name: "cancelled", body: "p = Mul(x, W)\n", ctx: cancelled, want: "canceled", steps: true},
	} {
		for _, provider := range all {
			if c.host && provider != ort.CPU {
				continue
			}
			t.Run(c.name+" on "+string(provider), func(t *testing.T) {
				if c.parameters == "" {
					c.parameters = located
				}
				path := saveLeaky(t, dir, c.body, c.parameters)
				c.o.Provider, c.o.Threads = provider, 1
				if c.ctx == nil {
					c.ctx = context.Background()
				}
				leavesNothing(t, 30, 150, func() {
					s, err := testEngine.OpenFile(path, c.o)
					if err == nil {
						_, err = s.Step(c.ctx)
						err = errors.Join(err, s.Close())
					} else if c.steps {
						t.Fatal(err)
					}
					if err == nil || !strings.Contains(err.Error(), c.want) {
						t.Fatalf("got %v, want %q", err, c.want)
					}
				})
				if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
					t.Errorf("left among temporary files: %v, %v", left, err)
				}
			})
		}
	}
}

// A holding is what a process holds: bytes, open files, mappings, goroutines, and of
// a rehearsed device bytes, page-locked bytes and handles.
type holding struct {
	memory                  int64
	files, maps, goroutines int
	device                  [3]int64
}

func held(t *testing.T) (h holding) {
	t.Helper()
	goruntime.GC()
	ort.Trim()
	var err error
	if h.memory, err = RSS(); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	h.files, h.maps, h.goroutines = len(files), strings.Count(string(maps), "w.bin")+strings.Count(string(maps), "m.onnx"), goruntime.NumGoroutine()
	if d := testEngine.device; d != nil {
		c := d.Counters()
		h.device = [3]int64{c.Live, c.HostLive, c.Handles}
	}
	return h
}

// TestRefusalsLeaveNothing fails sessions and steps for want of device memory at every
// point that there is.
func TestRefusalsLeaveNothing(t *testing.T) {
	onlyRehearsed(t)
	t.Cleanup(func() { nulldevice.Load(nulldevice.Options{Memory: nulldevice.Unlimited}) })
	path := saveLeaky(t, t.TempDir(), "p = Mul(x, W)\n", `{"W": {"file": "w.bin", "offset": 0, "bytes": 262144}}`)
	fits := false
	for memory := int64(64 << 10); !fits && memory < 16<<20; memory += 192 << 10 {
		if _, err := nulldevice.Load(nulldevice.Options{Memory: memory}); err != nil {
			t.Fatal(err)
		}
		leavesNothing(t, 3, 20, func() {
			s, err := testEngine.OpenFile(path, Options{Provider: ort.CUDA, Threads: 1})
			if err == nil {
				_, err = s.Step(context.Background())
				err = errors.Join(err, s.Close())
			}
			var full *DeviceMemoryError
			if fits = err == nil; !fits && (!errors.As(err, &full) || full.Memory != memory || full.Live+full.Asked <= memory) {
				t.Fatalf("with %d bytes: %v", memory, err)
			}
		})
	}
	if !fits {
		t.Error("16 MiB are not enough")
	}
}
