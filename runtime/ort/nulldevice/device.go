package nulldevice

// The Go side: what a program asks for, and what it reads.

import (
	"cmp"
	"errors"
	"fmt"
)

// Unlimited is the memory of a device that holds whatever is asked for: more than
// any process can address.
const Unlimited = int64(1) << 47

// Options are how the device is to be.
type Options struct {
	Memory  int64 // bytes of each device; Unlimited where nothing is to fail
	Devices int   // how many there are, 1 to 16; 0 stands for 1
	// Workspace is what each plan of cuDNN's asks for, in bytes: a stand-in for what only
	// a real device knows, for tests.
	Workspace int64
}

// MaxDevices is how many devices there can be.
const MaxDevices = 16

func (o *Options) check() error {
	o.Devices = cmp.Or(o.Devices, 1)
	if o.Memory <= 0 {
		return fmt.Errorf("null device: memory of %d bytes: more than 0 is needed", o.Memory)
	}
	if o.Devices < 0 || o.Devices > MaxDevices {
		return fmt.Errorf("null device: %d devices: want 1 to %d", o.Devices, MaxDevices)
	}
	if o.Workspace < 0 {
		return fmt.Errorf("null device: a workspace of %d bytes", o.Workspace)
	}
	o.Memory = min(o.Memory, Unlimited)
	return nil
}

// ErrUnsupported is wrapped where this platform has no null device.
var ErrUnsupported = errors.New("the null device needs linux/amd64")

// A SetupError says in one line why the null device cannot be used here.
type SetupError struct {
	What string // the library or file that stands in the way
	Why  string
}

func (e *SetupError) Error() string { return fmt.Sprintf("null device: %s: %s", e.What, e.Why) }

// Counters are what the device has seen since it was loaded, of all devices and
// threads. Differences of two readings are what a run did.
type Counters struct {
	CopiesToHost, BytesToHost     int64
	CopiesToDevice, BytesToDevice int64
	CopiesOnDevice, BytesOnDevice int64 // from device to device
	// Synchronizations are calls in which the host waits for a stream, an event or the
	// device, and copies that are not on a stream.
	Synchronizations int64
	Kernels          int64 // launched by the provider itself
	LibraryCalls     int64 // of cuBLAS, cuBLASLt and cuDNN, each one or more kernels
	Allocations      int64 // of device memory
	Releases         int64
	Refused          int64 // allocations that did not fit
	// Gauges, not sums: what is there now.
	Live, Peak int64 // bytes of device memory; Peak since ResetPeak
	Blocks     int64 // allocations that are live
	HostLive   int64 // bytes of page-locked host memory
	HostBlocks int64
	Handles    int64 // streams, events, graphs, handles and descriptors
}

// Since is what happened between an earlier reading and this one; gauges stay this
// one's.
func (c Counters) Since(earlier Counters) Counters {
	for _, f := range []struct{ now, then *int64 }{
		{&c.CopiesToHost, &earlier.CopiesToHost}, {&c.BytesToHost, &earlier.BytesToHost},
		{&c.CopiesToDevice, &earlier.CopiesToDevice}, {&c.BytesToDevice, &earlier.BytesToDevice},
		{&c.CopiesOnDevice, &earlier.CopiesOnDevice}, {&c.BytesOnDevice, &earlier.BytesOnDevice},
		{&c.Synchronizations, &earlier.Synchronizations}, {&c.Kernels, &earlier.Kernels},
		{&c.LibraryCalls, &earlier.LibraryCalls}, {&c.Allocations, &earlier.Allocations},
		{&c.Releases, &earlier.Releases}, {&c.Refused, &earlier.Refused},
	} {
		*f.now -= *f.then
	}
	return c
}

// A Refusal is an allocation that did not fit, in bytes.
type Refusal struct {
	Asked  int64 // by the allocation
	Live   int64 // allocated on its device then
	Memory int64 // of the device
	// Host says that the device had room, but this process has no addresses left.
	Host bool
}

func (r Refusal) Error() string {
	if r.Host {
		return fmt.Sprintf("out of addresses: %d bytes of device memory were asked for, %d were live, this process may have no more (ulimit -v unlimited)",
			r.Asked, r.Live)
	}
	return fmt.Sprintf("out of memory on the device: %d bytes were asked for, %d were live, it has %d", r.Asked, r.Live, r.Memory)
}
