//go:build linux && amd64

package nulldevice_test

// ONNX Runtime's own CUDA provider over the null device. What is expected follows from
// shapes alone.

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// gpu is the environment of all tests with the provider, or why there is none.
var gpu = sync.OnceValues(func() (*ort.Environment, error) {
	library, err := install.FindRehearsal("")
	if err != nil {
		return nil, err
	}
	if err := nulldevice.Check(library); err != nil {
		return nil, err
	}
	if _, err := nulldevice.Load(nulldevice.Options{Memory: nulldevice.Unlimited}); err != nil {
		return nil, err
	}
	return ort.Open(library)
})

// provider loads the device with that memory and returns it with ONNX Runtime. Without
// its GPU build, which is a quarter of a gigabyte, nothing here can run.
func provider(t testing.TB, memory int64) (*ort.Environment, *nulldevice.Device) {
	t.Helper()
	env, err := gpu()
	if errors.Is(err, install.ErrMissing) || err != nil && os.Getenv(install.EnvVar) != "" {
		t.Skipf("make rehearse-deps gets what this needs: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := nulldevice.Load(nulldevice.Options{Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := nulldevice.Load(nulldevice.Options{Memory: nulldevice.Unlimited}); err != nil {
			t.Error(err)
		}
	})
	return env, d
}

