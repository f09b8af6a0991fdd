package ort

// Start-up canaries: the facts about ONNX Runtime that everything rests on,
// tried on one small graph with the library that is loaded.
//
//	file:  relu neg add exp mul sqrt       add = relu + neg, mul = add · exp
//	runs:  sqrt exp neg relu add mul       leaves: sqrt, then mul, whose
//	                                       producers come highest index first
//
// With 64 floats per tensor, 256 bytes each: sqrt, exp and neg are alive when
// relu runs and again (relu and neg dead) after add; see canaryTrace.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"unsafe"

	yalue "github.com/yalue/onnxruntime_go"
)

// A CanaryResult is one fact that was tried; Err is nil when it holds.
type CanaryResult struct {
	Name string
	Err  error
}

var canaryNodes = []wireNode{
	{"Relu", "relu", []string{"x"}, []string{"r"}},
	{"Neg", "neg", []string{"x"}, []string{"n"}},
	{"Add", "add", []string{"r", "n"}, []string{"a"}},
	{"Exp", "exp", []string{"x"}, []string{"e"}},
	{"Mul", "mul", []string{"a", "e"}, []string{"m"}},
	{"Sqrt", "sqrt", []string{"x"}, []string{"q"}},
}

var (
	canaryOrder = []string{"sqrt", "exp", "neg", "relu", "add", "mul"}
	// canaryTrace is the live bytes after each allocation and release, in
	// tensors: + q e n r a, - n r, + m, - a e, and
	// the outputs when they are closed.
	canaryTrace = []int{1, 2, 3, 4, 5, 4, 3, 4, 3, 2, 1, 0}
)

const canaryElements = 64

// Canary tries, with the loaded library, each fact that remat's measurements
// and predictions need: the API table, the values that come back, the
// execution order, the counting allocator.
func Canary(e *Environment) []CanaryResult {
	results := []CanaryResult{{"api table", e.canaryTable()}}
	order, events, values := e.canaryRun()
	return append(results,
		CanaryResult{"values", values},
		CanaryResult{"execution order", order},
		CanaryResult{"counting allocator", events})
}

// canaryTable asks through the table, by index, what yalue asks through its
// header.
func (e *Environment) canaryTable() error {
	if got := yalue.GetVersion(); got != e.version {
		return fmt.Errorf("the loaded library is version %s, the probed one %s", got, e.version)
	}
	providers, err := e.Providers()
	if err != nil {
		return err
	}
	if !slices.Contains(providers, "CPUExecutionProvider") {
		return fmt.Errorf("no CPU provider among %v: unknown API table", providers)
	}
	return nil
}

func (e *Environment) canaryRun() (order, trace, values error) {
	fail := func(err error) (error, error, error) { return err, err, err }
	dir, err := TemporaryDir("remat-canary-")
	if err != nil {
		return fail(err)
	}
	defer DropTemporary(dir)
	shape := []int64{canaryElements}
	model := wireModel(canaryNodes, []wireValue{{"x", Float32, shape}},
		[]wireValue{{"m", Float32, shape}, {"q", Float32, shape}})
	s, err := e.NewSessionFromBytes(model, SessionOptions{
		Threads: 1, Allocator: Counting, ProfilePrefix: filepath.Join(dir, "p")})
	if err != nil {
		return fail(err)
	}
	defer s.Close()
	if values = s.canaryStep(); values != nil {
		return fail(values)
	}
	events, err := s.counter.Events()
	if trace = err; err == nil {
		trace = checkTrace(events)
	}
	return s.checkOrder(), trace, nil
}

// canaryStep runs once on x = 4 and looks at q = √x and m = (relu x − x)·eˣ.
func (s *Session) canaryStep() error {
	x, err := s.env.NewTensor(Float32, []int64{canaryElements})
	if err != nil {
		return err
	}
	defer x.Close()
	in := unsafe.Slice((*float32)(unsafe.Pointer(&x.Bytes()[0])), canaryElements)
	for i := range in {
		in[i] = 4
	}
	b, err := s.NewBinding()
	if err != nil {
		return err
	}
	defer b.Close()
	if err := errors.Join(b.BindInput("x", x), b.BindOutputToDevice("m", CPU, 0),
		b.BindOutputToDevice("q", CPU, 0)); err != nil {
		return err
	}
	s.counter.Mark(true)
	if err := s.Run(context.Background(), b, "canary"); err != nil {
		return err
	}
	out, err := b.Outputs()
	if err != nil {
		return err
	}
	for i, want := range []float32{0, 2} {
		o := out[i]
		if o.Err != nil {
			return o.Err
		}
		defer o.Value.Close()
		got := unsafe.Slice((*float32)(unsafe.Pointer(&o.Value.Bytes()[0])), canaryElements)
		if math.Abs(float64(got[canaryElements-1]-want)) > 1e-6 {
			return fmt.Errorf("output %s is %g, want %g", o.Name, got[canaryElements-1], want)
		}
	}
	return nil
}

func checkTrace(events []Event) error {
	var live int64
	var got []int
	for _, e := range events {
		if e.Alloc {
			live += e.Bytes
		} else {
			live -= e.Bytes
		}
		if live%(4*canaryElements) != 0 {
			return fmt.Errorf("the session allocated %d bytes, no multiple of %d: sizes are rounded", live, 4*canaryElements)
		}
		got = append(got, int(live/(4*canaryElements)))
	}
	if !slices.Equal(got, canaryTrace) {
		return fmt.Errorf("live tensors over the step were %v, want %v: predictions of memory will be off", got, canaryTrace)
	}
	return nil
}

func (s *Session) checkOrder() error {
	p, err := s.EndProfiling()
	if err != nil {
		return err
	}
	var got []string
	for _, n := range p.Nodes {
		got = append(got, n.Node)
	}
	if !slices.Equal(got, canaryOrder) {
		return fmt.Errorf("nodes ran as %v, want %v: schedules will not hold", got, canaryOrder)
	}
	return nil
}
