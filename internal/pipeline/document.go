package pipeline

// What a planned file is, as a document, and the file itself with what it says of
// itself in its metadata.

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/rewrite"
)

// Document describes a file: what its plan keeps and computes again, and what a step
// of it takes beside the file that was given.
func (p *Planner) Document(r *File, budget Budget) report.Plan {
	pr := r.Problem()
	d := report.Plan{
		Strategy: r.Plan.Strategy, RecomputedNodes: r.Verdict.Recomputed,
		FLOPs: pr.FLOPs(), RecomputeFLOPs: r.Verdict.RecomputeFLOPs, Overhead: report.Float(r.Verdict.Overhead),
		PeakBytesBefore: p.Before.LivePeak, PeakBytesScheduled: &p.Scheduled, PeakBytesAfter: r.Peak,
		LowerBoundBytes: &r.LowerBound, LayerBudgets: r.LayerBudgets(),
		Layers: r.Layers(), Total: totalDocument(r, budget.Total),
	}
	d.Feasible = budget.Keeps(r.Prediction) && r.limited() == nil && (budget.Work == nil || r.overhead() <= *budget.Work)
	if counted := r.Variant.Analysis.Counted; counted != nil { // the overhead is one of time, the operations stay what they are
		d.FLOPs, d.RecomputeFLOPs = 0, 0
		for op, again := range r.Plan.Recomputed(pr) {
			d.FLOPs += counted[op]
			d.RecomputeFLOPs += int64(again) * counted[op]
		}
	}
	if r.Roles().Leave() {
		d.Outputs = string(p.opts.Outputs)
	}
	if d.PeakBytesBefore > 0 {
		d.Saving = report.Float(1 - float64(r.Peak)/float64(d.PeakBytesBefore))
	}
	if budget.Live > 0 {
		d.BudgetBytes = &budget.Live
	}
	if v := r.Variant.Divided; v.Loss > 0 {
		d.Loss = &report.LossSlices{Slices: v.Loss, WorkspaceBytes: v.Workspace}
	}
	if budget.Work != nil {
		d.OverheadLimit = new(report.Float(*budget.Work))
	}
	if layers := pr.LayerCount(); layers > 0 {
		d.TheorySaving = new(report.Float(planner.TheorySaving(layers)))
	}
	for _, v := range r.Plan.Boundaries {
		d.Boundaries = append(d.Boundaries, pr.Values[v].Name)
	}
	for _, v := range r.Plan.Kept(pr) {
		d.Kept = append(d.Kept, pr.Values[v].Name)
	}
	for _, n := range r.Plan.Notes {
		d.Notes = append(d.Notes, report.Note{What: "plan", Reason: report.Text(n)})
	}
	for _, rep := range r.Reports {
		d.Notes = append(d.Notes, Note(rep))
	}
	if line := r.Rounding(); line != "" {
		d.Notes = append(d.Notes, report.Note{What: "rounding", Reason: report.Text(line)})
	}
	return d
}

// totalDocument says what a step of the written file takes, all told; nil where
// the arena's use cannot be predicted.
func totalDocument(r *File, budget int64) *report.Total {
	if r.Prediction == nil || !r.Prediction.Exact() {
		return nil
	}
	t := TotalOf(r.Prediction)
	d := &report.Total{
		ParameterBytes: t.Parameters, StateBytes: t.State, FeedBytes: t.Feeds, SessionBytes: t.Session,
		LivePeakBytes: t.Live, UnusedBytes: t.Unused, TotalBytes: t.Bytes(), ReservedBytes: t.Reserved,
		ArenaReservedBytes: r.Prediction.Arena().Reserved,
	}
	if budget > 0 {
		d.BudgetBytes = &budget
	}
	return d
}

// Note is a pass's report as an entry of the document.
func Note(r rewrite.Report) report.Note {
	n := report.Note{What: r.Pass, Requested: r.Requested, Applied: r.Applied}
	if len(r.Skipped) > 0 {
		n.Reason = report.Text(fmt.Sprintf("%s: %s", r.Skipped[0].What, r.Skipped[0].Why))
		if len(r.Skipped) > 1 {
			n.Reason += report.Text(fmt.Sprintf(" (and %d more)", len(r.Skipped)-1))
		}
	}
	return n
}

// Save writes a planned file of a source, with the document of its plan. One graph
// gives one file, byte for byte, so times stay out of it. Afterwards, and after an error,
// references are as they were: the file may be saved again, into another folder.
func (f *File) Save(source *Source, out string, document report.Plan) error {
	back, err := keepReferences(f.Model)
	if err != nil {
		return err
	}
	defer back()
	return f.save(source, out, document, func(m *onnx.Model, _ *onnx.Outputs) error { return Rebase(m, source.Path, out) })
}

// save is Save with another way to make references to weights right, which may write files
// that are put into their places with the model.
func (f *File) save(source *Source, out string, document report.Plan, place func(*onnx.Model, *onnx.Outputs) error) error {
	m, o, roles := f.Model, &f.Variant.Options, f.Roles()
	source.sign(m)
	session := map[string]any{"enable_mem_pattern": false, "execution_order": "default", "opt_level": o.OptLevel, "intra_op_num_threads": o.Threads}
	if f.Prediction.Exact() {
		arena := f.Prediction.Arena()
		session["arena"] = arena.Setup
		m.SetMetadata(ReservedKey, fmt.Sprint(arena.Reserved))
	}
	m.DropMetadata(step.OutputsKey)
	if roles.Leave() {
		m.SetMetadata(step.OutputsKey, string(o.Outputs))
	}
	document.SolverSeconds, document.PlanSeconds = 0, 0
	for _, entry := range []struct {
		key   string
		value any
	}{{PlanKey, document}, {SessionKey, session}, {step.RolesKey, roles}} {
		if err := m.SetJSON(entry.key, entry.value); err != nil {
			return err
		}
	}
	if err := SetRequires(m); err != nil {
		return err
	}
	return onnx.Together(func(files *onnx.Outputs) error {
		if err := place(m, files); err != nil {
			return err
		}
		SetPromise(m, f.Prediction)
		setSlab(m, f.Prediction, !o.provider().Device)
		return m.SaveWith(files, out)
	})
}
