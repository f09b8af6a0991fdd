package runtime

// Rehearsal: ONNX Runtime's CUDA provider without a device.
//
//	GPU build of ONNX Runtime ─▶ CUDA provider ─▶ null device (package ort)
//
// The provider places, allocates, copies and releases as on a GPU, since that
// depends on shapes alone; kernels do nothing. So sizes are measured, and what
// comes out of a step is no number: a rehearsed Step has neither outputs nor time.

import (
	"cmp"
	"errors"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// ErrRehearsed is what an error Is that says that a rehearsal has no numbers.
var ErrRehearsed = errors.New("rehearsed: no numbers were computed")

// A DeviceCost is what one step asks of a device beside memory.
type DeviceCost struct {
	CopiesToHost, BytesToHost     int64
	CopiesToDevice, BytesToDevice int64
	Synchronizations              int64 // times that the host waits for the device
	// FallbackNodes run on the host on tensors that come from the device or go
	// there; nil where the nodes' placement was not seen.
	FallbackNodes *int64
	Kernels       int64
}

// NewRehearsal loads the GPU build of ONNX Runtime, as New finds it, over a device
// with that many bytes of memory; 0: as many as are asked for.
func NewRehearsal(library string, memory int64) (*Engine, error) {
	path, err := install.FindRehearsal(library)
	if err != nil {
		return nil, err
	}
	if err := nulldevice.Check(path); err != nil {
		return nil, err
	}
	memory = cmp.Or(memory, nulldevice.Unlimited)
	device, err := nulldevice.Load(nulldevice.Options{Memory: memory})
	if err != nil {
		return nil, err
	}
	env, err := ort.Open(path)
	if err != nil {
		return nil, err
	}
	return &Engine{Env: env, device: device}, nil
}

// Rehearsed reports that steps on CUDA run without a device.
func (e *Engine) Rehearsed() bool { return e.device != nil }

// rehearsed reports that the session's steps compute nothing.
func (s *Session) rehearsed() bool { return s.engine.device != nil && s.Provider == ort.CUDA }

// asked is what was asked of the device so far, nothing without a rehearsal.
func (s *Session) asked() nulldevice.Counters {
	if !s.rehearsed() {
		return nulldevice.Counters{}
	}
	return s.engine.device.Counters()
}

// deviceCost is what was asked of the device since then.
func (s *Session) deviceCost(since nulldevice.Counters) *DeviceCost {
	c := s.asked().Since(since)
	return &DeviceCost{
		CopiesToHost: c.CopiesToHost, BytesToHost: c.BytesToHost, CopiesToDevice: c.CopiesToDevice, BytesToDevice: c.BytesToDevice,
		Synchronizations: c.Synchronizations, Kernels: c.Kernels + c.LibraryCalls,
	}
}

// refused says of an error whose cause is that the device had no room what did
// not fit: what ONNX Runtime says names neither.
func (s *Session) refused(err error, since nulldevice.Counters) error {
	if err == nil || s.asked().Since(since).Refused == 0 {
		return err
	}
	refusal, _ := s.engine.device.Refusal()
	return &DeviceMemoryError{refusal}
}

// A DeviceMemoryError says that an allocation did not fit into the device.
type DeviceMemoryError struct{ nulldevice.Refusal }

// Is reports whether the target is ort.ErrMemory.
func (e *DeviceMemoryError) Is(target error) bool { return target == ort.ErrMemory }

// Fallback counts the nodes that ran on the host on tensors that were copied from
// the device, or whose own were copied there, by a profile of the session's
// provider.
func (s *Session) Fallback(p *ort.Profile) (int64, error) {
	so := s.options.session(s.Provider)
	so.Purpose = "find nodes on the host"
	dump, err := s.engine.Dump(s.Model, so)
	if err != nil {
		return 0, err
	}
	host := map[string]bool{}
	for _, n := range p.Nodes {
		if n.Provider == hostProvider {
			host[n.Node] = true
		}
	}
	var count int64
	for _, n := range dump.Graph.Nodes {
		if host[n.Name()] && crosses(n) {
			count++
		}
	}
	return count, dump.Close()
}

const hostProvider = "CPUExecutionProvider"

// crosses reports a node with a neighbor that copies between host and device.
func crosses(n *onnx.Node) bool {
	for _, v := range n.Reads() {
		if v.Producer != nil && v.Producer.Is("MemcpyToHost") {
			return true
		}
	}
	for _, v := range n.Returns() {
		for _, u := range v.Uses() {
			if u.Node != nil && u.Node.Is("MemcpyFromHost") {
				return true
			}
		}
	}
	return false
}
