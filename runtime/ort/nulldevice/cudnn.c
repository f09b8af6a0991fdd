//go:build linux && amd64

// cuDNN: workspaces have size 0, but those of reductions, and descriptors give back what was set.
//
// A graph of operations (the backend interface) is built and run as a real one:
// its heuristics know one engine without knobs, notes or workspace. The sizes
// that real engines need only the real library knows.
#include "device.h"

#include <stdlib.h>
#include <string.h>

enum { kDnnVersion = 91000, kDnnBadParameter = 2000, kDnnAllocFailed = 1003, kMaxDims = 8 };

static int nothing(void) { return kSuccess; }

static int compute(void) {
  count_library_call();
  return kSuccess;
}

typedef struct {
  void *stream;
} Dnn;

static int create(void **to, size_t n) {
  *to = handle_new(n);
  return *to ? kSuccess : kDnnAllocFailed;
}

static int descriptor(void **to) { return create(to, 1); }
static int destroy(void *h) { return handle_free(h), kSuccess; }

static int cudnnCreate(Dnn **to) { return create((void **)to, sizeof **to); }

static int cudnnSetStream(Dnn *h, void *stream) {
  h->stream = stream;
  return kSuccess;
}

static int cudnnGetStream(Dnn *h, void **stream) {
  *stream = h->stream;
  return kSuccess;
}

static size_t cudnnGetVersion(void) { return kDnnVersion; }
static const char *cudnnGetErrorString(int status) { return status ? "CUDNN_STATUS_INTERNAL_ERROR" : "CUDNN_STATUS_SUCCESS"; }

static void cudnnGetLastErrorString(char *text, size_t n) {
  if (n) text[0] = 0;
}

// Tensors.

typedef struct {
  int type, rank, dims[kMaxDims], strides[kMaxDims];
} Tensor;

static int cudnnCreateTensorDescriptor(Tensor **to) { return create((void **)to, sizeof **to); }

static int cudnnSetTensorNdDescriptor(Tensor *t, int type, int rank, const int *dims, const int *strides) {
  if (rank < 0 || rank > kMaxDims) return kDnnBadParameter;
  t->type = type;
  t->rank = rank;
  memcpy(t->dims, dims, (size_t)rank * sizeof *dims);
  memcpy(t->strides, strides, (size_t)rank * sizeof *strides);
  return kSuccess;
}

static int cudnnGetTensorNdDescriptor(const Tensor *t, int asked, int *type, int *rank, int *dims, int *strides) {
  size_t n = (size_t)(asked < t->rank ? asked : t->rank);
  *type = t->type;
  *rank = t->rank;
  memcpy(dims, t->dims, n * sizeof *dims);
  memcpy(strides, t->strides, n * sizeof *strides);
  return kSuccess;
}

// Sizes.

static int no_bytes(size_t *to) {
  *to = 0;
  return kSuccess;
}

// What a recurrence's dropout keeps: as read on an H200, for each of its multiprocessors.
enum { kDropoutBytes = 48 << 10 };

static int cudnnDropoutGetStatesSize(Dnn *h, size_t *to) {
  (void)h;
  *to = kProcessors * kDropoutBytes;
  return kSuccess;
}

// Reductions: sizes as read on an H200 with cuDNN 9. The workspace is one element for each
// of the input, in the type of the computation, with its place where those are asked for,
// and one place in all where one element is left; places have 4 bytes each.
typedef struct {
  int type, places;
} Reduction;

enum { kTypeOfDouble = 1, kPlaceBytes = 4 };

static int cudnnCreateReduceTensorDescriptor(Reduction **to) { return create((void **)to, sizeof **to); }

static int cudnnSetReduceTensorDescriptor(Reduction *r, int how, int type, int nan, int places, int place_type) {
  (void)how, (void)nan, (void)place_type;
  *r = (Reduction){type, places};
  return kSuccess;
}

static size_t elements(const Tensor *t) {
  size_t n = 1;
  for (int i = 0; i < t->rank; i++) n *= (size_t)t->dims[i];
  return n;
}

