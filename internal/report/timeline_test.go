package report

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Two values live together, one passes its buffer on as a gradient, a
// temporary makes the peak.
var small = &Timeline{
	Base: Sizes{Parameters: 1000, Feeds: 10},
	Events: []Event{
		{Bytes: 100, Buffer: 1, Value: "a", Node: "n0", Category: Activations, Phase: Forward},
		{Bytes: 50, Buffer: 2, Value: "b", Node: "n1", Category: Activations, Phase: Forward},
		{Bytes: 0, Buffer: 2, Value: "b.grad", Node: "n2", Category: Gradients, Phase: Backward},
		{Bytes: 70, Buffer: 3, Value: "scratch", Node: "n3", Op: "Conv", Layer: "h.0", Category: Temporaries, Phase: Backward},
		{Bytes: -70, Buffer: 3, Value: "scratch", Node: "n3", Category: Temporaries, Phase: Backward},
		{Bytes: -100, Buffer: 1, Value: "a", Node: "n4", Category: Activations, Phase: Backward},
		{Bytes: -50, Buffer: 2, Value: "b.grad", Node: "n5", Category: Gradients, Phase: Update},
	},
}

func TestTimelinePeak(t *testing.T) {
	p := small.Peak()
	if p.Event != 3 || p.LiveBytes != 220 || p.TotalBytes != 1230 || p.Node != "n3" || p.Layer != "h.0" {
		t.Errorf("peak %+v", p)
	}
	if want := (Sizes{Parameters: 1000, Feeds: 10, Activations: 100, Gradients: 50, Temporaries: 70}); p.Sizes != want {
		t.Errorf("sizes %+v, want %+v", p.Sizes, want)
	}
	var live []string
	for _, v := range p.Live {
		live = append(live, v.Value)
	}
	if got := strings.Join(live, " "); got != "a scratch b.grad" {
		t.Errorf("live at the peak: %s", got)
	}
	if (&Timeline{}).Peak() != nil {
		t.Error("an empty timeline has a peak")
	}
}

func TestTimelinePhases(t *testing.T) {
	p := small.Phases()
	if p.BeforeForward != 1010 || *p.ForwardPeak != 1160 || *p.AfterForward != 1160 || *p.KeptByForward != 150 || *p.BackwardPeak != 1230 || *p.AfterBackward != 1060 || *p.AfterUpdate != 1010 {
		t.Errorf("phases %+v: %d %d %d %d %d %d", p, *p.ForwardPeak, *p.AfterForward, *p.KeptByForward, *p.BackwardPeak, *p.AfterBackward, *p.AfterUpdate)
	}
	in := *small
	in.Events, in.Updates = small.Events[:6], true // the update is written over its inputs
	if p := in.Phases(); *p.AfterUpdate != 1060 {
		t.Errorf("after an update that allocates nothing: %d", *p.AfterUpdate)
	}
	forward := &Timeline{Events: small.Events[:2:2]}
	if p := forward.Phases(); p.BackwardPeak != nil || p.AfterUpdate != nil || *p.AfterForward != 150 {
		t.Errorf("phases of a forward: %+v", p)
	}
	if p := (&Timeline{Events: []Event{{Bytes: 1}}}).Phases(); p != nil {
		t.Errorf("phases without marks: %+v", p)
	}
}

func TestTimelineCheck(t *testing.T) {
	if err := small.Check(); err != nil {
		t.Error(err)
	}
	for want, events := range map[string][]Event{
		"allocated twice":   {{Bytes: 1, Buffer: 1}, {Bytes: 1, Buffer: 1}},
		"not allocated":     {{Bytes: -1, Buffer: 1}},
		"2 bytes released":  {{Bytes: 1, Buffer: 1}, {Bytes: -2, Buffer: 1}},
		"was not allocated": {{Bytes: 0, Buffer: 1}},
	} {
		if err := (&Timeline{Events: events}).Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The peak against the plain definition: the largest prefix sum.
func TestTimelineRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var events []Event
		live := map[int]int64{}
		var sum, most int64
		for i := range 200 {
			if len(live) > 0 && r.IntN(2) == 0 {
				for b, n := range live {
					events = append(events, Event{Bytes: -n, Buffer: b})
					sum -= n
					delete(live, b)
					break
				}
				continue
			}
			n := 1 + r.Int64N(1000)
			live[i] = n
			events = append(events, Event{Bytes: n, Buffer: i, Category: AllCategories[r.IntN(len(AllCategories))]})
			sum += n
			most = max(most, sum)
		}
		line := &Timeline{Events: events}
		if p := line.Peak(); p.TotalBytes != most {
			t.Fatalf("peak %d, want %d", p.TotalBytes, most)
		}
		for _, n := range []int{2, 7, 50} {
			kept, top := thin(line.Points(), n), int64(0)
			for _, q := range kept {
				top = max(top, q.Live.Total())
			}
			if top != most || len(kept) > n+1 || kept[len(kept)-1].Event != len(events)-1 {
				t.Fatalf("thinned to %d: %d points, top %d of %d", n, len(kept), top, most)
			}
		}
	}
}

func TestFixture(t *testing.T) {
	for _, m := range fixtureCompare().Models {
		if err := m.Timeline.Check(); err != nil {
			t.Errorf("%s: %v", m.Name(), err)
		}
		if n := len(m.Timeline.Events); n < 900 {
			t.Errorf("%s: only %d events", m.Name(), n)
		}
	}
}

// Check finds events that do not fit together: a buffer allocated twice, or
// released without being allocated or with another size.
func (t *Timeline) Check() error {
	size := map[int]int64{}
	for i, e := range t.Events {
		have, ok := size[e.Buffer]
		switch {
		case e.Bytes > 0 && ok:
			return fmt.Errorf("timeline: event %d: buffer %d of %q is allocated twice", i, e.Buffer, e.Value)
		case e.Bytes <= 0 && !ok:
			return fmt.Errorf("timeline: event %d: buffer %d of %q was not allocated", i, e.Buffer, e.Value)
		case e.Bytes < 0 && -e.Bytes != have:
			return fmt.Errorf("timeline: event %d: buffer %d of %q: %d bytes released, %d allocated", i, e.Buffer, e.Value, -e.Bytes, have)
		case e.Bytes > 0:
			size[e.Buffer] = e.Bytes
		case e.Bytes < 0:
			delete(size, e.Buffer)
		}
	}
	return nil
}
