package traits

// What a library of the device borrows for a node: it alone knows, for each shape. Once
// it was asked, the node says so in the file, with the fingerprint of the node that it is
// true of, so that a pass that makes another node of it need not know of notes; behind the
// workspace stands what the session keeps for the node, where it keeps anything:
//
//	remat.workspace = "4448256 0f3a…"
//	remat.workspace = "8436480 6488064 51bc…"

import (
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

const workspaceKey = "remat.workspace"

// mostWorkspace is more than any device has.
const mostWorkspace = 1 << 50

// workspace is what was noted that a library borrows for the node, and that the session
// keeps, in bytes.
func workspace(n *onnx.Node) (borrowed, held int64, ok bool) {
	note := strings.Fields(n.Metadata(workspaceKey))
	if len(note) < 2 || len(note) > 3 || note[len(note)-1] != n.Fingerprint() {
		return 0, 0, false
	}
	var sizes [2]int64
	for i, text := range note[:len(note)-1] {
		bytes, err := strconv.ParseInt(text, 10, 64)
		if err != nil || bytes < 0 || bytes > mostWorkspace {
			return 0, 0, false
		}
		sizes[i] = bytes
	}
	return sizes[0], sizes[1], true
}

// NoteWorkspace notes what a library of the device borrows for a typed node, and what the
// session keeps for it, in bytes.
func NoteWorkspace(n *onnx.Node, borrowed, held int64) {
	note := strconv.FormatInt(borrowed, 10)
	if held > 0 {
		note += " " + strconv.FormatInt(held, 10)
	}
	n.SetMetadata(workspaceKey, note+" "+n.Fingerprint())
}

// ForgetWorkspace takes the note off.
func ForgetWorkspace(n *onnx.Node) { n.DropMetadata(workspaceKey) }

// library borrows a workspace of a library's, and returns what is noted that the session keeps
// for it.
func (k *Kernel) library(n *onnx.Node) (held int64) {
	borrowed, held, noted := workspace(n)
	k.Library, k.Noted = append(k.Library, k.borrow(borrowed)), noted
	return held
}
