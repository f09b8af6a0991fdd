package ort

// The table of a step's places as a file carries it: written here, read in C (slab.c),
// where its form stands, so that whoever replays it without Go reads it by the same code.

// #include <stdlib.h>
// #include "slab.h"
import "C"

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"unsafe"
)

// MaxSlabRequests is the most that a table lists.
const MaxSlabRequests = C.kSlabRequests

// A SlabTable says where the requests of a step lie.
type SlabTable struct {
	Size int64 // of the slab, in bytes
	// Peak is the most that lies in it at once, each block rounded up to SlabAlign.
	Peak   int64
	Places []Place
	// Graph is a hash of the graph that steps are of.
	Graph string
}

// WriteSlab writes a table of at most MaxSlabRequests places. Until is, for each in the
// slab, before which request it is released; their number stands for the step's end.
func WriteSlab(size int64, places []Place, until []int, graph string) string {
	var table []byte
	pairs := map[Place]uint64{}
	for i, p := range places {
		if k, ok := pairs[p]; ok {
			table = binary.AppendUvarint(table, k)
		} else {
			pairs[p] = uint64(len(pairs)) + 1
			place := uint64(0)
			if p.Offset >= 0 {
				place = 1 + uint64(p.Offset/SlabAlign)
			}
			for _, v := range []uint64{0, uint64(p.Bytes), place} {
				table = binary.AppendUvarint(table, v)
			}
		}
		if p.Offset >= 0 {
			table = binary.AppendUvarint(table, uint64(until[i]-i)%uint64(len(places)-i))
		}
	}
	return fmt.Sprintf("%d %d %d %d %s %s", slabVersion, size, SlabAlign, len(places), graph,
		base64.RawStdEncoding.EncodeToString(table))
}

const slabVersion = 2

// ReadSlab reads a table from a text that may say anything: what it returns is places
// for Counter.Place that do not get into each other's way.
func ReadSlab(text string) (*SlabTable, error) {
	var t C.SlabTable
	var at C.int64_t
	if why := C.slab_read((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)), &t, &at); why != nil {
		if at >= 0 {
			return nil, fmt.Errorf("request %d %s", at+1, C.GoString(why))
		}
		return nil, fmt.Errorf("%s", C.GoString(why))
	}
	defer C.free(unsafe.Pointer(t.places))
	out := &SlabTable{Size: int64(t.size), Peak: int64(t.peak), Places: make([]Place, int(t.n)), Graph: text[t.graph : t.graph+t.graph_length]}
	for i, p := range unsafe.Slice(t.places, len(out.Places)) {
		out.Places[i] = Place{Bytes: int64(p.bytes), Offset: int64(p.offset)}
	}
	return out, nil
}
