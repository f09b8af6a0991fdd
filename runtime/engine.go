package runtime

import (
	"fmt"
	"slices"
	"sync"

	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// An Engine is the loaded ONNX Runtime.
type Engine struct {
	Env *ort.Environment

	shared sharedValues
	dumped dumped
	renews renews
	cuda   sync.Once
	// closing has the library given back once, however often Close is called: others may use it.
	closing sync.Once
	cudaOK  bool
	// workspaces are what cuDNN was found to borrow, by kind of node and GPU; borrowed -1: not
	// known.
	workspaces struct {
		sync.Mutex
		known map[string]workspace
	}
	// device stands for a GPU in a rehearsal; nil: steps compute.
	device *nulldevice.Device
}

// New loads ONNX Runtime: the named library, or, where that is empty, the one
// of REMAT_ORT or the installed one.
func New(library string) (*Engine, error) {
	path, err := install.Find(library)
	if err != nil {
		return nil, err
	}
	env, err := ort.Open(path)
	if err != nil {
		return nil, err
	}
	return &Engine{Env: env}, nil
}

// Close unloads it, where no other engine uses it; the second time it does nothing.
// Sessions must be closed before.
func (e *Engine) Close() (err error) {
	e.closing.Do(func() { err = e.Env.Close() })
	return err
}

// Auto chooses the provider: CUDA where it works, else the CPU.
const Auto ort.Provider = "auto"

// Provider resolves Auto (and "") for a device number. That CUDA works is
// found out by copying a scalar there.
func (e *Engine) Provider(p ort.Provider, device int) (ort.Provider, error) {
	switch p {
	case ort.CPU, ort.CUDA:
		return p, nil
	case Auto, "":
	default:
		return "", fmt.Errorf("provider %q: want auto, cpu or cuda", p)
	}
	built, err := e.Env.Providers()
	if err != nil {
		return "", err
	}
	if slices.Contains(built, "CUDAExecutionProvider") && e.TryCUDA(device) == nil {
		return ort.CUDA, nil
	}
	return ort.CPU, nil
}

// HasCUDA reports that sessions can be made with the CUDA provider, which it tries
// once. A nil engine has none.
func (e *Engine) HasCUDA() bool {
	if e == nil {
		return false
	}
	e.cuda.Do(func() {
		p, err := e.Provider(Auto, 0)
		e.cudaOK = err == nil && p == ort.CUDA
	})
	return e.cudaOK
}

// TryCUDA returns nil when the CUDA provider works on the device, and else
// what is missing and how to get it.
func (e *Engine) TryCUDA(device int) error {
	c, err := e.Env.NewCopier(ort.CUDA, device)
	if err != nil {
		return err
	}
	return c.Close()
}