static int cudnnGetReductionIndicesSize(Dnn *h, const Reduction *r, const Tensor *a, const Tensor *c, size_t *to) {
  (void)h, (void)a;
  *to = r->places ? elements(c) * kPlaceBytes : 0;
  return kSuccess;
}

static int cudnnGetReductionWorkspaceSize(Dnn *h, const Reduction *r, const Tensor *a, const Tensor *c, size_t *to) {
  (void)h;
  size_t places = !r->places ? 0 : elements(c) == 1 ? 1 : elements(a);
  *to = elements(a) * (r->type == kTypeOfDouble ? sizeof(double) : sizeof(float)) + places * kPlaceBytes;
  return kSuccess;
}

static int cudnnGetConvolutionForwardWorkspaceSize(Dnn *h, void *x, void *w, void *how, void *y, int algorithm, size_t *to) {
  return (void)h, (void)x, (void)w, (void)how, (void)y, (void)algorithm, no_bytes(to);
}

static int cudnnGetRNNTempSpaceSizes(Dnn *h, void *rnn, int mode, void *x, size_t *workspace, size_t *reserve) {
  return (void)h, (void)rnn, (void)mode, (void)x, no_bytes(workspace), no_bytes(reserve);
}

// Recurrent layers.

typedef struct {
  int cell, directions, input, hidden;
} Recurrent;

static int cudnnCreateRNNDescriptor(Recurrent **to) { return create((void **)to, sizeof **to); }

static int cudnnSetRNNDescriptor_v8(Recurrent *r, int algorithm, int cell, int bias, int direction, int input_mode, int type, int precision,
                                    int math, int input, int hidden) {
  (void)algorithm, (void)bias, (void)input_mode, (void)type, (void)precision, (void)math;
  *r = (Recurrent){cell, direction ? 2 : 1, input, hidden};
  return kSuccess;
}

// gates is how many matrices read the input of a cell, and as many its state: RNN with ReLU
// or tanh, LSTM, GRU.
static int gates(int cell) { return cell == 2 ? 4 : cell == 3 ? 3 : 1; }

// matrix describes rows times columns; cuDNN's descriptors of parameters have three dimensions.
static void matrix(Tensor *t, int rows, int columns) {
  *t = (Tensor){.rank = 3, .dims = {1, rows, columns}, .strides = {rows * columns, columns, 1}};
}

// Sizes are those of the layer, for what is copied; all parameters lie at the beginning.
static int cudnnGetRNNWeightParams(Dnn *h, const Recurrent *r, int layer, size_t n, const void *weights, int which, Tensor *m, void **m_at,
                                   Tensor *b, void **b_at) {
  (void)h, (void)n;
  int first = layer < r->directions ? r->input : r->hidden * r->directions;
  matrix(m, r->hidden, which < gates(r->cell) ? first : r->hidden);
  matrix(b, r->hidden, 1);
  *m_at = *b_at = (void *)weights;
  return kSuccess;
}

// Performance is cudnnConvolutionFwdAlgoPerf_t.
typedef struct {
  int algorithm, status;
  float time;
  size_t workspace;
  int determinism, math, reserved[3];
} Performance;

_Static_assert(sizeof(Performance) == 48, "size of cudnnConvolutionFwdAlgoPerf_t");

static int one_algorithm(int asked, int *found, Performance *to) {
  *found = asked > 0;
  if (asked > 0) *to = (Performance){0};
  return kSuccess;
}

static int cudnnFindConvolutionForwardAlgorithmEx(Dnn *h, void *xd, void *x, void *wd, void *w, void *how, void *yd, void *y, int asked,
                                                  int *found, Performance *to) {
  (void)h, (void)xd, (void)x, (void)wd, (void)w, (void)how, (void)yd, (void)y;
  return one_algorithm(asked, found, to);
}

