package step

// Where nodes and values are, in a step of a provider with a device of its own.
//
//	no kernel of the provider's for the node          host
//	all it reads are numbers that are on the host     host: cheaper than a copy
//	else                                              device
//
// A value is where its maker puts it. Where a node wants it elsewhere, a copy lies
// between: a Memcpy node, made here where the graph has none yet.
//
// Source: GetCpuPreferredNodes and MemcpyTransformer of ONNX Runtime, compared with the
// graphs that it saves and the providers that its profiles name.

import (
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// Places say which nodes of a graph run on the host, and which values lie there, in a
// step of a device. A nil one is that of the CPU provider, where there is no device.
type Places struct {
	on    *Provider
	nodes map[*onnx.Node]bool
	// complete: the graph has all its copies.
	complete bool
}

// HostNode reports a node that runs on the host.
func (p *Places) HostNode(n *onnx.Node) bool { return p != nil && p.nodes[n] }

// HostValue reports a value that a node puts into the host's memory.
func (p *Places) HostValue(v *onnx.Value) bool {
	if p == nil || v == nil || v.Producer == nil {
		return false
	}
	return p.nodes[v.Producer] || p.on.output(v.Producer, slices.Index(v.Producer.Outputs, v))
}

// HostInput reports an input of the graph that lies in the host's memory, as a node reads
// it there; nodes of the device read a copy.
func (p *Places) HostInput(v *onnx.Value) bool {
	return p != nil && v != nil && slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index == onnx.Captured || p.wantsHost(u.Node, u.Index) })
}

// Constant says where the session keeps a constant: on the host, on the device, or on
// both, as nodes read it.
func (p *Places) Constant(v *onnx.Value) (host, device bool) {
	for _, u := range v.Uses() {
		if u.Index == onnx.Captured || p.wantsHost(u.Node, u.Index) {
			host = true
		} else {
			device = true
		}
	}
	return host, device
}

// wantsHost reports that node n reads its input i in the host's memory.
func (p *Places) wantsHost(n *onnx.Node, i int) bool { return p.nodes[n] || p.on.input(n, i) }

// smallConstant is the most elements of an initializer that does not keep a node on the
// device.
const smallConstant = 100

// Place places the nodes of a typed model. One that ONNX Runtime saved is complete: it
// has all copies between host and device.
func (p *Provider) Place(m *onnx.Model, complete bool) *Places {
	if !p.Device {
		return nil
	}
	places := &Places{p, map[*onnx.Node]bool{}, complete}
	for _, n := range m.Graph.Nodes {
		if !isCopy(n) && !n.Is("Constant") && !p.serves(n, m.Opset(n.Domain())) {
			places.nodes[n] = true
		}
	}
	if complete {
		places.seen(m.Graph)
	}
	places.prefer(m.Graph)
	return places
}

// isCopy reports a copy between host and device.
func isCopy(n *onnx.Node) bool { return n.Is("MemcpyFromHost", "MemcpyToHost") }

// CopiesFirst lists the nodes of a graph with every copy between host and device right
// behind the maker of what it copies.
func CopiesFirst(g *onnx.Graph) []*onnx.Node {
	list := make([]*onnx.Node, 0, len(g.Nodes))
	copies := func(v *onnx.Value) {
		for _, u := range v.Uses() {
			if u.Index != onnx.Captured && isCopy(u.Node) {
				list = append(list, u.Node)
			}
		}
	}
	for _, v := range g.Inputs {
		copies(v)
	}
	for _, v := range g.Initializers {
		if !v.IsInput() {
			copies(v)
		}
	}
	for _, n := range g.Nodes {
		if isCopy(n) {
			continue
		}
		list = append(list, n)
		for _, v := range n.Returns() {
			copies(v)
		}
	}
	return list
}

// source is v as it was before it was copied.
func source(v *onnx.Value) *onnx.Value {
	for v != nil && v.Producer != nil && isCopy(v.Producer) {
		v = v.Producer.In(0)
	}
	return v
}

// readers calls f with all that read v or a copy of it.
func readers(v *onnx.Value, f func(*onnx.Node)) {
	for _, u := range v.Uses() {
		if isCopy(u.Node) {
			readers(u.Node.Outputs[0], f)
			continue
		}
		f(u.Node)
	}
}

// seen moves nodes to the host, in a graph with all its copies, that read what lies
// there, or make what is read there.
func (p *Places) seen(g *onnx.Graph) {
	for changed := true; changed; {
		changed = false
		for _, n := range g.Nodes {
			if !p.nodes[n] && !isCopy(n) && !n.Is("Constant") && (p.readsHost(n) || p.readOnHost(n)) {
				p.nodes[n], changed = true, true
			}
		}
	}
}

// readsHost reports a node that reads a value on the host where its kernel on the
// device wants one of the device.
func (p *Places) readsHost(n *onnx.Node) bool {
	for i, v := range n.Reads() {
		if p.HostValue(v) && !p.on.input(n, i) {
			return true
		}
	}
	return false
}

