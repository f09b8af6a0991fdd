package safetensors

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Opening a named pipe would wait for somebody who writes to it.
func TestOpenDoesNotWaitForAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := Open(path)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("still waiting after 10 seconds")
	}
}
