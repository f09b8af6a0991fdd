//go:build linux && amd64

// cuBLAS and cuBLASLt: products do nothing and are counted, handles are kept
// apart. The library's own workspace, which it takes from the device for each
// handle, is not taken: no one but the real library knows its size.
#include "device.h"

#include <string.h>

typedef struct {
  int math;
} Blas;

static int nothing(void) { return kSuccess; }

static int product(void) {
  count_library_call();
  return kSuccess;
}

static int create(void **to, size_t n) {
  *to = handle_new(n);
  return *to ? kSuccess : kLibraryAllocFailed;
}

static int destroy(void *h) { return handle_free(h), kSuccess; }

static int cublasCreate_v2(Blas **to) { return create((void **)to, sizeof **to); }

static int cublasGetMathMode(Blas *h, int *mode) {
  *mode = h->math;
  return kSuccess;
}

static int cublasSetMathMode(Blas *h, int mode) {
  h->math = mode;
  return kSuccess;
}

static const char *cublasGetStatusName(int status) { return status ? "CUBLAS_STATUS_ALLOC_FAILED" : "CUBLAS_STATUS_SUCCESS"; }
static const char *cublasGetStatusString(int status) { return status ? "the resource allocation failed" : "success"; }

const Symbol kBlasSymbols[] = {
    SYMBOL(cublasCreate_v2), SYMBOL(cublasGetMathMode), SYMBOL(cublasGetStatusName), SYMBOL(cublasGetStatusString),
    SYMBOL(cublasSetMathMode), {"cublasDestroy_v2", destroy}, {"cublasSetStream_v2", nothing},
    {"cublasDgeam", product}, {"cublasDgemmBatched", product}, {"cublasDgemmStridedBatched", product},
    {"cublasDgemm_v2", product}, {"cublasDgetrfBatched", product}, {"cublasDgetriBatched", product},
    {"cublasGemmBatchedEx", product}, {"cublasGemmEx", product}, {"cublasGemmStridedBatchedEx", product},
    {"cublasScopy_v2", product}, {"cublasSgeam", product}, {"cublasSgemmBatched", product},
    {"cublasSgemmStridedBatched", product}, {"cublasSgemm_v2", product}, {"cublasSgetrfBatched", product},
    {"cublasSgetriBatched", product}, {"cublasSscal_v2", product},
};
const size_t kBlasCount = sizeof kBlasSymbols / sizeof *kBlasSymbols;

static int descriptor(void **to) { return create(to, 1); }

// Heuristic is cublasLtMatmulHeuristicResult_t: one algorithm that needs no workspace.
typedef struct {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
} Heuristic;

_Static_assert(sizeof(Heuristic) == 96, "size of cublasLtMatmulHeuristicResult_t");

static int cublasLtMatmulAlgoGetHeuristic(void *h, void *operation, void *a, void *b, void *c, void *d, void *preference, int asked,
                                          Heuristic *to, int *found) {
  (void)h, (void)operation, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *found = asked > 0;
  if (asked > 0) *to = (Heuristic){.waves = 1};
  return kSuccess;
}

const Symbol kBlasLtSymbols[] = {
    SYMBOL(cublasLtMatmulAlgoGetHeuristic), {"cublasLtCreate", descriptor}, {"cublasLtDestroy", destroy},
    {"cublasLtMatmul", product}, {"cublasLtMatmulAlgoConfigSetAttribute", nothing}, {"cublasLtMatmulAlgoInit", nothing},
    {"cublasLtMatmulDescCreate", descriptor}, {"cublasLtMatmulDescDestroy", destroy},
    {"cublasLtMatmulDescSetAttribute", nothing}, {"cublasLtMatmulPreferenceCreate", descriptor},
    {"cublasLtMatmulPreferenceDestroy", destroy}, {"cublasLtMatmulPreferenceSetAttribute", nothing},
    {"cublasLtMatrixLayoutCreate", descriptor}, {"cublasLtMatrixLayoutDestroy", destroy},
    {"cublasLtMatrixLayoutSetAttribute", nothing}, {"cublasLtMatrixTransform", product},
    {"cublasLtMatrixTransformDescCreate", descriptor}, {"cublasLtMatrixTransformDescDestroy", destroy},
};
const size_t kBlasLtCount = sizeof kBlasLtSymbols / sizeof *kBlasLtSymbols;
