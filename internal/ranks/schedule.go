package ranks

// The schedules of a pipeline, in which rank s runs stage s (Huang et al. 2019, "GPipe",
// arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473, 1F1B with flushes):
//
//	gpipe   0  F0 F1 F2 F3                B0 B1 B2 B3
//	        1     F0 F1 F2 F3 B0 B1 B2 B3
//	1f1b    0  F0 F1          B0 F2 B1 F3 B2    B3
//	        1     F0 B0 F1 B1 F2 B2 F3 B3
//
// In each tick a stage runs its next graph, if what that reads has come. After a tick all
// ranks go through one list of what is to be sent, in one order, so that no two wait for
// each other. Both run the backward graphs of micro-batches in the order of these, which
// is that in which one process adds gradients up.
//
// Weakness: a tick takes as long as the longest graph in it, for ranks that exchange
// something after it.

import "slices"

// The schedules.
const (
	GPipe      = "gpipe"
	OneForward = "1f1b" // one forward, one backward
)

// A Flow is a value that one group makes of every micro-batch and others read. Groups are
// numbered as package rewrite/stage has it: forward graphs rising, then backward falling.
type Flow struct {
	From  int
	To    []int
	Bytes int64
}

// StageOf is the stage, and the rank, of a group.
func StageOf(group, stages int) int { return min(group, 2*stages-1-group) }

// Reaches lists the other stages that read the flow, rising.
func (f *Flow) Reaches(stages int) []int {
	var list []int
	for _, group := range f.To {
		if at := StageOf(group, stages); at != StageOf(f.From, stages) {
			list = append(list, at)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// An Op is a graph of a stage, run for a micro-batch; Group -1 is none.
type Op struct{ Group, Micro int }

// A Send moves a flow of a micro-batch, by number, to a stage.
type Send struct{ Flow, Micro, To int }

// A Tick is what stages run at once, by stage, and what is sent after that.
type Tick struct {
	Run   []Op
	Sends []Send
}

// order lists what a stage runs in a step.
func order(kind string, stage, stages, micro int) []Op {
	first := micro
	if kind == OneForward {
		first = min(micro, stages-1-stage)
	}
	var list []Op
	forward, backward := 0, 0
	for range first {
		list = append(list, Op{stage, forward})
		forward++
	}
	for backward < micro {
		if forward < micro {
			list = append(list, Op{stage, forward})
			forward++
		}
		list = append(list, Op{2*stages - 1 - stage, backward})
		backward++
	}
	return list
}

// Schedule lays out a step.
func Schedule(kind string, stages, micro int, flows []Flow) []Tick {
	orders := make([][]Op, stages)
	for s := range orders {
		orders[s] = order(kind, s, stages, micro)
	}
	done := map[Op]bool{}
	ready := func(op Op) bool {
		for _, f := range flows {
			if slices.Contains(f.To, op.Group) && !done[Op{f.From, op.Micro}] {
				return false
			}
		}
		return op.Group < stages || done[Op{2*stages - 1 - op.Group, op.Micro}]
	}
	var ticks []Tick
	for {
		t := Tick{Run: slices.Repeat([]Op{{-1, 0}}, stages)}
		runs := false
		for s, list := range orders {
			if len(list) > 0 && ready(list[0]) {
				t.Run[s], orders[s], runs = list[0], list[1:], true
			}
		}
		if !runs {
			return ticks
		}
		for _, op := range t.Run {
			if op.Group < 0 {
				continue
			}
			done[op] = true
			for i, f := range flows {
				if f.From != op.Group {
					continue
				}
				for _, to := range f.Reaches(stages) {
					t.Sends = append(t.Sends, Send{i, op.Micro, to})
				}
			}
		}
		ticks = append(ticks, t)
	}
}

// A Store says which values of which micro-batches a stage holds.
type Store interface {
	// Take makes room for a flow of a micro-batch, Give ends that.
	Take(flow, micro int)
	Give(flow, micro int)
}

// Ran notes that a stage ran a graph: what it made is there, then what it read goes that
// nothing of the stage reads later.
func Ran(op Op, flows []Flow, stages int, at Store) {
	for i, f := range flows {
		if f.From == op.Group {
			at.Take(i, op.Micro)
		}
	}
	for i := range flows {
		f := &flows[i]
		if slices.Contains(f.To, op.Group) && f.lastAt(op.Group, stages) {
			at.Give(i, op.Micro)
		}
	}
}

// lastAt reports that no later group of the group's stage reads the flow.
func (f *Flow) lastAt(group, stages int) bool {
	return !slices.ContainsFunc(f.To, func(to int) bool { return to > group && StageOf(to, stages) == StageOf(group, stages) })
}

// Sent notes that a flow was moved, on both sides.
func Sent(s Send, flows []Flow, stages, stage int, at Store) {
	f := &flows[s.Flow]
	list := f.Reaches(stages)
	switch {
	case stage == s.To:
		at.Take(s.Flow, s.Micro)
	case stage == StageOf(f.From, stages) && s.To == list[len(list)-1] && f.lastAt(f.From, stages):
		at.Give(s.Flow, s.Micro)
	}
}

// StoreBytes is what a stage holds of values of micro-batches: as much room for each flow
// as it ever holds of it at once.
func StoreBytes(ticks []Tick, flows []Flow, stages, stage int) (total int64) {
	c := &counter{now: make([]int64, len(flows)), most: make([]int64, len(flows))}
	for _, t := range ticks {
		if op := t.Run[stage]; op.Group >= 0 {
			Ran(op, flows, stages, c)
		}
		for _, s := range t.Sends {
			if s.To == stage || StageOf(flows[s.Flow].From, stages) == stage {
				Sent(s, flows, stages, stage, c)
			}
		}
	}
	for i, n := range c.most {
		total += n * flows[i].Bytes
	}
	return total
}

type counter struct{ now, most []int64 }

func (c *counter) Take(flow, _ int) {
	c.now[flow]++
	c.most[flow] = max(c.most[flow], c.now[flow])
}

func (c *counter) Give(flow, _ int) { c.now[flow]-- }

// PipeBytes is what a stage sends to others for each micro-batch.
func PipeBytes(flows []Flow, stages, stage int) (total int64) {
	for i := range flows {
		if StageOf(flows[i].From, stages) == stage {
			total += int64(len(flows[i].Reaches(stages))) * flows[i].Bytes
		}
	}
	return total
}
