package pipeline

// How far planning has come, and where it ends before its time.
//
// A search that is told to stop keeps what it found, and what is being written
// then is finished: there is always a plan, and its file is complete.

// Progress is how far planning has come.
type Progress struct {
	// Form is the variant of the graph that is looked at, from 1 on, of Forms that
	// there may be; 0 once all have been.
	Form, Forms int
	// Tried is the number of candidates whose files have been predicted, Most how
	// many there will be at most, 0 where that is not known.
	Tried, Most int
	// Best is the least live peak among them in bytes, 0 before there is one.
	Best int64
}

// progress notes and reports a change.
func (p *Planner) progress(change func(*Progress)) {
	change(&p.state)
	if p.opts.Progress != nil {
		p.opts.Progress(p.state)
	}
}

// looking reports the variant that is prepared or searched.
func (p *Planner) looking(form, of int) {
	p.progress(func(s *Progress) { s.Form, s.Forms = form, of })
}

// tried reports a candidate whose file was predicted.
func (p *Planner) tried(peak int64) {
	p.progress(func(s *Progress) {
		s.Form, s.Forms = 0, 0
		if s.Tried++; s.Best == 0 || peak < s.Best {
			s.Best = peak
		}
	})
}

// heed makes Stop note that it ended something, whoever asks.
func (p *Planner) heed(stop func() bool) func() bool {
	if stop == nil {
		return nil
	}
	return func() bool {
		p.limited = p.limited || stop()
		return p.limited
	}
}

// stopped reports that no better plan is to be looked for.
func (p *Planner) stopped() bool { return p.opts.Stop != nil && p.opts.Stop() }

// Limited reports that planning left out what it would have tried, as Stop said,
// and after how many candidates.
func (p *Planner) Limited() (candidates int, limited bool) { return p.state.Tried, p.limited }
