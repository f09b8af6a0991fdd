package rewrite

// Nodes are the names of the nodes that are left.
func (l *Left) Nodes() map[string]bool { return l.nodes }

// Reads are the names of the values that are read to make each.
func (l *Left) Reads() map[string]map[string]bool { return l.reads }
