// Package ranks combines float32 buffers that the ranks of a training have, so that all
// end with the same bits, wherever the ranks are.
//
// A buffer of c elements is cut into one chunk a rank. Rank r gets its chunk from every
// other rank, combines all of them in the order of the ranks, and sends the result to
// every other rank (reduce-scatter and all-gather, as in Rabenseifner 2004,
// "Optimization of Collective Reduction Operations", by direct exchange):
//
//	chunks   0   1   2          to rank 0   to rank 1   to rank 2
//	rank 0   a0  a1  a2   ─▶    a0 b0 c0    a1 b1 c1    a2 b2 c2   ─▶ everybody
//	rank 1   b0  b1  b2
//	rank 2   c0  c1  c2
//
// All ranks together send 2(n-1) times the buffer, as a ring does, which is the least
// that is possible. A ring combines each chunk in another order; here the order is that
// of the ranks, for every element, so a sum over ranks is bit for bit the sum that one
// machine accumulates over the same micro-batches.
//
// The bytes are moved by a Transport: Run has the ranks in one process, package
// runtime/mpi under MPI. Both move the same messages.
package ranks

import (
	"fmt"
	"unsafe"
)

// A Transport moves bytes between the ranks of a training.
type Transport interface {
	Rank() int
	Size() int
	// Exchange sends bytes to a rank while it receives from another one, as many as
	// that rank sends. The two may be the same, and neither is this rank.
	Exchange(to int, send []byte, from int, recv []byte) error
	// Beside says that one goroutine may exchange while the rank's own computes.
	Beside() bool
}

// A Group is a rank's side of what the ranks do together. All ranks make the same calls
// with buffers of the same size in the same order. It is for one goroutine at a time.
type Group struct {
	t       Transport
	scratch []float32
	sent    int64
}

// NewGroup is the rank's side over a transport.
func NewGroup(t Transport) *Group { return &Group{t: t} }

// Beside says that one goroutine may make the group's calls while the rank computes.
func (g *Group) Beside() bool { return g.t.Beside() }

// Rank is which of the ranks this is, from 0.
func (g *Group) Rank() int { return g.t.Rank() }

// Size is how many ranks there are.
func (g *Group) Size() int { return g.t.Size() }

// Sent is how many bytes this rank has sent.
func (g *Group) Sent() int64 { return g.sent }

// Held is how many bytes the group holds for pieces that arrive; 0 before the first
// Combine.
func (g *Group) Held() int64 { return int64(len(g.scratch)) * 4 }

// scratchElements bound what a group holds for pieces that arrive, in float32 elements.
const scratchElements = 1 << 18

// block is how many elements of its chunk a rank combines at once.
func block(size int) int { return max(1, scratchElements/max(1, size-1)) }

// Scratch is what Held comes to, in bytes, for so many ranks.
func Scratch(size int) int64 { return int64(size-1) * int64(block(size)) * 4 }

// Chunk is the part of a buffer of so many elements that a rank combines: [from, to).
func Chunk(elements, rank, size int) (from, to int) {
	at := func(r int) int { return int(int64(elements) * int64(r) / int64(size)) }
	return at(rank), at(rank + 1)
}

// CombineBytes is what a rank sends in Combine of a buffer of so many elements.
func CombineBytes(elements, rank, size int) int64 {
	from, to := Chunk(elements, rank, size)
	own := int64(to - from)
	return 4 * (int64(elements) - own + int64(size-1)*own)
}

// ShareBytes is what a rank sends in Share of so many bytes.
func ShareBytes(bytes, size int) int64 { return int64(bytes) * int64(size-1) }

// HeldBytes is what a rank holds beside its sessions: scratch and, where ranks train
// locally, its chunks of the common point and of the momentum of each parameter, which
// has so many elements.
func HeldBytes(elements []int64, rank, size int, local bool) int64 {
	held := Scratch(size)
	for _, n := range elements {
		if from, to := Chunk(int(n), rank, size); local {
			held += 8 * int64(to-from)
		}
	}
	return held
}

// WordBytes is what ranks tell each other of a step beside what they combine.
const WordBytes = 24

// SyncBytes is what a rank sends each time that ranks agree, with the elements of each
// value that is combined: their share of 2(n-1)/n, and a word.
func SyncBytes(elements []int64, rank, size int) int64 {
	n := ShareBytes(WordBytes, size)
	for _, e := range elements {
		n += CombineBytes(int(e), rank, size)
	}
	return n
}

// A Fold combines what the ranks have of some elements: parts[r] is rank r's, all of one
// length, and the result is written over parts[own]. The elements begin at number at of
// the own chunk.
type Fold func(parts [][]float32, own, at int)

