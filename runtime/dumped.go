package runtime

import (
	"bytes"
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"sync"

	"github.com/onnx-remat/remat/runtime/ort"
)

// dumpedBytes bounds the optimized graphs that an engine keeps, in bytes.
const dumpedBytes = 64 << 20

// dumped keeps what ONNX Runtime's optimizer made of the models that were asked for
// last, since a session for that takes seconds and a step's measurement asks three
// times. Data files beside a model are taken not to change.
type dumped struct {
	mu     sync.Mutex
	graphs map[[sha256.Size]byte]*list.Element // of dumpedGraph
	recent list.List                           // the latest first
	bytes  int
}

type dumpedGraph struct {
	key  [sha256.Size]byte
	data []byte
}

// dumpKey tells models and options apart that may lead to different graphs: not
// by threads, nor by what only counts once a step runs.
func dumpKey(model []byte, folder string, o ort.SessionOptions) (key [sha256.Size]byte, err error) {
	o.Threads, o.MemPattern, o.Purpose = 0, false, ""
	options, err := json.Marshal(o)
	if err != nil {
		return key, err
	}
	return sha256.Sum256(bytes.Join([][]byte{options, []byte(folder), model}, []byte{0})), nil
}

// get returns the graph of a key, nil where it is not kept.
func (d *dumped) get(key [sha256.Size]byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.graphs[key]
	if at == nil {
		return nil
	}
	d.recent.MoveToFront(at)
	return at.Value.(dumpedGraph).data
}

// keep notes a graph, and forgets those that were asked for longest ago.
func (d *dumped) keep(key [sha256.Size]byte, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(data) > dumpedBytes || d.graphs[key] != nil {
		return
	}
	if d.graphs == nil {
		d.graphs = map[[sha256.Size]byte]*list.Element{}
	}
	d.graphs[key] = d.recent.PushFront(dumpedGraph{key, data})
	for d.bytes += len(data); d.bytes > dumpedBytes; {
		last := d.recent.Remove(d.recent.Back()).(dumpedGraph)
		delete(d.graphs, last.key)
		d.bytes -= len(last.data)
	}
}

// Forget gives up the graphs that ONNX Runtime optimized, which Dump keeps: planning is
// over.
func (e *Engine) Forget() {
	d := &e.dumped
	d.mu.Lock()
	defer d.mu.Unlock()
	d.graphs, d.bytes = nil, 0
	d.recent.Init()
}
