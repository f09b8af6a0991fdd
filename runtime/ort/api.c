#include "counting.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

// OrtApiBase, the one struct whose layout is part of the library's contract.
typedef struct {
  void **(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} ApiBase;

enum {
#define X(name, index) k##name = index,
  REMAT_API(X)
#undef X
};

static const struct {
  const char *name;
  size_t index;
} entries[] = {
#define X(name, index) {#name, index},
    REMAT_API(X)
#undef X
};

// The table of the environment of this process.
static void **table;

#define STATUS(name, types) ((OrtStatus * (*) types) table[k##name])
#define VOID(name, types) ((void(*) types) table[k##name])

int remat_api_entry(size_t i, const char **name, size_t *index) {
  if (i >= sizeof entries / sizeof entries[0]) return 0;
  *name = entries[i].name;
  *index = entries[i].index;
  return 1;
}

static ApiBase *base_of(void *handle) {
  ApiBase *(*get)(void) = (ApiBase * (*)(void)) dlsym(handle, "OrtGetApiBase");
  return get ? get() : NULL;
}

// remat_probe reads a library's version string without starting anything.
// It returns NULL or the reason why not; *version is the caller's to free.
const char *remat_probe(const char *path, char **version) {
  void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (!handle) return dlerror();
  ApiBase *base = base_of(handle);
  if (!base) {
    dlclose(handle);
    return "it does not export OrtGetApiBase";
  }
  *version = strdup(base->GetVersionString());
  dlclose(handle);
  return NULL;
}

// remat_preload makes a library's name known to those that are loaded later.
void remat_preload(const char *path) { (void)dlopen(path, RTLD_LAZY | RTLD_GLOBAL); }

static int (*last_cuda_error)(void);

// remat_find_cuda finds CUDA's runtime, which the CUDA provider has loaded.
void remat_find_cuda(void) {
  static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};
  for (size_t i = 0; !last_cuda_error && i < sizeof names / sizeof *names; i++) {
    void *handle = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD);
    if (handle) last_cuda_error = (int (*)(void))dlsym(handle, "cudaGetLastError");
  }
}

// remat_forget_error takes the error that an earlier call of CUDA left to this thread, such
// as an allocation that did not fit: ONNX Runtime would report it as that of the next
// kernel.
void remat_forget_error(void) {
  if (last_cuda_error) (void)last_cuda_error();
}

// remat_bind takes the table from the library that is already loaded. Its
// handle is kept for the life of the process: worker threads of ONNX Runtime
// may outlive the environment.
const char *remat_bind(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (!handle) return "it is not loaded";
  ApiBase *base = base_of(handle);
  if (!base) return "it does not export OrtGetApiBase";
  table = base->GetApi(REMAT_API_VERSION);
  // std::__throw_bad_alloc of the C++ library that ONNX Runtime itself uses.
  counter_throws((void (*)(void))dlsym(handle, "_ZSt17__throw_bad_allocv"));
  return table ? NULL : "it does not offer API version 24";
}

int ortErrorCode(OrtStatus *s) { return ((int (*)(const OrtStatus *))table[kGetErrorCode])(s); }
const char *ortErrorMessage(OrtStatus *s) {
  return ((const char *(*)(const OrtStatus *))table[kGetErrorMessage])(s);
}
void ortReleaseStatus(OrtStatus *s) { VOID(ReleaseStatus, (OrtStatus *))(s); }

// The environment is one per process inside ONNX Runtime, with a count of its
// users, so this is the one that yalue created.
OrtStatus *ortCreateEnv(OrtEnv **out) {
  return STATUS(CreateEnv, (int, const char *, OrtEnv **))(4, "remat", out);
}
void ortReleaseEnv(OrtEnv *e) { VOID(ReleaseEnv, (OrtEnv *))(e); }
OrtStatus *ortAvailableProviders(char ***out, int *n) {
  return STATUS(GetAvailableProviders, (char ***, int *))(out, n);
}
void ortReleaseProviders(char **p, int n) {
  OrtStatus *s = STATUS(ReleaseAvailableProviders, (char **, int))(p, n);
  if (s) ortReleaseStatus(s);
}

