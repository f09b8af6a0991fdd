package planner

import (
	"sort"

	"github.com/onnx-remat/remat/ortmodel"
)

// A LiveBuffer is a buffer that exists at the peak of a step.
type LiveBuffer struct {
	// Value is what it was allocated for; Copy tells instances apart.
	Value, Copy int
	Bytes       int64
	// Waiting: its values are dead, and it waits for a later one of its shape.
	Waiting bool
}

// A Peak says when a step holds most, and what.
type Peak struct {
	Bytes int64
	// Position is the place in the schedule, Op the operator that runs there.
	Position, Op int
	// Buffers are those that exist then, largest first. Scratch is what the
	// operator's kernel allocates inside.
	Buffers []LiveBuffer
	Scratch int64
	// ByRole sums the buffers by the role of the value they were made for.
	ByRole map[Role]int64
	// Profile holds the bytes at each place of the schedule.
	Profile []int64
}

// PeakOf returns the peak of a plan, run in its own order.
func PeakOf(p *Problem, pl *Plan) (*Peak, error) {
	if err := pl.Check(p); err != nil {
		return nil, err
	}
	s := newLiveSim(p.indexed(), true)
	s.conceal = pl.Conceal
	s.run(pl.Schedule)
	at := int32(s.peakAt)
	k := &Peak{Bytes: s.peak, Position: s.peakAt, ByRole: make(map[Role]int64), Profile: append([]int64(nil), s.live...)}
	if len(pl.Schedule) == 0 {
		return k, nil
	}
	k.Op = pl.Schedule[at]
	lastUse := s.lastTenantUse()
	copies := make(map[int32]int)
	var sum int64
	for b, born := range s.birth {
		v := s.value[b]
		if v < 0 {
			continue
		}
		number := copies[v]
		copies[v]++
		if born < 0 || born > at || s.death[b] >= 0 && s.death[b] < at && p.Graph.Values[v].Kind == ortmodel.Inner {
			continue
		}
		lb := LiveBuffer{Value: int(v), Copy: number, Bytes: p.Graph.Values[v].Bytes}
		lb.Waiting = !usedAround(lastUse[int32(b)], at) && p.Graph.Values[v].Kind == ortmodel.Inner
		k.Buffers = append(k.Buffers, lb)
		k.ByRole[p.Values[v].Role] += lb.Bytes
		sum += lb.Bytes
	}
	k.Scratch = max(s.peak-sum, 0)
	sort.SliceStable(k.Buffers, func(i, j int) bool { return k.Buffers[i].Bytes > k.Buffers[j].Bytes })
	return k, nil
}

// span is the life of one tenant of a buffer.
type span struct{ from, to int32 }

// lastTenantUse lists for each buffer the lives of its tenants.
func (s *liveSim) lastTenantUse() map[int32][]span {
	to := make([]int32, len(s.value))
	from := make([]int32, len(s.value))
	for pos := range len(s.start) - 1 {
		for _, in := range s.read[s.start[pos]:s.start[pos+1]] {
			if in >= 0 {
				to[in] = int32(pos)
			}
		}
	}
	pos := 0
	for id := range s.value {
		for pos+1 < len(s.first) && s.first[pos+1] <= int32(id) {
			pos++
		}
		from[id] = int32(pos)
		to[id] = max(to[id], from[id])
	}
	lives := make(map[int32][]span)
	for id, b := range s.buf[:len(s.value)] {
		if b >= 0 && s.value[id] >= 0 {
			lives[b] = append(lives[b], span{from[id], to[id]})
		}
	}
	return lives
}

func usedAround(lives []span, at int32) bool {
	for _, l := range lives {
		if l.from <= at && at <= l.to {
			return true
		}
	}
	return false
}
