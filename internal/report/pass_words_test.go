package report

import (
	"strings"
	"testing"
)

// TestPassesInWords: the table of a plan names passes as people would, and notes
// of which it knows no words by their own name.
func TestPassesInWords(t *testing.T) {
	p := &Plan{Notes: []Note{{What: "edge", Requested: 21, Applied: 21}, {What: "hold once", Requested: 2, Reason: "few rows"}}}
	var b strings.Builder
	table := p.notesTable()
	if err := table.Text(&b); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.Contains(text, "edge") || !strings.Contains(text, "nodes held in place by control dependencies") || !strings.Contains(text, "hold once") {
		t.Error(text)
	}
}
