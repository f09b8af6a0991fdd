package onnx

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

// fuzzLimit keeps inputs small: what is large is slow to fuzz, not different.
const fuzzLimit = 1 << 16

func FuzzLoad(f *testing.F) {
	for _, data := range hostileFiles() {
		if len(data) < 4096 {
			f.Add(data)
		}
	}
	for _, text := range []string{plainText, editHead + editBase} {
		m, err := Parse(text)
		if err != nil {
			f.Fatal(err)
		}
		data, err := m.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) <= fuzzLimit {
			survive(t, data)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(plainText)
	f.Add(editHead + editBase)
	for _, c := range hostileTexts {
		f.Add(hostileHead + c.body + "\n}\n")
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > fuzzLimit {
			return
		}
		m, err := Parse(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("more than one line: %q", err)
			}
			return
		}
		m.Check()
		p := m.ToProto()
		if proto.Size(p) > 16*fuzzLimit {
			return
		}
		printed := m.Text()
		back, err := Parse(printed)
		if err != nil {
			t.Fatalf("%v in\n%s", err, printed)
		}
		if !sameMessage(p, back.ToProto()) {
			t.Fatalf("print and parse changed the model:\n%s\nfrom\n%s", printed, text)
		}
	})
}
