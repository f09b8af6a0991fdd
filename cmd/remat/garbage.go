package main

// When Go's garbage is collected. Planning makes much of it, and a fifth of its time went to
// collecting it; steps make little, and the memory is theirs.

import (
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/onnx-remat/remat/runtime/ort"
)

// planGarbage is how much garbage is let lie while a command plans, in percent of what is in
// use, once the program takes planMemory bytes; until then all is. stepGarbage is how much
// while steps run.
const (
	planGarbage = 300
	planMemory  = 256 << 20
	stepGarbage = 25
)

// leaveGarbage lets garbage lie until steps begin, or the command ends.
func (e *env) leaveGarbage() {
	if e.collect != nil {
		return
	}
	percent, limit := debug.SetGCPercent(planGarbage), debug.SetMemoryLimit(-1)
	e.collect = func() { debug.SetGCPercent(percent) }
	if limit < planMemory {
		return
	}
	debug.SetMemoryLimit(planMemory)
	debug.SetGCPercent(-1)
	var first sync.Once
	set := func(percent int) {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
	// The first collection finds this object, and with it the limit has served.
	runtime.AddCleanup(new([64]byte), func(first *sync.Once) { first.Do(func() { set(planGarbage) }) }, &first)
	e.collect = func() {
		first.Do(func() {})
		set(percent)
	}
}

// collectGarbage ends leaveGarbage.
func (e *env) collectGarbage() {
	if e.collect != nil {
		e.collect()
		e.collect = nil
	}
}

// leaveToSteps gives the system what planning and opening have left: until what it returns
// is called, the memory is the steps'.
func (e *env) leaveToSteps() func() {
	e.giveBack()
	before := debug.SetGCPercent(stepGarbage)
	return func() { debug.SetGCPercent(before) }
}

// giveBack gives the system what nobody needs.
func (e *env) giveBack() {
	e.collectGarbage()
	e.loaded.Forget()
	debug.FreeOSMemory()
	ort.Trim()
	ort.TrimImages()
}
