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
