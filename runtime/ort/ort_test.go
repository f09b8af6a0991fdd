package ort

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func TestCanary(t *testing.T) {
	results := Canary(testEnv)
	if len(results) != 4 {
		t.Fatalf("%d results", len(results))
	}
	for _, r := range results {
		if r.Err != nil {
			t.Errorf("%s: %v", r.Name, r.Err)
		}
	}
}

// reluModel is y = relu(x).
func reluModel(t DType, shape ...int64) []byte {
	return wireModel([]wireNode{{"Relu", "the relu", []string{"x"}, []string{"y"}}},
		[]wireValue{{"x", t, shape}}, []wireValue{{"y", t, shape}})
}

func TestScalar(t *testing.T) {
	s := newSession(t, reluModel(Float32), SessionOptions{Threads: 1})
	x := newTensor(t, Float32)
	floats(x)[0] = 3
	y := runOne(t, s, map[string]*Value{"x": x})[0]
	if len(y.Shape) != 0 || y.Type != Float32 || floats(y)[0] != 3 {
		t.Errorf("got %v %v %v", y.Type, y.Shape, floats(y))
	}
}

// TestTypes passes each element type through an Identity node, rank 0, empty
// and ordinary, and copies what comes of it.
func TestTypes(t *testing.T) {
	c, err := testEnv.NewCopier(CPU, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	types := []DType{Float32, Float64, Float16, BFloat16, Bool, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64}
	for _, d := range types {
		for _, shape := range [][]int64{{}, {0, 3}, {2, 3}} {
			any := slices.Repeat([]int64{-1}, len(shape))
			s, err := testEnv.NewSessionFromBytes(wireModel([]wireNode{{"Identity", "same", []string{"x"}, []string{"y"}}},
				[]wireValue{{"x", d, any}}, []wireValue{{"y", d, any}}), SessionOptions{Threads: 1})
			if err != nil {
				t.Fatalf("%s: %v", d, err)
			}
			from, to := newTensor(t, d, shape...), newTensor(t, d, shape...)
			for i := range from.Bytes() {
				from.Bytes()[i] = byte(i & 1)
			}
			if err := c.Copy(to, runOne(t, s, map[string]*Value{"x": from})[0]); err != nil {
				t.Errorf("%s %v: %v", d, shape, err)
			}
			if string(to.Bytes()) != string(from.Bytes()) {
				t.Errorf("%s %v: got %v, want %v", d, shape, to.Bytes(), from.Bytes())
			}
			s.Close()
		}
	}
}

func TestRefusedValues(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		shape []int64
		want  string
	}{
		{String, []int64{1}, "string tensors are not supported"},
		{Float32, []int64{2, -1}, "negative dimension"},
		{Float64, []int64{1 << 40, 1 << 40}, "too large"},
		{Float32, []int64{5}, "needs 20 bytes, the memory has 16"},
	} {
		if _, err := testEnv.TensorOver(make([]byte, 16), c.dtype, c.shape); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: got %v, want %q", c.dtype, c.shape, err, c.want)
		}
	}
}

// TestCallersMemory binds Go memory in place and an output onto an input.
func TestCallersMemory(t *testing.T) {
	s := newSession(t, reluModel(Float32, -1), SessionOptions{Threads: 1, Allocator: Counting})
	data := []float32{-1, 2, -3, 4}
	x, err := testEnv.TensorOver(unsafe.Slice((*byte)(unsafe.Pointer(&data[0])), 16), Float32, []int64{4})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := errors.Join(b.BindInput("x", x), b.BindOutput("y", x)); err != nil {
		t.Fatal(err)
	}
	s.Counter().Mark(true)
	if err := s.Run(context.Background(), b, "step"); err != nil {
		t.Fatal(err)
	}
	if want := [4]float32{0, 2, 0, 4}; [4]float32(data) != want {
		t.Errorf("got %v, want %v", data, want)
	}
	if st := s.Counter().State(); st.Allocations != 0 {
		t.Errorf("a bound output was allocated: %+v", st)
	}
}

func TestInfos(t *testing.T) {
	model := wireModel([]wireNode{{"Identity", "", []string{"x"}, []string{"y"}}},
		[]wireValue{{"x", Int64, []int64{-1, 3}}}, []wireValue{{"y", Int64, []int64{-1, 3}}})
	s := newSession(t, model, SessionOptions{})
	x := s.Inputs[0]
	if x.Name != "x" || x.Type != Int64 || len(x.Shape) != 2 || x.Shape[0] != -1 || x.Shape[1] != 3 || x.Kind != Tensor {
		t.Errorf("input: %+v", x)
	}
	if len(s.Outputs) != 1 || s.Outputs[0].Name != "y" {
		t.Errorf("outputs: %+v", s.Outputs)
	}
}

