// Package adapter adds low-rank pairs to the linear layers of a forward graph, and
// merges them back (LoRA: Hu et al., arXiv 2106.09685).
//
//	y = x W + b   becomes   y = x W + b + (alpha / r) (x A) B
//
// with A [in,r], B [r,out]. Only A and B are trained: the backward pass computes no
// gradient of W, and the optimizer keeps no state for it. A begins as in PEFT, uniform
// in ±1/√in, which is Kaiming's with a = √5 (torch.nn.init.kaiming_uniform_), and B with
// zeros, so that the first step's loss is that of the model.
//
// A linear layer is found by what it computes (linear.go); the pair is written by
// insert.go, and merge.go adds its product to the weight.
package adapter

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
)

// Pass is the name of the pass in what it makes.
const Pass = "lora"

// Suffixes of the parameters of a pair, after the name of the weight.
const (
	SuffixA = ".lora_A"
	SuffixB = ".lora_B"
)

// The rank and alpha of PEFT's LoraConfig, where nothing is said.
const (
	defaultRank  = 8
	defaultAlpha = 8
)

// A Spec says which layers get a pair, and which.
type Spec struct {
	// Globs are names or patterns of weights.
	Globs []string
	Rank  int64
	Alpha float64
}

// String is what ParseSpec reads.
func (s Spec) String() string {
	return fmt.Sprintf("%s:r=%d,alpha=%v", strings.Join(s.Globs, ","), s.Rank, s.Alpha)
}

// An Error says why a pair cannot be added as asked.
type Error struct {
	Spec, Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("--lora %q: %s", e.Spec, e.Reason) }

// ParseSpecs reads each text as ParseSpec does.
func ParseSpecs(texts []string) ([]Spec, error) {
	var list []Spec
	for _, text := range texts {
		s, err := ParseSpec(text)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// ParseSpec reads GLOB,…:r=8,alpha=16; what stands behind the last colon and has no =
// belongs to the pattern, as in onnx::MatMul_12.
func ParseSpec(text string) (Spec, error) {
	s := Spec{Rank: defaultRank, Alpha: defaultAlpha}
	globs, settings := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 && strings.Contains(text[i:], "=") {
		globs, settings = text[:i], text[i+1:]
	}
	for glob := range strings.SplitSeq(globs, ",") {
		if glob = strings.TrimSpace(glob); glob == "" {
			return s, &Error{text, "names no parameter: want GLOB:r=8,alpha=16"}
		}
		if _, err := path.Match(glob, ""); err != nil {
			return s, &Error{text, fmt.Sprintf("%q is not a valid pattern", glob)}
		}
		s.Globs = append(s.Globs, glob)
	}
	return s, s.read(text, settings)
}

// read reads r=8,alpha=16.
func (s *Spec) read(text, settings string) error {
	seen := map[string]bool{}
	for _, setting := range strings.FieldsFunc(settings, func(r rune) bool { return r == ',' }) {
		key, value, _ := strings.Cut(strings.TrimSpace(setting), "=")
		if seen[key] {
			return &Error{text, key + " is given twice"}
		}
		seen[key] = true
		var err error
		switch key {
		case "r":
			if s.Rank, err = strconv.ParseInt(value, 10, 32); err != nil || s.Rank < 1 {
				return &Error{text, fmt.Sprintf("r=%s: want a whole number from 1 on", value)}
			}
		case "alpha":
			if s.Alpha, err = strconv.ParseFloat(value, 64); err != nil || !(s.Alpha > 0) || math.IsInf(s.Alpha, 0) {
				return &Error{text, fmt.Sprintf("alpha=%s: want a number above 0", value)}
			}
		default:
			return &Error{text, fmt.Sprintf("no setting %q: there are r and alpha", key)}
		}
	}
	return nil
}
