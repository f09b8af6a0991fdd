package stage

import "testing"

// TestShared: a parameter goes to every stage that reads it and does not update it, also
// where that is its only reader.
func TestShared(t *testing.T) {
	s := &Split{
		Owner:   map[string]int{"both": 0, "elsewhere": 0, "own": 1},
		Readers: map[string][]int{"both": {0, 1}, "elsewhere": {1}, "own": {1}, "fed": {0, 1}},
	}
	for name, want := range map[string]bool{"both": true, "elsewhere": true, "own": false, "fed": false} {
		if got := s.Shared(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
