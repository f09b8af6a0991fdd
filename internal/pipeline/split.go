package pipeline

// A training graph as the files of pipeline stages (rewrite/stage):
//
//	TRAIN.onnx ─▶ stage0.forward.onnx … stageK-1.backward.onnx … stage0.backward.onnx
//	              stages.json: what goes between them, and what each takes
//
// Each file has its nodes in the order that holds least, and is predicted as a file by
// itself. A stage holds in addition what its graphs made, or received, of micro-batches and
// is read or sent later (internal/ranks has the schedules).

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/stage"
	"github.com/onnx-remat/remat/runtime"
)

// SplitOptions say how a graph is split.
type SplitOptions struct {
	Pipeline Options
	stage.Options
	// Micro is how many micro-batches a step has, for the peaks that are stated.
	Micro int64
}

// Stages describe the files of a split.
type Stages struct {
	Model  string  `json:"model"`
	Stages []Stage `json:"stages"`
	// Boundaries are the values that go from one file to others.
	Boundaries []Boundary `json:"boundaries"`
	// Shared are parameters that other stages read than their owner. The owner updates
	// one, and the others are to be given its value after every update.
	Shared []SharedParameter `json:"shared"`
	// MicroBatches is how many a step has, in the peaks that are stated.
	MicroBatches int64 `json:"micro_batches"`
}

// A Stage is what one process of a pipeline runs.
type Stage struct {
	Stage    int        `json:"stage"`
	Forward  *StageFile `json:"forward"`
	Backward *StageFile `json:"backward"` // null where the stage trains nothing
	// Parameters are those that the stage reads, and Owns those that it updates or returns
	// gradients of.
	Parameters     []string `json:"parameters"`
	Owns           []string `json:"owns"`
	ParameterBytes int64    `json:"parameter_bytes"`
	StateBytes     int64    `json:"state_bytes"`
	// SentBytes is what it sends to other stages for each micro-batch.
	SentBytes int64 `json:"sent_bytes"`
	// Peaks are by schedule.
	Peaks map[string]StagePeak `json:"peaks"`
}

// A StageFile is one graph of a stage.
type StageFile struct {
	File string `json:"file"`
	// Inputs and Outputs are boundaries, by name.
	Inputs  []string `json:"inputs"`
	Outputs []string `json:"outputs"`
	// LivePeakBytes, SessionBytes and UnusedBytes, what the arena reserves beyond both, are
	// predicted, null where they cannot be.
	LivePeakBytes *int64 `json:"predicted_live_peak_bytes"`
	SessionBytes  *int64 `json:"predicted_session_bytes"`
	UnusedBytes   *int64 `json:"predicted_unused_bytes"`
	FeedBytes     int64  `json:"feed_bytes"`
}

// A StagePeak is what a stage takes under a schedule: parameters, state, what both files are
// fed, sessions, the larger live peak with what the arena reserves beyond it, and what is
// stashed of micro-batches under way.
type StagePeak struct {
	StashBytes int64  `json:"stash_bytes"`
	TotalBytes *int64 `json:"predicted_total_bytes"`
}

// A Boundary is a value that one file makes and others read.
type Boundary struct {
	Name  string   `json:"name"`
	Type  string   `json:"type"`
	Bytes int64    `json:"bytes"`
	From  string   `json:"from"`
	To    []string `json:"to"`
}

// A SharedParameter is read by stages that do not update it.
type SharedParameter struct {
	Name    string `json:"name"`
	Owner   int    `json:"owner"`
	Readers []int  `json:"readers"`
	Bytes   int64  `json:"bytes"`
}

// Flows are what graphs of a split make, or are fed, of each micro-batch and graphs read
// later, with their names: its values, and the feeds that a stage's backward graph reads,
// which come with its forward graph's.
func Flows(s *stage.Split) (flows []ranks.Flow, names []string, err error) {
	made := map[string]bool{}
	for _, v := range s.Values {
		made[v.Name] = true
		flows, names = append(flows, ranks.Flow{From: v.From, To: v.To, Bytes: v.Bytes}), append(names, v.Name)
	}
	for _, g := range s.Groups {
		if g == nil || !g.Backward {
			continue
		}
		roles, _, err := step.RolesOf(g.Model, nil)
		if err != nil {
			return nil, nil, err
		}
		fed, err := fedInputs(g.Model, roles)
		if err != nil {
			return nil, nil, err
		}
		for _, v := range fed {
			bytes, ok := v.Type.Bytes()
			if !ok {
				return nil, nil, fmt.Errorf("%q is fed and has no size that is known: %s", v.Name, v.Type)
			}
			if !made[v.Name] {
				f := ranks.Flow{From: g.Stage, To: []int{2*s.Stages - 1 - g.Stage}, Bytes: bytes}
				flows, names = append(flows, f), append(names, v.Name)
			}
		}
	}
	return flows, names, nil
}

