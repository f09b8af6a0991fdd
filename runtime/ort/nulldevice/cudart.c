//go:build linux && amd64

// The CUDA runtime and driver: memory, streams, events, graphs and launches.
//
// Work on a stream is done when it is asked for, so that nothing is ever pending:
// waiting costs nothing, and only its number is counted. A launch does nothing. While
// a stream is captured its launches are counted in the graph, and counted as
// launched when the graph is.
#include "device.h"

#include <stdio.h>
#include <string.h>

typedef struct {
  unsigned x, y, z;
} Dim;

typedef struct {
  int capturing;
  uint64_t captured;  // launches since the capture began
} Stream;

typedef struct {
  uint64_t launches;
} Graph;

typedef struct {
  int device;
  uint64_t threshold;  // the one settable attribute that is a number of bytes
} Pool;

// The error that cudaGetLastError returns, and the device, are the thread's.
static __thread int last_error, current;

static int result(int error) {
  if (error) last_error = error;
  return error;
}

static int created(void **to, size_t n) {
  *to = handle_new(n);
  return result(*to ? kSuccess : kOutOfMemory);
}

// usable says whether the current device is there: a thread may have chosen it
// before there were fewer.
static int usable(void) { return current < device_count() ? kSuccess : result(kInvalidDevice); }

// Errors.

static int cudaGetLastError(void) {
  int error = last_error;
  last_error = kSuccess;
  return error;
}

static int cudaPeekAtLastError(void) { return last_error; }

