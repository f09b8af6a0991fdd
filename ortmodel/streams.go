package ortmodel

// Two streams: what runs on the host and what runs on the device. One thread runs
// both, and goes over from one to the other where a node has to wait.
//
//	stream     its nodes in the order of the whole; before a node a barrier for each
//	           of its inputs that the other stream makes
//	barrier    open when its stream has come to it, and its maker has run: whichever
//	           is second goes on from there
//	a node     that the other stream waits for lets that run on at once, until it has
//	           to wait itself; then its own stream goes on
//
// Source: BuildExecutionPlan and RunSince of ONNX Runtime, and profiles.

// divided reports a graph of which some nodes run on the host and others do not.
func divided(g *Graph) bool {
	for i := range g.Nodes {
		if g.Nodes[i].Host != g.Nodes[0].Host {
			return true
		}
	}
	return false
}

// Streams returns the order in which the nodes run that are listed in ONNX Runtime's
// order: that order where all are on one device.
func Streams(g *Graph, order []int) []int {
	if !divided(g) {
		return order
	}
	return newStreams(g, order).run()
}

// A streamStep is a node, or the barrier before one.
type streamStep struct {
	node    int
	barrier int // None for the node
}

type streams struct {
	steps [2][]streamStep
	// come counts how often a barrier was come to: from its stream, from its maker.
	come []int8
	// waiting lists, by node, the barriers that it opens.
	waiting [][]place
	order   []int
}

// A place is a step of a stream.
type place struct{ stream, step int }

func newStreams(g *Graph, order []int) *streams {
	s := &streams{waiting: make([][]place, len(g.Nodes))}
	by := g.Producers()
	first := g.Nodes[order[0]].Host
	for _, i := range order {
		n := &g.Nodes[i]
		k := 0
		if n.Host != first {
			k = 1
		}
		for _, list := range [2][]int{n.Inputs, n.Captures} {
			for _, v := range list {
				if v < 0 || by[v] == None || g.Nodes[by[v]].Host == n.Host {
					continue
				}
				s.waiting[by[v]] = append(s.waiting[by[v]], place{k, len(s.steps[k])})
				s.steps[k] = append(s.steps[k], streamStep{i, len(s.come)})
				s.come = append(s.come, 0)
			}
		}
		s.steps[k] = append(s.steps[k], streamStep{i, None})
	}
	return s
}

func (s *streams) run() []int {
	for k := range s.steps {
		s.since(place{k, 0})
	}
	return s.order
}

// since runs a stream from a step on until it has to wait.
func (s *streams) since(p place) {
	for ; p.step < len(s.steps[p.stream]); p.step++ {
		step := s.steps[p.stream][p.step]
		if step.barrier != None {
			if s.come[step.barrier]++; s.come[step.barrier] < 2 {
				return
			}
			continue
		}
		s.order = append(s.order, step.node)
		for _, w := range s.waiting[step.node] {
			s.since(w)
		}
	}
}
