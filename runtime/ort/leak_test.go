package ort

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestLeaks makes, runs and closes many sessions: the counting allocators must
// end at zero, and the process must not grow.
func TestLeaks(t *testing.T) {
	model := reluModel(Float32, 1<<16)
	round := func() {
		s, err := testEnv.NewSessionFromBytes(model, SessionOptions{Threads: 1, Allocator: Counting})
		if err != nil {
			t.Fatal(err)
		}
		x := newTensor(t, Float32, 1<<16)
		counter := s.Counter()
		counter.Mark(true)
		y := runOne(t, s, map[string]*Value{"x": x})
		if got := counter.State().Peak - counter.State().Base; got != 4<<16 {
			t.Fatalf("peak %d, want %d", got, 4<<16)
		}
		y[0].Close()
		x.Close()
		if events, err := counter.Events(); err != nil || len(events) != 2 || events[0].Bytes != 4<<16 || events[1].ID != events[0].ID {
			t.Fatalf("events %v, %v", events, err)
		}
		s.Close()
		if st := counter.State(); st.Live != 0 || st.Blocks != 0 {
			t.Fatalf("%d bytes in %d blocks are left", st.Live, st.Blocks)
		}
	}
	for range 50 {
		round()
	}
	before := rss(t)
	for range 300 {
		round()
	}
	if grown := rss(t) - before; grown > 8<<20 {
		t.Errorf("the process grew by %d bytes over 300 sessions", grown)
	}
}

// TestValueOutlivesSession closes a session before the value that it returned.
func TestValueOutlivesSession(t *testing.T) {
	s := newSession(t, reluModel(Float32, 4), SessionOptions{Threads: 1, Allocator: Counting})
	x := newTensor(t, Float32, 4)
	floats(x)[2] = 7
	y := runOne(t, s, map[string]*Value{"x": x})[0]
	s.Close()
	if st := s.Counter().State(); st.Live != 16 {
		t.Errorf("live %d after the session's end, want the output's 16", st.Live)
	}
	if floats(y)[2] != 7 {
		t.Errorf("got %v", floats(y))
	}
	y.Close()
}

// TestCountersApart runs two counted sessions; neither sees the other.
func TestCountersApart(t *testing.T) {
	a := newSession(t, reluModel(Float32, 100), SessionOptions{Threads: 1, Allocator: Counting})
	b := newSession(t, reluModel(Float32, 1000), SessionOptions{Threads: 1, Allocator: Counting})
	a.Counter().Mark(false)
	b.Counter().Mark(false)
	runOne(t, b, map[string]*Value{"x": newTensor(t, Float32, 1000)})
	if pa, pb := a.Counter().State().Peak, b.Counter().State().Peak; pa != 0 || pb != 4000 {
		t.Errorf("peaks %d and %d, want 0 and 4000", pa, pb)
	}
}

func rss(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