static const struct {
  int error;
  const char *name, *text;
} kErrors[] = {
    {kSuccess, "cudaSuccess", "no error"},
    {kInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "cudaErrorMemoryAllocation", "out of memory"},
    {kNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {kInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {kCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "stream capture was not started"},
};

static const char *error_text(int error, int name) {
  for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; i++)
    if (kErrors[i].error == error) return name ? kErrors[i].name : kErrors[i].text;
  return name ? "cudaErrorUnknown" : "unknown error";
}

static const char *cudaGetErrorName(int error) { return error_text(error, 1); }
static const char *cudaGetErrorString(int error) { return error_text(error, 0); }

// Devices. What they say of themselves is an H100's, but for the memory.

enum { kVersion = 13000, kMajor = 9, kMinor = 0, kThreadsPerBlock = 1024, kThreadsPerProcessor = 2048 };
enum { kShared = 48 << 10, kSharedOptin = 227 << 10, kSharedProcessor = 228 << 10, kSharedReserved = 1 << 10 };
enum { kRegisters = 1 << 16, kWarp = 32, kCache = 50 << 20, kBlocksPerProcessor = 32, kGridMax = 0x7fffffff, kGridYZ = 65535 };

static int cudaGetDeviceCount(int *n) {
  *n = device_count();
  return result(*n ? kSuccess : kNoDevice);
}

static int cudaGetDevice(int *n) {
  *n = current;
  return kSuccess;
}

static int cudaSetDevice(int n) {
  if (n < 0 || n >= device_count()) return result(kInvalidDevice);
  current = n;
  return kSuccess;
}

static int cudaDriverGetVersion(int *v) {
  *v = kVersion;
  return kSuccess;
}

static int cudaRuntimeGetVersion(int *v) { return cudaDriverGetVersion(v); }

static int cudaDeviceSynchronize(void) {
  count_synchronization();
  return kSuccess;
}

// Properties is cudaDeviceProp of CUDA 13; what is not used here is padding.
typedef struct {
  char name[256];
  char ids[32];
  size_t memory, shared;
  int registers, warp;
  size_t pitch;
  int threads, block[3], grid[3];
  size_t constants;
  int major, minor;
  size_t alignment, texture_pitch;
  int processors;
  char textures[172];
  int concurrent, ecc;
  char bus[12];
  int dma, engines, unified, bus_width, cache, cache_persisting, threads_processor;
  int priorities, cache_global, cache_local;
  size_t shared_processor;
  int registers_processor;
  char managed[32];
  int cooperative;
  size_t shared_optin;
  char pageable[8];
  int blocks_processor, window;
  size_t shared_reserved;
  char host[16];
  int pools;
  char rest[284];
} Properties;

_Static_assert(sizeof(Properties) == 1008, "size of cudaDeviceProp");
_Static_assert(offsetof(Properties, memory) == 288 && offsetof(Properties, block) == 324, "memory, block");
_Static_assert(offsetof(Properties, major) == 360 && offsetof(Properties, processors) == 384, "major, processors");
_Static_assert(offsetof(Properties, concurrent) == 560 && offsetof(Properties, engines) == 584, "concurrent, engines");
_Static_assert(offsetof(Properties, cache) == 596 && offsetof(Properties, shared_processor) == 624, "cache");
_Static_assert(offsetof(Properties, cooperative) == 668 && offsetof(Properties, shared_optin) == 672, "cooperative");
_Static_assert(offsetof(Properties, blocks_processor) == 688 && offsetof(Properties, shared_reserved) == 696, "blocks");
_Static_assert(offsetof(Properties, pools) == 720, "pools");

static int cudaGetDeviceProperties(Properties *p, int device) {
  if (device < 0 || device >= device_count()) return result(kInvalidDevice);
  *p = (Properties){
      .memory = (size_t)device_memory(), .shared = kShared, .registers = kRegisters, .warp = kWarp, .pitch = kGridMax,
      .threads = kThreadsPerBlock, .block = {kThreadsPerBlock, kThreadsPerBlock, 64}, .grid = {kGridMax, kGridYZ, kGridYZ},
      .constants = 1 << 16, .major = kMajor, .minor = kMinor, .alignment = 512, .texture_pitch = 32,
      .processors = kProcessors, .concurrent = 1, .engines = 3, .unified = 1, .bus_width = 5120, .cache = kCache,
      .threads_processor = kThreadsPerProcessor, .priorities = 1, .shared_processor = kSharedProcessor,
      .registers_processor = kRegisters, .cooperative = 1, .shared_optin = kSharedOptin,
      .blocks_processor = kBlocksPerProcessor, .shared_reserved = kSharedReserved, .pools = 1,
  };
  snprintf(p->name, sizeof p->name, "null device");
  return kSuccess;
}

// What cudaDeviceGetAttribute says, by CUDA's number; 0 for what is not listed.
static const struct {
  int attribute, value;
} kAttributes[] = {
    {1, kThreadsPerBlock}, {2, kThreadsPerBlock}, {3, kThreadsPerBlock}, {4, 64}, {5, kGridMax}, {6, kGridYZ}, {7, kGridYZ},
    {8, kShared}, {10, kWarp}, {12, kRegisters}, {16, kProcessors}, {38, kCache}, {39, kThreadsPerProcessor},
    {41, 1},  // unified addresses
    {75, kMajor}, {76, kMinor}, {81, kSharedProcessor}, {82, kRegisters},
    {95, 1},  // cooperative launches
    {97, kSharedOptin}, {106, kBlocksPerProcessor}, {111, kSharedReserved},
    {115, 1},  // memory pools
};

static int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  if (device < 0 || device >= device_count()) return result(kInvalidDevice);
  *value = 0;
  for (size_t i = 0; i < sizeof kAttributes / sizeof *kAttributes; i++)
    if (kAttributes[i].attribute == attribute) *value = kAttributes[i].value;
  return kSuccess;
}

// Memory.

static int cudaMalloc(void **p, size_t n) {
  int error = usable();
  return error ? error : result(memory_alloc(p, n, current));
}

static int cudaFree(void *p) { return result(memory_release(p)); }
static int cudaFreeAsync(void *p, Stream *s) { return (void)s, cudaFree(p); }
static int cudaMallocHost(void **p, size_t n) { return result(memory_alloc_host(p, n)); }
static int cudaHostAlloc(void **p, size_t n, unsigned flags) { return (void)flags, cudaMallocHost(p, n); }
static int cudaFreeHost(void *p) { return result(memory_release_host(p)); }

static int cudaMemGetInfo(size_t *available, size_t *total) {
  int error = usable();
  if (!error) device_free_memory(current, available, total);
  return error;
}

