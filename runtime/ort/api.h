// Calls into ONNX Runtime's OrtApi table by index. See doc.go.
#ifndef REMAT_ORT_API_H
#define REMAT_ORT_API_H

#include <stddef.h>
#include <stdint.h>

// Opaque objects of ONNX Runtime.
typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtValue OrtValue;
typedef struct OrtIoBinding OrtIoBinding;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtShapeInfo OrtShapeInfo;  // OrtTensorTypeAndShapeInfo
typedef struct OrtArenaCfg OrtArenaCfg;
typedef struct OrtStatistics OrtStatistics;  // OrtKeyValuePairs

// Every function used, with its place in the table of API version 24.
#define REMAT_API(X)                    \
  X(GetErrorCode, 1)                    \
  X(GetErrorMessage, 2)                 \
  X(CreateEnv, 3)                       \
  X(CreateSession, 7)                   \
  X(CreateSessionFromArray, 8)          \
  X(SessionGetInputCount, 30)           \
  X(SessionGetOutputCount, 31)          \
  X(SessionGetInputTypeInfo, 33)        \
  X(SessionGetOutputTypeInfo, 34)       \
  X(SessionGetInputName, 36)            \
  X(SessionGetOutputName, 37)           \
  X(CreateRunOptions, 39)               \
  X(RunOptionsSetRunLogSeverityLevel, 41) \
  X(RunOptionsSetRunTag, 42)            \
  X(RunOptionsSetTerminate, 46)         \
  X(RunOptionsUnsetTerminate, 47)       \
  X(CreateTensorAsOrtValue, 48)         \
  X(CreateTensorWithDataAsOrtValue, 49) \
  X(GetTensorMutableData, 51)           \
  X(CastTypeInfoToTensorInfo, 55)       \
  X(GetOnnxTypeFromTypeInfo, 56)        \
  X(GetTensorElementType, 60)           \
  X(GetDimensionsCount, 61)             \
  X(GetDimensions, 62)                  \
  X(GetSymbolicDimensions, 63)          \
  X(GetTensorTypeAndShape, 65)          \
  X(GetValueType, 67)                   \
  X(CreateMemoryInfo, 68)               \
  X(AllocatorFree, 76)                  \
  X(GetAllocatorWithDefaultOptions, 78) \
  X(ReleaseEnv, 92)                     \
  X(ReleaseStatus, 93)                  \
  X(ReleaseMemoryInfo, 94)              \
  X(ReleaseSession, 95)                 \
  X(ReleaseValue, 96)                   \
  X(ReleaseRunOptions, 97)              \
  X(ReleaseTypeInfo, 98)                \
  X(ReleaseTensorTypeAndShapeInfo, 99)  \
  X(SessionEndProfiling, 110)           \
  X(AddFreeDimensionOverrideByName, 124) \
  X(GetAvailableProviders, 125)         \
  X(ReleaseAvailableProviders, 126)     \
  X(CreateAllocator, 131)               \
  X(ReleaseAllocator, 132)              \
  X(RunWithBinding, 133)                \
  X(CreateIoBinding, 134)               \
  X(ReleaseIoBinding, 135)              \
  X(BindInput, 136)                     \
  X(BindOutput, 137)                    \
  X(BindOutputToDevice, 138)            \
  X(GetBoundOutputValues, 140)          \
  X(ClearBoundInputs, 141)              \
  X(ClearBoundOutputs, 142)             \
  X(ReleaseArenaCfg, 157)               \
  X(CreateArenaCfgV2, 164)              \
  X(RegisterAllocator, 176)             \
  X(UnregisterAllocator, 177)           \
  X(HasValue, 192)                      \
  X(GetTensorMemoryInfo, 194)           \
  X(SynchronizeBoundInputs, 202)        \
  X(SynchronizeBoundOutputs, 203)       \
  X(MemoryInfoGetDeviceType, 225)       \
  X(CreateAndRegisterAllocatorV2, 259) \
  X(GetKeyValuePairs, 298)              \
  X(ReleaseKeyValuePairs, 300)          \
  X(AllocatorGetStats, 319)            \
  X(SessionGetMemoryInfoForInputs, 380)

enum { REMAT_API_VERSION = 24 };

// The table, and the list above for the test that checks it.
const char *remat_probe(const char *path, char **version);
const char *remat_bind(const char *path);
void remat_preload(const char *path);
void remat_find_cuda(void);
void remat_forget_error(void);
int remat_api_entry(size_t i, const char **name, size_t *index);

// One wrapper per call; the names follow ONNX Runtime's.
int ortErrorCode(OrtStatus *s);
const char *ortErrorMessage(OrtStatus *s);
void ortReleaseStatus(OrtStatus *s);