OrtStatus *ortCreateSession(OrtEnv *e, const char *path, OrtSessionOptions *o, OrtSession **out) {
  remat_forget_error();
  return STATUS(CreateSession, (OrtEnv *, const char *, OrtSessionOptions *, OrtSession **))(e, path, o, out);
}
OrtStatus *ortCreateSessionFromArray(OrtEnv *e, const void *p, size_t n, OrtSessionOptions *o, OrtSession **out) {
  remat_forget_error();
  return STATUS(CreateSessionFromArray, (OrtEnv *, const void *, size_t, OrtSessionOptions *, OrtSession **))(
      e, p, n, o, out);
}
void ortReleaseSession(OrtSession *s) { VOID(ReleaseSession, (OrtSession *))(s); }

OrtStatus *ortCount(OrtSession *s, int output, size_t *out) {
  if (output) return STATUS(SessionGetOutputCount, (OrtSession *, size_t *))(s, out);
  return STATUS(SessionGetInputCount, (OrtSession *, size_t *))(s, out);
}

static OrtStatus *default_allocator(OrtAllocator **a) {
  return STATUS(GetAllocatorWithDefaultOptions, (OrtAllocator **))(a);
}
static void default_free(void *p) {
  OrtAllocator *a;
  OrtStatus *s = default_allocator(&a);
  if (!s) s = STATUS(AllocatorFree, (OrtAllocator *, void *))(a, p);
  if (s) ortReleaseStatus(s);
}
void ortFreeString(char *p) { default_free(p); }
void ortFreeValues(OrtValue **v) { default_free(v); }

OrtStatus *ortName(OrtSession *s, int output, size_t i, char **out) {
  OrtAllocator *a;
  OrtStatus *st = default_allocator(&a);
  if (st) return st;
  if (output) return STATUS(SessionGetOutputName, (OrtSession *, size_t, OrtAllocator *, char **))(s, i, a, out);
  return STATUS(SessionGetInputName, (OrtSession *, size_t, OrtAllocator *, char **))(s, i, a, out);
}
OrtStatus *ortTypeInfo(OrtSession *s, int output, size_t i, OrtTypeInfo **out) {
  if (output) return STATUS(SessionGetOutputTypeInfo, (OrtSession *, size_t, OrtTypeInfo **))(s, i, out);
  return STATUS(SessionGetInputTypeInfo, (OrtSession *, size_t, OrtTypeInfo **))(s, i, out);
}
// ortInputDevices says for each of the n inputs on what kind of device the session reads it;
// infos has room for as many.
OrtStatus *ortInputDevices(OrtSession *s, const OrtMemoryInfo **infos, int *types, size_t n) {
  OrtStatus *status = STATUS(SessionGetMemoryInfoForInputs, (OrtSession *, const OrtMemoryInfo **, size_t))(s, infos, n);
  for (size_t i = 0; !status && i < n; i++)
    if (infos[i]) VOID(MemoryInfoGetDeviceType, (const OrtMemoryInfo *, int *))(infos[i], &types[i]);
  return status;
}
OrtStatus *ortEndProfiling(OrtSession *s, char **out) {
  OrtAllocator *a;
  OrtStatus *st = default_allocator(&a);
  if (st) return st;
  return STATUS(SessionEndProfiling, (OrtSession *, OrtAllocator *, char **))(s, a, out);
}
OrtStatus *ortFreeDimension(OrtSessionOptions *o, const char *name, int64_t v) {
  return STATUS(AddFreeDimensionOverrideByName, (OrtSessionOptions *, const char *, int64_t))(o, name, v);
}

OrtStatus *ortTypeKind(OrtTypeInfo *t, int *out) {
  return STATUS(GetOnnxTypeFromTypeInfo, (OrtTypeInfo *, int *))(t, out);
}
OrtStatus *ortTypeShape(OrtTypeInfo *t, OrtShapeInfo **out) {
  return STATUS(CastTypeInfoToTensorInfo, (OrtTypeInfo *, OrtShapeInfo **))(t, out);
}
void ortReleaseTypeInfo(OrtTypeInfo *t) { VOID(ReleaseTypeInfo, (OrtTypeInfo *))(t); }
OrtStatus *ortShapeType(OrtShapeInfo *t, int *out) {
  return STATUS(GetTensorElementType, (OrtShapeInfo *, int *))(t, out);
}
OrtStatus *ortShapeRank(OrtShapeInfo *t, size_t *out) {
  return STATUS(GetDimensionsCount, (OrtShapeInfo *, size_t *))(t, out);
}
OrtStatus *ortShapeDims(OrtShapeInfo *t, int64_t *dims, size_t n) {
  return STATUS(GetDimensions, (OrtShapeInfo *, int64_t *, size_t))(t, dims, n);
}
OrtStatus *ortShapeSymbols(OrtShapeInfo *t, const char **dims, size_t n) {
  return STATUS(GetSymbolicDimensions, (OrtShapeInfo *, const char **, size_t))(t, dims, n);
}
void ortReleaseShapeInfo(OrtShapeInfo *t) { VOID(ReleaseTensorTypeAndShapeInfo, (OrtShapeInfo *))(t); }

