package predict

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/ort"
)

// What the arena takes from the system and hands out is predicted for every
// sample to the byte.
func TestArena(t *testing.T) {
	for _, path := range samples(t) {
		if strings.Contains(path, "gpt2_small") {
			continue
		}
		path := static(t, path, t.TempDir())
		o := ort.SessionOptions{Threads: 1}
		p, err := asExecuted(path, t.TempDir(), o)
		if err != nil {
			t.Fatal(err)
		}
		o.Allocator = ort.RequestedArena
		s, err := testEnv.NewSession(path, o)
		if err != nil {
			t.Fatal(err)
		}
		b, err := s.NewBinding()
		if err != nil {
			t.Fatal(err)
		}
		values, err := bindAll(s, b, nil)
		if err == nil {
			err = s.Run(context.Background(), b, "")
		}
		st, _ := s.HostStats()
		for _, v := range values {
			v.Close()
		}
		b.Close()
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
		if st.Reserved == p.Reserved && st.MaxInUse == p.ArenaPeak {
			continue
		}
		t.Errorf("%s: reserved %d, predicted %d; in use %d, predicted %d", filepath.Base(path), st.Reserved, p.Reserved, st.MaxInUse, p.ArenaPeak)
	}
}
