package train

import "testing"

// TestSlow: a rank that is slow ten times in a row is named once; one that is slow now and
// then, or that is as slow as all, is not.
func TestSlow(t *testing.T) {
	feed := func(n int, f func(i int) []float32) (names []int) {
		l := &lag{}
		for i := range n {
			if rank, factor, slow := l.add(f(i)); slow {
				if factor < slowFactor {
					t.Errorf("rank %d, %v times as long", rank, factor)
				}
				names = append(names, rank)
			}
		}
		return names
	}
	if got := feed(30, func(int) []float32 { return []float32{1, 1.1, 2, 1} }); len(got) != 1 || got[0] != 2 {
		t.Errorf("one of four: %v", got)
	}
	if got := feed(9, func(int) []float32 { return []float32{1, 2} }); len(got) != 0 {
		t.Errorf("nine times: %v", got)
	}
	if got := feed(10, func(int) []float32 { return []float32{1, 2} }); len(got) != 1 || got[0] != 1 {
		t.Errorf("ten times: %v", got)
	}
	if got := feed(60, func(i int) []float32 { return [][]float32{{1, 2, 1}, {2, 1, 1}}[i/5%2] }); len(got) != 0 {
		t.Errorf("in turn: %v", got)
	}
	for _, s := range [][]float32{{1}, {0, 0}, {0, 0, 5}, {3, 3, 3}} {
		if got := feed(30, func(int) []float32 { return s }); len(got) != 0 {
			t.Errorf("%v: %v", s, got)
		}
	}
}
