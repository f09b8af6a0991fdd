package pipeline

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Identity is a hash of what a model computes, by which names: its graph, and the
// values that lie in the file itself. Metadata, and where other values lie, do not
// count, so that a file that was moved with its weights is the same.
func (s *Source) Identity() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, s.Model.Fingerprint())
	g := s.Model.ToProto().Graph
	for _, n := range g.Node {
		fmt.Fprintf(sum, "%q %q\n", n.Input, n.Output)
	}
	for _, v := range s.Model.Graph.Initializers {
		fmt.Fprintf(sum, "%q %s %v\n", v.Name, v.Init.DType(), v.Init.Dims())
		if v.Init.IsExternal() {
			continue
		}
		data, err := v.Init.Bytes()
		if err != nil {
			return "", fmt.Errorf("%s: initializer %q: %w", s.Path, v.Name, err)
		}
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Of a large weight that lies in a file of its own, the first sampled bytes of every sampleStep
// are looked at, and the last ones.
const (
	sampled    = 4 << 10
	sampleStep = 1 << 20
)

// Frozen is a hash of the values that lie in other files and that no step changes, "" where
// there are none. Of large ones it is a sample: what was trained, drawn or rounded otherwise differs
// nearly everywhere, and gigabytes need not be read before a step runs.
func (s *Source) Frozen() (string, error) {
	sum, some := sha256.New(), false
	for _, v := range s.Model.Graph.Initializers {
		if !v.Init.IsExternal() {
			continue
		}
		data, err := v.Init.Bytes()
		if err != nil {
			return "", fmt.Errorf("%s: initializer %q: %w", s.Path, v.Name, err)
		}
		some = true
		fmt.Fprintf(sum, "%q %d\n", v.Name, len(data))
		for at := 0; at < len(data); at += sampleStep {
			sum.Write(data[at:min(at+sampled, len(data))])
		}
		sum.Write(data[max(0, len(data)-sampled):])
	}
	if !some {
		return "", nil
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
