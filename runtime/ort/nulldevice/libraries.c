//go:build linux && amd64

// The libraries that are stood in for: the only list of them. Each library's
// symbols stand with its functions.
#include "device.h"

static const Library kLibraries[] = {
    {"libcudart.so.13", "libcudart.so.13", kRuntimeSymbols, &kRuntimeCount},
    {"libcublasLt.so.13", "libcublasLt.so.13", kBlasLtSymbols, &kBlasLtCount},
    {"libcublas.so.13", "libcublas.so.13", kBlasSymbols, &kBlasCount},
    {"libcurand.so.10", NULL, NULL, NULL},
    {"libcuda.so.1", NULL, kDriverSymbols, &kDriverCount},
    {"libcudnn.so.9", NULL, kDnnSymbols, &kDnnCount},
};

const Library *library(size_t i) { return i < sizeof kLibraries / sizeof *kLibraries ? &kLibraries[i] : NULL; }
