package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// rebaseParameters puts dir before the files of the metadata entry
// remat.parameters, and reports whether it names any.
func rebaseParameters(m *onnx.Model, dir string) (bool, error) {
	text, ok := m.Metadata(remat.ParametersKey)
	if !ok {
		return false, nil
	}
	// Entries may hold more than a location; what is not known is kept.
	var entries map[string]map[string]any
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return false, fmt.Errorf("metadata %s: %w", remat.ParametersKey, err)
	}
	used := false
	for _, entry := range entries {
		if file, ok := entry["file"].(string); ok && file != "" {
			entry["file"] = filepath.ToSlash(filepath.Join(dir, file))
			used = true
		}
	}
	if !used {
		return false, nil
	}
	out, err := json.Marshal(entries)
	if err != nil {
		return false, err
	}
	m.SetMetadata(remat.ParametersKey, string(out))
	return true, nil
}
