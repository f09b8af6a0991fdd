package predict

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice/devicetest"
)

var testEnv *ort.Environment

func TestMain(m *testing.M) {
	path, err := install.Find("")
	if gpu := devicetest.Library(); gpu != "" && err == nil {
		path = gpu
		err = devicetest.Load()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	env, err := ort.Open(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testEnv = env
	code := m.Run()
	env.Close()
	os.Exit(code)
}

// measured is what the counting allocator saw.
type measured struct {
	session int64 // held after the session was made
	first   []ort.Event
	events  []ort.Event
	live    int64 // peak above the step's start
	order   []string
	device  bool
}

// measure runs a model twice, with the outputs in bound on memory of the
// caller's, and reports on the second step; the first
// step's events are kept to see whether a first step is different.
func measure(model string, o ort.SessionOptions, feeds map[string][]byte, bound ...string) (*measured, error) {
	o.Allocator = ort.Counting
	s, err := testEnv.NewSession(model, o)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	counter := s.DeviceCounter()
	out := &measured{session: counter.State().Live, device: o.Provider == ort.CUDA}
	for step := range 2 {
		b, err := s.NewBinding()
		if err != nil {
			return nil, err
		}
		closers, err := bindAll(s, b, feeds, bound...)
		if err == nil {
			counter.Mark(true)
			err = s.Run(context.Background(), b, "")
		}
		if err == nil {
			st := counter.State()
			out.live = st.Peak - st.Base
			out.events, err = counter.Events()
			if step == 0 {
				out.first = out.events
			}
		}
		outputs, _ := b.Outputs()
		for _, v := range outputs {
			v.Value.Close()
		}
		b.Close()
		for _, v := range closers {
			v.Close()
		}
		if err != nil {
			return nil, err
		}
	}
	if o.ProfilePrefix != "" {
		p, err := s.EndProfiling()
		if err != nil {
			return nil, err
		}
		for _, n := range p.Nodes {
			if n.Run == 0 {
				out.order = append(out.order, n.Node)
			}
		}
	}
	return out, nil
}

func bindAll(s *ort.Session, b *ort.Binding, feeds map[string][]byte, bound ...string) (all []*ort.Value, err error) {
	for _, in := range s.Inputs {
		v, err := testEnv.NewTensor(in.Type, in.Shape)
		if err != nil {
			return all, fmt.Errorf("input %s: %w", in.Name, err)
		}
		if s.Options().Provider == ort.CUDA {
			v.Close()
			if v, err = s.NewDeviceTensor(in.Type, in.Shape); err != nil {
				return all, fmt.Errorf("input %s: %w", in.Name, err)
			}
		}
		all = append(all, v)
		if data, ok := feeds[in.Name]; ok {
			copy(v.Bytes(), data)
		} else if v.OnHost() {
			fill(v)
		}
		if err := b.BindInput(in.Name, v); err != nil {
			return all, err
		}
	}
	for _, o := range s.Outputs {
		if slices.Contains(bound, o.Name) {
			v, err := testEnv.NewTensor(o.Type, o.Shape)
			if err != nil {
				return all, fmt.Errorf("output %s: %w", o.Name, err)
			}
			all = append(all, v)
			if err := b.BindOutput(o.Name, v); err != nil {
				return all, err
			}
			continue
		}
		if err := b.BindOutputToDevice(o.Name, ort.CPU, 0); err != nil {
			return all, err
		}
	}
	return all, nil
}

// fill writes small positive numbers: 0 and 1 where they may be indexes.
func fill(v *ort.Value) {
	b := v.Bytes()
	x := uint32(1)
	for i := 0; i < len(b); {
		x = x*1664525 + 1013904223
		r := x >> 10
		switch v.Type {
		case ort.Float32:
			binary.LittleEndian.PutUint32(b[i:], math.Float32bits(float32(r%2001+1)/2000))
			i += 4
		case ort.Float64:
			binary.LittleEndian.PutUint64(b[i:], math.Float64bits(float64(r%2001+1)/2000))
			i += 8
		case ort.Float16:
			binary.LittleEndian.PutUint16(b[i:], uint16(0x3800+r%256))
			i += 2
		case ort.BFloat16:
			binary.LittleEndian.PutUint16(b[i:], uint16(0x3f00+r%64))
			i += 2
		default:
			b[i] = byte(r % 2)
			i += int(v.Type.Size())
		}
	}
}

// line writes an event as text, so that a difference can be read.
func line(alloc bool, bytes int64) string {
	if alloc {
		return fmt.Sprintf("+%d", bytes)
	}
	return fmt.Sprintf("-%d", bytes)
}

// compare says how a predicted trace and a measured one differ: "" if not.
// Releases at the end of the step come in no particular order; with loose,
// neither do those that follow one another.
func compare(p *Prediction, m *measured, loose bool) string {
	var want, got, who []string
	end := len(p.Nodes)
	var tail []string
	for _, e := range p.Trace.Events {
		if e.Step == end {
			tail = append(tail, line(e.Alloc, e.Bytes))
			continue
		}
		want = append(want, line(e.Alloc, e.Bytes))
		who = append(who, describeEvent(p, e))
	}
	for _, e := range m.events {
		got = append(got, line(e.Alloc, e.Bytes))
	}
	if m.device { // what is returned is copied to the host and released
		for v, value := range p.Graph.Values {
			if value.Kind == ortmodel.Output && p.Trace.Owner[v] == v && value.Bytes > 0 && p.Values[v].Producer != nil {
				tail = append(tail, line(false, value.Bytes))
			}
		}
		for _, e := range p.Trace.Events {
			if e.Value != ortmodel.None && p.Values[e.Value].Stored() {
				tail = append(tail, line(false, e.Bytes))
			}
		}
	}
	if n := len(got) - len(tail); n >= 0 && len(tail) > 0 {
		last := slices.Clone(got[n:])
		slices.Sort(last)
		slices.Sort(tail)
		if slices.Equal(last, tail) {
			got = got[:n]
		}
	}
	if loose {
		sortReleases(got)
		sortReleases(want)
	}
	for i := range max(len(got), len(want)) {
		if i < len(got) && i < len(want) && got[i] == want[i] {
			continue
		}
		at := ""
		if i < len(who) {
			at = who[i]
		}
		lo := max(0, i-3)
		return fmt.Sprintf("event %d of %d (predicted %d), %s: measured %v, predicted %v; peak measured %d, predicted %d",
			i, len(got), len(want), at, got[min(lo, len(got)):min(len(got), i+4)], want[min(lo, len(want)):min(len(want), i+4)], m.live, p.LivePeak)
	}
	if m.live != p.LivePeak {
		return fmt.Sprintf("peak measured %d, predicted %d", m.live, p.LivePeak)
	}
	return ""
}

// sortReleases sorts each run of releases.
func sortReleases(lines []string) {
	for i := 0; i < len(lines); i++ {
		j := i
		for j < len(lines) && lines[j][0] == '-' {
			j++
		}
		slices.Sort(lines[i:j])
		i = j
	}
}

func describeEvent(p *Prediction, e ortmodel.Event) string {
	n := p.Nodes[e.Step]
	value := "scratch"
	if e.Value != ortmodel.None {
		value = p.Values[e.Value].Name
	}
	return fmt.Sprintf("%s of node %q (%s)", value, n.Label(), n.OpType())
}

// labels are those of the nodes in execution order, as a profile has them.
func (p *Prediction) labels() []string {
	list := make([]string, len(p.Nodes))
	for i, n := range p.Nodes {
		list[i] = n.Label()
	}
	return list
}
