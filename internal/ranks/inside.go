package ranks

// Ranks in one process. Each is a goroutine, and they take turns: one runs until it
// waits for another one. So no more memory is alive at once than what each rank holds
// between steps and one step, and the figures of a step are its own.

import (
	"errors"
	"runtime/debug"
	"sync"
)

// errEnded says that another rank failed, whose error counts.
var errEnded = errors.New("another rank ended")

// process is what the ranks of a process share.
type process struct {
	turn  sync.Mutex
	boxes [][]chan message // by who receives, then by who sends
	ended chan struct{}
	once  sync.Once
}

// A message is lent until it was taken.
type message struct {
	data  []byte
	taken chan<- struct{}
}

// Run runs n ranks in turn and returns the error of the first rank that has one of its
// own. A rank that fails ends those that wait for it.
func Run(n int, f func(*Group) error) error {
	p := &process{ended: make(chan struct{}), boxes: make([][]chan message, n)}
	for i := range p.boxes {
		p.boxes[i] = make([]chan message, n)
		for j := range p.boxes[i] {
			p.boxes[i][j] = make(chan message, 1)
		}
	}
	errs, panics := make([]error, n), make([]any, n)
	var wait sync.WaitGroup
	for rank := range n {
		wait.Go(func() {
			debug.SetPanicOnFault(true) // of this goroutine
			p.turn.Lock()
			defer p.turn.Unlock()
			defer func() {
				if panics[rank] = recover(); panics[rank] != nil || errs[rank] != nil {
					p.end()
				}
			}()
			errs[rank] = f(NewGroup(&inside{p, rank}))
		})
	}
	wait.Wait()
	return first(errs, panics)
}

// first is the error that counts. A panic goes on in the caller.
func first(errs []error, panics []any) error {
	for _, p := range panics {
		if p != nil {
			panic(p)
		}
	}
	var of *RankError
	var other error
	for _, err := range errs {
		switch {
		case err == nil:
		case errors.As(err, &of) || errors.Is(err, errEnded):
			other = err
		default:
			return err
		}
	}
	return other
}

func (p *process) end() { p.once.Do(func() { close(p.ended) }) }

// inside is the transport of a rank in the process.
type inside struct {
	*process
	rank int
}

func (t *inside) Rank() int { return t.rank }
func (t *inside) Size() int { return len(t.boxes) }

// Beside is false: ranks take turns, by what the one that exchanges has.
func (t *inside) Beside() bool { return false }

func (t *inside) Exchange(to int, send []byte, from int, recv []byte) error {
	t.turn.Unlock()
	defer t.turn.Lock()
	box, taken := t.boxes[to][t.rank], make(chan struct{})
	box <- message{send, taken} // there is room: what was sent before was taken
	var err error
	select {
	case m := <-t.boxes[t.rank][from]:
		copy(recv, m.data)
		close(m.taken)
	case <-t.ended:
		err = errEnded
	}
	select {
	case <-taken:
		return err
	case <-t.ended:
	}
	select {
	case <-box: // nobody reads it any more
	case <-taken:
	}
	return errEnded
}