// graph is a model of what body makes of the inputs, each of that type and shape.
func graph(t testing.TB, d onnx.DType, shapes map[string][]int64, body func(b *build.Builder, in map[string]*onnx.Value) *onnx.Value) []byte {
	t.Helper()
	m := onnx.NewModel("g", 17)
	in := map[string]*onnx.Value{}
	for _, name := range []string{"x", "w"} {
		if s, ok := shapes[name]; ok {
			in[name] = m.Graph.AddInput(name, onnx.TensorOf(d, onnx.StaticShape(s...)))
		}
	}
	b := build.New(m.Graph, nil, "")
	out := body(b, in)
	b.Flush()
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
	out.Type = onnx.Type{DType: d}
	m.Graph.AddOutput(out)
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// once makes a session, runs it with zeros, its output on the host, and closes all.
func once(env *ort.Environment, model []byte, o ort.SessionOptions, look func(*ort.Session)) (err error) {
	o.Provider, o.Threads = ort.CUDA, 1
	s, err := env.NewSessionFromBytes(model, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	b, err := s.NewBinding()
	if err != nil {
		return err
	}
	defer b.Close()
	for _, in := range s.Inputs {
		v, err := env.NewTensor(in.Type, in.Shape)
		if err != nil {
			return err
		}
		defer v.Close()
		if err := b.BindInput(in.Name, v); err != nil {
			return err
		}
	}
	if err := b.BindOutputToDevice(s.Outputs[0].Name, ort.CPU, 0); err != nil {
		return err
	}
	if err := s.Run(context.Background(), b, ""); err != nil {
		return err
	}
	out, err := b.Outputs()
	if err != nil {
		return err
	}
	if look != nil {
		look(s)
	}
	if out[0].Err != nil {
		return out[0].Err
	}
	return out[0].Value.Close()
}

func product(t testing.TB, n int64) []byte {
	return graph(t, onnx.Float32, map[string][]int64{"x": {n, n}, "w": {n, n}}, func(b *build.Builder, in map[string]*onnx.Value) *onnx.Value {
		return b.Op("Relu", []*onnx.Value{b.Op("MatMul", []*onnx.Value{in["x"], in["w"]})})
	})
}

// TestCounted: a run's copies, launches and memory are those of its graph.
func TestCounted(t *testing.T) {
	env, d := provider(t, nulldevice.Unlimited)
	const n, bytes = 512, 512 * 512 * 4
	before := d.Counters()
	d.ResetPeak()
	err := once(env, product(t, n), ort.SessionOptions{Level: 1}, func(s *ort.Session) {
		c := d.Counters().Since(before)
		if c.CopiesToDevice != 2 || c.BytesToDevice != 2*bytes || c.CopiesToHost != 1 || c.BytesToHost != bytes || c.CopiesOnDevice != 0 {
			t.Errorf("copies: %+v", c)
		}
		if c.Kernels != 1 || c.LibraryCalls != 1 { // Relu, MatMul
			t.Errorf("launches: %+v", c)
		}
		stats, err := s.DeviceStats()
		if err != nil || stats.Reserved != c.Live-before.Live || stats.Reserved < 3*bytes {
			t.Errorf("the arena has %d bytes, the device gave %d: %v", stats.Reserved, c.Live-before.Live, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := d.Counters(); c.Live != before.Live || c.Peak-before.Live < 3*bytes {
		t.Errorf("after the session: %+v", c)
	}
}

// TestNothingStays: sessions opened and closed leave nothing on the device.
func TestNothingStays(t *testing.T) {
	env, d := provider(t, nulldevice.Unlimited)
	model := product(t, 16)
	run := func(times int) {
		for range times {
			if err := once(env, model, ort.SessionOptions{Level: 1}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(1) // what the provider makes once
	before := d.Counters()
	run(300)
	after := d.Counters()
	if after.Live != before.Live || after.Blocks != before.Blocks || after.Handles != before.Handles ||
		after.HostLive != before.HostLive || after.HostBlocks != before.HostBlocks {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
}

// TestOutOfMemory: what does not fit is an error of the run that says so, and the device says
// what was missing; with more memory the same process goes on.
func TestOutOfMemory(t *testing.T) {
	env, d := provider(t, 1<<20)
	model := product(t, 1024)
	err := once(env, model, ort.SessionOptions{}, nil)
	if !errors.Is(err, ort.ErrMemory) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
	if r, ok := d.Refusal(); !ok || r.Asked != 4<<20 || r.Memory != 1<<20 {
		t.Errorf("%+v, %v", r, ok)
	}
	provider(t, 1<<30)
	if err := once(env, model, ort.SessionOptions{}, nil); err != nil {
		t.Error(err)
	}
}

func TestNoSuchDevice(t *testing.T) {
	env, _ := provider(t, nulldevice.Unlimited)
	err := once(env, product(t, 16), ort.SessionOptions{Device: 3}, nil)
	var failed *ort.ProviderError
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "3") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// TestLargerThanMachine: a tensor of 32 GiB is made, read and released. The arena itself takes a
// thirty-second of that from the host, 8 bytes for each 256.
func TestLargerThanMachine(t *testing.T) {
	env, d := provider(t, nulldevice.Unlimited)
	before := d.Counters()
	d.ResetPeak()
	const rows, columns = 1 << 17, 1 << 16
	model := graph(t, onnx.Float32, map[string][]int64{"x": {rows, 1}, "w": {1, columns}}, func(b *build.Builder, in map[string]*onnx.Value) *onnx.Value {
		return b.Op("ReduceSum", []*onnx.Value{b.Op("Mul", []*onnx.Value{in["x"], in["w"]})})
	})
	if err := once(env, model, ort.SessionOptions{}, nil); err != nil {
		t.Fatal(err)
	}
	if peak := d.Counters().Peak - before.Live; peak < 4*rows*columns {
		t.Errorf("peak %d bytes", peak)
	}
}

// TestLibraries: operators that go through cuDNN, by its descriptors and by its graphs.
func TestLibraries(t *testing.T) {
	env, d := provider(t, nulldevice.Unlimited)
	image := map[string][]int64{"x": {2, 3, 8, 8}, "w": {4, 3, 3, 3}}
	for _, c := range []struct {
		op     string
		dtype  onnx.DType
		shapes map[string][]int64
		attrs  []onnx.Attribute
	}{
		{"Conv", onnx.Float32, image, nil},
		{"Conv", onnx.Float16, image, nil},
		{"ConvTranspose", onnx.Float32, map[string][]int64{"x": {2, 4, 8, 8}, "w": {4, 3, 3, 3}}, nil},
		{"GlobalAveragePool", onnx.Float32, map[string][]int64{"x": {2, 3, 8, 8}}, nil},
		{"MaxPool", onnx.Float32, map[string][]int64{"x": {2, 3, 8, 8}}, []onnx.Attribute{onnx.IntsAttr("kernel_shape", 2, 2)}},
		{"ReduceL1", onnx.Float16, map[string][]int64{"x": {16, 16}}, nil},
		{"ReduceLogSumExp", onnx.Float32, map[string][]int64{"x": {16, 16}}, []onnx.Attribute{onnx.IntsAttr("axes", 1)}},
		{"ReduceProd", onnx.Float32, map[string][]int64{"x": {16, 16}}, nil},
	} {
		before := d.Counters()
		model := graph(t, c.dtype, c.shapes, func(b *build.Builder, in map[string]*onnx.Value) *onnx.Value {
			inputs := []*onnx.Value{in["x"]}
			if in["w"] != nil {
				inputs = append(inputs, in["w"])
			}
			return b.Op(c.op, inputs, c.attrs...)
		})
		if err := once(env, model, ort.SessionOptions{Level: 1}, nil); err != nil {
			t.Errorf("%s of %v: %v", c.op, c.dtype, err)
		}
		after := d.Counters()
		if after.Since(before).LibraryCalls == 0 {
			t.Errorf("%s of %v: cuDNN was not asked", c.op, c.dtype)
		}
		if after.Live != before.Live || after.Handles != before.Handles {
			t.Errorf("%s of %v: before %+v\nafter %+v", c.op, c.dtype, before, after)
		}
	}
}

// TestSessionsInParallel: sessions on several threads do not disturb each other's device.
func TestSessionsInParallel(t *testing.T) {
	env, d := provider(t, nulldevice.Unlimited)
	model := product(t, 64)
	before := d.Counters()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if err := once(env, model, ort.SessionOptions{Level: 1}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	c := d.Counters().Since(before)
	if c.CopiesToDevice != 80 || c.CopiesToHost != 40 || c.Kernels != 40 || c.Live != before.Live {
		t.Errorf("%+v", c)
	}
}

// TestNamesOfCuDNN: the provider finds cuDNN's functions by their names, which are texts in it; each
// has a stand-in.
func TestNamesOfCuDNN(t *testing.T) {
	env, _ := provider(t, nulldevice.Unlimited)
	f, err := elf.Open(filepath.Join(filepath.Dir(env.Path()), "libonnxruntime_providers_cuda.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := f.Section(".rodata").Data()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`\x00cudnn[A-Z]\w+`).FindAllIndex(text, -1) {
		if text[m[1]] == 0 {
			names[string(text[m[0]+1:m[1]])] = true
		}
	}
	if len(names) < 60 {
		t.Errorf("%d names of cuDNN in the provider, about 66 are known", len(names))
	}
	for name := range names {
		if !nulldevice.StandsIn(name) {
			t.Errorf("%s has no stand-in", name)
		}
	}
}