// A copy that is not on a stream stops the host until it is done.
static int cudaMemcpy(void *to, const void *from, size_t n, int direction) {
  count_synchronization();
  return result(memory_copy(to, from, n, direction));
}

static int cudaMemcpyAsync(void *to, const void *from, size_t n, int direction, Stream *s) {
  return (void)s, result(memory_copy(to, from, n, direction));
}

static int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                             int direction, Stream *s) {
  return (void)s, result(memory_copy_rows(to, to_pitch, from, from_pitch, width, height, direction));
}

// A variable of the device is only known by its name, and no kernel has written it.
static int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t n, size_t offset, int direction) {
  (void)symbol, (void)offset, (void)direction;
  count_synchronization();
  count_copy_to_host(n);
  memset(to, 0, n);
  return kSuccess;
}

static int cudaMemset(void *p, int byte, size_t n) { return result(memory_fill(p, byte, n)); }
static int cudaMemsetAsync(void *p, int byte, size_t n, Stream *s) { return (void)s, cudaMemset(p, byte, n); }

// PointerAttributes is cudaPointerAttributes.
typedef struct {
  int type, device;
  void *on_device, *on_host;
  long reserved[8];
} PointerAttributes;

_Static_assert(sizeof(PointerAttributes) == 88, "size of cudaPointerAttributes");

static int cudaPointerGetAttributes(PointerAttributes *a, const void *p) {
  int device, kind = memory_kind(p, &device);
  *a = (PointerAttributes){.type = kind, .device = kind == kUnregistered ? -2 : device};
  if (kind != kUnregistered) a->on_device = (void *)p;
  if (kind != kDevice) a->on_host = (void *)p;
  return kSuccess;
}

// Pools hold nothing back: memory goes where it came from.

// PoolProperties is the beginning of cudaMemPoolProps.
typedef struct {
  int allocation, handles, location, device;
} PoolProperties;

static int cudaMemPoolCreate(Pool **to, const PoolProperties *p) {
  if (p->device < 0 || p->device >= device_count()) return result(kInvalidDevice);
  int error = created((void **)to, sizeof **to);
  if (!error) (*to)->device = p->device;
  return error;
}

static int cudaMemPoolDestroy(Pool *p) { return handle_free(p), kSuccess; }
static int cudaMemPoolTrimTo(Pool *p, size_t n) { return (void)p, (void)n, kSuccess; }
static int cudaMallocFromPoolAsync(void **to, size_t n, Pool *p, Stream *s) { return (void)s, result(memory_alloc(to, n, p->device)); }

// Attributes of a pool: three switches, then numbers of bytes.
enum { kPoolSwitches = 3, kPoolThreshold, kPoolReserved, kPoolReservedHigh, kPoolUsed, kPoolUsedHigh };

static int cudaMemPoolSetAttribute(Pool *p, int attribute, const void *value) {
  if (attribute == kPoolThreshold) memcpy(&p->threshold, value, sizeof p->threshold);
  if (attribute == kPoolReservedHigh || attribute == kPoolUsedHigh) device_restart_peak();
  return kSuccess;
}

static int cudaMemPoolGetAttribute(Pool *p, int attribute, void *value) {
  if (attribute <= kPoolSwitches) {
    *(int *)value = 0;
    return kSuccess;
  }
  Counters c;
  device_counters(&c);
  uint64_t n = p->threshold;
  if (attribute == kPoolReserved || attribute == kPoolUsed) n = (uint64_t)c.live;
  if (attribute == kPoolReservedHigh || attribute == kPoolUsedHigh) n = (uint64_t)c.peak;
  *(uint64_t *)value = n;
  return kSuccess;
}

// Streams and events.

// own returns the stream, NULL for those that CUDA has by itself: 0, 1 and 2.
static Stream *own(Stream *s) { return (uintptr_t)s > 2 ? s : NULL; }

static int cudaStreamCreate(Stream **to) {
  int error = usable();
  return error ? error : created((void **)to, sizeof **to);
}

