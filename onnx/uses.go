package onnx

// Reader lists. Most values have one or two readers, which a scan finds at
// once; a mask or a scale can have 100,000, and a pass that replaces them one
// by one must not scan each time. So long lists get an index when the first
// reader leaves, kept up to date from then on.

// longList is the number of readers from which an index is worth its memory.
const longList = 32

// addUse notes that input i of n, or its subgraphs, read v.
func (v *Value) addUse(n *Node, i int) {
	u := Use{n, i}
	if v.places != nil {
		v.places[u] = len(v.uses)
	}
	v.uses = append(v.uses, u)
}

// dropUse takes a reader off the list; the last one takes its place.
func (v *Value) dropUse(n *Node, i int) {
	gone := Use{n, i}
	at := v.place(gone)
	if at < 0 {
		return
	}
	last := len(v.uses) - 1
	v.uses[at] = v.uses[last]
	v.uses[last] = Use{}
	v.uses = v.uses[:last]
	if v.places != nil {
		if at < last {
			v.places[v.uses[at]] = at
		}
		delete(v.places, gone)
	}
}

// place is where a reader stands in the list, -1 where it does not.
func (v *Value) place(u Use) int {
	if v.places == nil && len(v.uses) > longList {
		v.places = make(map[Use]int, len(v.uses))
		for k, u := range v.uses {
			v.places[u] = k
		}
	}
	if v.places != nil {
		if k, ok := v.places[u]; ok {
			return k
		}
		return -1
	}
	for k, w := range v.uses {
		if w == u {
			return k
		}
	}
	return -1
}
