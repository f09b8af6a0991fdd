package report

// Memory over many steps, and whether it grows.
//
//	live after the step   the allocator's own count: exact, so any growth is a leak
//	held                  resident, less what Go's collector has freed and keeps
//
// Growth is what four quarters of the steps after the warm-up show each above the one
// before, by their medians, without settling, at more than a floor: pages, records of the steps and what
// allocators keep come on top of resident sizes, and never of live ones.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/units"
)

// StepMemory is what is there during a step, and after it; bytes.
type StepMemory struct {
	LivePeak  int64 `json:"live_peak_bytes"`
	LiveAfter int64 `json:"live_after_bytes"`
	Reserved  int64 `json:"reserved_bytes"`
	Resident  int64 `json:"resident_bytes"`
	// Held is Resident less garbage of this program's own; 0 where it was not looked at.
	Held int64 `json:"held_bytes,omitempty"`
}

// Monitor is the verdict over the steps of a run.
type Monitor struct {
	Steps   int    `json:"steps"`
	Grows   bool   `json:"grows"`
	Verdict string `json:"verdict"`
	// What grows: live or resident; Since is the first step of the growth, from 1.
	What         Text   `json:"what"`
	BytesPerStep *Float `json:"bytes_per_step"`
	Since        *int   `json:"since"`
	// Of the steps after the warm-up: the least and the most.
	LeastLiveAfter, MostLiveAfter int64 `json:"-"`
	LeastResident, MostResident   int64 `json:"-"`
	MostReserved, MostLive        int64 `json:"-"`
}

// What growth of what is held has to exceed, in bytes: a step, and all together.
const (
	heldPerStep = 4 << 10
	heldAtAll   = 4 << 20
)

// Least steps for a verdict, and the share of them that warms up.
const (
	leastMonitored = 12
	warmUpShare    = 5 // one of so many
)

// NewMonitor looks at the steps of a run.
func NewMonitor(steps []StepMemory) *Monitor {
	m := &Monitor{Steps: len(steps)}
	if len(steps) < leastMonitored {
		m.Verdict = fmt.Sprintf("too few steps (%d) for a verdict: give --steps %d or more", len(steps), leastMonitored)
		return m
	}
	warm := len(steps) / warmUpShare
	after := steps[warm:]
	m.LeastLiveAfter, m.LeastResident = after[0].LiveAfter, after[0].Resident
	var live, held []sample
	for i, s := range after {
		at := warm + i + 1
		m.LeastLiveAfter, m.MostLiveAfter = min(m.LeastLiveAfter, s.LiveAfter), max(m.MostLiveAfter, s.LiveAfter)
		m.LeastResident, m.MostResident = min(m.LeastResident, s.Resident), max(m.MostResident, s.Resident)
		m.MostReserved, m.MostLive = max(m.MostReserved, s.Reserved), max(m.MostLive, s.LivePeak)
		live = append(live, sample{at, s.LiveAfter})
		if s.Held > 0 {
			held = append(held, sample{at, s.Held})
		}
	}
	switch {
	case m.growth("live memory after a step", live, 0, 0):
	case m.growth("resident memory", held, heldPerStep, heldAtAll):
	default:
		m.Verdict = fmt.Sprintf("no growth over %d steps", len(steps))
	}
	return m
}

// A sample is a size after a step.
type sample struct {
	step  int
	bytes int64
}

// growth notes that the samples grow by more than the floors.
func (m *Monitor) growth(what string, s []sample, perStep, atAll float64) bool {
	const quarters = 4
	if len(s) < 2*quarters {
		return false
	}
	var last int64
	var medians []int64
	for q := range quarters {
		var part []int64
		for _, x := range s[q*len(s)/quarters : (q+1)*len(s)/quarters] {
			part = append(part, x.bytes)
		}
		slices.Sort(part)
		if last = part[len(part)/2]; q > 0 && last <= medians[q-1] {
			return false
		}
		medians = append(medians, last)
	}
	if first, last := medians[1]-medians[0], medians[3]-medians[2]; last < first/3 {
		return false // it settles
	}
	var xs, ys []float64
	for _, x := range s {
		xs, ys = append(xs, float64(x.step)), append(ys, float64(x.bytes))
	}
	_, slope, _, ok := fitLine(xs, ys)
	if !ok || slope <= perStep || slope*float64(s[len(s)-1].step-s[0].step) <= atAll {
		return false
	}
	since := s[0].step
	m.Grows, m.What, m.BytesPerStep, m.Since = true, Text(what), new(Float(slope)), &since
	m.Verdict = fmt.Sprintf("%s grows by %s a step, since step %d of %d", what, units.Bytes(int64(slope)), since, m.Steps)
	return true
}

func (m *Monitor) table() Table {
	t := Table{Title: "memory over the steps", Columns: []string{"after the warm-up", ">least", ">most"}}
	if m.MostResident == 0 {
		return t
	}
	t.add("live peak", none, units.Bytes(m.MostLive))
	t.add("live after a step", units.Bytes(m.LeastLiveAfter), units.Bytes(m.MostLiveAfter))
	t.add("reserved", none, units.Bytes(m.MostReserved))
	t.add("resident", units.Bytes(m.LeastResident), units.Bytes(m.MostResident))
	return t
}

// Fragmentation is the moment at which the arena took more from the system though most
// memory lay free in it: no free block was large enough. Sizes are bytes.
type Fragmentation struct {
	Reserved int64 `json:"reserved_bytes"`
	Live     int64 `json:"live_bytes"`
	Free     int64 `json:"free_bytes"`
	// Largest is the largest free block, Request what was asked for, by Node for Value.
	Largest int64 `json:"largest_free_bytes"`
	Request int64 `json:"request_bytes"`
	Node    Text  `json:"node"`
	Value   Text  `json:"value"`
}

func (f *Fragmentation) table() Table {
	t := Table{Title: "the arena's worst moment, predicted", Columns: []string{"", ">bytes", "~"}}
	t.add("asked for", units.Bytes(f.Request), "by "+Shorten(textOr(string(f.Node)), 60))
	t.add("largest free block", units.Bytes(f.Largest), none)
	t.add("free in all", units.Bytes(f.Free), none)
	t.add("live", units.Bytes(f.Live), none)
	t.add("reserved until then", units.Bytes(f.Reserved), none)
	return t
}
