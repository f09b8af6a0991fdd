package predict

// A predicted step in one slab: what the session's allocator takes from the system then.

import "github.com/onnx-remat/remat/ortmodel"

// Slab says where what the step asks for lies, found once; it takes up to a second.
func (p *Prediction) Slab() *ortmodel.Slab {
	if p.slab == nil {
		p.slab = new(p.slabSetup().Pack(p.Trace.Requests()))
	}
	return p.slab
}

func (p *Prediction) slabSetup() ortmodel.SlabSetup {
	if p.device {
		return ortmodel.DeviceSlab
	}
	return ortmodel.HostSlab
}

// Reserved is what the allocator takes from the system, in bytes: for what the session
// holds, and for the step's slab.
func (p *Prediction) Reserved() int64 { return p.Session.Allocated() + p.Slab().Size }

// RoughlyReserved is as much as Reserved, or more, found in a sixteenth of the time.
func (p *Prediction) RoughlyReserved() int64 {
	switch {
	case p.slab != nil:
		return p.Reserved()
	case p.rough == 0:
		slab := p.slabSetup().Rough(p.Trace.Requests())
		p.rough = p.Session.Allocated() + slab.Size
	}
	return p.rough
}
