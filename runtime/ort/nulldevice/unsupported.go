//go:build !(linux && amd64 && cgo)

package nulldevice

// A Device is the null device of this process: here there is none.
type Device struct{}

// Load fails: see ErrUnsupported.
func Load(o Options) (*Device, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return nil, ErrUnsupported
}

// Loaded returns nil.
func Loaded() *Device { return nil }

// Options are none.
func (d *Device) Options() Options { return Options{} }

// Counters are none.
func (d *Device) Counters() Counters { return Counters{} }

// ResetPeak does nothing.
func (d *Device) ResetPeak() {}

// Refusal is none.
func (d *Device) Refusal() (r Refusal, ok bool) { return r, false }

func libraries() []*sharedLibrary { return nil }
