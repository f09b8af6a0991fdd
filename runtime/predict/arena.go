package predict

// ONNX Runtime's arena over a predicted step: the setup under which it takes
// least from the system, and what it will say under that. The model of the
// arena is ortmodel's.

import "github.com/onnx-remat/remat/ortmodel"

// An Arena is a setup and what the arena will say after a step, in bytes.
type Arena struct {
	Setup ortmodel.ArenaSetup
	ortmodel.ArenaUse
}

// Arena chooses the setup, once; it takes up to some tenths of a second.
func (p *Prediction) Arena() Arena {
	if p.arena == nil {
		setup, use := ortmodel.PlanArena(p.Session.direct(), p.requests(), p.device)
		p.arena = &Arena{setup, use}
	}
	return *p.arena
}

// Growth is the moment at which the arena grew though most memory lay free in it, and
// the event of the step that asked; ok is false where it never grew so.
func (p *Prediction) Growth() (g ortmodel.Growth, event ortmodel.Event, ok bool) {
	requests := p.requests()
	g = p.Arena().Setup.Worst(requests)
	at := g.Request - len(p.Session.InArena)
	if g.Bytes == 0 || at < 0 || at >= len(p.Trace.Events) {
		return g, event, false
	}
	return g, p.Trace.Events[at], true
}

// requests are a step's, after those of the session.
func (p *Prediction) requests() []ortmodel.Request {
	step := p.Trace.Requests()
	all := make([]ortmodel.Request, 0, len(p.Session.InArena)+len(step))
	for i, bytes := range p.Session.InArena {
		all = append(all, ortmodel.Request{ID: len(step) + i, Bytes: bytes, Alloc: true, Kept: true})
	}
	return append(all, step...)
}
