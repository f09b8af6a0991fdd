// Package ort is remat's own small layer over the C interface of ONNX Runtime,
// beside github.com/yalue/onnxruntime_go. It and nulldevice, below it, are the only packages with cgo.
//
//	yalue/onnxruntime_go            this package
//	load the library  ──────────▶   OrtApi of the same loaded library
//	environment       ──────────▶   Environment (the one of the process)
//	session options   ──────────▶   Session ──▶ Binding ──▶ Value
//	CUDA options                    Counter, Stats, Profile, Copier
//
// The library that yalue loaded is found again with dlopen(RTLD_NOLOAD), and
// its functions are called by their index in the OrtApi table, so that no
// header is needed. The table only ever grows at its end; a test compares each
// index with the header that comes with yalue's module. Its weakness is that
// argument types are written down here a second time, in api.c.
//
// One file holds one C object. Everything that has a Close method owns C
// memory and must be closed; closing twice is harmless. Errors of ONNX Runtime
// come back as *Error. Nothing is ever printed: the log level of environment,
// sessions and runs is "fatal".
package ort