OrtStatus *ortCreateRunOptions(OrtRunOptions **out) {
  OrtStatus *s = STATUS(CreateRunOptions, (OrtRunOptions **))(out);
  if (s) return s;
  return STATUS(RunOptionsSetRunLogSeverityLevel, (OrtRunOptions *, int))(*out, 4);
}
OrtStatus *ortRunTag(OrtRunOptions *o, const char *tag) {
  return STATUS(RunOptionsSetRunTag, (OrtRunOptions *, const char *))(o, tag);
}
OrtStatus *ortTerminate(OrtRunOptions *o, int on) {
  if (on) return STATUS(RunOptionsSetTerminate, (OrtRunOptions *))(o);
  return STATUS(RunOptionsUnsetTerminate, (OrtRunOptions *))(o);
}
void ortReleaseRunOptions(OrtRunOptions *o) { VOID(ReleaseRunOptions, (OrtRunOptions *))(o); }
OrtStatus *ortRunWithBinding(OrtSession *s, OrtRunOptions *o, OrtIoBinding *b) {
  remat_forget_error();
  return STATUS(RunWithBinding, (OrtSession *, OrtRunOptions *, OrtIoBinding *))(s, o, b);
}

OrtStatus *ortTensorOver(OrtMemoryInfo *mi, void *p, size_t n, const int64_t *dims, size_t rank, int type,
                         OrtValue **out) {
  return STATUS(CreateTensorWithDataAsOrtValue,
                (OrtMemoryInfo *, void *, size_t, const int64_t *, size_t, int, OrtValue **))(mi, p, n, dims, rank,
                                                                                              type, out);
}
// ortBytesOver makes a vector of bytes over the memory of a tensor of n bytes, wherever that
// lies.
OrtStatus *ortBytesOver(OrtValue *v, size_t n, int byte_type, OrtValue **out) {
  const OrtMemoryInfo *m;
  void *p;
  const int64_t dims[] = {(int64_t)n};
  OrtStatus *s = STATUS(GetTensorMemoryInfo, (OrtValue *, const OrtMemoryInfo **))(v, &m);
  if (!s) s = ortTensorData(v, &p);
  return s ? s : ortTensorOver((OrtMemoryInfo *)m, p, n, dims, 1, byte_type, out);
}
OrtStatus *ortTensorFrom(OrtAllocator *a, const int64_t *dims, size_t rank, int type, OrtValue **out) {
  remat_forget_error();
  return STATUS(CreateTensorAsOrtValue, (OrtAllocator *, const int64_t *, size_t, int, OrtValue **))(a, dims, rank,
                                                                                                    type, out);
}
OrtStatus *ortTensorData(OrtValue *v, void **out) {
  return STATUS(GetTensorMutableData, (OrtValue *, void **))(v, out);
}
OrtStatus *ortTensorShape(OrtValue *v, OrtShapeInfo **out) {
  return STATUS(GetTensorTypeAndShape, (OrtValue *, OrtShapeInfo **))(v, out);
}
OrtStatus *ortTensorDevice(OrtValue *v, int *type) {
  const OrtMemoryInfo *m;
  OrtStatus *s = STATUS(GetTensorMemoryInfo, (OrtValue *, const OrtMemoryInfo **))(v, &m);
  if (!s) VOID(MemoryInfoGetDeviceType, (const OrtMemoryInfo *, int *))(m, type);
  return s;
}
OrtStatus *ortValueKind(OrtValue *v, int *out) { return STATUS(GetValueType, (OrtValue *, int *))(v, out); }
OrtStatus *ortHasValue(OrtValue *v, int *out) { return STATUS(HasValue, (OrtValue *, int *))(v, out); }
void ortReleaseValue(OrtValue *v) { VOID(ReleaseValue, (OrtValue *))(v); }

