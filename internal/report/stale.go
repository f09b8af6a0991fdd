package report

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/units"
)

// StalePrediction is a live peak, in bytes, that a file's metadata predict of
// another graph than the file holds.
type StalePrediction struct {
	LivePeakBytes int64 `json:"live_peak_bytes"`
	// NowBytes is what is predicted of the graph as it is; null where nothing is.
	NowBytes *int64 `json:"now_bytes"`
}

func (s *StalePrediction) String() string {
	now := ""
	if s.NowBytes != nil {
		now = fmt.Sprintf("; predicted now: %s", units.Bytes(*s.NowBytes))
	}
	return fmt.Sprintf("saved again by another tool: the predicted peak of %s no longer holds%s: rewrite the file again, or use the file that remat wrote",
		units.Bytes(s.LivePeakBytes), now)
}
