package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/onnx-remat/remat/internal/pipeline"
)

// TestProgressLines: without a terminal a line says where the work stands, now and
// then, and none comes after the end.
func TestProgressLines(t *testing.T) {
	read, write := io.Pipe()
	e := &env{stderr: write}
	p := e.progress(-1, "planning")
	p.all.Go(func() { p.lines(time.NewTicker(time.Millisecond)) })
	expect := func(want string) {
		t.Helper()
		buffer := make([]byte, 1<<10)
		for range 100 {
			n, err := read.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if string(buffer[:n]) == want+"\n" {
				return
			}
		}
		t.Fatalf("last came %q, want %q", buffer, want)
	}
	expect("planning …")
	p.Say(planningText(pipeline.Progress{Form: 2, Forms: 7}))
	expect("planning: form 2 of 7 of the graph")
	p.Say(planningText(pipeline.Progress{Tried: 14, Most: 64, Best: 3 << 20}))
	expect("planning: 14 of at most 64 candidates, best 3.0 MiB")
	inner := e.progress(3, "steps")
	inner.Add(1)
	inner.Say("half")
	expect("planning: half")
	inner.Finish()
	go io.Copy(io.Discard, read)
	p.Finish()
	if e.shown != nil {
		t.Error("something is still shown")
	}
}

// TestProgressSilence: what is quick says nothing, and --quiet never does.
func TestProgressSilence(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		var out bytes.Buffer
		e := &env{stderr: &out, quiet: quiet}
		p := e.progress(2, "steps")
		p.Add(1)
		if want := "steps: 1 of 2"; p.line() != want {
			t.Errorf("%q, want %q", p.line(), want)
		}
		p.Finish()
		if out.Len() > 0 || quiet && p.to != nil {
			t.Errorf("quiet %t: %q", quiet, strings.TrimSpace(out.String()))
		}
	}
}
