package ort

// #include "images.h"
import "C"

// TrimImages gives back to the system the pages of the program and of its libraries, ONNX
// Runtime's among them. Those that are read again come back from their files. It
// returns of how many bytes of addresses that was.
func TrimImages() int64 { return int64(C.release_images()) }