static int cudnnGetConvolutionForwardAlgorithm_v7(Dnn *h, void *x, void *w, void *how, void *y, int asked, int *found, Performance *to) {
  return (void)h, (void)x, (void)w, (void)how, (void)y, one_algorithm(asked, found, to);
}

// Graphs. A descriptor of the backend is a list of attributes.

typedef struct Attribute {
  struct Attribute *next;
  int name, type;
  int64_t count;
  char bytes[];
} Attribute;

typedef struct {
  Attribute *first;
} Backend;

// What the types of attributes take, by cuDNN's number; every other is an enumeration.
enum { kTypeHandle = 0, kTypeBoolean = 2, kTypeInt64 = 3, kTypeDouble = 5, kTypePointer = 6, kTypeBackend = 15, kTypeChar = 24, kTypeFraction = 26 };

static size_t width(int type) {
  switch (type) {
    case kTypeBoolean:
    case kTypeChar:
      return 1;
    case kTypeHandle:
    case kTypeInt64:
    case kTypeDouble:
    case kTypePointer:
    case kTypeBackend:
      return 8;
    case kTypeFraction:
      return 16;
  }
  return 4;
}

static Attribute **slot(Backend *d, int name) {
  Attribute **at = &d->first;
  while (*at && (*at)->name != name) at = &(*at)->next;
  return at;
}

static int cudnnBackendCreateDescriptor(int type, Backend **to) { return (void)type, create((void **)to, sizeof **to); }

static int cudnnBackendDestroyDescriptor(Backend *d) {
  if (!d) return kSuccess;
  for (Attribute *a = d->first, *next; a; a = next) {
    next = a->next;
    free(a);
  }
  return destroy(d);
}

static int cudnnBackendSetAttribute(Backend *d, int name, int type, int64_t count, const void *from) {
  size_t n;
  if (count < 0 || __builtin_mul_overflow(width(type), (size_t)count, &n) || (n && !from)) return kDnnBadParameter;
  Attribute *a = n > SIZE_MAX - sizeof *a ? NULL : malloc(sizeof *a + n);
  if (!a) return kDnnAllocFailed;
  Attribute **at = slot(d, name), *old = *at;
  *a = (Attribute){old ? old->next : NULL, name, type, count};
  if (n) memcpy(a->bytes, from, n);
  *at = a;
  free(old);
  return kSuccess;
}

// Attributes that only the library sets, by cuDNN's number.
enum { kHeuristicResults = 202, kConfigEngine = 300, kConfigWorkspace = 303, kConfigShared = 304, kPlanWorkspace = 402, kEngineIndex = 1301 };

// plan_workspace is what a plan asks for, in bytes.
static _Atomic int64_t plan_workspace;

void cudnn_workspace(int64_t bytes) { plan_workspace = bytes; }

// own_attribute answers for them: one configuration, its one engine of number 0, and the
// workspace. Descriptors are the caller's, and are left as they are. Everything else is an empty list.
static int own_attribute(int name, int type, int64_t asked, int64_t *count, void *to) {
  int64_t n = 0;
  switch (name) {
    case kConfigWorkspace:
    case kConfigShared:
    case kEngineIndex:
      if (asked > 0 && to) memset(to, 0, width(type));
      n = 1;
      break;
    case kPlanWorkspace:
      if (asked > 0 && to) memcpy(to, &(int64_t){plan_workspace}, width(type));
      n = 1;
      break;
    case kHeuristicResults:
    case kConfigEngine:
      n = 1;
  }
  if (count) *count = n;
  return kSuccess;
}

static int cudnnBackendGetAttribute(Backend *d, int name, int type, int64_t asked, int64_t *count, void *to) {
  Attribute *a = *slot(d, name);
  if (!a) return own_attribute(name, type, asked, count, to);
  if (a->type != type) return kDnnBadParameter;
  int64_t n = asked < a->count ? asked : a->count;
  if (n > 0 && to) memcpy(to, a->bytes, (size_t)n * width(type));
  if (count) *count = a->count;
  return kSuccess;
}

