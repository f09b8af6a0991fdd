package pipeline

// The forms of a graph among which optimal chooses.

import "slices"

// choices are the forms of a graph among which a strategy that looks for the
// best plan may choose, unless the user did: the graph as it is, with its loss
// in slices, with wide products in parts too, with slices of the loss that are
// smaller, which slows its products down, and with large updates in slices.
var choices = []struct{ chunk, tile, rows int }{
	{0, 0, 0}, {CoarseChunk, 0, 0}, {CoarseChunk, AutoChunk, 0}, {FineChunk, AutoChunk, 0},
	{CoarseChunk, 0, AutoChunk}, {CoarseChunk, AutoChunk, AutoChunk}, {FineChunk, AutoChunk, AutoChunk},
}

// candidates are the forms of the graph that a strategy may choose from.
func (p *Planner) candidates(strategy string) ([]*Prepared, error) {
	if !Budgeted(strategy) || p.opts.Chunk != 0 || p.opts.Tile != 0 || p.opts.Rows != 0 || p.opts.AsIs || !p.Problem().HasBackward() {
		return p.variants[:1], nil
	}
	for p.chosen = max(p.chosen, 1); p.chosen < len(choices) && !p.stopped(); p.chosen++ {
		p.looking(p.chosen, len(choices))
		c := choices[p.chosen]
		if c.rows != 0 && len(p.variants[0].Analysis.Roles.New) == 0 {
			continue
		}
		o := p.opts
		o.Chunk, o.Tile, o.Rows = c.chunk, c.tile, c.rows
		v, err := Prepare(p.engine, p.given, o)
		if err != nil {
			return nil, err
		}
		if c.rows != 0 && v.parts().updates == 0 { // nor will it be in the forms that follow
			p.chosen = len(choices)
			break
		}
		same := func(w *Prepared) bool { return v.parts() == w.parts() }
		if !slices.ContainsFunc(p.variants, same) {
			p.variants = append(p.variants, v)
		}
	}
	return p.variants, nil
}

// inParts says what of a form is computed in parts. A choice that divides the same
// as an earlier one is that one again.
type inParts struct {
	slices            int // of the loss, as asked for; 0: it is whole
	products, updates int // how many are divided
}

// parts are those of the prepared graph, by the reports of its passes.
func (p *Prepared) parts() (n inParts) {
	for _, r := range p.Reports {
		switch r.Pass {
		case "chunk":
			if r.Applied > 0 {
				n.slices = p.Options.Chunk
			}
		case "tile":
			n.products = r.Applied
		case "rows":
			n.updates = r.Applied
		}
	}
	return n
}
