package onnx

// Check is the one place where the invariants stand:
//
//	model     every operator set is imported once, every domain in use too
//	names     unique, UTF-8, known to the graph, never taken twice in nested
//	          scopes (single static assignment across subgraphs)
//	order     nodes stand after what they read, inside subgraphs too
//	uses      producers and readers agree in both directions
//	constants extents, element type and amount of data fit; external data lies
//	          inside the model's folder, within its file
//
// It takes time in proportion to the graph and touches no weights.

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Check proves every invariant that the rest of remat relies on. The first
// violation found is returned, as a FormatError without a path: the model may
// have been changed since it was loaded.
func (m *Model) Check() error {
	if err := m.check(); err != nil {
		return &FormatError{"", err}
	}
	return nil
}

func (m *Model) check() error {
	imports, err := m.checkImports()
	if err != nil {
		return err
	}
	if err := m.Graph.check(imports); err != nil {
		return err
	}
	for _, v := range m.Graph.Initializers {
		if err := checkTensor(v.Init, m.files); err != nil {
			return err
		}
	}
	return nil
}

// checkImports returns the domains that the model imports.
func (m *Model) checkImports() (map[string]bool, error) {
	if len(m.Proto.GetOpsetImport()) == 0 {
		return nil, errors.New("the model imports no operator set")
	}
	imports := map[string]bool{}
	for _, o := range m.Proto.OpsetImport {
		d := NormalDomain(o.GetDomain())
		if imports[d] {
			return nil, fmt.Errorf("the model imports the operator set of domain %q twice", d)
		}
		if o.GetVersion() < 1 {
			return nil, fmt.Errorf("the model imports version %d of domain %q", o.GetVersion(), d)
		}
		imports[d] = true
	}
	return imports, nil
}

// Check is Model.Check for what a graph alone can prove.
func (g *Graph) Check() error {
	if err := g.check(nil); err != nil {
		return &FormatError{"", err}
	}
	return nil
}

// check proves the graph; imports nil leaves domains open.
func (g *Graph) check(imports map[string]bool) error {
	seen := make(map[*Value]bool, len(g.values))
	if err := g.checkSources(seen); err != nil {
		return err
	}
	uses, err := g.checkNodes(seen, imports)
	if err != nil {
		return err
	}
	var odd *string // the first by name of those that are not text
	for v := range seen {
		if g.values[v.Name] != v {
			return fmt.Errorf("value %q is not known to the graph by its name", v.Name)
		}
		if !utf8.ValidString(v.Name) && (odd == nil || v.Name < *odd) {
			odd = &v.Name
		}
		uses -= len(v.uses)
	}
	if odd != nil {
		return fmt.Errorf("the name %q is not UTF-8", *odd)
	}
	if len(seen) != len(g.values) {
		return fmt.Errorf("the graph knows %d names, its nodes %d", len(g.values), len(seen))
	}
	if uses != 0 {
		return fmt.Errorf("values know of %d readers that do not read them", -uses)
	}
	return g.checkOutputs(seen)
}

// checkSources proves inputs and initializers, and notes them as seen.
func (g *Graph) checkSources(seen map[*Value]bool) error {
	for _, v := range g.Inputs {
		if !v.input || v.Producer != nil || seen[v] {
			return fmt.Errorf("graph input %q is not marked as one, or stands twice", v.Name)
		}
		seen[v] = true
	}
	for _, v := range g.Initializers {
		if v.Init == nil || v.Producer != nil || seen[v] && !v.input {
			return fmt.Errorf("initializer %q has no data, a producer, or stands twice", v.Name)
		}
		seen[v] = true
	}
	for _, t := range g.Proto.SparseInitializer {
		if v := g.values[t.GetValues().GetName()]; v != nil && v.sparse {
			seen[v] = true
		}
	}
	return nil
}

func (g *Graph) checkOutputs(seen map[*Value]bool) error {
	outs := map[*Value]int{}
	for _, v := range g.Outputs {
		if !seen[v] {
			return fmt.Errorf("graph output %q is not produced by any node", v.Name)
		}
		outs[v]++
	}
	for v, n := range outs {
		if v.outs != n {
			return fmt.Errorf("value %q counts %d graph outputs where there are %d", v.Name, v.outs, n)
		}
	}
	return nil
}

// checkNodes proves the nodes in order and returns how many reads there are.
func (g *Graph) checkNodes(seen map[*Value]bool, imports map[string]bool) (int, error) {
	reads := 0
	inner := scope{outer: func(name string) bool { v := g.values[name]; return v != nil && seen[v] }, imports: imports}
	for _, n := range g.Nodes {
		if n.graph != g {
			return 0, fmt.Errorf("node %q belongs to another graph", n.Label())
		}
		if err := inner.node(n.Proto, n.Label()); err != nil {
			return 0, err
		}
		k, err := checkReads(n, seen)
		if err != nil {
			return 0, err
		}
		reads += k
		for i, v := range n.Returns() {
			if v.Producer != n || v.Index != i || seen[v] {
				return 0, fmt.Errorf("node %q: output %q has another producer", n.Label(), v.Name)
			}
			seen[v] = true
		}
	}
	return reads, nil
}

// checkReads checks what a node reads and returns how many reads there are.
func checkReads(n *Node, seen map[*Value]bool) (int, error) {
	check := func(v *Value, index int) error {
		if !seen[v] {
			return fmt.Errorf("node %q: reads %q before it is produced (out of order, or on a cycle)", n.Label(), v.Name)
		}
		if v.place(Use{n, index}) < 0 {
			return fmt.Errorf("value %q does not know that node %q reads it", v.Name, n.Label())
		}
		return nil
	}
	reads := 0
	for i, v := range n.Reads() {
		if err := check(v, i); err != nil {
			return 0, err
		}
		reads++
	}
	for _, v := range n.Captures {
		if err := check(v, Captured); err != nil {
			return 0, err
		}
		reads++
	}
	return reads, nil
}
