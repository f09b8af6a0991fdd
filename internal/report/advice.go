package report

// Advice: what a model needs, and what would have it fit a memory.

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/onnx-remat/remat/internal/units"
)

// An AdviceNeed itemizes a step as it is made, in bytes. The items are what is live at its
// peak, so they add up to the total.
type AdviceNeed struct {
	ParameterBytes  int64 `json:"parameter_bytes"`
	GradientBytes   int64 `json:"gradient_bytes"`
	StateBytes      int64 `json:"state_bytes"`
	ActivationBytes int64 `json:"activation_bytes"`
	// OtherBytes is TemporaryBytes, outputs, feeds, the session, and what the arena
	// reserves beyond.
	OtherBytes     int64 `json:"other_bytes"`
	TotalBytes     int64 `json:"total_bytes"`
	TemporaryBytes int64 `json:"temporary_bytes"`
	FeedBytes      int64 `json:"feed_bytes"`
	SessionBytes   int64 `json:"session_bytes"`
	// LivePeakBytes is the part that a step allocates.
	LivePeakBytes int64 `json:"live_peak_bytes"`
	// Trained and Frozen are the parameters.
	Trained ParameterSum `json:"trained"`
	Frozen  ParameterSum `json:"frozen"`
}

// A ParameterSum is some of the parameters together.
type ParameterSum struct {
	Count    int   `json:"count"`
	Elements int64 `json:"elements"`
	Bytes    int64 `json:"bytes"`
}

// An AdviceMeasure is one thing that can be done.
type AdviceMeasure struct {
	Name string `json:"name"`
	Did  Text   `json:"did"`
	// AloneSaves and AloneTotal are of the measure with order and updates in backward; nil
	// where it was not looked at.
	AloneSaves *int64 `json:"alone_saves_bytes"`
	AloneTotal *int64 `json:"alone_total_bytes"`
	// Total, Overhead, Fits and Commands are of the measure with those before it that it
	// needs; With names those that make another training.
	Total    *int64   `json:"total_bytes"`
	Overhead *Float   `json:"overhead"`
	Fits     bool     `json:"fits"`
	With     []string `json:"with"`
	Commands []string `json:"commands"`
	Remark   Text     `json:"remark"`
}

// AdviceTaken is what is recommended, or comes closest.
type AdviceTaken struct {
	Commands []string `json:"commands"`
	// Train is what trains so, to which data and a length are added.
	Train       Text     `json:"train"`
	Total       int64    `json:"total_peak_bytes"`
	Overhead    Float    `json:"overhead"`
	MicroBatch  int64    `json:"micro_batch"`
	Accumulate  int64    `json:"accumulate"`
	Changes     []string `json:"changes"`
	Measures    []string `json:"measures"`
	Approximate Text     `json:"approximate"`
}

// AdviceRanks is what each of several ranks takes that train together, on paper.
type AdviceRanks struct {
	Ranks int    `json:"ranks"`
	Sync  string `json:"sync"`
	// Every is how many steps there are from one time that ranks agree to the next.
	Every int64 `json:"steps_between"`
	// Total, Overhead and SyncBytes are of the rank that takes most; nil where Remark
	// says why such ranks cannot train this.
	Total     *int64 `json:"total_bytes"`
	Overhead  *Float `json:"overhead"`
	Fits      bool   `json:"fits"`
	SyncBytes *int64 `json:"sync_bytes"`
	// SyncSeconds are those that the link takes, nil without one; Efficiency is the share
	// of the time in which a rank computes, nil where its step's time is not known.
	SyncSeconds *Float `json:"sync_seconds"`
	Efficiency  *Float `json:"efficiency"`
	Train       Text   `json:"train"`
	Remark      Text   `json:"remark"`
}

// Advice is the document of `advise --json`.
type Advice struct {
	Model     string     `json:"model"`
	Provider  string     `json:"provider"`
	Predicted bool       `json:"predicted"`
	Memory    int64      `json:"memory_bytes"`
	Need      AdviceNeed `json:"need"`
	// Short is what is missing, 0 where it fits.
	Short       int64           `json:"short_bytes"`
	Measures    []AdviceMeasure `json:"measures"`
	Recommended *AdviceTaken    `json:"recommended"`
	Nearest     *AdviceTaken    `json:"nearest"`
	Largest     *int64          `json:"largest_batch"`
	// Ranks is nil where nobody asked for ranks.
	Ranks []AdviceRanks `json:"ranks"`
}

