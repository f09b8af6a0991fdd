package planner

import "slices"

// What may move past a peak, and what that frees.
//
// At the peak t buffers wait that the node there does not read. Each of them was made
// too early or is read too late:
//
//	delay    a m r b t c d     m makes what waits, r reads it:   a b t m r c d
//	advance  a t b p x c       x reads last what waits, p is
//	                           what it needs:                    a p x t b c
//
// and with them may go what served them alone, or what can run once they have. How
// much that frees is estimated from who reads what. The estimate does not know which
// dead buffer is taken by whom; so moves that seem to free nothing are tried too, and
// all short runs of nodes close to the peak.

// A shift moves nodes, in their order, to right behind place to, or right before it.
type shift struct {
	nodes  []int32 // ascending by place
	to     int
	behind bool
	gain   int64 // bytes that are not held at the peak, as estimated
	sum    int32 // of nodes, to tell one set from another
}

// close returns the places around t, the second exclusive, within which moves are
// tried by the dozen.
func (m *mover) close(t int) (from, to int) {
	return max(0, t-m.tune.moveReach), min(len(m.order), t+m.tune.moveReach+1)
}

// shifts lists the most promising moves past place t, those close to it and those that
// go farther.
func (m *mover) shifts(t int) (close, far []shift) {
	var list []shift
	at := m.order[t]
	for r, b := range m.bytes {
		if b < part(m.tune.moveShare, m.peak) || b == 0 || m.pos[m.maker[r]] >= int32(t) || m.last[r] <= int32(t) || slices.Contains(m.reads.of(at), int32(r)) {
			continue
		}
		list = m.delays(list, int32(r), int32(t))
		if m.last[r] < int32(len(m.order)) {
			list = m.advances(list, int32(r), int32(t))
		}
	}
	slices.SortStableFunc(list, func(a, b shift) int { return int(max(-1, min(1, b.gain-a.gain))) })
	from, to := m.close(t)
	for _, c := range list {
		a, b := m.hull(&c)
		switch {
		case a >= from && b <= to:
			if len(close) < m.tune.moveTries {
				close = append(close, c)
			}
		case len(far) < m.tune.moveFar:
			far = append(far, c)
		}
	}
	return close, far
}

// closure makes the set of the nodes given and of those that have to go along past
// place t; false if the one at t has to.
func (m *mover) closure(nodes []int32, t int32, along *rows, between func(p int32) bool) ([]int32, bool) {
	m.set++
	var set []int32
	m.stack = m.stack[:0]
	push := func(i int32) {
		if m.in[i] != m.set {
			m.in[i] = m.set
			m.stack = append(m.stack, i)
		}
	}
	for _, i := range nodes {
		push(i)
	}
	for len(m.stack) > 0 {
		i := m.stack[len(m.stack)-1]
		m.stack = m.stack[:len(m.stack)-1]
		if m.pos[i] == t || len(set) == m.tune.moveSet {
			return nil, false
		}
		set = append(set, i)
		for _, j := range along.of(int(i)) {
			if between(m.pos[j]) {
				push(j)
			}
		}
	}
	return set, true
}

// delays adds moves that make root r behind place t.
func (m *mover) delays(list []shift, r, t int32) []shift {
	set, ok := m.closure([]int32{m.maker[r]}, t, &m.after, func(p int32) bool { return p <= t })
	if !ok {
		return list
	}
	for n := 0; ; n++ {
		gain := m.freedByDelay(set, t)
		list = m.add(list, set, t, true, gain)
		if limit := m.limit(set, true); limit > t {
			list = m.add(list, set, limit, true, gain)
		}
		// Then with what served the set alone, the latest first.
		next := m.next(set, &m.before, func(j int32) bool { return m.serves(j) }, func(a, b int32) bool { return a > b })
		if n == m.tune.moveGrowth || next < 0 {
			return list
		}
		m.in[next] = m.set
		set = append(set, next)
	}
}

// advances adds moves that read root r for the last time before place t.
func (m *mover) advances(list []shift, r, t int32) []shift {
	var late []int32
	for _, i := range m.readers.of(int(r)) {
		if m.pos[i] > t {
			late = append(late, i)
		}
	}
	set, ok := m.closure(late, t, &m.before, func(p int32) bool { return p >= t })
	if !ok {
		return list
	}
	for n := 0; ; n++ {
		gain := m.freedByAdvance(set, t)
		list = m.add(list, set, t, false, gain)
		if limit := m.limit(set, false); limit < t {
			list = m.add(list, set, limit, false, gain)
		}
		// Then with what can run once the set has, the soonest first.
		next := m.next(set, &m.after, func(j int32) bool { return m.ready(j, t) }, func(a, b int32) bool { return a < b })
		if n == m.tune.moveGrowth || next < 0 {
			return list
		}
		m.in[next] = m.set
		set = append(set, next)
	}
}

// limit returns the last place that the set can move behind, or the first that it can
// move before.
func (m *mover) limit(set []int32, behind bool) int32 {
	limit, along := int32(-1), &m.before
	if behind {
		limit, along = int32(len(m.order)), &m.after
	}
	for _, i := range set {
		for _, j := range along.of(int(i)) {
			if m.in[j] == m.set {
				continue
			}
			if behind {
				limit = min(limit, m.pos[j])
			} else {
				limit = max(limit, m.pos[j])
			}
		}
	}
	if behind {
		return limit - 1
	}
	return limit + 1
}

