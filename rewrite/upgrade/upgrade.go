// Package upgrade brings a model to one newer opset of the standard domain.
// Each row of a table says what changed for one operator at one opset and
// rewrites its nodes when that opset is passed:
//
//	opset 13 ─▶ rows of 14 ─▶ rows of 15 ─▶ … ─▶ rows of the target
//
// Operators without a row kept their meaning. Subgraphs are upgraded as models of
// their own. Source: the operator changelog of ONNX.
package upgrade

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/onnxpb"
)

// Oldest is the lowest opset that can be upgraded from.
const Oldest = 7

// minIR is the file format version that goes with an opset.
func minIR(opset int64) int64 {
	if opset > 20 {
		return 10 // the first with int4
	}
	return 9
}

// An OpsetError says why a model cannot be brought to the opset.
type OpsetError struct {
	Have, Want int64
	Reason     string
}

func (e *OpsetError) Error() string {
	return fmt.Sprintf("opset %d cannot be upgraded to %d: %s", e.Have, e.Want, e.Reason)
}

// Check reports a model of an opset that cannot be upgraded.
func Check(m *onnx.Model, want int64) error {
	if have := m.Opset(""); have < min(Oldest, want) {
		return &OpsetError{have, want, fmt.Sprintf("the oldest supported is %d: export the model again", Oldest)}
	}
	return nil
}

// Model upgrades m in place to opset want; a model of that opset or a newer
// one stays as it is. Opset imports that no node needs are dropped.
func Model(m *onnx.Model, want int64) error {
	dropUnused(m)
	have := m.Opset("")
	if have >= want {
		return nil
	}
	if err := Check(m, want); err != nil {
		return err
	}
	if err := infer.Inputs(m); err != nil {
		return err
	}
	for _, n := range m.Graph.Nodes {
		for _, sub := range n.Subgraphs() {
			if changed(sub.Node, have, want) == nil {
				continue
			}
			if err := m.EditSubgraph(sub, func(inner *onnx.Model) error { return Model(inner, want) }); err != nil {
				return fmt.Errorf("subgraph of node %q (%s): %w", n.Label(), n.OpType(), err)
			}
		}
	}
	if have < 13 && want >= 13 {
		// Old Softmaxes need ranks to be upgraded; what inference cannot tell of so old
		// a model is not missed.
		_, _ = infer.Model(m, infer.Options{})
	}
	u := &upgrader{m: m, b: build.New(m.Graph, nil, "upgrade")}
	for at := have + 1; at <= want; at++ {
		for i := range table {
			if table[i].at == at {
				if err := u.apply(&table[i], have, want); err != nil {
					return err
				}
			}
		}
	}
	m.SetOpset("", want)
	if ir := minIR(want); m.Proto.GetIrVersion() < ir {
		m.Proto.IrVersion = &ir
	}
	return nil
}

type upgrader struct {
	m *onnx.Model
	b *build.Builder
}

func (u *upgrader) apply(c *change, have, want int64) error {
	for _, n := range slices.Clone(u.m.Graph.Nodes) {
		if !n.Is(c.op) {
			continue
		}
		u.b.From(n, n.Label())
		if err := c.rewrite(u, n); err != nil {
			return &OpsetError{have, want, fmt.Sprintf("node %q (%s): %v", n.Label(), c.op, err)}
		}
		if err := u.b.Err(); err != nil {
			return err
		}
		u.m.Graph.InsertBefore(n, u.b.Take()...)
	}
	u.m.Graph.RemoveDead()
	return nil
}

// dropUnused forgets imported domains that no node is of.
func dropUnused(m *onnx.Model) {
	used := map[string]bool{"": true}
	for _, n := range m.Graph.Nodes {
		used[n.Domain()] = true
		if len(n.Subgraphs()) > 0 {
			return
		}
	}
	if len(m.Proto.GetFunctions()) > 0 {
		return
	}
	m.Proto.OpsetImport = slices.DeleteFunc(m.Proto.OpsetImport, func(o *onnxpb.OperatorSetIdProto) bool {
		return !used[onnx.NormalDomain(o.GetDomain())]
	})
}
