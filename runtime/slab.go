package runtime

// A step's memory in one slab: what it will ask for is known, from a prediction before
// the first step, or else from the first step itself, so that every large block has a
// place (ortmodel.SlabSetup), and the process holds what is live, and little more.

import (
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/ort"
)

// slabLeast is the size in bytes from which blocks lie in the slab. Smaller ones are many
// and small together.
const slabLeast = 4 << 10

// slabSetup is that of the counting allocator.
var slabSetup = ortmodel.SlabSetup{Header: ort.SlabHeader, Align: ort.SlabAlign, Least: slabLeast}

// Place makes room for steps that make these requests, in this order. Steps that do not
// keep to it take more memory, and are as right. On a device it does nothing.
func (s *Session) Place(requests []ortmodel.Request) error {
	s.placed = true
	if s.Provider != ort.CPU || s.ort == nil {
		return nil
	}
	slab := slabSetup.Pack(requests)
	places := make([]ort.Place, len(slab.Offset))
	for i, offset := range slab.Offset {
		places[i] = ort.Place{Bytes: slab.Bytes[i], Offset: offset}
	}
	s.memory.SlabBytes = slab.Size
	return s.ort.DeviceCounter().Place(places, slab.Size)
}

// placeAsMeasured makes room for steps like the one that has just ended, as Place does.
func (s *Session) placeAsMeasured(counter *ort.Counter) error {
	s.placed = true
	if s.Provider != ort.CPU {
		return nil
	}
	events, err := counter.Events()
	if err != nil {
		return nil // the trace is incomplete: the steps go on as they are
	}
	requests, ids := make([]ortmodel.Request, 0, len(events)), map[uint64]int{}
	for _, e := range events {
		if e.Alloc {
			ids[e.ID] = len(ids)
		}
		if id, ok := ids[e.ID]; ok {
			requests = append(requests, ortmodel.Request{ID: id, Bytes: e.Bytes, Alloc: e.Alloc})
		}
	}
	err = s.Place(requests)
	ort.Trim() // what the step has left
	return err
}
