package planner

// Selective recomputation: drop what is large and cheap.
//
// V. Korthikanti et al., "Reducing activation recomputation in large
// transformer models", 2022: attention scores, their softmax, activation
// functions and the insides of norms hold most of a layer's bytes and hardly
// any of its work. No operator is named here: a value goes if the work to have
// it again, in FLOPs per byte held, is below a price; the minimum cut decides
// for all values together. The price is the highest that costs at most
// selectiveWork of the plain step's work.
//
// Weakness: the price is the same for the first layer and the last, although
// the last layer's values are held for a short time only.

// solveSelective raises the price of memory until the work is too much, and takes
// the plan of least peak on the way.
func solveSelective(p *Problem, o Options) (*Plan, error) {
	ix := p.indexed()
	e := newExplorer(ix, ix.plain(), 0)
	cut := newKeepCut(ix)
	gap := e.gaps()
	price := make([]int64, len(ix.stash))
	best := ix.keepAll()
	least, _, _ := e.visit(best)
	for step := range ix.tune.selectiveSteps {
		for i, r := range ix.stash {
			price[i] = 0
			if gap[i].to > gap[i].from+1 {
				price[i] = ix.p.Graph.Values[r].Bytes << step
			}
		}
		keep := cut.keep(price)
		peak, work, _ := e.visit(keep)
		if float64(work) > ix.tune.selectiveWork*float64(ix.total) {
			break
		}
		if peak < least {
			least, best = peak, keep
		}
	}
	return ix.planOf(o.strategy(), best, false), nil
}
