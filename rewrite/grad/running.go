package grad

// Running statistics of the model, which no gradient reaches and each step moves
// (step.Statistics). BatchNormalization in training does that itself, and ONNX Runtime's
// kernel writes what it returns over what it reads (Alias in its definition), even where
// that is the caller's. A copy of the node that runs again in backward would move it twice.
// So the node gets zeros of its own to write over, and a momentum of zero, with which it
// returns the batch's statistics:
//
//	B ─ × 0 ─▶ BatchNormalization ─ × (1−m) ─┐
//	B ─────────────── × m ───────────────────┴─ + ─▶ B.new
//
// The zeros come from B, so that nothing computes them ahead, or once for two. Statistics that
// are frozen stay by a momentum of one.
//
// ONNX moves the running variance by the batch's as it is:
// https://onnx.ai/onnx/operators/onnx__BatchNormalization.html
// PyTorch, whose exporter does not say so, by N/(N−1) of it, of N numbers a channel:
// https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A Buffer is a running statistic that a step moves.
type Buffer struct {
	// Name is that of the input, and of the initializer that it was.
	Name  string
	Input *onnx.Value
	// Next names the output that is its next value: NAME.new, unless the model has one.
	Next string
	// Data is the initial value.
	Data *onnx.Tensor
}

// carry makes the running statistics inputs with next values, but for those that are
// frozen. One that several nodes move is moved by one after the other.
func (e *engine) carry(frozen func(name string) bool, res *Result) ([]Buffer, error) {
	g := e.m.Graph
	if e.m.Opset("") < 14 {
		return nil, nil // one operator computed the statistics or used them, by what it returned
	}
	var list []Buffer
	next, last := map[*onnx.Value]*onnx.Value{}, 0
	for _, n := range slices.Clone(g.Nodes) {
		if !traits.ComputesStatistics(n) {
			continue
		}
		stored := n.Inputs[statisticsFrom : statisticsFrom+2]
		if slices.ContainsFunc(stored, func(v *onnx.Value) bool { return v.Init == nil && next[v] == nil || frozen(v.Name) }) {
			stay(n, stored)
			continue
		}
		if stored[0] == stored[1] {
			return nil, &UnsupportedError{Op: n.OpType(), Node: n.Label(), Reason: fmt.Sprintf("%q is both its running mean and its running variance: export it with one of each", stored[0].Name)}
		}
		for i, v := range stored {
			if next[v] == nil {
				if g.Value(v.Name+step.NewSuffix) != nil {
					return nil, &ClashError{v.Name + step.NewSuffix}
				}
				list, next[v] = append(list, Buffer{Name: v.Name, Input: v}), v
			}
			next[v] = e.move(n, i, v.Name, next[v])
		}
		if n.Float("momentum", 0.9) == 0 {
			last++
		}
		n.SetAttr(onnx.FloatAttr("momentum", 0))
	}
	if err := e.b.Err(); err != nil {
		return nil, err
	}
	if last > 0 {
		res.warn("%d × BatchNormalization has a momentum of 0: its running statistics are those of the last batch; so PyTorch's exporter writes momentum=None too, which means their mean", last)
	}
	var lifted []*onnx.Value
	for i := range list {
		b := &list[i]
		v := next[b.Input]
		if !v.IsOutput() {
			g.Rename(v, b.Name+step.NewSuffix)
			g.AddOutput(v)
		}
		b.Next, lifted = v.Name, append(lifted, b.Input)
	}
	data := g.LiftInitializers(lifted)
	for i, b := range list {
		list[i].Data = data[b.Input]
	}
	return list, nil
}

// stay has a node write over statistics what they are: others may read the same constant, as
// a scale of ones is the variance of a fresh model.
func stay(n *onnx.Node, stored []*onnx.Value) {
	for i, v := range stored {
		if out := n.Out(1 + i); v.Init == nil && out != nil && !out.Dead() {
			return // which the model returns
		}
	}
	n.SetAttr(onnx.FloatAttr("momentum", 1))
}

// move returns what a running mean (which is 0) or variance (1) is after the node, of the
// buffer of that name. What reads that of the node reads this.
func (e *engine) move(n *onnx.Node, which int, buffer string, running *onnx.Value) *onnx.Value {
	if e.b.Err() != nil {
		return running
	}
	e.b.From(n, n.Label())
	c := &Context{Node: n, e: e}
	read := n.Out(1+which) != nil && !n.Out(1+which).Dead()
	batch := n.AddOutput(1+which, e.m.Graph.FreshValueName(n.Label()+"/"+[]string{"mean", "variance"}[which]))
	batch.Type = running.Type
	n.SetInput(statisticsFrom+which, c.Scale(running, 0))
	momentum := n.Float("momentum", 0.9)
	part := c.Scalar(running, 1-momentum)
	if which == 1 && FromPyTorch(e.m) {
		part = c.Times(c.bessel(running), part)
	}
	share := c.Do("Mul", batch, part)
	kept := c.Scale(running, momentum)
	if momentum == 0 { // else it would be the zeros that the node writes over
		kept = c.Scale(share, 0)
	}
	moved := c.Plus(kept, share)
	if moved == nil {
		return running
	}
	moved.Producer.SetOrigin(onnx.Origin{Pass: step.StatisticPass, Of: buffer})
	if read {
		e.m.Graph.TakeOver(batch, moved)
		share.Producer.SetInput(0, batch)
	}
	return moved
}

// bessel is N/(N−1) for the N numbers a channel of the node's input, and 1 for one. It is
// computed in float32: a half type does not reach every N.
func (c *Context) bessel(like *onnx.Value) *onnx.Value {
	count := c.e.count(c.In(0), c.allBut(c.In(0), 1), onnx.Float32)
	one := c.Scalar(count, 1)
	if n, ok := count.Number(); ok {
		return c.Scalar(like, n/max(n-1, 1))
	}
	return c.CastTo(c.Over(count, c.Do("Max", c.Minus(count, one), one)), like)
}
