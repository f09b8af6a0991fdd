//go:build linux && amd64

// Package call calls C functions by their address, for the tests of the null device: test
// files cannot hold C.
package call

/*
#include <stdint.h>

typedef intptr_t (*function)(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t);

static intptr_t call(uintptr_t f, const intptr_t *a) {
  return ((function)f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
}

static const char *text(intptr_t p) { return (const char *)p; }
*/
import "C"

import "runtime"

// most is how many arguments a call can have.
const most = 11

// Call calls the function at that address with integers and pointers, at most 11, and returns its
// result, of which an int is the lower half. Pointers to Go's memory must be pinned.
func Call(address uint64, args ...uintptr) uintptr {
	var all [most]C.intptr_t
	for i, a := range args {
		all[i] = C.intptr_t(a)
	}
	r := C.call(C.uintptr_t(address), &all[0])
	runtime.KeepAlive(args)
	return uintptr(r)
}

// Text is Call of a function that returns a string of C.
func Text(address uint64, args ...uintptr) string {
	return C.GoString(C.text(C.intptr_t(Call(address, args...))))
}
