package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// TestGarbage: nothing is collected below planMemory, then by planGarbage, and as before
// once steps begin or the command ends.
func TestGarbage(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	const before = 77
	defer debug.SetGCPercent(debug.SetGCPercent(before))
	now := func() (percent int, limit int64) {
		percent = debug.SetGCPercent(-1)
		debug.SetGCPercent(percent)
		return percent, debug.SetMemoryLimit(-1)
	}
	want := func(when string, percent int, limit int64) {
		t.Helper()
		deadline := time.Now().Add(10 * time.Second)
		for {
			p, l := now()
			if p == percent && l == limit {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d %% up to %d bytes, want %d %% up to %d", when, p, l, percent, limit)
			}
			time.Sleep(time.Millisecond)
		}
	}
	for _, end := range []func(*env){(*env).close, (*env).collectGarbage} {
		for _, collected := range []bool{false, true} {
			e := &env{}
			e.leaveGarbage()
			e.leaveGarbage()
			want("at first", -1, planMemory)
			if collected {
				runtime.GC()
				want("after a collection", planGarbage, math.MaxInt64)
			}
			end(e)
			runtime.GC()
			time.Sleep(10 * time.Millisecond)
			want("at the end", before, math.MaxInt64)
		}
	}
	debug.SetMemoryLimit(planMemory / 2)
	e := &env{}
	e.leaveGarbage()
	want("with a lower limit given", planGarbage, planMemory/2)
	e.close()
	want("at its end", before, planMemory/2)
}
