package ort

// #include <stdlib.h>
// #include "api.h"
import "C"

// EndOnFault has a program end with a line on stderr and an exit code where ONNX Runtime reads a
// page of a mapped file that is there no more. Go's own reads are for debug.SetPanicOnFault. Files
// that are being written, and temporary ones, are left for the next command to take away.
func EndOnFault(line string, code int) {
	text := C.CString(line + "\n") // for as long as the process
	C.ortLineOnFault(text, C.size_t(len(line)+1), C.int(code))
}
