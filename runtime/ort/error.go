package ort

// One function turns every status of ONNX Runtime into an error.
//
// The messages hold source paths, line breaks and, when a node is to blame,
// its name in one of a few forms. Weakness: those forms are prose of ONNX
// Runtime, so a new one yields an error without Node, never a wrong one.

// #include "api.h"
import "C"

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Code is ONNX Runtime's class of an error.
type Code int

// The codes of OrtErrorCode.
const (
	Fail             Code = 1
	InvalidArgument  Code = 2
	NoSuchFile       Code = 3
	NoModel          Code = 4
	EngineError      Code = 5
	RuntimeException Code = 6
	InvalidProtobuf  Code = 7
	ModelLoaded      Code = 8
	NotImplemented   Code = 9
	InvalidGraph     Code = 10
	ProviderFail     Code = 11
	Canceled         Code = 12
	NeedsCompilation Code = 13
	NotFound         Code = 14
)

var codeNames = map[Code]string{
	Fail: "failed", InvalidArgument: "invalid argument", NoSuchFile: "no such file", NoModel: "no model",
	EngineError: "engine error", RuntimeException: "runtime exception", InvalidProtobuf: "invalid protobuf",
	ModelLoaded: "model already loaded", NotImplemented: "not implemented", InvalidGraph: "invalid graph",
	ProviderFail: "execution provider failed", Canceled: "canceled", NeedsCompilation: "model needs compilation",
	NotFound: "not found",
}

// String names the code in words.
func (c Code) String() string {
	if s, ok := codeNames[c]; ok {
		return s
	}
	return fmt.Sprintf("code %d", int(c))
}

// ErrMemory is what an error Is that says that memory ran out.
var ErrMemory = errors.New("out of memory")

// An Error is what ONNX Runtime refused to do.
type Error struct {
	Code    Code
	Message string // one line
	Node    string // the node's name, when the message holds it
}

// Is reports whether the target is ErrMemory, and memory ran out.
func (e *Error) Is(target error) bool {
	text := strings.ToLower(e.Message)
	return target == ErrMemory && slices.ContainsFunc(memoryForms, func(form string) bool { return strings.Contains(text, form) })
}

// memoryForms are what allocators say, for which there is no code: the arena, C++,
// CUDA, and the check of a tensor's size against what the machine has.
var memoryForms = []string{"failed to allocate", "bad_alloc", "out of memory", "available memory"}

func (e *Error) Error() string {
	return fmt.Sprintf("onnx runtime: %s: %s", e.Code, e.Message)
}

// statusError consumes a status; nil means success.
func statusError(s *C.OrtStatus) error {
	if s == nil {
		return nil
	}
	defer C.ortReleaseStatus(s)
	return newError(Code(C.ortErrorCode(s)), C.GoString(C.ortErrorMessage(s)))
}

func newError(code Code, message string) *Error {
	message = tooNew(oneLine(message))
	return &Error{Code: code, Message: message, Node: nodeIn(message)}
}

const function = `\bonnxruntime::[\w:~<>]+\((?:[^()]|\([^()]*\))*\)(?: const)?(?: \[with [^\]]*\])?:? ?`

var (
	spaces = regexp.MustCompile(`\s+`)
	// place is a line of ONNX Runtime's sources, with the function's signature where
	// one follows; signature is one by itself.
	place     = regexp.MustCompile(`/\S*\.(?:cc|h|cpp|hpp):\d+ (?:[\w:<>*&, ]{0,80}?` + function + `)?`)
	signature = regexp.MustCompile(function)
	nodeForms = []*regexp.Regexp{
		regexp.MustCompile(`node\. Name:\s?'([^']+)'`),
		regexp.MustCompile(`In Node, \("([^"]+)"`),
		regexp.MustCompile(`\bNode \(([^()]+)\)`),
		regexp.MustCompile(`\b[Nn]ode:\s?'?"?([^\s'",()]+)`),
		regexp.MustCompile(`with name '([^']+)'`),
		regexp.MustCompile(`\bnode name:? '?"?([^\s'",()]+)`),
		regexp.MustCompile(`\bnode with name: ?'?([^\s'",()]+)`),
	}
)

// oneLine drops line breaks and the places in ONNX Runtime's own sources, by line
// and by function.
func oneLine(s string) string {
	s = spaces.ReplaceAllString(s, " ")
	s = signature.ReplaceAllString(place.ReplaceAllString(s, ""), " ")
	return strings.TrimSpace(spaces.ReplaceAllString(s, " "))
}

// newer are what ONNX Runtime says of a file that is too new for it, with what is too new,
// the file's version and its own; and what to do then.
var newer = []struct {
	form *regexp.Regexp
	said string
}{
	{regexp.MustCompile(`ONNX Runtime only \*guarantees\* support .*Opset (\d+) is under development.* official support for domain ai\.onnx is till opset (\d+)\.`),
		" opset $1 is newer than $2, the newest that this ONNX Runtime opens: use a newer one, or export the model with an older opset"},
	{regexp.MustCompile(`Unsupported model IR version: (\d+), max supported IR version: (\d+)`),
		" IR version $1 is newer than $2, the newest that this ONNX Runtime opens: use a newer one, or export the model with an older opset"},
}

// tooNew shortens what ONNX Runtime says of a file that is too new.
func tooNew(message string) string {
	for _, n := range newer {
		message = n.form.ReplaceAllString(message, n.said)
	}
	return spaces.ReplaceAllString(message, " ")
}

func nodeIn(message string) string {
	for _, form := range nodeForms {
		if m := form.FindStringSubmatch(message); m != nil {
			return m[1]
		}
	}
	return ""
}