// StageFileName names a file of a split.
func StageFileName(stage int, backward bool) string {
	if backward {
		return fmt.Sprintf("stage%d.backward.onnx", stage)
	}
	return fmt.Sprintf("stage%d.forward.onnx", stage)
}

// StagesFile is the description of a split, beside its files.
const StagesFile = "stages.json"

// SplitStages cuts the source's training graph.
func (s *Source) SplitStages(o SplitOptions) (*stage.Split, error) {
	m, err := s.Sized(o.Pipeline.Dims)
	if err != nil {
		return nil, err
	}
	if _, ok := m.Metadata(OrderedKey); ok {
		m.Graph.Nodes = rewrite.RunOrder(m.Graph)
	}
	control.Lift(m.Graph)
	m.DropMetadata(OrderedKey)
	m.DropMetadata(PlanKey)
	dropPromises(m)
	v := &Variant{Model: m, Options: o.Pipeline, roles: o.Pipeline.Roles}
	a, err := v.analyze(m)
	var split *stage.Split
	if err == nil {
		split, err = stage.Of(m, a, o.Options)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	for _, g := range split.Groups {
		if g == nil {
			continue
		}
		if err := keepLocations(g.Model); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Path, err)
		}
		s.sign(g.Model)
		po := o.Pipeline
		po.Roles = nil
		if err = Order(g.Model, po); err == nil {
			err = SetRequires(g.Model)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", s.Path, StageFileName(g.Stage, g.Backward), err)
		}
	}
	return split, nil
}

// keepLocations drops the places of parameters that a model has no more.
func keepLocations(m *onnx.Model) error {
	entries, err := parameterEntries(m)
	if err != nil {
		return err
	}
	for name := range entries {
		if v := m.Graph.Value(name); v == nil || !v.IsInput() {
			delete(entries, name)
		}
	}
	return m.SetJSON(runtime.ParametersKey, entries)
}

// Split writes the files of a split and their description into a folder, which is there. They
// take the places of an earlier split's together, whose other stages go: removed names them.
func Split(e *runtime.Engine, s *Source, dir string, o SplitOptions) (doc *Stages, removed []string, err error) {
	split, err := s.SplitStages(o)
	if err != nil {
		return nil, nil, err
	}
	var outs []string
	for _, g := range split.Groups {
		if g != nil {
			outs = append(outs, filepath.Join(dir, StageFileName(g.Stage, g.Backward)))
		}
	}
	about := filepath.Join(dir, StagesFile)
	if err = CanWrite(s.Files(), append(outs, about)...); err != nil {
		return nil, nil, err
	}
	doc, err = describeStages(e, s, split, o)
	if err != nil {
		return nil, nil, err
	}
	for _, file := range earlierStages(about) {
		path := filepath.Join(dir, file)
		if !slices.Contains(outs, path) && !slices.ContainsFunc(s.Files(), func(in string) bool { return sameFile(in, path) }) {
			removed = append(removed, file)
		}
	}
	err = onnx.Together(func(files *onnx.Outputs) error {
		p, err := newPlaces(s, files, outs[0], func(string, ...any) {})
		if err != nil {
			return err
		}
		for _, g := range split.Groups {
			if g == nil {
				continue
			}
			if err := p.move(g.Model); err != nil {
				return err
			}
			if err := g.Model.SaveWith(files, filepath.Join(dir, StageFileName(g.Stage, g.Backward))); err != nil {
				return err
			}
		}
		for _, file := range removed {
			files.Remove(filepath.Join(dir, file))
		}
		text, err := json.MarshalIndent(doc, "", "  ")
		if err != nil {
			return err
		}
		return files.Write(about, append(text, '\n'))
	})
	if err != nil {
		os.Remove(filepath.Join(dir, WeightsFolder)) // if it is empty
		return nil, nil, err
	}
	return doc, removed, nil
}

// earlierStages are the files that the description of an earlier split lists, under the names
// that splits give. Of what cannot be read as one there are none.
func earlierStages(about string) (files []string) {
	var earlier Stages
	text, err := os.ReadFile(about)
	if err != nil || json.Unmarshal(text, &earlier) != nil {
		return nil
	}
	for _, s := range earlier.Stages {
		for i, f := range []*StageFile{s.Forward, s.Backward} {
			name := StageFileName(s.Stage, i == 1)
			if f == nil || f.File != name {
				continue
			}
			if at, err := os.Lstat(filepath.Join(filepath.Dir(about), name)); err == nil && at.Mode().IsRegular() {
				files = append(files, name)
			}
		}
	}
	return files
}

