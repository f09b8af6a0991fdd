package runtime

import "testing"

func TestScaler(t *testing.T) {
	s := NewScaler(0, Scaling{Interval: 3})
	for i, step := range []struct {
		overflow bool
		want     float64
	}{
		{false, 65536}, {false, 65536}, {false, 131072}, {false, 131072}, {true, 65536},
		{false, 65536}, {false, 65536}, {true, 32768}, {false, 32768}, {false, 32768}, {false, 65536},
	} {
		if s.Update(step.overflow); s.Scale != step.want {
			t.Errorf("after step %d: scale %g, want %g", i, s.Scale, step.want)
		}
	}
	if s.Skipped != 2 {
		t.Errorf("%d steps skipped, want 2", s.Skipped)
	}
	s = NewScaler(4, Scaling{Interval: -1, Backoff: 0.25, Min: 0.5})
	for range 5000 {
		s.Update(false)
	}
	for range 4 {
		s.Update(true)
	}
	if s.Scale != 0.5 {
		t.Errorf("scale %g, want the least, 0.5", s.Scale)
	}
}