static int cudaStreamCreateWithFlags(Stream **to, unsigned flags) { return (void)flags, cudaStreamCreate(to); }
static int cudaStreamDestroy(Stream *s) { return handle_free(own(s)), kSuccess; }
static int cudaStreamWaitEvent(Stream *s, void *event, unsigned flags) { return (void)s, (void)event, (void)flags, kSuccess; }

static int cudaStreamSynchronize(Stream *s) {
  (void)s;
  count_synchronization();
  return kSuccess;
}

static int cudaEventCreate(void **to) { return created(to, 1); }
static int cudaEventCreateWithFlags(void **to, unsigned flags) { return (void)flags, cudaEventCreate(to); }
static int cudaEventDestroy(void *e) { return handle_free(e), kSuccess; }
static int cudaEventRecord(void *e, Stream *s) { return (void)e, (void)s, kSuccess; }
static int cudaEventRecordWithFlags(void *e, Stream *s, unsigned flags) { return (void)e, (void)s, (void)flags, kSuccess; }

static int cudaEventSynchronize(void *e) {
  (void)e;
  count_synchronization();
  return kSuccess;
}

static int cudaEventElapsedTime(float *ms, void *from, void *to) {
  (void)from, (void)to;
  *ms = 0;
  return kSuccess;
}

static int cudaLaunchHostFunc(Stream *s, void (*f)(void *), void *with) {
  (void)s;
  f(with);
  return kSuccess;
}

// Captured graphs.

static int cudaStreamBeginCapture(Stream *s, int mode) {
  (void)mode;
  if (!own(s) || s->capturing) return result(kInvalidValue);
  *s = (Stream){.capturing = 1};
  return kSuccess;
}

static int cudaStreamIsCapturing(Stream *s, int *status) {
  *status = own(s) && s->capturing;
  return kSuccess;
}

static int cudaStreamEndCapture(Stream *s, Graph **to) {
  if (!own(s) || !s->capturing) return result(kCaptureUnmatched);
  int error = created((void **)to, sizeof **to);
  if (!error) (*to)->launches = s->captured;
  *s = (Stream){0};
  return error;
}

static int cudaGraphInstantiate(Graph **to, Graph *g, unsigned long long flags) {
  (void)flags;
  int error = created((void **)to, sizeof **to);
  if (!error) **to = *g;
  return error;
}

static int cudaGraphLaunch(Graph *g, Stream *s) {
  (void)s;
  count_kernels(g->launches);
  return kSuccess;
}

static int cudaGraphDestroy(Graph *g) { return handle_free(g), kSuccess; }
static int cudaGraphExecDestroy(Graph *g) { return handle_free(g), kSuccess; }

// Kernels. The code that the provider registers is never looked at.

static int launch(Stream *s) {
  if (own(s) && s->capturing)
    s->captured++;
  else
    count_kernels(1);
  return kSuccess;
}

static int cudaLaunchKernel(const void *f, Dim grid, Dim block, void **args, size_t shared, Stream *s) {
  (void)f, (void)grid, (void)block, (void)args, (void)shared;
  return launch(s);
}

static int cudaLaunchCooperativeKernel(const void *f, Dim grid, Dim block, void **args, size_t shared, Stream *s) {
  return cudaLaunchKernel(f, grid, block, args, shared, s);
}

static int __cudaLaunchKernel(void *k, Dim grid, Dim block, void **args, size_t shared, Stream *s) {
  return cudaLaunchKernel(k, grid, block, args, shared, s);
}

// LaunchConfig is cudaLaunchConfig_t.
typedef struct {
  Dim grid, block;
  size_t shared;
  Stream *stream;
  void *attributes;
  unsigned count;
} LaunchConfig;

_Static_assert(sizeof(LaunchConfig) == 56, "size of cudaLaunchConfig_t");

static int cudaLaunchKernelExC(const LaunchConfig *c, const void *f, void **args) {
  (void)f, (void)args;
  return launch(c->stream);
}

// A launch in the source pushes its sizes and a stub pops them.
static __thread struct {
  Dim grid, block;
  size_t shared;
  void *stream;
} pushed;

