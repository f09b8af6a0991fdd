package grad

// Stored statistics that an exporter merged with something else. TorchScript's lets equal
// initializers be one, so the running variance of a fresh network, all ones, becomes the
// weight of its normalization, behind an Identity:
//
//	bn.weight ─┬─────────────▶ BatchNormalization scale
//	           └─▶ Identity ─▶ BatchNormalization variance
//
// A stored mean or variance is never a parameter, so what else reads the same initializer
// tells nothing of it, and it gets one of its own. In training, where each is moved, those
// behind different Identities are different ones.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// ownStatistics gives stored statistics initializers of their own.
func ownStatistics(g *onnx.Graph) {
	own := map[*onnx.Value]*onnx.Value{}
	var unread []*onnx.Node
	for _, n := range g.Nodes {
		if !n.Is("BatchNormalization") {
			continue
		}
		for i := statisticsFrom; i < len(n.Inputs); i++ {
			v := n.Inputs[i]
			from := behindIdentities(v)
			merged := v != from && traits.ComputesStatistics(n)
			if from == nil || from.Init == nil || !merged && !readElsewhere(from) {
				continue
			}
			of, name := from, from.Name+".statistics"
			if merged {
				of, name = v, v.Name
			}
			if own[of] == nil {
				if merged {
					g.Rename(v, g.FreshValueName(name+".merged"))
				}
				own[of] = g.AddConstant(name, from.Init)
			}
			n.SetInput(i, own[of])
			for v.Producer != nil && v.Dead() {
				identity := v.Producer
				v = identity.Inputs[0]
				identity.SetInput(0, nil)
				unread = append(unread, identity)
			}
		}
	}
	if len(unread) > 0 {
		g.Remove(unread...)
	}
}

// statisticsFrom is the first of the inputs of BatchNormalization that are statistics.
const statisticsFrom = 3

// behindIdentities is what v is an Identity of, through any number of them.
func behindIdentities(v *onnx.Value) *onnx.Value {
	for v != nil && v.Producer != nil && v.Producer.Is("Identity") {
		v = v.Producer.In(0)
	}
	return v
}

// readElsewhere reports that v, or an Identity of it, is an output or read by anything that
// does not take it for statistics.
func readElsewhere(v *onnx.Value) bool {
	if v.IsOutput() {
		return true
	}
	for _, u := range v.Uses() {
		switch {
		case u.Node.Is("BatchNormalization") && u.Index >= statisticsFrom:
		case !u.Node.Is("Identity") || readElsewhere(u.Node.Out(0)):
			return true
		}
	}
	return false
}
