package traits

// What a library of the device borrows for a node: it alone knows, for each shape. Once
// it was asked, the node says so in the file, with the fingerprint of the node that it is
// true of, so that a pass that makes another node of it need not know of notes:
//
//	remat.workspace = "4448256 0f3a…"

import (
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

const workspaceKey = "remat.workspace"

// mostWorkspace is more than any device has.
const mostWorkspace = 1 << 50

// workspace is what was noted that a library borrows for the node, in bytes.
func workspace(n *onnx.Node) (int64, bool) {
	text, of, _ := strings.Cut(n.Metadata(workspaceKey), " ")
	if text == "" {
		return 0, false
	}
	bytes, err := strconv.ParseInt(text, 10, 64)
	if err != nil || bytes < 0 || bytes > mostWorkspace || of != n.Fingerprint() {
		return 0, false
	}
	return bytes, true
}

// NoteWorkspace notes what a library of the device borrows for a typed node, in bytes.
func NoteWorkspace(n *onnx.Node, bytes int64) {
	n.SetMetadata(workspaceKey, strconv.FormatInt(bytes, 10)+" "+n.Fingerprint())
}

// ForgetWorkspace takes the note off.
func ForgetWorkspace(n *onnx.Node) { n.DropMetadata(workspaceKey) }

// library borrows a workspace of a library's.
func (k *Kernel) library(n *onnx.Node) {
	bytes, noted := workspace(n)
	k.Library, k.Noted = append(k.Library, k.borrow(bytes)), noted
}
