package ort

// Session options, through yalue's SessionOptions and CUDAProviderOptions.
//
// Memory pattern is off unless asked for (it raises the peak from the second
// run on), and the log level is always fatal.

/*
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	yalue "github.com/yalue/onnxruntime_go"

	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// A Provider is where a session's nodes run.
type Provider string

// The execution providers that are known here.
const (
	CPU  Provider = "cpu"
	CUDA Provider = "cuda"
)

// An Allocator is where a session takes host memory from.
type Allocator int

const (
	// DefaultArena is ONNX Runtime's own choice: an arena that grows by
	// powers of two.
	DefaultArena Allocator = iota
	// OwnArena is an arena of the session's own, set up by SessionOptions.Arena.
	OwnArena
	// NoArena takes every buffer from the system.
	NoArena
	// Counting takes every buffer from a Counter of the session's own, exact
	// to the byte: see Session.Counter.
	Counting
)

// An ArenaConfig says how an arena grows; sizes are bytes, 0 is ONNX Runtime's
// own value. The zero value grows by powers of two.
type ArenaConfig struct {
	AsRequested bool  // each further region as large as what is asked for
	FirstChunk  int64 // the first region, below 2 GiB
	MaxExtend   int64 // bound on doubling the later ones
	MaxDead     int64 // a chunk is split where as much would lie unused
}

// keys are ONNX Runtime's names with the values that are set.
func (c *ArenaConfig) keys() (names []string, values []uint64) {
	strategy := int64(0)
	if c.AsRequested {
		strategy = 1
	}
	for _, e := range []struct {
		name  string
		value int64
	}{
		{"initial_chunk_size_bytes", c.FirstChunk}, {"max_power_of_two_extend_bytes", c.MaxExtend},
		{"max_dead_bytes_per_chunk", c.MaxDead},
	} {
		if e.value != 0 {
			names, values = append(names, e.name), append(values, uint64(e.value))
		}
	}
	return append(names, "arena_extend_strategy"), append(values, uint64(strategy))
}

// SessionOptions says how a session is made. The zero value is level 0, one
// thread per core, CPU, the default arena, no memory pattern.
type SessionOptions struct {
	Level              int // 0, 1, 2 or 99
	Threads            int // 0: one per core
	Provider           Provider
	Device             int
	TF32               bool // products of float32 may round their factors to 10 bits of mantissa, on CUDA
	Allocator          Allocator
	Arena              ArenaConfig // of OwnArena
	MemPattern         bool
	ProfilePrefix      string            // empty: no profile
	OptimizedPath      string            // empty: the optimized model is not saved
	DisabledOptimizers []string          // such as "EliminateDropout"
	Dims               map[string]int64  // fixes symbolic dimensions by name
	Config             map[string]string // session configuration entries
	// Purpose says what the session is for, to who watches: see
	// Environment.WatchSessions.
	Purpose string
	// Unplanned sessions are made without a plan of which buffer is handed on
	// to whom, which takes time that grows with the square of the nodes. They
	// save the same optimized model, and are not to be run.
	Unplanned bool
}

// Configuration keys of ONNX Runtime that are used here.
const (
	keyEnvAllocators     = "session.use_env_allocators"
	keyDisableOptimizers = "optimization.disable_specified_optimizers"

	keyLoadFormat           = "session.load_model_format"
	keyBytesDirectly        = "session.use_ort_model_bytes_directly"
	keyBytesForInitializers = "session.use_ort_model_bytes_for_initializers"
	ownFormat               = "ORT"
)

// OwnFormat is what SessionOptions.Config has for OptimizedPath to get the model in ONNX Runtime's
// own format.
var OwnFormat = map[string]string{"session.save_model_format": ownFormat}

// WithConfig is the options with these configuration entries too, where they have none of their own.
func (o SessionOptions) WithConfig(config map[string]string) SessionOptions {
	config = maps.Clone(config)
	maps.Copy(config, o.Config)
	o.Config = config
	return o
}

// A ProviderError says why a provider cannot be used, and what to do.
type ProviderError struct {
	Provider Provider
	Library  string // the ONNX Runtime library that was asked
	Err      error
}

func (e *ProviderError) Error() string {
	msg := oneLine(e.Err.Error())
	if missing, ok := missingLibrary(msg); ok {
		return fmt.Sprintf("cuda provider: library %s is missing (%s)", missing, whereToGet(missing))
	}
	if m := noDevice.FindStringSubmatch(msg); m != nil {
		return fmt.Sprintf("cuda provider: no device %s: there are %s, counted from 0", m[1], m[2])
	}
	if strings.Contains(msg, "not enabled in this build") || strings.Contains(msg, "is not supported in this build") {
		return fmt.Sprintf("cuda provider: %s is a build without CUDA (run remat doctor --install cuda): %s", e.Library, msg)
	}
	return fmt.Sprintf("cuda provider: %s (run remat doctor)", msg)
}

// noDevice is what the provider's options say of a number that no device has.
var noDevice = regexp.MustCompile(`Invalid device ID: (\d+), must be between 0 \(inclusive\) and (\d+)`)

func (e *ProviderError) Unwrap() error { return e.Err }

// missingLibrary finds "libx.so.1: cannot open shared object file" in a
// loader's message.
func missingLibrary(msg string) (library string, ok bool) {
	before, _, ok := strings.Cut(msg, ": cannot open shared object file")
	if !ok {
		return "", false
	}
	fields := strings.FieldsFunc(before, func(r rune) bool { return r == ' ' || r == ':' || r == '\'' || r == '"' })
	if len(fields) == 0 {
		return "", false
	}
	return filepath.Base(fields[len(fields)-1]), true
}

// whereToGet says how to get a library that the CUDA provider misses.
func whereToGet(library string) string {
	if strings.HasPrefix(library, "libcuda.so") {
		return "it belongs to the NVIDIA driver: a GPU with its driver is needed, or use --provider cpu"
	}
	return "run remat doctor --install cuda, or put its folder on LD_LIBRARY_PATH before the start"
}

// build makes the options; the caller destroys them.
func (o *SessionOptions) build(library string) (*yalue.SessionOptions, error) {
	so, err := yalue.NewSessionOptions()
	if err != nil {
		return nil, fmt.Errorf("session options: %w", err)
	}
	if err := o.apply(so, library); err != nil {
		return nil, errors.Join(err, so.Destroy())
	}
	return so, nil
}

// apply sets the options on the library's object.
func (o *SessionOptions) apply(so *yalue.SessionOptions, library string) error {
	if !slices.Contains([]int{0, 1, 2, 3, 99}, o.Level) {
		return fmt.Errorf("session options: optimization level %d: want 0, 1, 2 or 99", o.Level)
	}
	steps := []func() error{
		func() error { return so.SetLogSeverityLevel(yalue.LoggingLevelFatal) },
		func() error { return so.SetGraphOptimizationLevel(yalue.GraphOptimizationLevel(o.Level)) },
		func() error { return so.SetMemPattern(o.MemPattern) },
		func() error { return so.SetCpuMemArena(o.Allocator != NoArena) },
	}
	if o.Threads > 0 {
		steps = append(steps, func() error { return so.SetIntraOpNumThreads(o.Threads) })
	}
	if o.Unplanned { // nodes that run in parallel are handed no buffers on; one thread alone is not parallel execution
		steps = append(steps, func() error { return so.SetExecutionMode(yalue.ExecutionModeParallel) },
			func() error { return so.SetInterOpNumThreads(2) })
	}
	if o.ProfilePrefix != "" {
		steps = append(steps, func() error { return so.EnableProfiling(o.ProfilePrefix) })
	}
	if o.OptimizedPath != "" {
		steps = append(steps, func() error { return so.SetOptimizedModelFilePath(o.OptimizedPath) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("session options: %s", oneLine(err.Error()))
		}
	}
	if err := o.applyConfig(so); err != nil {
		return err
	}
	switch o.Provider {
	case "", CPU:
		return nil
	case CUDA:
		return o.appendCUDA(so, library)
	}
	return fmt.Errorf("session options: provider %q: want cpu or cuda", o.Provider)
}

// applyConfig sets what the library takes as keys, and the free dimensions.
func (o *SessionOptions) applyConfig(so *yalue.SessionOptions) error {
	config := maps.Clone(o.Config)
	if config == nil {
		config = map[string]string{}
	}
	if o.Allocator == Counting || o.Allocator == OwnArena {
		config[keyEnvAllocators] = "1"
	}
	if len(o.DisabledOptimizers) > 0 {
		config[keyDisableOptimizers] = strings.Join(o.DisabledOptimizers, ";")
	}
	for _, key := range slices.Sorted(maps.Keys(config)) {
		if err := so.AddSessionConfigEntry(key, config[key]); err != nil {
			return fmt.Errorf("session options: %s: %s", key, oneLine(err.Error()))
		}
	}
	raw, err := rawOptions(so)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(o.Dims)) {
		cname := C.CString(name)
		err := statusError(C.ortFreeDimension(raw, cname, C.int64_t(o.Dims[name])))
		C.free(unsafe.Pointer(cname))
		if err != nil {
			return fmt.Errorf("session options: dimension %s: %w", name, err)
		}
	}
	return nil
}

// cudaLibraries are what the CUDA provider needs, each after what it needs
// itself; a library's version follows the name.
var cudaLibraries = []string{"libcudart.so", "libcublasLt.so", "libcublas.so", "libcurand.so", "libnvJitLink.so",
	"libnvrtc.so", "libcufft.so", "libcudnn.so"}

// preloadCUDA loads CUDA's libraries that lie beside ONNX Runtime's, so that
// the provider finds them by name without LD_LIBRARY_PATH. What is not there,
// or does not load, the provider itself will miss and say so.
func preloadCUDA(library string) {
	for _, name := range cudaLibraries {
		found, _ := filepath.Glob(filepath.Join(filepath.Dir(library), name+".*"))
		for _, f := range found {
			path := C.CString(f)
			C.remat_preload(path)
			C.free(unsafe.Pointer(path))
		}
	}
}

// appendCUDA updates the provider's options with a non-empty map first: only
// then does ONNX Runtime load the provider and say which library it lacks.
func (o *SessionOptions) appendCUDA(so *yalue.SessionOptions, library string) error {
	if nulldevice.Loaded() == nil {
		preloadCUDA(library)
	}
	co, err := yalue.NewCUDAProviderOptions()
	if err != nil {
		return &ProviderError{CUDA, library, err}
	}
	defer co.Destroy()
	opts := map[string]string{"device_id": strconv.Itoa(o.Device), "arena_extend_strategy": "kSameAsRequested", "use_tf32": "0"}
	if o.TF32 { // the provider's default
		opts["use_tf32"] = "1"
	}
	if err := co.Update(opts); err != nil {
		return &ProviderError{CUDA, library, err}
	}
	C.remat_find_cuda()
	if err := so.AppendExecutionProviderCUDA(co); err != nil {
		return &ProviderError{CUDA, library, err}
	}
	return nil
}

// rawOptions reads the OrtSessionOptions pointer out of yalue's struct, which
// keeps it in its only field.
func rawOptions(so *yalue.SessionOptions) (*C.OrtSessionOptions, error) {
	f := reflect.ValueOf(so).Elem().FieldByName("o")
	if !f.IsValid() || f.Kind() != reflect.Pointer || f.IsNil() {
		return nil, errors.New("session options: no handle in onnxruntime_go's SessionOptions: another version of that module is needed")
	}
	return (*C.OrtSessionOptions)(f.UnsafePointer()), nil
}