OrtStatus *ortMemoryInfo(const char *name, int type, int device, OrtMemoryInfo **out) {
  return STATUS(CreateMemoryInfo, (const char *, int, int, int, OrtMemoryInfo **))(name, type, device, 0, out);
}
void ortReleaseMemoryInfo(OrtMemoryInfo *m) { VOID(ReleaseMemoryInfo, (OrtMemoryInfo *))(m); }
OrtStatus *ortCreateAllocator(OrtSession *s, OrtMemoryInfo *m, OrtAllocator **out) {
  return STATUS(CreateAllocator, (OrtSession *, OrtMemoryInfo *, OrtAllocator **))(s, m, out);
}
void ortReleaseAllocator(OrtAllocator *a) { VOID(ReleaseAllocator, (OrtAllocator *))(a); }
OrtStatus *ortStats(OrtAllocator *a, OrtStatistics **out) {
  return STATUS(AllocatorGetStats, (OrtAllocator *, OrtStatistics **))(a, out);
}
void ortStatPairs(OrtStatistics *s, const char *const **keys, const char *const **values, size_t *n) {
  VOID(GetKeyValuePairs, (OrtStatistics *, const char *const **, const char *const **, size_t *))(s, keys, values, n);
}
void ortReleaseStats(OrtStatistics *s) { VOID(ReleaseKeyValuePairs, (OrtStatistics *))(s); }
OrtStatus *ortRegister(OrtEnv *e, OrtAllocator *a) {
  return STATUS(RegisterAllocator, (OrtEnv *, OrtAllocator *))(e, a);
}

// An arena of a provider's memory, set up by names and values.
OrtStatus *ortRegisterArena(OrtEnv *e, const char *provider, OrtMemoryInfo *m, char **keys, const size_t *values,
                            size_t n) {
  OrtArenaCfg *cfg;
  OrtStatus *s = STATUS(CreateArenaCfgV2, (char **, const size_t *, size_t, OrtArenaCfg **))(keys, values, n, &cfg);
  if (s) return s;
  s = STATUS(CreateAndRegisterAllocatorV2, (OrtEnv *, const char *, OrtMemoryInfo *, OrtArenaCfg *, const char *const *,
                                            const char *const *, size_t))(e, provider, m, cfg, NULL, NULL, 0);
  VOID(ReleaseArenaCfg, (OrtArenaCfg *))(cfg);
  return s;
}
OrtStatus *ortUnregister(OrtEnv *e, OrtMemoryInfo *m) {
  return STATUS(UnregisterAllocator, (OrtEnv *, OrtMemoryInfo *))(e, m);
}

OrtStatus *ortCreateBinding(OrtSession *s, OrtIoBinding **out) {
  return STATUS(CreateIoBinding, (OrtSession *, OrtIoBinding **))(s, out);
}
OrtStatus *ortBind(OrtIoBinding *b, int output, const char *name, OrtValue *v) {
  remat_forget_error();
  if (output) return STATUS(BindOutput, (OrtIoBinding *, const char *, OrtValue *))(b, name, v);
  return STATUS(BindInput, (OrtIoBinding *, const char *, OrtValue *))(b, name, v);
}
OrtStatus *ortBindDevice(OrtIoBinding *b, const char *name, OrtMemoryInfo *m) {
  return STATUS(BindOutputToDevice, (OrtIoBinding *, const char *, OrtMemoryInfo *))(b, name, m);
}
OrtStatus *ortBoundOutputs(OrtIoBinding *b, OrtValue ***out, size_t *n) {
  OrtAllocator *a;
  OrtStatus *s = default_allocator(&a);
  if (s) return s;
  return STATUS(GetBoundOutputValues, (OrtIoBinding *, OrtAllocator *, OrtValue ***, size_t *))(b, a, out, n);
}
void ortClear(OrtIoBinding *b, int output) {
  if (output)
    VOID(ClearBoundOutputs, (OrtIoBinding *))(b);
  else
    VOID(ClearBoundInputs, (OrtIoBinding *))(b);
}
OrtStatus *ortSynchronize(OrtIoBinding *b, int output) {
  if (output) return STATUS(SynchronizeBoundOutputs, (OrtIoBinding *))(b);
  return STATUS(SynchronizeBoundInputs, (OrtIoBinding *))(b);
}
void ortReleaseBinding(OrtIoBinding *b) { VOID(ReleaseIoBinding, (OrtIoBinding *))(b); }
