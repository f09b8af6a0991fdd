package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
)

// Text writes the run as a person reads it.
func (r *Run) Text(w io.Writer) error {
	facts := Facts{
		{Key: "model", Value: r.Model},
		{Key: "ran on", Value: fmt.Sprintf("%s, ONNX Runtime %s, %d threads, optimization level %d", r.Provider, r.ORTVersion, r.Threads, r.OptLevel)},
	}
	if r.Rehearsed {
		facts = append(facts, Fact{Key: "rehearsed", Value: NoNumbers})
	}
	if r.Precision != "" {
		facts = append(facts, Fact{Key: "computes in", Value: string(r.Precision)})
	}
	if r.NoPrediction != "" {
		facts = append(facts, Fact{Key: "not predicted", Value: string(r.NoPrediction)})
	}
	if r.Monitor != nil {
		facts = append(facts, Fact{Key: "growth", Value: r.Monitor.Verdict})
	}
	if r.Error != "" {
		facts = append(facts, Fact{Key: "failed", Value: string(r.Error)})
	}
	if err := facts.Text(w); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	tables := []Table{r.memoryTable(), r.stepsTable(), r.deviceTable()}
	if r.Monitor != nil {
		tables = append(tables, r.Monitor.table())
		if r.Fragmentation != nil {
			tables = append(tables, r.Fragmentation.table())
		}
	}
	tables = append(tables, r.stepMemoryTables(12)...)
	if r.Profile != nil {
		tables = append(tables, r.Profile.table())
	} else {
		tables = append(tables, r.topTimeTable(), r.topMemoryTable())
	}
	return writeTables(w, tables...)
}

func (r *Run) memoryTable() Table {
	m := r.Memory
	measured := ">measured"
	if r.Rehearsed {
		measured = ">rehearsed"
	}
	t := Table{Title: "memory", Columns: []string{"", measured, ">predicted", ">difference"}}
	row := func(name string, measured, predicted *int64) {
		if measured == nil && predicted == nil {
			return
		}
		t.add(name, BytesOr(measured), BytesOr(predicted), differenceOf(measured, predicted))
	}
	// What the graph itself says stands in the one column that has figures.
	known := func(name string, n int64) {
		if m.LivePeakBytes == nil && m.PredictedLivePeakBytes != nil {
			row(name, nil, &n)
		} else {
			row(name, &n, nil)
		}
	}
	known("parameters", m.ParameterBytes)
	known("optimizer state", m.StateBytes)
	known("feeds", m.FeedBytes)
	known("outputs", m.OutputBytes)
	row("session", m.SessionBytes, m.PredictedSessionBytes)
	row("live peak", m.LivePeakBytes, m.PredictedLivePeakBytes)
	row("total peak", m.TotalPeakBytes, m.predictedTotal())
	row("reserved", m.ReservedBytes, m.PredictedReservedBytes)
	row("slab", m.SlabBytes, nil)
	row("arena peak", m.ArenaPeakBytes, nil)
	row("arena reserved", m.ArenaReservedBytes, m.PredictedArenaReservedBytes)
	row("process peak", m.RSSPeakBytes, nil)
	return t.compact()
}

// predictedTotal is the predicted total peak, where the parts are known.
func (m *Memory) predictedTotal() *int64 {
	if m.PredictedLivePeakBytes == nil {
		return nil
	}
	sum := m.ParameterBytes + m.StateBytes + m.FeedBytes + *m.PredictedLivePeakBytes
	if m.PredictedSessionBytes != nil {
		sum += *m.PredictedSessionBytes
	}
	return &sum
}

// differenceOf is measured less predicted, "exact" where they are equal.
func differenceOf(measured, predicted *int64) string {
	if measured == nil || predicted == nil {
		return none
	}
	d := *measured - *predicted
	if d == 0 {
		return "exact"
	}
	sign := ""
	if d > 0 {
		sign = "+"
	}
	return sign + units.Bytes(d)
}

func (r *Run) stepsTable() Table {
	t := Table{Title: "steps", Columns: []string{"", ">"}}
	if len(r.Steps) == 0 {
		return t
	}
	t.add("steps", itoa(len(r.Steps)))
	if n := r.skipped(); n > 0 {
		t.add("steps skipped, as gradients overflowed", itoa(n))
	}
	if r.Rehearsed {
		return t
	}
	if s := r.StepSeconds; s != nil && s.Count > 1 {
		t.add("step time, median of "+itoa(s.Count), units.Seconds(s.Median))
		t.add("step time, quartiles", units.Seconds(s.Quartile)+" to "+units.Seconds(s.Upper))
		t.add("step time, range", units.Seconds(s.Low)+" to "+units.Seconds(s.High))
	} else {
		t.add("step time", units.Seconds(r.MedianSeconds()))
	}
	if l := r.Losses(); len(l) > 0 {
		t.add("loss, first step", units.Number(l[0]))
		if len(l) > 1 {
			t.add("loss, last step", units.Number(l[len(l)-1]))
		}
	}
	return t
}

