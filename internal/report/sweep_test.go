package report

import (
	"bytes"
	"math"
	"strings"
	"testing"
)

func TestFitLine(t *testing.T) {
	base, slope, r2, ok := fitLine([]float64{1, 2, 4}, []float64{13, 16, 22})
	if !ok || math.Abs(base-10) > 1e-9 || math.Abs(slope-3) > 1e-9 || math.Abs(r2-1) > 1e-12 {
		t.Errorf("%v + %v x, R² %v, %v", base, slope, r2, ok)
	}
	if _, _, r2, _ := fitLine([]float64{1, 2, 3}, []float64{1, 5, 1}); r2 > 1e-12 {
		t.Errorf("R² %v where there is no line", r2)
	}
	if _, _, _, ok := fitLine([]float64{2, 2}, []float64{1, 5}); ok {
		t.Error("a line through one place")
	}
}

// TestSweep: curves are told apart by what differs, the first point of each is its
// unit, and a point without a figure has none.
func TestSweep(t *testing.T) {
	s := &Sweep{Over: "batch", Limit: new(int64(250))}
	for _, precision := range []string{"fp32", "fp16"} {
		for _, b := range []int64{2, 1} {
			s.Points = append(s.Points, SweepPoint{Model: "<m>", Batch: b, Precision: precision, Strategy: "full", TotalPeak: new(100 * b), LivePeak: new(b), Outcome: SweepOK})
		}
	}
	s.Points = append(s.Points, SweepPoint{Model: "<m>", Batch: 4, Precision: "fp16", Strategy: "full", Outcome: SweepFailed, Why: "no <layers>"})
	s.Finish()
	curves := s.Curves()
	if len(curves) != 2 || curves[1].Others != "fp16" || curves[0].Points[0].Batch != 1 || float64(*curves[0].Points[1].Relative) != 2 {
		t.Errorf("curves %+v", curves)
	}
	if len(s.Fit) != 2 || s.Fit[0].Slope != 100 || s.Fit[0].Base != 0 {
		t.Errorf("fit %+v", s.Fit)
	}
	var text, page, picture bytes.Buffer
	if err := s.Text(&text); err != nil || !strings.Contains(text.String(), "failed: no <layers>") || !strings.Contains(text.String(), "2.00 ×") {
		t.Errorf("%v\n%s", err, &text)
	}
	if err := (&Page{Title: "t", Sweep: s}).HTML(&page); err != nil || strings.Contains(page.String(), "<layers>") || !strings.Contains(page.String(), "limit 250 B") {
		t.Errorf("page: %v", err)
	}
	if err := s.PNG(&picture); err != nil || !bytes.HasPrefix(picture.Bytes(), []byte("\x89PNG")) {
		t.Errorf("picture: %v", err)
	}
	if err := (&Sweep{Over: "batch"}).PNG(&picture); err == nil {
		t.Error("a picture of nothing")
	}
}
