package runtime

// Where a session spends its time and memory, by node.

import (
	"cmp"
	"math"
	"slices"

	"github.com/onnx-remat/remat/runtime/ort"
)

// A TimeShare is a node's time over all steps.
type TimeShare struct {
	Node    string  `json:"node"`
	Op      string  `json:"op"`
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"`
}

// A ByteShare is the size of what a node returns.
type ByteShare struct {
	Node  string  `json:"node"`
	Op    string  `json:"op"`
	Bytes int64   `json:"bytes"`
	Share float64 `json:"share"`
}

// Profile ends the profile of a session that was opened with Profile.
func (s *Session) Profile() (*ort.Profile, error) { return s.ort.EndProfiling() }

// Aside is the profile of the step that MeasureArena ran, nil without
// Options.ProfileAside.
func (s *Session) Aside() *ort.Profile { return s.aside }

// Top returns the n nodes that took most time over all runs, and the n whose
// outputs are largest. Shares are of all nodes' sum.
func Top(p *ort.Profile, n int) ([]TimeShare, []ByteShare) {
	index := map[string]int{}
	times, sizes := []TimeShare{}, []ByteShare{}
	var allTime float64
	var allBytes int64
	for _, e := range p.Nodes {
		i, ok := index[e.Node]
		if !ok {
			i = len(times)
			index[e.Node] = i
			times = append(times, TimeShare{Node: e.Node, Op: e.Op})
			sizes = append(sizes, ByteShare{Node: e.Node, Op: e.Op, Bytes: e.OutputBytes})
			allBytes += e.OutputBytes
		}
		times[i].Seconds += e.Duration.Seconds()
		allTime += e.Duration.Seconds()
	}
	for i := range times {
		times[i].Share = times[i].Seconds / max(allTime, math.SmallestNonzeroFloat64)
		sizes[i].Share = float64(sizes[i].Bytes) / float64(max(allBytes, 1))
	}
	slices.SortStableFunc(times, func(a, b TimeShare) int { return cmp.Compare(b.Seconds, a.Seconds) })
	slices.SortStableFunc(sizes, func(a, b ByteShare) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return times[:min(n, len(times))], sizes[:min(n, len(sizes))]
}
