//go:build linux && amd64

// The null device: what its files share. See doc.go.
//
// The declarations are this project's own. They state of CUDA's interface what a
// caller and a callee must agree on: numbers of errors and kinds, sizes and
// offsets of structs. A stand-in may declare fewer parameters than it is called
// with; under this platform's calling convention the others are ignored.
#ifndef REMAT_NULLDEVICE_H
#define REMAT_NULLDEVICE_H

#include <stddef.h>
#include <stdint.h>

// Errors of the CUDA runtime that are returned here.
enum {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidHandle = 400,
  kCaptureUnmatched = 903,
  kUnknown = 999,
};

// Statuses of cuBLAS and cuDNN: nothing here fails but allocation.
enum { kLibraryAllocFailed = 3 };

enum { kMaxDevices = 16, kProcessors = 132 };

// A Symbol is one function that a stand-in library exports.
typedef struct {
  const char *name;
  void *function;
} Symbol;

#define SYMBOL(f) {#f, (void *)(f)}

// A Library is one stand-in; version is the version that its symbols carry, NULL
// where they carry none.
typedef struct {
  const char *soname, *version;
  const Symbol *symbols;
  const size_t *count;  // NULL for none
} Library;

extern const Symbol kRuntimeSymbols[], kDriverSymbols[], kBlasSymbols[], kBlasLtSymbols[], kDnnSymbols[];
extern const size_t kRuntimeCount, kDriverCount, kBlasCount, kBlasLtCount, kDnnCount;

// library returns library i, NULL behind the last.
const Library *library(size_t i);

// Counters; see counters.go for what each means.
typedef struct {
  uint64_t to_host, to_host_bytes, to_device, to_device_bytes, on_device, on_device_bytes;
  uint64_t synchronizations, kernels, library_calls;
  uint64_t allocations, releases;
  int64_t live, peak, blocks;
  int64_t host_live, host_blocks;
  int64_t handles;
  // The last allocation that did not fit, and how many did not.
  uint64_t refused;
  int64_t refused_asked, refused_live, refused_memory;
  int refused_by_host;  // no addresses were left in this process
} Counters;

// device_open prepares the device; a second call only sets its size. Returns NULL, or what went
// wrong.
const char *device_open(int64_t memory, int devices);
void device_counters(Counters *out);
void device_restart_peak(void);

int device_count(void);
int64_t device_memory(void);
void device_free_memory(int device, size_t *available, size_t *total);

// cudnn_workspace sets what each plan of cuDNN's asks for, in bytes (cudnn.c).
void cudnn_workspace(int64_t bytes);

// Memory (memory.c). Results are errors of the runtime.
int memory_alloc(void **p, size_t n, int device);
int memory_alloc_host(void **p, size_t n);
int memory_release(void *p);
int memory_release_host(void *p);
// memory_kind is that of the block that holds p.
enum { kUnregistered, kHost, kDevice };
int memory_kind(const void *p, int *device);
// memory_copy moves n bytes; direction is CUDA's number of it.
enum { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kAnyDirection };
int memory_copy(void *to, const void *from, size_t n, int direction);
int memory_copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int direction);
int memory_fill(void *p, int byte, size_t n);

// What is counted elsewhere.
void count_synchronization(void);
void count_kernels(uint64_t n);
void count_library_call(void);
void count_copy_to_host(size_t n);
// handle_new makes an object of n bytes, all zero; NULL where there is no memory.
void *handle_new(size_t n);
void handle_free(void *h);

#endif
