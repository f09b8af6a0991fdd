package pipeline

// Gradients that are summed up in the memory in which they are returned (rewrite/tile). That
// memory is there from the step's begin, so it is done where the plain order of the graph
// holds no more with it.

import (
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/tile"
	"github.com/onnx-remat/remat/runtime"
)

func (p *preparation) sums(*runtime.Engine) error {
	roles, said, err := step.RolesOf(p.Model, p.roles)
	switch {
	case err != nil || !said:
		return err
	case p.Options.Outputs != step.Rows:
		return p.ownMemory(roles)
	}
	if err := p.inferTypes(); err != nil {
		return err
	}
	a, err := p.analyze(p.Model)
	if err != nil {
		return err
	}
	chains := tile.SumsBefore(gradients(p.Model.Graph, roles))
	if len(chains) == 0 {
		return nil
	}
	plain, err := planner.Solve(a.Problem, "none")
	if err != nil {
		return err
	}
	report := rewrite.Report{Pass: "sums", Requested: len(chains)}
	graph := a.Problem.Graph.Copy()
	peak := ortmodel.NewSimulator(graph).Peak(plain.Schedule)
	roles.Sums = maps.Clone(roles.Sums)
	if roles.Sums == nil {
		roles.Sums = map[string][]string{}
	}
	for _, chain := range chains {
		with, gradient := graph.Copy(), chain[len(chain)-1]
		a.HoldInOne(with, chain)
		held := ortmodel.NewSimulator(with).Peak(plain.Schedule)
		if held > peak {
			report.Skipped = append(report.Skipped, rewrite.Skip{What: gradient.Name, Why: "at the peak, its memory would be held before it is needed"})
			continue
		}
		graph, peak = with, held
		roles.Sums[gradient.Name] = tile.GiveSums(p.Model.Graph, chain)
		report.Applied++
	}
	p.Reports = append(p.Reports, report)
	if report.Applied == 0 {
		return nil
	}
	return p.setRoles(roles)
}

// ownMemory takes back that sums are outputs, which a file has that was written for it: they
// would all be returned.
func (p *preparation) ownMemory(roles step.Roles) error {
	if len(roles.Sums) == 0 {
		return nil
	}
	for _, names := range roles.Sums {
		p.Model.Graph.RemoveOutputs(func(v *onnx.Value) bool { return slices.Contains(names, v.Name) })
	}
	roles.Sums = nil
	return p.setRoles(roles)
}

// gradients are the outputs that are gradients and have no sums yet, in the graph's order.
func gradients(g *onnx.Graph, roles step.Roles) []*onnx.Value {
	names := slices.Collect(maps.Values(roles.Grad))
	return slices.DeleteFunc(slices.Clone(g.Outputs), func(v *onnx.Value) bool {
		return !slices.Contains(names, v.Name) || roles.Sums[v.Name] != nil || v.Producer == nil
	})
}
