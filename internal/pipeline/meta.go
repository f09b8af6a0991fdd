package pipeline

// Version is the program's version, written into every file that it makes.
const Version = "0.1.0"

// Metadata entries of the files that remat writes.
const (
	VersionKey = "remat.version"
	SourceKey  = "remat.source.sha256"
	PlanKey    = "remat.plan"
	PeakKey    = "remat.predicted.live_peak_bytes"
	// ReservedKey is what the arena that SessionKey describes will reserve.
	ReservedKey = "remat.predicted.reserved_bytes"
	// SessionKey holds the session options under which the predictions hold.
	SessionKey = "remat.session"
	// DimsKey holds the numbers that free dimensions were fixed to, by name.
	DimsKey = "remat.dims"
	// OrderedKey says that the places of the nodes carry a schedule.
	OrderedKey = "remat.ordered"
)
