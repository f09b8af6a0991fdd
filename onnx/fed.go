package onnx

// FeedsKey is the metadata entry that says what integers inputs are fed: a Fed by the input's name.
const FeedsKey = "remat.feeds"

// A Fed has integers below Below that index no element that is not there, and none at all from
// Each on; 0: not known.
type Fed struct {
	Below int64 `json:"below"`
	Each  int64 `json:"each,omitempty"`
}