const Symbol kDnnSymbols[] = {
    SYMBOL(cudnnCreate), SYMBOL(cudnnSetStream), SYMBOL(cudnnGetStream), SYMBOL(cudnnGetVersion),
    SYMBOL(cudnnGetErrorString), SYMBOL(cudnnGetLastErrorString), SYMBOL(cudnnCreateTensorDescriptor),
    SYMBOL(cudnnSetTensorNdDescriptor), SYMBOL(cudnnGetTensorNdDescriptor), SYMBOL(cudnnDropoutGetStatesSize),
    SYMBOL(cudnnGetReductionIndicesSize), SYMBOL(cudnnGetReductionWorkspaceSize),
    SYMBOL(cudnnGetConvolutionForwardWorkspaceSize), SYMBOL(cudnnGetRNNTempSpaceSizes), SYMBOL(cudnnGetRNNWeightParams),
    SYMBOL(cudnnFindConvolutionForwardAlgorithmEx), SYMBOL(cudnnGetConvolutionForwardAlgorithm_v7),
    SYMBOL(cudnnBackendCreateDescriptor), SYMBOL(cudnnBackendDestroyDescriptor), SYMBOL(cudnnBackendSetAttribute),
    SYMBOL(cudnnBackendGetAttribute), {"cudnnBackendFinalize", nothing}, {"cudnnBackendExecute", compute},
    {"cudnnDestroy", destroy}, {"cudnnDestroyTensorDescriptor", destroy},
    {"cudnnCreateActivationDescriptor", descriptor}, {"cudnnDestroyActivationDescriptor", destroy},
    {"cudnnCreateConvolutionDescriptor", descriptor}, {"cudnnDestroyConvolutionDescriptor", destroy},
    {"cudnnCreateDropoutDescriptor", descriptor}, {"cudnnDestroyDropoutDescriptor", destroy},
    {"cudnnCreateFilterDescriptor", descriptor}, {"cudnnDestroyFilterDescriptor", destroy},
    {"cudnnCreateLRNDescriptor", descriptor}, {"cudnnDestroyLRNDescriptor", destroy},
    {"cudnnCreatePoolingDescriptor", descriptor}, {"cudnnDestroyPoolingDescriptor", destroy},
    {"cudnnCreateRNNDataDescriptor", descriptor}, {"cudnnDestroyRNNDataDescriptor", destroy},
    SYMBOL(cudnnCreateRNNDescriptor), SYMBOL(cudnnSetRNNDescriptor_v8), {"cudnnDestroyRNNDescriptor", destroy},
    SYMBOL(cudnnCreateReduceTensorDescriptor), {"cudnnDestroyReduceTensorDescriptor", destroy},
    {"cudnnDeriveBNTensorDescriptor", nothing}, {"cudnnSetActivationDescriptor", nothing},
    {"cudnnSetConvolutionGroupCount", nothing}, {"cudnnSetConvolutionMathType", nothing},
    {"cudnnSetConvolutionNdDescriptor", nothing}, {"cudnnSetDropoutDescriptor", nothing},
    {"cudnnSetFilterNdDescriptor", nothing}, {"cudnnSetLRNDescriptor", nothing}, {"cudnnSetPoolingNdDescriptor", nothing},
    {"cudnnSetRNNDataDescriptor", nothing},
    SYMBOL(cudnnSetReduceTensorDescriptor),
    {"cudnnActivationForward", compute}, {"cudnnAddTensor", compute}, {"cudnnBatchNormalizationForwardInference", compute},
    {"cudnnBatchNormalizationForwardTraining", compute}, {"cudnnConvolutionBiasActivationForward", compute},
    {"cudnnConvolutionForward", compute}, {"cudnnLRNCrossChannelForward", compute}, {"cudnnPoolingForward", compute},
    {"cudnnRNNForward", compute}, {"cudnnReduceTensor", compute}, {"cudnnSoftmaxForward", compute},
};
const size_t kDnnCount = sizeof kDnnSymbols / sizeof *kDnnSymbols;