// MarshalJSON writes empty lists as [].
func (a Advice) MarshalJSON() ([]byte, error) {
	type plain Advice
	p := plain(a)
	p.Measures = list(p.Measures)
	for i := range p.Measures {
		m := &p.Measures[i]
		m.With, m.Commands = list(m.With), list(m.Commands)
	}
	for _, t := range []*AdviceTaken{p.Recommended, p.Nearest} {
		if t != nil {
			t.Commands, t.Changes, t.Measures = list(t.Commands), list(t.Changes), list(t.Measures)
		}
	}
	return json.Marshal(p)
}

// Text writes the advice as a person reads it.
func (a *Advice) Text(w io.Writer) error {
	tables := []Table{a.needTable(), a.measuresTable()}
	if len(a.Ranks) > 0 {
		tables = append(tables, a.ranksTable())
	}
	if err := writeTables(w, tables...); err != nil {
		return err
	}
	_, err := io.WriteString(w, a.closing())
	return err
}

// ranksTable is what ranks take and send.
func (a *Advice) ranksTable() Table {
	t := Table{
		Title:   fmt.Sprintf("each of %d ranks, on paper", a.Ranks[0].Ranks),
		Columns: []string{"--sync", ">takes", ">more work", "fits", ">sends", ">every", ">seconds", ">efficiency", "~"},
	}
	for _, r := range a.Ranks {
		text := string(r.Train)
		if r.Remark != "" {
			text = string(r.Remark)
		}
		t.add(r.Sync, BytesOr(r.Total), floatOr(r.Overhead, units.Signed), fitsOr(r.Total, r.Fits), BytesOr(r.SyncBytes), fmt.Sprint(r.Every), floatOr(r.SyncSeconds, units.Seconds), floatOr(r.Efficiency, units.Percent), text)
	}
	return t
}

func (a *Advice) needTable() Table {
	n := &a.Need
	t := Table{Title: fmt.Sprintf("%s as it is made, on %s (predicted)", a.Model, a.Provider), Columns: []string{"", ">bytes", "~"}}
	of := func(s ParameterSum) string {
		return fmt.Sprintf("%s elements in %s", units.Count(s.Elements), units.Counted(s.Count, "tensor"))
	}
	parameters := "trained " + of(n.Trained)
	if n.Frozen.Count > 0 {
		parameters += ", frozen " + of(n.Frozen)
	}
	t.add("parameters", units.Bytes(n.ParameterBytes), parameters)
	t.add("gradients", units.Bytes(n.GradientBytes), "at the peak, those of values too")
	t.add("optimizer state", units.Bytes(n.StateBytes), "")
	t.add("activations", units.Bytes(n.ActivationBytes), "at the peak")
	t.add("other", units.Bytes(n.OtherBytes), fmt.Sprintf("temporaries %s, feeds %s, session %s, and what is returned or reserved", units.Bytes(n.TemporaryBytes), units.Bytes(n.FeedBytes), units.Bytes(n.SessionBytes)))
	t.add("total", units.Bytes(n.TotalBytes), "")
	missing := "nothing"
	if a.Short > 0 {
		missing = units.Bytes(a.Short)
	}
	t.add("missing to "+units.Bytes(a.Memory), missing, "")
	return t
}

func (a *Advice) measuresTable() Table {
	t := Table{Title: "measures: alone, and with those before", Columns: []string{"measure", ">alone saves", ">takes", ">more work", "fits", "~"}}
	for _, m := range a.Measures {
		text := string(m.Did)
		if m.Remark != "" {
			if text != "" {
				text += "; "
			}
			text += string(m.Remark)
		}
		t.add(m.Name, BytesOr(m.AloneSaves), BytesOr(m.Total), floatOr(m.Overhead, units.Signed), fitsOr(m.Total, m.Fits), text)
	}
	return t
}

// fitsOr says whether a total fits, where there is one.
func fitsOr(total *int64, fits bool) string {
	if total == nil {
		return none
	}
	return yesNo(&fits)
}

// closing says what to do.
func (a *Advice) closing() string {
	text, t := "", a.Recommended
	if t != nil {
		text = fmt.Sprintf("\nrecommended: takes %s of %s, %s work\n", units.Bytes(t.Total), units.Bytes(a.Memory), units.Signed(float64(t.Overhead)))
	} else if t = a.Nearest; t != nil {
		text = fmt.Sprintf("\nnothing fits %s; the nearest takes %s, %s too much\n", units.Bytes(a.Memory), units.Bytes(t.Total), units.Bytes(t.Total-a.Memory))
	}
	if t != nil {
		for _, c := range t.Commands {
			text += "  " + c + "\n"
		}
		if t.Train != "" {
			text += "or, with data and a length:\n  " + string(t.Train) + "\n"
		}
	}
	if a.Largest != nil {
		text += fmt.Sprintf("largest batch of a run that fits: %d\n", *a.Largest)
	}
	return text
}
