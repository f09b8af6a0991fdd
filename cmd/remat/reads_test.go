package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// opened counts how often a file is opened while do runs. It never counts too many;
// the system may report two openings that follow at once as one.
func opened(t *testing.T, path string, do func()) int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	count := make(chan int)
	go func() {
		buffer, n := make([]byte, 16*unix.SizeofInotifyEvent), 0 // of a file, events have no name
		for {
			k, err := events.Read(buffer)
			if err != nil {
				count <- n
				return
			}
			n += k / unix.SizeofInotifyEvent
		}
	}()
	do()
	time.Sleep(10 * time.Millisecond) // the last one is reported
	if err := events.Close(); err != nil {
		t.Fatal(err)
	}
	return <-count
}

var sessionLine = regexp.MustCompile(`(?m)^session \d+: ([^,]+), level`)

// TestOneReadOneSession: a command reads a model file once, beside what ONNX Runtime
// reads for a session that runs steps, and asks ONNX Runtime's optimizer once for
// the same graph. Sessions that compute constants are of a few nodes.
func TestOneReadOneSession(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	remat := func(args ...string) string {
		var out, errs bytes.Buffer
		if code := run(context.Background(), append([]string{"--quiet", "-d", "sessions"}, args...), &out, &errs); code != exitDone {
			t.Fatalf("remat %q: exit code %d\n%s%s", args, code, &out, &errs)
		}
		return errs.String()
	}
	remat("model", "gpt2-tiny", "--batch", "2", "--seq", "64", "-o", at("gpt.onnx"))
	remat("grad", at("gpt.onnx"), "--optimizer", "adamw", "-o", at("train.onnx"))
	remat("rewrite", at("train.onnx"), "--strategy", "full", "-o", at("small.onnx"))
	for _, c := range []struct {
		args     []string
		file     string
		reads    int
		sessions string
	}{
		{[]string{"grad", at("gpt.onnx"), "-o", at("other.onnx")}, "gpt.onnx", 1, ""},
		{[]string{"inspect", at("train.onnx"), "--memory"}, "train.onnx", 1, "predict"},
		{[]string{"plan", at("train.onnx"), "--budget", "70%", "-o", at("plan.json")}, "train.onnx", 1, "predict, find fusions"},
		{[]string{"rewrite", at("train.onnx"), "--budget", "70%", "-o", at("x.onnx")}, "train.onnx", 1, "predict, find fusions"},
		{[]string{"rewrite", at("train.onnx"), "--plan", at("plan.json"), "-o", at("x.onnx")}, "train.onnx", 1, "predict, find fusions"},
		{[]string{"run", at("train.onnx"), "--steps", "2"}, "train.onnx", 3, "find updates in place, run, run with an arena"},
		{[]string{"compare", at("train.onnx"), at("small.onnx"), "--steps", "2"}, "small.onnx", 3,
			"find updates in place, run, find updates in place, run, run with an arena, run with an arena"},
	} {
		var log string
		reads := opened(t, at(c.file), func() { log = remat(c.args...) })
		var sessions []string
		for _, m := range sessionLine.FindAllStringSubmatch(log, -1) {
			if m[1] != "compute constants" {
				sessions = append(sessions, m[1])
			}
		}
		if got := strings.Join(sessions, ", "); reads < 1 || reads > c.reads || got != c.sessions {
			t.Errorf("%s: %s is read %d times, want %d; sessions %q, want %q", c.args[0], c.file, reads, c.reads, got, c.sessions)
		}
	}
}