// skipped counts the steps that updated nothing.
func (r *Run) skipped() int {
	n := 0
	for _, s := range r.Steps {
		if s.Skipped {
			n++
		}
	}
	return n
}

// NoNumbers is what a rehearsal is not.
const NoNumbers = "no numbers were computed"

// deviceTable is what one step after the first asks of the device.
func (r *Run) deviceTable() Table {
	t := Table{Title: "asked of the device by one step", Columns: []string{"", ">times", ">bytes"}}
	d := r.Device
	if d == nil {
		return t
	}
	t.add("copies to the host", itoa(int(d.CopiesToHost)), units.Bytes(d.BytesToHost))
	t.add("copies to the device", itoa(int(d.CopiesToDevice)), units.Bytes(d.BytesToDevice))
	t.add("synchronizations", itoa(int(d.Synchronizations)), none)
	if d.FallbackNodes != nil {
		t.add("nodes on the host, with tensors of the device", itoa(int(*d.FallbackNodes)), none)
	}
	t.add("kernels", itoa(int(d.Kernels)), none)
	return t
}

// PeakTables are the tables of the peak that inspect --memory shows.
func (r *Run) PeakTables() []Table { return r.stepMemoryTables(12) }

// stepMemoryTables are the tables of the peak: by category, over the phases,
// and the largest rows of what is live.
func (r *Run) stepMemoryTables(rows int) []Table {
	var tables []Table
	if p := r.Peak; p != nil {
		t := Table{Title: "at the peak: " + p.place(), Columns: []string{"", ">bytes", ">share"}}
		for _, c := range AllCategories {
			if n := p.Sizes.Of(c); n != 0 {
				t.add(categoryName(c), units.Bytes(n), units.Percent(float64(n)/float64(p.TotalBytes)))
			}
		}
		t.add("total", units.Bytes(p.TotalBytes), units.Percent(1))
		tables = append(tables, t, p.liveTable(rows))
	}
	if r.Phases != nil {
		tables = append(tables, r.Phases.table())
	}
	if len(r.LayerBudgets) > 0 {
		t := Table{Title: "kept for the backward pass, by layers with a budget", Columns: []string{"", ">kept", ">planned", ">budget"}}
		for _, b := range r.LayerBudgets {
			t.add(string(b.Layers), units.Bytes(b.KeptBytes), units.Bytes(b.PlannedBytes), units.Bytes(b.BudgetBytes))
		}
		tables = append(tables, t)
	}
	if r.Load != nil {
		tables = append(tables, r.Load.table())
	}
	return tables
}

// place says where in the step the peak is.
func (p *Peak) place() string {
	var b strings.Builder
	b.WriteString(Shorten(textOr(p.Node), 44))
	if p.Op != "" {
		b.WriteString(" (" + clean(p.Op) + ")")
	}
	if p.Layer != "" {
		b.WriteString(" in " + Shorten(string(p.Layer), 44))
	}
	if p.Phase != "" {
		b.WriteString(", " + clean(string(p.Phase)))
	}
	if p.Seconds > 0 {
		b.WriteString(", after " + units.Seconds(p.Seconds))
	}
	return b.String()
}

// liveTable lists the largest buffers at the peak, alike ones in one row, and sums
// up the rest.
func (p *Peak) liveTable(rows int) Table {
	t := Table{Title: "live at the peak", Columns: []string{">bytes", "category", "value", "made by", "layer"}}
	var rest int64
	more := 0
	for i, g := range p.groups() {
		if i >= rows {
			rest, more = rest+g.sum(), more+len(g.values)
			continue
		}
		t.add(g.size(), categoryName(g.values[0].Category), g.name(), textOr(g.values[0].Op), textOr(g.layers()))
	}
	if more > 0 {
		t.add(units.Bytes(rest), none, fmt.Sprintf("%d more", more), none, none)
	}
	return t.compact()
}

func (r *Run) topTimeTable() Table {
	t := Table{Title: "top operators by time", Columns: []string{"node", "op", "layer", ">time", ">share"}}
	for _, o := range r.TopTime {
		t.add(textOr(o.Node), textOr(o.Op), textOr(string(o.Layer)), units.Seconds(o.Seconds), units.Percent(o.Share))
	}
	return t.compact()
}

func (r *Run) topMemoryTable() Table {
	t := Table{Title: "top operators by memory", Columns: []string{"node", "op", "layer", ">bytes", ">share"}}
	for _, o := range r.TopMemory {
		t.add(textOr(o.Node), textOr(o.Op), textOr(string(o.Layer)), units.Bytes(o.Bytes), units.Percent(o.Share))
	}
	return t.compact()
}

// categoryName is the category in words.
func categoryName(c Category) string {
	switch c {
	case State:
		return "optimizer state"
	case Gradients: // of parameters, and of activations on the way to them
		return "backward"
	}
	return textOr(string(c))
}