// readOnHost reports a node of which a value is read on the host that its kernel on the
// device would make there.
func (p *Places) readOnHost(n *onnx.Node) bool {
	for i, v := range n.Outputs {
		if v != nil && !p.on.output(n, i) && slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
			return u.Index != onnx.Captured && !u.Node.Is("MemcpyToHost") && p.wantsHost(u.Node, u.Index)
		}) {
			return true
		}
	}
	return false
}

// prefer moves nodes to the host that read nothing but what is there.
func (p *Places) prefer(g *onnx.Graph) {
	place := onnx.Places(g.Nodes)
	host := map[*onnx.Value]bool{}
	candidate := make([]bool, len(g.Nodes))
	add := func(v *onnx.Value) {
		host[v] = true
		readers(v, func(r *onnx.Node) { candidate[place[r]] = true })
	}
	for _, n := range g.Nodes {
		for i, v := range n.Returns() {
			if !p.nodes[n] && !isCopy(n) && p.on.output(n, i) {
				add(v)
			}
		}
	}
	for i, n := range g.Nodes { // what is added stands behind
		if !candidate[i] || !p.nodes[n] && !p.cheaper(n, host) {
			continue
		}
		p.nodes[n] = true
		for _, v := range n.Returns() {
			add(v)
		}
	}
}

// cheaper reports a node all of whose inputs are on the host, though its kernel on the
// device wants them there.
func (p *Places) cheaper(n *onnx.Node, host map[*onnx.Value]bool) bool {
	for i, v := range n.Inputs {
		v = source(v)
		switch {
		case v == nil:
			return false
		case v.Type.DType.IsHalf():
			return false
		case v.IsInput():
		case v.Stored():
			if count, ok := v.Type.Shape.Elements().Int(); !ok || count > smallConstant {
				return false
			}
		case !host[v] || p.on.input(n, i):
			return false
		}
	}
	return true
}

// serves reports that the provider has a kernel for a node, and takes it.
func (p *Provider) serves(n *onnx.Node, opset int64) bool {
	return kernels.Supports(p.kernels, n, opset, nil) && !traits.RefusedByCUDA(n)
}

// copied lists the values of a placed graph that have to be copied, as ONNX Runtime
// makes the copies: of inputs that are read on both sides, of values that lie on the
// host, of values that lie on the device; by name.
func (p *Places) copied(g *onnx.Graph) (list []*onnx.Value, fromHost []bool) {
	reads := func(v *onnx.Value, host bool) bool {
		return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool {
			return u.Index != onnx.Captured && p.wantsHost(u.Node, u.Index) == host
		})
	}
	var lists [3][]*onnx.Value
	for _, v := range g.Inputs {
		if v.Init == nil && reads(v, true) && reads(v, false) {
			lists[0] = append(lists[0], v)
		}
	}
	for _, n := range g.Nodes {
		if n.Is("Constant") {
			continue
		}
		for _, v := range n.Outputs {
			switch {
			case v == nil:
			case p.HostValue(v) && reads(v, false):
				lists[1] = append(lists[1], v)
			case !p.HostValue(v) && reads(v, true):
				lists[2] = append(lists[2], v)
			}
		}
	}
	for k, l := range lists {
		if k > 0 {
			slices.SortFunc(l, func(a, b *onnx.Value) int { return strings.Compare(a.Name, b.Name) })
		}
		list = append(list, l...)
		for range l {
			fromHost = append(fromHost, k < 2)
		}
	}
	return list, fromHost
}

// Copied reports that ONNX Runtime will put copies between host and device into a typed
// and placed graph.
func (p *Places) Copied(g *onnx.Graph) bool {
	if p == nil || p.complete {
		return false
	}
	list, _ := p.copied(g)
	return len(list) > 0
}

// Copy puts them in, behind the other nodes.
func (p *Places) Copy(g *onnx.Graph) {
	list, fromHost := p.copied(g)
	for i, v := range list {
		p.copy(g, v, fromHost[i])
	}
}

// copy puts a copy of v between its maker and those that want it elsewhere. What was
// copied to the host bears the name, also as an output.
func (p *Places) copy(g *onnx.Graph, v *onnx.Value, fromHost bool) {
	elsewhere := slices.DeleteFunc(slices.Clone(v.Uses()), func(u onnx.Use) bool {
		return u.Index == onnx.Captured || p.wantsHost(u.Node, u.Index) == fromHost
	})
	op := "MemcpyToHost"
	if fromHost {
		op = "MemcpyFromHost"
	}
	n := g.NewNode("", op, "Memcpy", []*onnx.Value{v}, []string{v.Name + "_device"})
	g.Append(n)
	to := n.Outputs[0]
	to.Type = v.Type
	for _, u := range elsewhere {
		u.Node.SetInput(u.Index, to)
	}
	if fromHost {
		return
	}
	for i, o := range g.Outputs {
		if o == v {
			g.SetOutput(i, to)
		}
	}
	name, other := v.Name, to.Name
	g.Rename(v, g.FreshValueName(name))
	g.Rename(to, name)
	g.Rename(v, other)
}