func TestErrors(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.onnx")
	if err := os.WriteFile(bad, []byte("not a model at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknown := wireModel([]wireNode{{"NoSuchOperator", "culprit", []string{"x"}, []string{"y"}}},
		[]wireValue{{"x", Float32, nil}}, []wireValue{{"y", Float32, nil}})
	cases := []struct {
		name string
		do   func() error
		code Code // 0: differs between versions
		node string
	}{
		{"not a model", func() error { _, err := testEnv.NewSession(bad, SessionOptions{}); return err }, InvalidProtobuf, ""},
		{"unknown operator", func() error { _, err := testEnv.NewSessionFromBytes(unknown, SessionOptions{}); return err }, InvalidGraph, "culprit"},
		{"kernel failure", func() error { return addMismatch(t) }, 0, "adder"},
	}
	for _, c := range cases {
		err := c.do()
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v, want an Error", c.name, err)
			continue
		}
		if c.code != 0 && e.Code != c.code || e.Node != c.node || strings.ContainsAny(err.Error(), "\n") {
			t.Errorf("%s: code %v, node %q: %v", c.name, e.Code, e.Node, err)
		}
	}
	if _, err := testEnv.NewSession(filepath.Join(t.TempDir(), "absent.onnx"), SessionOptions{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
}

// addMismatch adds tensors that do not broadcast, which only the kernel sees.
func addMismatch(t *testing.T) error {
	any := []int64{-1}
	s := newSession(t, wireModel([]wireNode{{"Add", "adder", []string{"x", "y"}, []string{"z"}}},
		[]wireValue{{"x", Float32, any}, {"y", Float32, any}}, []wireValue{{"z", Float32, any}}), SessionOptions{})
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := errors.Join(b.BindInput("x", newTensor(t, Float32, 2)), b.BindInput("y", newTensor(t, Float32, 3)),
		b.BindOutputToDevice("z", CPU, 0)); err != nil {
		t.Fatal(err)
	}
	return s.Run(context.Background(), b, "")
}

func TestNodeIn(t *testing.T) {
	for message, want := range map[string]string{
		"Non-zero status code returned while running Add node. Name:'h.3/attn' Status Message: x": "h.3/attn",
		"Load model failed: Node (h.3/attn) Op (Add) [ShapeInferenceError] x":                     "h.3/attn",
		"NOT_IMPLEMENTED : Could not find an implementation for Add(14) node with name 'culprit'": "culprit",
		"nothing to see": "",
	} {
		if got := nodeIn(message); got != want {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}

// TestInterrupt ends a run of an endless chain before it is through.
func TestInterrupt(t *testing.T) {
	var nodes []wireNode
	last := "x"
	for i := range 3000 {
		next := "v" + string(rune('a'+i%26)) + time.Duration(i).String()
		nodes = append(nodes, wireNode{"Exp", "", []string{last}, []string{next}})
		last = next
	}
	shape := []int64{1 << 18}
	s := newSession(t, wireModel(nodes, []wireValue{{"x", Float32, shape}}, []wireValue{{last, Float32, shape}}),
		SessionOptions{Threads: 1})
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := errors.Join(b.BindInput("x", newTensor(t, Float32, shape...)), b.BindOutputToDevice(last, CPU, 0)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	if err := s.Run(ctx, b, ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

func TestStats(t *testing.T) {
	for _, c := range []struct {
		o        SessionOptions
		reserved int64 // 0: not checked
	}{
		{SessionOptions{Allocator: DefaultArena}, 0},
		{SessionOptions{Allocator: OwnArena, Arena: ArenaConfig{AsRequested: true}}, 4096},
		{SessionOptions{Allocator: OwnArena, Arena: ArenaConfig{FirstChunk: 10000}}, 10240},
		// Too small a chunk, then the next of 256 bytes doubled until it holds 4096.
		{SessionOptions{Allocator: OwnArena, Arena: ArenaConfig{FirstChunk: 256, MaxExtend: 256, MaxDead: 1}}, 4096},
	} {
		c.o.Threads = 1
		s := newSession(t, reluModel(Float32, 1000), c.o)
		y := runOne(t, s, map[string]*Value{"x": newTensor(t, Float32, 1000)})
		st, err := s.HostStats()
		if err != nil {
			t.Fatal(err)
		}
		if st.MaxInUse < 4000 || st.Reserved < st.MaxInUse || len(y) != 1 {
			t.Errorf("%+v: %+v", c.o, st)
		}
		if c.reserved > 0 && st.Reserved != c.reserved {
			t.Errorf("%+v: reserved %d bytes, want %d", c.o.Arena, st.Reserved, c.reserved)
		}
	}
}

func TestOptimizedModelAndDisabledOptimizers(t *testing.T) {
	// Identity between two nodes goes at level 1, unless its removal is off.
	model := wireModel([]wireNode{
		{"Exp", "a", []string{"x"}, []string{"p"}},
		{"Identity", "b", []string{"p"}, []string{"q"}},
		{"Exp", "c", []string{"q"}, []string{"y"}},
	}, []wireValue{{"x", Float32, []int64{2}}}, []wireValue{{"y", Float32, []int64{2}}})
	for _, c := range []struct {
		disabled []string
		want     bool
	}{{nil, false}, {[]string{"EliminateIdentity"}, true}} {
		out := filepath.Join(t.TempDir(), "o.onnx")
		newSession(t, model, SessionOptions{Level: 1, OptimizedPath: out, DisabledOptimizers: c.disabled})
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(data), "Identity"); got != c.want {
			t.Errorf("disabled %v: Identity in the optimized file: %v", c.disabled, got)
		}
	}
}

func TestCUDAWithoutGPU(t *testing.T) {
	providers, err := testEnv.Providers()
	if err != nil {
		t.Fatal(err)
	}
	_, err = testEnv.NewSessionFromBytes(reluModel(Float32, 1), SessionOptions{Provider: CUDA})
	if err == nil {
		return // a machine with CUDA
	}
	var p *ProviderError
	if !errors.As(err, &p) || !strings.Contains(err.Error(), "remat doctor") && !strings.Contains(err.Error(), "driver") || strings.Contains(err.Error(), "\n") {
		t.Errorf("providers %v: got %v", providers, err)
	}
	t.Log(err)
}

func TestProviderErrors(t *testing.T) {
	for message, want := range map[string]string{
		"Failed to load library /x/libonnxruntime_providers_cuda.so with error: libcublasLt.so.13: cannot open shared object file: No such file or directory": "library libcublasLt.so.13 is missing (run remat doctor --install cuda",
		"with error: libcuda.so.1: cannot open shared object file: No such file or directory":                                                                 "belongs to the NVIDIA driver",
		"CUDA execution provider is not enabled in this build.":                                                                                               "is a build without CUDA (run remat doctor --install cuda)",
		"no CUDA-capable device is detected":                                                                                                                  "no CUDA-capable device is detected (run remat doctor)",
	} {
		if got := (&ProviderError{CUDA, "/x/lib.so", errors.New(message)}).Error(); !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "libonnxruntime.so")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{text, filepath.Dir(text), "/no/such/file.so"} {
		if _, err := LibraryVersion(path); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := Open(path); err == nil {
			t.Errorf("%s was opened", path)
		}
	}
}

// TestRefusedAllocation: what the counting allocator refuses is an error of Run,
// not a write to nowhere, and the session runs again afterwards.
func TestRefusedAllocation(t *testing.T) {
	s := newSession(t, reluModel(Float32, 1024), SessionOptions{Threads: 1, Allocator: Counting})
	x := newTensor(t, Float32, 1024)
	b, err := s.NewBinding()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	step := func() error {
		b.ClearOutputs()
		if err := errors.Join(b.BindInput("x", x), b.BindOutputToDevice("y", CPU, 0)); err != nil {
			t.Fatal(err)
		}
		s.Counter().Mark(false)
		return s.Run(context.Background(), b, "")
	}
	s.Counter().Limit(s.Counter().State().Live + 4095)
	if err := step(); err == nil || !strings.Contains(err.Error(), "bad_alloc") || s.Counter().State().Refused != 4096 {
		t.Errorf("4095 bytes: %v, %+v", err, s.Counter().State())
	}
	s.Counter().Limit(s.Counter().State().Live + 4096)
	if err := step(); err != nil || s.Counter().State().Refused != 0 {
		t.Errorf("4096 bytes: %v, %+v", err, s.Counter().State())
	}
}