// Sum adds the parts up in the order of the ranks.
func Sum(parts [][]float32, own, _ int) {
	out := parts[own]
	for i := range out {
		s := parts[0][i]
		for _, p := range parts[1:] {
			s += p[i]
		}
		out[i] = s
	}
}

// Combine replaces the buffer by what fold makes of the buffers of all ranks.
func (g *Group) Combine(buf []float32, fold Fold) error {
	chunks := make([][]float32, g.Size())
	for rank := range chunks {
		from, to := Chunk(len(buf), rank, g.Size())
		chunks[rank] = buf[from:to]
	}
	if err := g.Reduce(chunks, fold); err != nil {
		return err
	}
	return g.Gather(chunks)
}

// Reduce replaces the own chunk by what fold makes of what all ranks have of it: chunks[r]
// is this rank's part of what rank r combines.
func (g *Group) Reduce(chunks [][]float32, fold Fold) error {
	size, rank := g.Size(), g.Rank()
	if g.scratch == nil && size > 1 {
		g.scratch = make([]float32, (size-1)*block(size))
	}
	for at := 0; at < longest(chunks); at += block(size) {
		parts, err := g.scatter(chunks, at)
		if err != nil {
			return err
		}
		if at < len(chunks[rank]) {
			fold(parts, rank, at)
		}
	}
	return nil
}

func longest(chunks [][]float32) (n int) {
	for _, c := range chunks {
		n = max(n, len(c))
	}
	return n
}

// piece is the block of a chunk that begins at number at of it.
func piece(chunk []float32, at, length int) []float32 {
	return chunk[min(at, len(chunk)):min(at+length, len(chunk))]
}

// scatter sends every rank its block, and returns what the ranks have of the own one.
func (g *Group) scatter(chunks [][]float32, at int) ([][]float32, error) {
	size, rank, length := g.Size(), g.Rank(), block(g.Size())
	parts := make([][]float32, size)
	parts[rank] = piece(chunks[rank], at, length)
	for k := 1; k < size; k++ {
		to, from := (rank+k)%size, (rank-k+size)%size
		parts[from] = g.scratch[(k-1)*length:][:len(parts[rank])]
		if err := g.exchange(to, piece(chunks[to], at, length), from, parts[from]); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// messageElements bound a message: MPI counts bytes in 31 bits.
const messageElements = 1 << 26

// Gather sends the own chunk to all ranks, and receives theirs.
func (g *Group) Gather(chunks [][]float32) error {
	size, rank := g.Size(), g.Rank()
	for at := 0; at < longest(chunks); at += messageElements {
		for k := 1; k < size; k++ {
			to, from := (rank+k)%size, (rank-k+size)%size
			err := g.exchange(to, piece(chunks[rank], at, messageElements), from, piece(chunks[from], at, messageElements))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *Group) exchange(to int, send []float32, from int, recv []float32) error {
	g.sent += int64(len(send)) * 4
	return g.t.Exchange(to, Bytes(send), from, Bytes(recv))
}

// Bytes is the memory of the elements.
func Bytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*4)
}

// Floats is the memory of bytes as float32 elements.
func Floats(b []byte) ([]float32, error) {
	p := unsafe.Pointer(unsafe.SliceData(b))
	if len(b)%4 != 0 || uintptr(p)%4 != 0 {
		return nil, fmt.Errorf("%d bytes at an address that is %d modulo 4 are no float32 elements", len(b), uintptr(p)%4)
	}
	return unsafe.Slice((*float32)(p), len(b)/4), nil
}

// Share gives every rank what each has, by rank; all have as many bytes.
func (g *Group) Share(own []byte) ([][]byte, error) {
	size, rank := g.Size(), g.Rank()
	all := make([][]byte, size)
	all[rank] = own
	for k := 1; k < size; k++ {
		to, from := (rank+k)%size, (rank-k+size)%size
		all[from] = make([]byte, len(own))
		g.sent += int64(len(own))
		if err := g.t.Exchange(to, own, from, all[from]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// messageBytes bound what Agree says of an error.
const messageBytes = 1024

// A RankError is an error of one of the ranks.
type RankError struct {
	Rank int
	Text string
}

func (e *RankError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Text) }

// Agree returns once all ranks have come to this place: with nil where none has an
// error, else with the own one or, for lack of it, that of the first rank that has one.
func (g *Group) Agree(err error) error {
	own := make([]byte, messageBytes)
	if err != nil {
		copy(own, "!"+err.Error())
	}
	all, failed := g.Share(own)
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	for rank, text := range all {
		if text[0] != 0 {
			end := len(text)
			for end > 0 && text[end-1] == 0 {
				end--
			}
			return &RankError{rank, string(text[1:end])}
		}
	}
	return nil
}