static unsigned __cudaPushCallConfiguration(Dim grid, Dim block, size_t shared, void *stream) {
  pushed.grid = grid;
  pushed.block = block;
  pushed.shared = shared;
  pushed.stream = stream;
  return 0;
}

static int __cudaPopCallConfiguration(Dim *grid, Dim *block, size_t *shared, void **stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *stream = pushed.stream;
  return kSuccess;
}

static int __cudaGetKernel(const void **k, const void *f) {
  *k = f;
  return kSuccess;
}

static void **__cudaRegisterFatBinary(void *code) {
  static void *handle;
  (void)code;
  return &handle;
}

static void __cudaRegisterFatBinaryEnd(void **h) { (void)h; }
static void __cudaUnregisterFatBinary(void **h) { (void)h; }
static void __cudaRegisterFunction(void **h) { (void)h; }
static void __cudaRegisterVar(void **h) { (void)h; }

// FunctionAttributes is cudaFuncAttributes.
typedef struct {
  size_t shared, constants, local;
  int threads, registers, ptx, binary, cache, shared_dynamic;
  char rest[96];
} FunctionAttributes;

_Static_assert(sizeof(FunctionAttributes) == 144, "size of cudaFuncAttributes");

static int cudaFuncGetAttributes(FunctionAttributes *a, const void *f) {
  (void)f;
  int arch = 10 * kMajor + kMinor;
  *a = (FunctionAttributes){.threads = kThreadsPerBlock, .registers = 32, .ptx = arch, .binary = arch, .shared_dynamic = kSharedOptin};
  return kSuccess;
}

static int cudaFuncSetAttribute(const void *f, int attribute, int value) { return (void)f, (void)attribute, (void)value, kSuccess; }

static int cudaKernelSetAttributeForDevice(void *k, int attribute, int value, int device) {
  return (void)k, (void)attribute, (void)value, (void)device, kSuccess;
}

static int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags) {
  (void)f, (void)shared, (void)flags;
  int most = block > 0 ? kThreadsPerProcessor / block : 0;
  *n = most > kBlocksPerProcessor ? kBlocksPerProcessor : most;
  return kSuccess;
}

// Code that is loaded by the program: a library is a handle, and a kernel its library.

static int cudaLibraryLoadData(void **to) { return created(to, 1); }

static int cudaLibraryGetKernel(void **k, void *l, const char *name) {
  (void)name;
  *k = l;
  return kSuccess;
}

static int cudaLibraryUnload(void *l) { return handle_free(l), kSuccess; }

// The driver. Its functions return 0 as the runtime's do.

static int driver_nothing(void) { return kSuccess; }

static int cuGetErrorName(int error, const char **name) {
  *name = error_text(error, 1);
  return kSuccess;
}

static int cuDeviceGetAttribute(int *value, int attribute, int device) { return cudaDeviceGetAttribute(value, attribute, device); }
static int cuModuleLoadData(void **to) { return created(to, 1); }
static int cuModuleUnload(void *m) { return handle_free(m), kSuccess; }
static int cuModuleGetFunction(void **f, void *m, const char *name) { return cudaLibraryGetKernel(f, m, name); }

static int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          Stream *s) {
  (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
  return launch(s);
}

static int cuLaunchCooperativeKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                     unsigned shared, Stream *s) {
  return cuLaunchKernel(f, gx, gy, gz, bx, by, bz, shared, s);
}

const Symbol kDriverSymbols[] = {
    SYMBOL(cuDeviceGetAttribute), SYMBOL(cuGetErrorName), SYMBOL(cuLaunchCooperativeKernel), SYMBOL(cuLaunchKernel),
    SYMBOL(cuModuleGetFunction), SYMBOL(cuModuleLoadData), SYMBOL(cuModuleUnload),
    {"cuFuncSetAttribute", driver_nothing}, {"cuFuncSetCacheConfig", driver_nothing},
    {"cuTensorMapEncodeTiled", driver_nothing},
};
const size_t kDriverCount = sizeof kDriverSymbols / sizeof *kDriverSymbols;