// describeStages predicts what each stage takes.
func describeStages(e *runtime.Engine, s *Source, split *stage.Split, o SplitOptions) (*Stages, error) {
	doc := &Stages{Model: filepath.Base(s.Path), MicroBatches: o.Micro, Stages: make([]Stage, split.Stages)}
	for i := range doc.Stages {
		doc.Stages[i] = Stage{Stage: i, Parameters: []string{}, Owns: []string{}}
	}
	t := &stageTaking{held: make([]int64, split.Stages), running: make([]int64, split.Stages), bytes: map[string]int64{}}
	for _, g := range split.Groups {
		if g == nil {
			continue
		}
		if err := t.predict(e, &doc.Stages[g.Stage], g, o.Pipeline); err != nil {
			return nil, err
		}
	}
	if err := t.peaks(doc, split); err != nil {
		return nil, err
	}
	doc.Boundaries, doc.Shared = boundariesOf(split), t.shared(split)
	return doc, nil
}

// A stageTaking is what is predicted of the files of stages.
type stageTaking struct {
	held    []int64          // by stage: feeds and sessions; -1: not known
	running []int64          // by stage: the larger live peak, with what is reserved beside
	bytes   map[string]int64 // of parameters and state
}

// predict describes one file of a stage.
func (t *stageTaking) predict(e *runtime.Engine, st *Stage, g *stage.Group, o Options) error {
	file := &StageFile{File: StageFileName(g.Stage, g.Backward), Inputs: namesOf(g.In), Outputs: namesOf(g.Out)}
	if g.Backward {
		st.Backward = file
	} else {
		st.Forward = file
	}
	roles, _, err := step.RolesOf(g.Model, nil)
	if err != nil {
		return err
	}
	parameters, state, err := runtime.SortInputs(g.Model, roles)
	if err != nil {
		return err
	}
	for i, list := range [][]string{parameters, state} {
		for _, name := range list {
			n := g.Model.Graph.Value(name).Type.KnownBytes()
			t.bytes[name] = n
			switch {
			case i == 1:
				st.StateBytes += n
			case !slices.Contains(st.Parameters, name):
				st.Parameters, st.ParameterBytes = append(st.Parameters, name), st.ParameterBytes+n
			}
		}
	}
	o.Roles, o.Precision = nil, nil
	p, err := Predict(e, g.Model, roles, o, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", file.File, err)
	}
	file.FeedBytes = p.Feeds
	if !p.Exact() {
		t.held[g.Stage] = -1
		return nil
	}
	total := TotalOf(p)
	file.LivePeakBytes, file.SessionBytes, file.UnusedBytes = &total.Live, &total.Session, &total.Unused
	if t.held[g.Stage] >= 0 {
		t.held[g.Stage] += total.Session + total.Feeds
		t.running[g.Stage] = max(t.running[g.Stage], total.Live+total.Unused)
	}
	return nil
}

// peaks says what each stage sends, and takes under each schedule.
func (t *stageTaking) peaks(doc *Stages, split *stage.Split) error {
	flows, _, err := Flows(split)
	if err != nil {
		return err
	}
	schedules := []string{ranks.GPipe, ranks.OneForward}
	ticks := map[string][]ranks.Tick{}
	for _, schedule := range schedules {
		ticks[schedule] = ranks.Schedule(schedule, split.Stages, int(doc.MicroBatches), flows)
	}
	for i := range doc.Stages {
		st := &doc.Stages[i]
		for name, owner := range split.Owner {
			if owner == i && slices.Contains(st.Parameters, name) {
				st.Owns = append(st.Owns, name)
			}
		}
		slices.Sort(st.Owns)
		st.SentBytes = ranks.PipeBytes(flows, split.Stages, i)
		st.Peaks = map[string]StagePeak{}
		for _, schedule := range schedules {
			peak := StagePeak{StashBytes: ranks.StoreBytes(ticks[schedule], flows, split.Stages, i)}
			if t.held[i] >= 0 {
				peak.TotalBytes = new(st.ParameterBytes + st.StateBytes + t.held[i] + peak.StashBytes + t.running[i])
			}
			st.Peaks[schedule] = peak
		}
	}
	return nil
}

// boundariesOf are the values that go from file to file.
func boundariesOf(split *stage.Split) []Boundary {
	list := []Boundary{}
	for _, v := range split.Values {
		b := Boundary{Name: v.Name, Type: v.Type.String(), Bytes: v.Bytes, From: groupFile(split, v.From)}
		for _, to := range v.To {
			b.To = append(b.To, groupFile(split, to))
		}
		list = append(list, b)
	}
	return list
}

// shared are the parameters that stages read which do not update them, by name.
func (t *stageTaking) shared(split *stage.Split) []SharedParameter {
	list := []SharedParameter{}
	for name, readers := range split.Readers {
		if split.Shared(name) {
			list = append(list, SharedParameter{name, split.Owner[name], readers, t.bytes[name]})
		}
	}
	slices.SortFunc(list, func(a, b SharedParameter) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func groupFile(s *stage.Split, group int) string {
	return StageFileName(ranks.StageOf(group, s.Stages), group >= s.Stages)
}

func namesOf(values []*stage.Value) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = v.Name
	}
	return names
}
