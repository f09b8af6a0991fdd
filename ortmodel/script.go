package ortmodel

// A script is a kernel's run as the allocator sees it, prepared for replay.
type script struct {
	acts []Act // nil where the default order needs no list
	n    *Node
	all  int64 // sum of Scratch, for the default order
}

func newScript(n *Node) script {
	s := script{n: n}
	for _, b := range n.Scratch {
		s.all += b
	}
	if n.Script != nil {
		s.acts = complete(n)
	}
	return s
}

// complete appends to a node's script what it leaves out: outputs and scratch
// not asked for, then the release of the scratch still held, last first.
func complete(n *Node) []Act {
	taken := make([]bool, len(n.Outputs))
	held := make([]int, 0, len(n.Scratch))
	asked := make([]bool, len(n.Scratch))
	acts := make([]Act, 0, len(n.Outputs)+2*len(n.Scratch))
	add := func(a Act) {
		switch {
		case a.Index < 0:
			return
		case a.Kind == Take && a.Index < len(taken) && !taken[a.Index]:
			taken[a.Index] = true
		case a.Kind == Borrow && a.Index < len(asked) && !asked[a.Index]:
			asked[a.Index] = true
			held = append(held, a.Index)
		case a.Kind == GiveBack && remove(&held, a.Index):
		default:
			return
		}
		acts = append(acts, a)
	}
	for _, a := range n.Script {
		add(a)
	}
	for o := range n.Outputs {
		add(Act{Kind: Take, Index: o})
	}
	for k := range n.Scratch {
		add(Act{Kind: Borrow, Index: k})
	}
	for len(held) > 0 {
		add(Act{Kind: GiveBack, Index: held[len(held)-1]})
	}
	return acts
}

// remove takes x out of list and reports whether it was there.
func remove(list *[]int, x int) bool {
	for k, y := range *list {
		if y == x {
			*list = append((*list)[:k], (*list)[k+1:]...)
			return true
		}
	}
	return false
}

// kept returns the bytes of the outputs that the node allocates.
func (c *script) kept(s *Simulator) (sum int64) {
	for _, v := range c.n.Outputs {
		if v >= 0 {
			sum += s.owned(int32(v))
		}
	}
	return sum
}

// held returns the most bytes held while the node runs, from live on, and those of
// the outputs that it allocates.
func (c *script) held(s *Simulator, live int64) (top, kept int64) {
	kept = c.kept(s)
	if c.acts != nil {
		return c.peak(s, live), kept
	}
	return live + kept + c.all, kept
}

// peak returns the most bytes held while the node follows its acts, from live
// on.
func (c *script) peak(s *Simulator, live int64) int64 {
	top := live
	for _, a := range c.acts {
		live += c.delta(s, a)
		top = max(top, live)
	}
	return top
}

func (c *script) delta(s *Simulator, a Act) int64 {
	switch a.Kind {
	case Take:
		if v := c.n.Outputs[a.Index]; v >= 0 {
			return s.owned(int32(v))
		}
		return 0
	case Borrow:
		return c.n.Scratch[a.Index]
	default:
		return -c.n.Scratch[a.Index]
	}
}
