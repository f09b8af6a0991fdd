package main

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/train"
)

func TestTrainingLine(t *testing.T) {
	e := &env{stderr: io.Discard, quiet: true}
	p := newTrainingLine(e, 100, 300, "tokens")
	defer p.bar.Finish()
	for i := int64(101); i <= 120; i++ {
		p.step(train.Record{Step: i, Loss: 4, Tokens: 1024})
	}
	for _, c := range []struct {
		record     train.Record
		validation string
		want       string
	}{
		{train.Record{Step: 120, RSSBytes: 1 << 30, LivePeakBytes: 1 << 20}, "", "step 120 of 300, loss 4.0000, 2048 tokens/s, 1.00 GiB, 1 min 30 s left"},
		{train.Record{Step: 300}, ", validation 3.5000", "step 300 of 300, loss 4.0000, validation 3.5000, 2048 tokens/s"},
	} {
		p.validation = c.validation
		if got := p.text(c.record, 10); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	empty := newTrainingLine(e, 0, 2, "tokens")
	defer empty.bar.Finish()
	if got := empty.text(train.Record{Step: 1}, 0); !strings.HasPrefix(got, "step 1 of 2, loss NaN") {
		t.Errorf("%q", got)
	}
	empty.step(train.Record{Step: 1, Loss: math.Inf(1)})
}

// What was decided is there again for a run that goes on; a file that was tampered
// with is one line, and a new run forgets it.
func TestDecided(t *testing.T) {
	path := filepath.Join(t.TempDir(), decidedName)
	tables := []report.Table{{Title: "Memory", Columns: []string{"a", ">b"}, Rows: [][]string{{"x", "1"}}}}
	if _, err := keepDecided(path, 0, tables); err != nil {
		t.Fatal(err)
	}
	back, err := keepDecided(path, 5, nil)
	var text, want bytes.Buffer
	if err == nil && len(back) == 1 {
		err = errors.Join(back[0].Text(&text), tables[0].Text(&want))
	}
	if err != nil || text.String() != want.String() || text.Len() == 0 {
		t.Errorf("%v, %q, want %q", err, text.String(), want.String())
	}
	for _, bad := range []string{`[{"Columns": ["a"], "Rows": [["x", "y"]]}]`, `{`, `[1]`} {
		if err := os.WriteFile(path, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := keepDecided(path, 5, nil); err == nil || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), path) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := keepDecided(path, 0, nil); err != nil {
		t.Fatal(err)
	}
	if back, err := keepDecided(path, 5, nil); err != nil || back != nil {
		t.Errorf("%v %v", back, err)
	}
}