// next returns the neighbour of the set that fits and comes first, or -1.
func (m *mover) next(set []int32, along *rows, fits func(j int32) bool, first func(a, b int32) bool) int32 {
	best := int32(-1)
	for _, i := range set {
		for _, j := range along.of(int(i)) {
			if m.in[j] != m.set && (best < 0 || first(m.pos[j], m.pos[best])) && fits(j) {
				best = j
			}
		}
	}
	return best
}

// serves reports a node on which only nodes of the set depend.
func (m *mover) serves(i int32) bool {
	for _, j := range m.after.of(int(i)) {
		if m.in[j] != m.set {
			return false
		}
	}
	return true
}

// ready reports a node that could run before place t, with the set.
func (m *mover) ready(i, t int32) bool {
	for _, j := range m.before.of(int(i)) {
		if m.in[j] != m.set && m.pos[j] >= t {
			return false
		}
	}
	return true
}

// add appends a move of the set, unless it is there.
func (m *mover) add(list []shift, set []int32, to int32, behind bool, gain int64) []shift {
	sum := int32(0)
	for _, i := range set {
		sum += i*i + i
	}
	for k := range list {
		if c := &list[k]; c.sum == sum && len(c.nodes) == len(set) && c.to == int(to) && c.behind == behind {
			return list
		}
	}
	nodes := slices.Clone(set)
	slices.SortFunc(nodes, func(a, b int32) int { return int(m.pos[a] - m.pos[b]) })
	return append(list, shift{nodes, int(to), behind, gain, sum})
}

// freedByDelay estimates what is not held at t if the set runs behind it.
func (m *mover) freedByDelay(set []int32, t int32) (gain int64) {
	for k, i := range set {
		for _, r := range m.makes.of(int(i)) {
			if m.last[r] > t {
				gain += m.bytes[r]
			}
		}
		for _, r := range m.reads.of(int(i)) {
			if m.in[m.maker[r]] != m.set && m.last[r] < t && !m.readBy(set[:k], r) {
				gain -= m.bytes[r]
			}
		}
	}
	return gain
}

func (m *mover) readBy(set []int32, r int32) bool {
	return slices.ContainsFunc(set, func(i int32) bool { return slices.Contains(m.reads.of(int(i)), r) })
}

// freedByAdvance estimates what is not held at t if the set runs before it.
func (m *mover) freedByAdvance(set []int32, t int32) (gain int64) {
	for k, i := range set {
		for _, r := range m.reads.of(int(i)) {
			if m.pos[m.maker[r]] < t && !m.readBy(set[:k], r) && !m.readElsewhere(r, t) {
				gain += m.bytes[r]
			}
		}
		for _, r := range m.makes.of(int(i)) {
			if m.readElsewhere(r, t) {
				gain -= m.bytes[r]
			}
		}
	}
	return gain
}

// readElsewhere reports a root that outlives the step, or that nodes outside the set
// read from place t on.
func (m *mover) readElsewhere(r, t int32) bool {
	return m.last[r] == int32(len(m.order)) ||
		slices.ContainsFunc(m.readers.of(int(r)), func(i int32) bool { return m.pos[i] >= t && m.in[i] != m.set })
}

// runs adds the moves of all short runs close to place t past it.
func (m *mover) runs(t int) (list []shift) {
	from, to := m.close(t)
	for n := 1; n <= m.tune.moveRun; n++ {
		for k := from; k+n <= to; k++ {
			if k > t || k+n-1 <= t {
				list = m.run(list, k, n, t)
			}
		}
	}
	return list
}

// run adds the moves of the n nodes from place k on past place t: right past it, and
// as far as they can go close to it.
func (m *mover) run(list []shift, k, n, t int) []shift {
	behind := k <= t
	from, to := m.close(t)
	m.set++
	nodes := make([]int32, n)
	for j := range nodes {
		nodes[j] = int32(m.order[k+j])
		m.in[nodes[j]] = m.set
	}
	limit := min(max(int(m.limit(nodes, behind)), from), to-1)
	if behind && limit < t || !behind && limit > t || limit == k || limit == k+n-1 || !slices.ContainsFunc(nodes, m.handlesMuch) {
		return list
	}
	if t != k+n-1 {
		list = append(list, shift{nodes, t, behind, 0, 0})
	}
	if limit != t {
		list = append(list, shift{nodes, limit, behind, 0, 0})
	}
	return list
}

// handlesMuch reports a node that makes or reads what is worth a move.
func (m *mover) handlesMuch(i int32) bool {
	for _, list := range [2][]int32{m.makes.of(int(i)), m.reads.of(int(i))} {
		for _, r := range list {
			if m.bytes[r] >= part(m.tune.moveShare, m.peak) {
				return true
			}
		}
	}
	return false
}

// hull returns the places that a move concerns, the second exclusive.
func (m *mover) hull(c *shift) (from, to int) {
	from, to = int(m.pos[c.nodes[0]]), int(m.pos[c.nodes[len(c.nodes)-1]])+1
	return min(from, c.to), max(to, c.to+1)
}

// apply writes the places of a stretch, from one on, as they are after a move within.
func (m *mover) apply(stretch []int, c *shift, from int) {
	at, next := 0, 0
	all := func() {
		for _, i := range c.nodes {
			stretch[at] = int(i)
			at++
		}
	}
	for k := from; k < from+len(stretch); k++ {
		if k == c.to && !c.behind {
			all()
		}
		if next < len(c.nodes) && int(m.pos[c.nodes[next]]) == k {
			next++
		} else {
			stretch[at] = m.order[k]
			at++
		}
		if k == c.to && c.behind {
			all()
		}
	}
}
