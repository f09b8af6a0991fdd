package ort

// The profile that ONNX Runtime writes of a session: read back, then removed.
//
// It is a JSON list of events in the order in which they ended, which for the
// sequential executor is the order in which nodes ran. Weakness: shapes are
// written only for tensors, and those of a node in a subgraph stand beside
// those of the node that holds it.

// #include "api.h"
import "C"

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A TypeShape is the type, as ONNX Runtime names it ("float", "int64"), and
// the shape of a tensor.
type TypeShape struct {
	Type  string
	Shape []int64
}

// A NodeEvent is one execution of one node.
type NodeEvent struct {
	Node     string
	Op       string
	Provider string
	Run      int // which run of the session, from 0
	Start    time.Duration
	Duration time.Duration
	// Inputs and Outputs list the tensors that exist, in order.
	Inputs, Outputs []TypeShape
	OutputBytes     int64 // as the profile has them
}

// A Profile lists node executions in the order in which they happened.
type Profile struct {
	Nodes []NodeEvent
	Runs  int
}

// EndProfiling ends the profile of a session that was made with ProfilePrefix,
// reads it and removes its file.
func (s *Session) EndProfiling() (*Profile, error) {
	if s.ptr == nil {
		return nil, ErrClosed
	}
	if s.options.ProfilePrefix == "" {
		return nil, errors.New("profile: the session was made without one")
	}
	var cpath *C.char
	if err := statusError(C.ortEndProfiling(s.ptr, &cpath)); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	path := C.GoString(cpath)
	C.ortFreeString(cpath)
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	p, err := readProfile(bufio.NewReaderSize(f, 1<<16))
	if err != nil {
		err = cut(err, f, path)
	}
	return p, errors.Join(err, f.Close(), os.Remove(path))
}

// cut is the error of a profile that cannot be read, or that the folder has no room for more of it.
func cut(err error, f *os.File, path string) error {
	if at, failed := f.Stat(); failed == nil {
		if full := NoRoom(path, at.Size()+1<<16); full != nil {
			return fmt.Errorf("profile: %w", full)
		}
	}
	return err
}

// rawEvent is one entry of the file.
type rawEvent struct {
	Cat  string         `json:"cat"`
	Name string         `json:"name"`
	TS   int64          `json:"ts"`
	Dur  int64          `json:"dur"`
	Args map[string]any `json:"args"`
}

func readProfile(r io.Reader) (*Profile, error) {
	d := json.NewDecoder(r)
	d.UseNumber()
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	p := &Profile{}
	for d.More() {
		var e rawEvent
		if err := d.Decode(&e); err != nil {
			return nil, fmt.Errorf("profile: %w", err)
		}
		switch {
		case e.Cat == "Session" && e.Name == "model_run":
			p.Runs++
		case e.Cat == "Node" && strings.HasSuffix(e.Name, kernelSuffix):
			p.Nodes = append(p.Nodes, e.node(p.Runs))
		}
	}
	if _, err := d.Token(); err != nil { // the end is missing where it was cut off between two events
		return nil, fmt.Errorf("profile: %w", err)
	}
	return p, nil
}

const kernelSuffix = "_kernel_time"

func (e *rawEvent) node(run int) NodeEvent {
	return NodeEvent{
		Node:     strings.TrimSuffix(e.Name, kernelSuffix),
		Op:       e.text("op_name"),
		Provider: e.text("provider"),
		Run:      run,
		Start:    time.Duration(e.TS) * time.Microsecond,
		Duration: time.Duration(e.Dur) * time.Microsecond,
		Inputs:   e.shapes("input_type_shape"), Outputs: e.shapes("output_type_shape"),
		OutputBytes: e.number("output_size"),
	}
}

func (e *rawEvent) text(key string) string {
	s, _ := e.Args[key].(string)
	return s
}

// number reads a figure, which the file writes as a string or a number.
func (e *rawEvent) number(key string) int64 {
	var n json.Number
	switch v := e.Args[key].(type) {
	case string:
		n = json.Number(v)
	case json.Number:
		n = v
	}
	i, _ := n.Int64() // absent or no number: 0
	return i
}

// shapes reads [{"float":[2,3]},…].
func (e *rawEvent) shapes(key string) []TypeShape {
	list, _ := e.Args[key].([]any)
	var out []TypeShape
	for _, item := range list {
		entry, _ := item.(map[string]any)
		for name, dims := range entry {
			t := TypeShape{Type: name, Shape: []int64{}}
			values, _ := dims.([]any)
			for _, v := range values {
				if n, ok := v.(json.Number); ok {
					i, _ := n.Int64()
					t.Shape = append(t.Shape, i)
				}
			}
			out = append(out, t)
		}
	}
	return out
}
