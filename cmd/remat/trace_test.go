package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestTraceOfEveryVariant: every event of every variant of the zoo has its value, node
// and category, and the trace for viewers keeps the rules of its format.
func TestTraceOfEveryVariant(t *testing.T) {
	dir := newFolder(t)
	at := dir.at
	do := func(args ...string) {
		t.Helper()
		dir.do(append(args, "--quiet")...)
	}
	variants := [][]string{nil, {"--strategy", "sqrt"}, {"--strategy", "full", "--precision", "fp16", "--emulate"}, {"--strategy", "optimal", "--time-limit", "1s"}}
	if testing.Short() {
		variants = variants[:2]
	}
	for _, model := range whole.models[1:] {
		do(append([]string{"model", "-o", at("m.onnx")}, model...)...)
		for _, optimizer := range []string{"none", "adamw"} {
			do("grad", at("m.onnx"), "-o", at("t.onnx"), "--optimizer", optimizer)
			list := variants
			if optimizer == "none" {
				list = variants[:2]
			}
			for _, v := range list {
				name := fmt.Sprint(model[0], " ", optimizer, " ", v)
				file := at("t.onnx")
				if v != nil {
					file = at("s.onnx")
					do(append([]string{"rewrite", at("t.onnx"), "-o", file}, v...)...)
				}
				do("run", file, "--trace", at("trace.json"))
				checkNames(t, name, at("trace.json"))
				do("run", file, "--trace", at("chrome.json"), "--format", "chrome")
				checkChrome(t, name, at("chrome.json"))
			}
		}
	}
	do("run", at("s.onnx"), "--trace", at("chrome.json"), "--format", "chrome", "--profile", "--steps", "2")
	checkChrome(t, "profiled", at("chrome.json"))
}

func checkNames(t *testing.T, name, path string) {
	t.Helper()
	var d struct {
		Agrees bool             `json:"agrees_with_prediction"`
		Events []map[string]any `json:"events"`
	}
	readDocument(t, path, &d)
	if !d.Agrees || len(d.Events) == 0 {
		t.Errorf("%s: agrees %v, %d events", name, d.Agrees, len(d.Events))
	}
	for i, e := range d.Events {
		for _, key := range []string{"value", "node", "category"} {
			if s, _ := e[key].(string); s == "" && d.Agrees {
				t.Fatalf("%s: event %d has no %s: %v", name, i, key, e)
			}
		}
	}
}

// checkChrome checks the rules of the Trace Event Format for the kinds of events that
// are written: M, X and C.
func checkChrome(t *testing.T, name, path string) {
	t.Helper()
	var d struct {
		Events []struct {
			Name *string        `json:"name"`
			Ph   string         `json:"ph"`
			TS   *float64       `json:"ts"`
			Dur  *float64       `json:"dur"`
			PID  *int           `json:"pid"`
			TID  *int           `json:"tid"`
			Args map[string]any `json:"args"`
		} `json:"traceEvents"`
		Unit string `json:"displayTimeUnit"`
	}
	readDocument(t, path, &d)
	if d.Unit != "ms" && d.Unit != "ns" {
		t.Errorf("%s: displayTimeUnit %q", name, d.Unit)
	}
	kinds := map[string]int{}
	end := map[int]float64{} // of the row's last span
	last := 0.0
	for i, e := range d.Events {
		kinds[e.Ph]++
		if e.Name == nil || *e.Name == "" || e.PID == nil || e.TID == nil {
			t.Fatalf("%s: event %d has no name, pid or tid: %+v", name, i, e)
		}
		switch e.Ph {
		case "M":
			if _, ok := e.Args["name"].(string); !ok || !slices.Contains([]string{"process_name", "thread_name"}, *e.Name) {
				t.Fatalf("%s: metadata %+v", name, e)
			}
		case "X":
			if e.TS == nil || e.Dur == nil || *e.TS < 0 || *e.Dur < 0 {
				t.Fatalf("%s: span %d has no times: %+v", name, i, e)
			}
			if *e.TS < end[*e.TID] {
				t.Fatalf("%s: span %q begins at %v, before the one before it ends, %v", name, *e.Name, *e.TS, end[*e.TID])
			}
			end[*e.TID] = *e.TS + *e.Dur
		case "C":
			if e.TS == nil || *e.TS < last || len(e.Args) == 0 {
				t.Fatalf("%s: counter %d: %+v", name, i, e)
			}
			last = *e.TS
			for key, v := range e.Args {
				if n, ok := v.(float64); !ok || n < 0 {
					t.Fatalf("%s: counter %q is %v", name, key, v)
				}
			}
		default:
			t.Fatalf("%s: event %d of kind %q", name, i, e.Ph)
		}
	}
	if kinds["X"] == 0 || kinds["C"] == 0 || kinds["M"] == 0 {
		t.Errorf("%s: kinds of events %v", name, kinds)
	}
}

func readDocument(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestNamed: releases between two allocations come in any order, but are of the same
// buffers.
func TestNamed(t *testing.T) {
	predicted := []report.Event{{Bytes: 8, Buffer: 0, Value: "a"}, {Bytes: 16, Buffer: 1, Value: "b"}, {Bytes: -8, Buffer: 0, Value: "a"}, {Bytes: -16, Buffer: 1, Value: "b"}, {Bytes: 4, Buffer: 2, Value: "c"}}
	measured := []ort.Event{{Alloc: true, Bytes: 8, ID: 5}, {Alloc: true, Bytes: 16, ID: 6}, {Bytes: 16, ID: 6}, {Bytes: 8, ID: 5}, {Alloc: true, Bytes: 4, ID: 7}}
	events, ok := named(measured, predicted)
	if !ok || events[2].Value != "b" || events[3].Value != "a" {
		t.Errorf("%v %v", events, ok)
	}
	for i, wrong := range map[int]ort.Event{0: {Alloc: true, Bytes: 9, ID: 5}, 2: {Bytes: 16, ID: 9}, 4: {Bytes: 4, ID: 7}} {
		other := slices.Clone(measured)
		other[i] = wrong
		if _, ok := named(other, predicted); ok {
			t.Errorf("event %d may be %v", i, wrong)
		}
	}
	if _, ok := named(slices.Concat(measured[:3], measured[4:]), predicted); ok {
		t.Error("a release may be missing")
	}
}
