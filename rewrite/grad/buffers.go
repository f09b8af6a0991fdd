package grad

// Stored statistics that an exporter merged with something else. TorchScript's lets equal
// initializers be one, so the running variance of a fresh network, all ones, becomes the
// weight of its normalization, behind an Identity:
//
//	bn.weight ─┬─────────────▶ BatchNormalization scale
//	           └─▶ Identity ─▶ BatchNormalization variance
//
// A stored mean or variance is never a parameter, so what else reads the same initializer
// tells nothing of it, and it gets one of its own. Each of TorchScript's Identities bears the
// name of the initializer that it stands for, which the own one gets. One that is named as
// PyTorch names statistics keeps that name, and what was merged into it is set apart.
//
// An Identity that dynamo's exporter wrote of a call in training is no merging: it is the
// statistic as the call leaves it, which the next call of the same module reads.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// separate gives parameters that TorchScript's exporter merged, since all elements of both are
// one number as in a fresh model, initializers of their own again, and returns their names. What
// else is equal was one tensor in the model. Statistics with which a normalization is written out
// are set apart, too.
func separate(m *onnx.Model) (names []string) {
	named := newNamer(m)
	for _, n := range slices.Clone(m.Graph.Nodes) {
		v, from := identity(n)
		if v == nil || !named.script || !named.variable(v.Name) {
			continue
		}
		statistic := namedStatistic(v.Name)
		if statistic && slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Node.Is("BatchNormalization") }) {
			continue // see ownStatistics
		}
		one, _ := from.Type.Shape.Elements().Int()
		if from.IsConstant() && from.Type.DType.IsFloat() && (one == 1 || uniform(from)) {
			if !statistic {
				names = append(names, v.Name)
			}
			setApart(m.Graph, v, from)
		}
	}
	return names
}

// ownStatistics gives stored statistics initializers of their own.
func ownStatistics(g *onnx.Graph) {
	own := map[*onnx.Value]*onnx.Value{}
	for _, n := range slices.Clone(g.Nodes) {
		if !n.Is("BatchNormalization") {
			continue
		}
		for i := statisticsFrom; i < len(n.Inputs); i++ {
			v := n.Inputs[i]
			from := v.Behind("Identity")
			if from == nil || from.Init == nil {
				continue
			}
			if v != from && leftByCall(v) {
				n.SetInput(i, from)
				removeUnread(g, v)
				v = from
			}
			merged := v != from && !v.IsOutput()
			switch {
			case !merged && !readElsewhere(from):
				continue
			case v == from && namedStatistic(from.Name) && !readAsWeight(from):
				for _, u := range slices.Clone(from.Uses()) {
					if w, _ := identity(u.Node); w != nil && !leftByCall(w) {
						setApart(g, w, from)
					}
				}
				continue
			}
			of := from
			if merged {
				of = v
			}
			if own[of] == nil {
				if merged {
					own[of] = ownOf(g, v, from)
				} else {
					own[of] = g.AddConstant(from.Name+".statistics", from.Init)
				}
			}
			n.SetInput(i, own[of])
			removeUnread(g, v)
		}
	}
}

// identity is what an Identity makes, and the initializer behind it; nil of other nodes, and
// where that is an output.
func identity(n *onnx.Node) (v, from *onnx.Value) {
	if v = n.Out(0); !n.Is("Identity") || v == nil || v.IsOutput() {
		return nil, nil
	}
	if from = v.Behind("Identity"); from == nil || from.Init == nil {
		return nil, nil
	}
	return v, from
}

// setApart has the readers of an Identity of from read an initializer of their own.
func setApart(g *onnx.Graph, v, from *onnx.Value) {
	g.ReplaceUses(v, ownOf(g, v, from))
	removeUnread(g, v)
}

// ownOf is an initializer of its own for the value of an Identity of from, under its name.
func ownOf(g *onnx.Graph, v, from *onnx.Value) *onnx.Value {
	name := v.Name
	g.Rename(v, g.FreshValueName(name+".merged"))
	return g.AddConstant(name, from.Init)
}

// removeUnread removes the Identities that v comes from, as far as nothing reads them.
func removeUnread(g *onnx.Graph, v *onnx.Value) {
	for v.Producer != nil && v.Dead() {
		identity := v.Producer
		v = identity.Inputs[0]
		identity.SetInput(0, nil)
		g.Remove(identity)
	}
}

// leftByCall reports an Identity that stands for a statistic as a call of a batch
// normalization leaves it.
func leftByCall(v *onnx.Value) bool { return torchNorm.MatchString(v.Producer.TorchCall()) }

// readAsWeight reports that a BatchNormalization takes v itself for scale or bias.
func readAsWeight(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
		return u.Node.Is("BatchNormalization") && u.Index < statisticsFrom
	})
}

// statisticsFrom is the first of the inputs of BatchNormalization that are statistics.
const statisticsFrom = 3

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