// What the runtime hands out of the driver: 0 is found, 1 is not.
static int cudaGetDriverEntryPointByVersion(const char *name, void **f, unsigned version, unsigned long long flags, int *found) {
  (void)version, (void)flags;
  *f = NULL;
  for (size_t i = 0; i < kDriverCount; i++)
    if (strcmp(kDriverSymbols[i].name, name) == 0) *f = kDriverSymbols[i].function;
  if (found) *found = *f == NULL;
  return kSuccess;
}

const Symbol kRuntimeSymbols[] = {
    SYMBOL(__cudaGetKernel), SYMBOL(__cudaLaunchKernel), SYMBOL(__cudaPopCallConfiguration),
    SYMBOL(__cudaPushCallConfiguration), SYMBOL(__cudaRegisterFatBinary), SYMBOL(__cudaRegisterFatBinaryEnd),
    SYMBOL(__cudaRegisterFunction), SYMBOL(__cudaRegisterVar), SYMBOL(__cudaUnregisterFatBinary),
    SYMBOL(cudaDeviceGetAttribute), SYMBOL(cudaDeviceSynchronize), SYMBOL(cudaDriverGetVersion), SYMBOL(cudaEventCreate),
    SYMBOL(cudaEventCreateWithFlags), SYMBOL(cudaEventDestroy), SYMBOL(cudaEventElapsedTime), SYMBOL(cudaEventRecord),
    SYMBOL(cudaEventRecordWithFlags), SYMBOL(cudaEventSynchronize), SYMBOL(cudaFree), SYMBOL(cudaFreeAsync),
    SYMBOL(cudaFreeHost), SYMBOL(cudaFuncGetAttributes), SYMBOL(cudaFuncSetAttribute), SYMBOL(cudaGetDevice),
    SYMBOL(cudaGetDeviceCount), SYMBOL(cudaGetDeviceProperties), SYMBOL(cudaGetDriverEntryPointByVersion),
    SYMBOL(cudaGetErrorName), SYMBOL(cudaGetErrorString), SYMBOL(cudaGetLastError), SYMBOL(cudaGraphDestroy),
    SYMBOL(cudaGraphExecDestroy), SYMBOL(cudaGraphInstantiate), SYMBOL(cudaGraphLaunch), SYMBOL(cudaHostAlloc),
    SYMBOL(cudaKernelSetAttributeForDevice), SYMBOL(cudaLaunchCooperativeKernel), SYMBOL(cudaLaunchHostFunc),
    SYMBOL(cudaLaunchKernel), SYMBOL(cudaLaunchKernelExC), SYMBOL(cudaLibraryGetKernel), SYMBOL(cudaLibraryLoadData),
    SYMBOL(cudaLibraryUnload), SYMBOL(cudaMalloc), SYMBOL(cudaMallocFromPoolAsync), SYMBOL(cudaMallocHost),
    SYMBOL(cudaMemGetInfo), SYMBOL(cudaMemPoolCreate), SYMBOL(cudaMemPoolDestroy), SYMBOL(cudaMemPoolGetAttribute),
    SYMBOL(cudaMemPoolSetAttribute), SYMBOL(cudaMemPoolTrimTo), SYMBOL(cudaMemcpy), SYMBOL(cudaMemcpy2DAsync),
    SYMBOL(cudaMemcpyAsync), SYMBOL(cudaMemcpyFromSymbol), SYMBOL(cudaMemset), SYMBOL(cudaMemsetAsync),
    SYMBOL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags), SYMBOL(cudaPeekAtLastError),
    SYMBOL(cudaPointerGetAttributes), SYMBOL(cudaRuntimeGetVersion), SYMBOL(cudaSetDevice), SYMBOL(cudaStreamBeginCapture),
    SYMBOL(cudaStreamCreate), SYMBOL(cudaStreamCreateWithFlags), SYMBOL(cudaStreamDestroy), SYMBOL(cudaStreamEndCapture),
    SYMBOL(cudaStreamIsCapturing), SYMBOL(cudaStreamSynchronize), SYMBOL(cudaStreamWaitEvent),
};
const size_t kRuntimeCount = sizeof kRuntimeSymbols / sizeof *kRuntimeSymbols;
