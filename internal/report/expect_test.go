package report

import (
	"strings"
	"testing"
)

func TestExpectations(t *testing.T) {
	p := &Pair{Saving: new(Float(0.42)), Overhead: new(Float(0.3)), Difference: Difference{BitIdentical: new(true)}}
	for text, holds := range map[string]bool{
		"saving>=42%": true, "saving>42%": false, "saving >= 0.4": true, "overhead<=30%": true, "overhead<30%": false,
		"same-bits": true, "total-saving>=0%": false, "saving>=30%,overhead<=30%,same-bits": true, "saving>=30%,overhead<=1%": false,
	} {
		list, err := ParseExpectations(text)
		if err != nil {
			t.Fatal(err)
		}
		all := true
		for i := range list {
			m := list[i].Of(p)
			all = all && m.Holds
		}
		if all != holds {
			t.Errorf("%s: %v", text, all)
		}
	}
	for _, bad := range []string{"", "saving", "saving>=", "saving>=x%", "saving=30%", "speed>=30%", "same-bits=1", "overhead<=NaN", ","} {
		if list, err := ParseExpectations(bad); err == nil {
			t.Errorf("%q: %+v", bad, list)
		}
	}
	if m := (&Expectation{What: "same-bits", name: sameBits}).Of(&Pair{}); m.Holds || !strings.Contains(m.Text(), "not compared") {
		t.Errorf("%+v", m)
	}
}

func TestSentence(t *testing.T) {
	a, b := &Run{Model: "a.onnx"}, &Run{Model: "b.onnx"}
	a.Memory.LivePeakBytes, b.Memory.LivePeakBytes = new(int64(4096)), new(int64(1024))
	c := &Compare{Models: []*Run{a, b}, Pairs: []Pair{{Saving: new(Float(0.75)), Overhead: new(Float(-0.1)), Difference: Difference{BitIdentical: new(true)}}}}
	if got, want := c.Sentence(0), "b.onnx takes 75.0 % less live memory than a.onnx (1.0 KiB, not 4.0 KiB) and 10.0 % less time; results have the same bits."; got != want {
		t.Errorf("%s", got)
	}
	c.Pairs[0].Difference = Difference{BitIdentical: new(false), RelativeGradient: new(Float(0.5)), ApartBecause: []Text{"it computes in float16", "it draws random numbers"}}
	if got := c.Sentence(0); !strings.HasSuffix(got, "; results differ by 0.5 of the largest, as it computes in float16, and it draws random numbers.") {
		t.Errorf("%s", got)
	}
	c.Pairs[0].Saving, c.Pairs[0].ApartBecause, b.Memory.LivePeakBytes = new(Float(0)), nil, a.Memory.LivePeakBytes
	if got := c.Sentence(0); !strings.HasPrefix(got, "b.onnx takes as much live memory as a.onnx (4.0 KiB) and 10.0 % less time;") {
		t.Errorf("%s", got)
	}
	b.Error = "out of memory"
	if got := c.Sentence(0); got != "b.onnx did not run: out of memory" {
		t.Errorf("%s", got)
	}
}