OrtStatus *ortCreateEnv(OrtEnv **out);
void ortReleaseEnv(OrtEnv *e);
OrtStatus *ortAvailableProviders(char ***out, int *n);
void ortReleaseProviders(char **p, int n);

OrtStatus *ortCreateSession(OrtEnv *e, const char *path, OrtSessionOptions *o, OrtSession **out);
OrtStatus *ortCreateSessionFromArray(OrtEnv *e, const void *p, size_t n, OrtSessionOptions *o, OrtSession **out);
void ortReleaseSession(OrtSession *s);
OrtStatus *ortCount(OrtSession *s, int output, size_t *out);
OrtStatus *ortName(OrtSession *s, int output, size_t i, char **out);
OrtStatus *ortTypeInfo(OrtSession *s, int output, size_t i, OrtTypeInfo **out);
OrtStatus *ortInputDevices(OrtSession *s, const OrtMemoryInfo **infos, int *types, size_t n);
OrtStatus *ortEndProfiling(OrtSession *s, char **out);
OrtStatus *ortFreeDimension(OrtSessionOptions *o, const char *name, int64_t v);
void ortFreeString(char *p);

OrtStatus *ortTypeKind(OrtTypeInfo *t, int *out);
OrtStatus *ortTypeShape(OrtTypeInfo *t, OrtShapeInfo **out);
void ortReleaseTypeInfo(OrtTypeInfo *t);
OrtStatus *ortShapeType(OrtShapeInfo *t, int *out);
OrtStatus *ortShapeRank(OrtShapeInfo *t, size_t *out);
OrtStatus *ortShapeDims(OrtShapeInfo *t, int64_t *dims, size_t n);
OrtStatus *ortShapeSymbols(OrtShapeInfo *t, const char **dims, size_t n);
void ortReleaseShapeInfo(OrtShapeInfo *t);

OrtStatus *ortCreateRunOptions(OrtRunOptions **out);
OrtStatus *ortRunTag(OrtRunOptions *o, const char *tag);
OrtStatus *ortTerminate(OrtRunOptions *o, int on);
void ortReleaseRunOptions(OrtRunOptions *o);
OrtStatus *ortRunWithBinding(OrtSession *s, OrtRunOptions *o, OrtIoBinding *b);

OrtStatus *ortBytesOver(OrtValue *v, size_t n, int byte_type, OrtValue **out);
OrtStatus *ortTensorOver(OrtMemoryInfo *mi, void *p, size_t n, const int64_t *dims, size_t rank, int type, OrtValue **out);
OrtStatus *ortTensorFrom(OrtAllocator *a, const int64_t *dims, size_t rank, int type, OrtValue **out);
OrtStatus *ortTensorData(OrtValue *v, void **out);
OrtStatus *ortTensorShape(OrtValue *v, OrtShapeInfo **out);
OrtStatus *ortTensorDevice(OrtValue *v, int *type);
OrtStatus *ortValueKind(OrtValue *v, int *out);
OrtStatus *ortHasValue(OrtValue *v, int *out);
void ortReleaseValue(OrtValue *v);

OrtStatus *ortMemoryInfo(const char *name, int type, int device, OrtMemoryInfo **out);
void ortReleaseMemoryInfo(OrtMemoryInfo *m);
OrtStatus *ortCreateAllocator(OrtSession *s, OrtMemoryInfo *m, OrtAllocator **out);
void ortReleaseAllocator(OrtAllocator *a);
OrtStatus *ortStats(OrtAllocator *a, OrtStatistics **out);
void ortStatPairs(OrtStatistics *s, const char *const **keys, const char *const **values, size_t *n);
void ortReleaseStats(OrtStatistics *s);
OrtStatus *ortRegister(OrtEnv *e, OrtAllocator *a);
OrtStatus *ortRegisterArena(OrtEnv *e, const char *provider, OrtMemoryInfo *m, char **keys, const size_t *values,
                            size_t n);
OrtStatus *ortUnregister(OrtEnv *e, OrtMemoryInfo *m);

OrtStatus *ortCreateBinding(OrtSession *s, OrtIoBinding **out);
OrtStatus *ortBind(OrtIoBinding *b, int output, const char *name, OrtValue *v);
OrtStatus *ortBindDevice(OrtIoBinding *b, const char *name, OrtMemoryInfo *m);
OrtStatus *ortBoundOutputs(OrtIoBinding *b, OrtValue ***out, size_t *n);
void ortFreeValues(OrtValue **v);
void ortClear(OrtIoBinding *b, int output);
OrtStatus *ortSynchronize(OrtIoBinding *b, int output);
void ortReleaseBinding(OrtIoBinding *b);

void ortLineOnFault(const char *line, size_t bytes, int code);

#endif
