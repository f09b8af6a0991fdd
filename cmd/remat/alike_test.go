package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

func alikeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || neg {
		ts.Fatalf("usage: alike DIR1 DIR2")
	}
	one, two := filesIn(ts, args[0]), filesIn(ts, args[1])
	if len(one) == 0 || len(one) != len(two) {
		ts.Fatalf("%s holds %d files, %s %d", args[0], len(one), args[1], len(two))
	}
	for name, data := range one {
		if other, ok := two[name]; !ok || !bytes.Equal(data, other) {
			ts.Fatalf("%s/%s and %s/%s differ", args[0], name, args[1], name)
		}
	}
}

// filesIn reads a folder's files; of documents, all but the times.
func filesIn(ts *testscript.TestScript, dir string) map[string][]byte {
	entries, err := os.ReadDir(ts.MkAbs(dir))
	ts.Check(err)
	files := map[string][]byte{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(ts.MkAbs(dir), e.Name()))
		ts.Check(err)
		if filepath.Ext(e.Name()) == ".json" {
			var doc map[string]any
			ts.Check(json.Unmarshal(data, &doc))
			for key := range doc {
				if strings.HasSuffix(key, "seconds") {
					delete(doc, key)
				}
			}
			data, err = json.Marshal(doc)
			ts.Check(err)
		}
		files[e.Name()] = data
	}
	return files
}
