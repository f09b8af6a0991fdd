package report

// A timeline is the list of what a step allocates and releases. Running sums
// by category give the picture; the moment of the largest sum is the peak,
// and the buffers that exist then are what is live there.
//
//	event  +a   +b   -a   b→c (0 bytes: the buffer passes to another value)
//	live    a   a+b   b    c
//
// Weakness: categories are those of the event's value, so a buffer that an
// in-place operator takes over must be passed on by an event of its own.

// Category says what a buffer is for.
type Category string

// The categories, in the order of the stack from the bottom.
const (
	Parameters  Category = "parameters"
	State       Category = "state"
	Feeds       Category = "feeds"
	Session     Category = "session"
	Gradients   Category = "gradients"
	Outputs     Category = "outputs" // other than gradients
	Activations Category = "activations"
	Temporaries Category = "temporaries"
)

// AllCategories lists the categories from the bottom of the stack.
var AllCategories = []Category{Parameters, State, Feeds, Session, Gradients, Outputs, Activations, Temporaries}

// Phase is the part of a step in which an event happens.
type Phase string

// The phases of a step.
const (
	Forward  Phase = "forward"
	Backward Phase = "backward"
	Update   Phase = "update"
)

// Event is one change of what is live.
type Event struct {
	// Seconds since the start of the step; 0 in predictions.
	Seconds float64 `json:"seconds"`
	// Bytes is positive for an allocation, negative for a release, and 0
	// where the buffer passes to another value.
	Bytes int64 `json:"bytes"`
	// Buffer identifies the buffer while it lives.
	Buffer   int      `json:"buffer"`
	Value    string   `json:"value"`
	Node     string   `json:"node"` // the node that runs now
	Op       string   `json:"op"`
	Layer    Text     `json:"layer"`
	Category Category `json:"category"`
	Phase    Phase    `json:"phase"`
}

// Timeline is one step, event by event.
type Timeline struct {
	// Base is what exists during the whole step: parameters, state, feeds,
	// session; its other categories are 0.
	Base Sizes `json:"base"`
	// Updates says that nodes of the step update parameters, though none may allocate.
	Updates bool    `json:"updates,omitempty"`
	Events  []Event `json:"events"`
}

// Sizes holds bytes by category.
type Sizes struct {
	Parameters  int64 `json:"parameter_bytes"`
	State       int64 `json:"state_bytes"`
	Feeds       int64 `json:"feed_bytes"`
	Session     int64 `json:"session_bytes"`
	Gradients   int64 `json:"gradient_bytes"`
	Outputs     int64 `json:"output_bytes"`
	Activations int64 `json:"activation_bytes"`
	Temporaries int64 `json:"temporary_bytes"`
}

// at is the place of a category; an unknown one counts as an activation.
func (s *Sizes) at(c Category) *int64 {
	switch c {
	case Parameters:
		return &s.Parameters
	case State:
		return &s.State
	case Feeds:
		return &s.Feeds
	case Session:
		return &s.Session
	case Gradients:
		return &s.Gradients
	case Outputs:
		return &s.Outputs
	case Temporaries:
		return &s.Temporaries
	}
	return &s.Activations
}

// Of is the size of one category in bytes.
func (s Sizes) Of(c Category) int64 { return *s.at(c) }

// Total is the sum of all categories in bytes.
func (s Sizes) Total() int64 {
	var sum int64
	for _, c := range AllCategories {
		sum += s.Of(c)
	}
	return sum
}

// Point is the state after one event; Live includes the timeline's base.
type Point struct {
	Event int
	Live  Sizes
}

// Peak is the moment of the step at which most is live.
type Peak struct {
	Event   int     `json:"event"`
	Seconds float64 `json:"seconds"`
	Node    string  `json:"node"`
	Op      string  `json:"op"`
	Layer   Text    `json:"layer"`
	Phase   Phase   `json:"phase"`
	// LiveBytes is what the step holds, TotalBytes adds the base.
	LiveBytes  int64 `json:"live_bytes"`
	TotalBytes int64 `json:"total_bytes"`
	Sizes      Sizes `json:"categories"`
	// Live lists the buffers, largest first.
	Live []LiveValue `json:"live"`
}

// LiveValue is one buffer that exists at the peak.
type LiveValue struct {
	Value    string   `json:"value"`
	Bytes    int64    `json:"bytes"`
	Category Category `json:"category"`
	Node     string   `json:"node"` // that allocated it or took it over
	Op       string   `json:"op"`
	Layer    Text     `json:"layer"`
}

// walk replays the events; visit sees the buffers after each.
func (t *Timeline) walk(visit func(i int, live Sizes, buffers map[int]LiveValue)) {
	live := t.Base
	buffers := map[int]LiveValue{}
	for i, e := range t.Events {
		old := buffers[e.Buffer]
		*live.at(old.Category) -= old.Bytes
		if e.Bytes < 0 {
			delete(buffers, e.Buffer)
		} else {
			now := LiveValue{Value: e.Value, Bytes: e.Bytes, Category: e.Category, Node: e.Node, Op: e.Op, Layer: e.Layer}
			if e.Bytes == 0 {
				now.Bytes = old.Bytes
			}
			*live.at(now.Category) += now.Bytes
			buffers[e.Buffer] = now
		}
		visit(i, live, buffers)
	}
}

// Points is the state after every event.
func (t *Timeline) Points() []Point {
	points := make([]Point, 0, len(t.Events))
	t.walk(func(i int, live Sizes, _ map[int]LiveValue) {
		points = append(points, Point{Event: i, Live: live})
	})
	return points
}

// Peak finds the first moment of the largest sum; nil for an empty timeline.
func (t *Timeline) Peak() *Peak {
	at, most := -1, int64(-1)
	t.walk(func(i int, live Sizes, _ map[int]LiveValue) {
		if total := live.Total(); total > most {
			at, most = i, total
		}
	})
	if at < 0 {
		return nil
	}
	var peak *Peak
	t.walk(func(i int, live Sizes, buffers map[int]LiveValue) {
		if i == at {
			peak = newPeak(t, i, live, buffers)
		}
	})
	return peak
}

func newPeak(t *Timeline, i int, live Sizes, buffers map[int]LiveValue) *Peak {
	e := t.Events[i]
	p := &Peak{
		Event: i, Seconds: e.Seconds, Node: e.Node, Op: e.Op, Layer: e.Layer, Phase: e.Phase,
		TotalBytes: live.Total(), LiveBytes: live.Total() - t.Base.Total(), Sizes: live,
	}
	p.Live = largest(buffers, len(buffers))
	return p
}

// thin leaves at most n points: of every stretch the one with the most live,
// and the last of all, so that no peak disappears.
func thin(points []Point, n int) []Point {
	if n < 2 || len(points) <= n {
		return points
	}
	var kept []Point
	for b := range n {
		from, to := b*len(points)/n, (b+1)*len(points)/n
		best := from
		for i := from; i < to; i++ {
			if points[i].Live.Total() > points[best].Live.Total() {
				best = i
			}
		}
		kept = append(kept, points[best])
	}
	if last := points[len(points)-1]; kept[len(kept)-1].Event != last.Event {
		kept = append(kept, last)
	}
	return kept
}
