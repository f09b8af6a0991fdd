package runtime

// A step's memory in one slab, on the host or on a device: what it will ask for is known,
// so that every block has a place (ortmodel.Slab), and the process holds what is live,
// and little more.
//
//	prediction ─▶ ortmodel.Slab ─▶ Place    before the first step
//	the file's table ─▶ checked ─▶ places   before the first step; kept while it is right
//	the first step's trace ─▶ Place         after it
//
// Whatever else turns out, a block whose place is taken or not known lies elsewhere.

import (
	"errors"
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/ort"
)

// slabSetup is that of the memory in which the session's steps lie.
func (s *Session) slabSetup() ortmodel.SlabSetup {
	if s.Provider == ort.CPU {
		return ortmodel.HostSlab
	}
	return ortmodel.DeviceSlab
}

// Place makes room for steps that make the slab's requests, in their order. Steps that do
// not keep to it take more memory, and are as right.
func (s *Session) Place(slab *ortmodel.Slab) error {
	s.placed = true
	if s.ort == nil {
		return nil
	}
	s.memory.SlabBytes = slab.Size
	return s.ort.DeviceCounter().Place(places(slab), slab.Size)
}

// SlabKey is the metadata entry of a file that holds the places of its step.
const SlabKey = "remat.slab"

// SlabText is that entry for a step that lies so, of a graph that has the fingerprint; ""
// where nothing of the step lies in a slab, or the requests are too many.
func SlabText(slab *ortmodel.Slab, graph string) string {
	if len(slab.Offset) > ort.MaxSlabRequests || slab.Size == 0 {
		return ""
	}
	return ort.WriteSlab(slab.Size, places(slab), slab.Until, graph)
}

func places(slab *ortmodel.Slab) []ort.Place {
	list := make([]ort.Place, len(slab.Offset))
	for i, offset := range slab.Offset {
		list[i] = ort.Place{Bytes: slab.Bytes[i], Offset: offset}
	}
	return list
}

// A carried table is what a file says of its step's places, or why that is not used.
type carried struct {
	*ort.SlabTable
	err error
}

// errOtherGraph is why the table of a graph that was changed is not used.
var errOtherGraph = errors.New("it is of another graph")

// carriedBy reads the table of a model as it was loaded. Making it ready to run may
// change it.
func carriedBy(m *onnx.Model) carried {
	text, ok := m.Metadata(SlabKey)
	if !ok {
		return carried{}
	}
	table, err := ort.ReadSlab(text)
	if err == nil && table.Graph != m.Fingerprint() {
		err = errOtherGraph
	}
	if err != nil {
		return carried{err: fmt.Errorf("%s: %w: rewrite the file again", SlabKey, err)}
	}
	return carried{SlabTable: table}
}

// SlabError says why the places that the file carries are not used, nil where they are,
// or may be once there is a step, or where it carries none.
func (s *Session) SlabError() error { return s.carried.err }

// placeAsCarried makes room for the file's own steps.
func (s *Session) placeAsCarried() error {
	if s.carried.SlabTable == nil || s.Provider != ort.CPU {
		return nil // a table is of a step on the host
	}
	s.memory.SlabBytes = s.carried.Size
	return s.ort.DeviceCounter().Place(s.carried.Places, s.carried.Size)
}

// The slab of a file is kept where it is at most half again as large as what was live,
// and carriedSlack bytes more for what rounding adds to small steps.
const carriedSlack = 64 << 10

// holds looks at the first step that ran at the file's places.
func (s *Session) holds(step *Step) bool {
	if s.carried.SlabTable == nil {
		return false
	}
	switch {
	case step.AstrayBytes > 0:
		s.carried.err = fmt.Errorf("%s: it is not of this step, which had %d bytes elsewhere", SlabKey, step.AstrayBytes)
	case s.carried.Size > step.LivePeakBytes+step.LivePeakBytes/2+carriedSlack:
		s.carried.err = fmt.Errorf("%s: it takes %d bytes for %d that are live", SlabKey, s.carried.Size, step.LivePeakBytes)
	}
	return s.carried.err == nil
}

// placeAsMeasured makes room for steps like the one that has just ended, as Place does,
// unless they have it.
func (s *Session) placeAsMeasured(counter *ort.Counter, step *Step) error {
	s.placed = true
	if s.holds(step) {
		return nil
	}
	events, err := counter.Events()
	if err != nil {
		return nil // the trace is incomplete: the steps go on as they are
	}
	slab := s.slabSetup().Rough(requests(events))
	err = s.Place(&slab)
	ort.Trim() // what the step has left
	return err
}
