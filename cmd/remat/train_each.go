package main

// What each rank took, which the first one prints: all tell the others once the last step
// is done.

import "encoding/binary"

// A rankMemory is what a rank took and sent, in bytes; null where it was not measured, or
// not predicted.
type rankMemory struct {
	Rank                   int    `json:"rank"`
	ParameterBytes         *int64 `json:"parameter_bytes"`
	StateBytes             *int64 `json:"state_bytes"`
	FeedBytes              *int64 `json:"feed_bytes"`
	SessionBytes           *int64 `json:"session_bytes"`
	PredictedSessionBytes  *int64 `json:"predicted_session_bytes"`
	LivePeakBytes          *int64 `json:"live_peak_bytes"`
	PredictedLivePeakBytes *int64 `json:"predicted_live_peak_bytes"`
	HeldBytes              *int64 `json:"held_bytes"`
	PredictedHeldBytes     *int64 `json:"predicted_held_bytes"`
	SyncBytes              *int64 `json:"sync_bytes"`
	BytesSent              *int64 `json:"bytes_sent"`
}

// figures are its fields but the rank, in an order in which ranks tell them.
func (m *rankMemory) figures() []**int64 {
	return []**int64{
		&m.ParameterBytes, &m.StateBytes, &m.FeedBytes, &m.SessionBytes, &m.PredictedSessionBytes, &m.LivePeakBytes, &m.PredictedLivePeakBytes,
		&m.HeldBytes, &m.PredictedHeldBytes, &m.SyncBytes, &m.BytesSent,
	}
}

// unknown stands for null.
const unknown = -1

// eachRank has all ranks tell what they took; own describes this one, nil for one alone. The
// figures of s are complete.
func (t *trainRun) eachRank(s *subject, own *trainedRanks) ([]rankMemory, error) {
	if own == nil {
		return nil, nil
	}
	m := &s.run.Memory
	mine := rankMemory{
		0, &m.ParameterBytes, &m.StateBytes, &m.FeedBytes, m.SessionBytes, m.PredictedSessionBytes, m.LivePeakBytes, m.PredictedLivePeakBytes,
		&own.HeldBytes, &own.PredictedHeldBytes, &own.SyncBytes, &own.BytesSent,
	}
	var text []byte
	for _, f := range mine.figures() {
		n := int64(unknown)
		if *f != nil {
			n = **f
		}
		text = binary.LittleEndian.AppendUint64(text, uint64(n))
	}
	all, err := t.group.Share(text)
	if err != nil {
		return nil, err
	}
	list := make([]rankMemory, len(all))
	for rank, text := range all {
		list[rank].Rank = rank
		for i, f := range list[rank].figures() {
			if n := int64(binary.LittleEndian.Uint64(text[8*i:])); n != unknown {
				*f = &n
			}
		}
	}
	return list, nil
}
