package flow

// The forms of a graph among which optimal chooses.

// choices are the forms of a graph among which a strategy that looks for the
// best plan may choose, unless the user did: the graph as it is, with its loss
// in slices, and with wide products in parts too.
var choices = []struct{ chunk, tile int }{{0, 0}, {AutoChunk, 0}, {AutoChunk, AutoChunk}}

// candidates are the forms of the graph that a strategy may choose from.
func (p *Planner) candidates(strategy string) ([]*Prepared, error) {
	if !Budgeted(strategy) || p.opts.Chunk != 0 || p.opts.Tile != 0 || p.opts.AsIs || !p.Problem().HasBackward() {
		return p.variants[:1], nil
	}
	for p.chosen = max(p.chosen, 1); p.chosen < len(choices); p.chosen++ {
		o := p.opts
		o.Chunk, o.Tile = choices[p.chosen].chunk, choices[p.chosen].tile
		v, err := Prepare(p.engine, p.given, o)
		if err != nil {
			return nil, err
		}
		if last := p.variants[len(p.variants)-1]; v.parts() != last.parts() {
			p.variants = append(p.variants, v)
		}
	}
	return p.variants, nil
}

// parts is how many places of the graph are computed in parts: of the loss, and
// of wide products. A choice that adds none is the one before it again.
func (p *Prepared) parts() (n [2]int) {
	for _, r := range p.Reports {
		switch r.Pass {
		case "chunk":
			n[0] = r.Applied
		case "tile":
			n[1] = r.Applied
		}
	}
	return n
}
