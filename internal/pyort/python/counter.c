// A counting allocator for ONNX Runtime inside its Python module, which exports
// no C API: what it hands the API to is a library of execution providers.
//
//	register_execution_provider_library ──▶ CreateEpFactories(api): none made
//	counter_register() ──▶ CreateEnv (the one that is there) ──▶ RegisterAllocator
//
// Sessions with session.use_env_allocators=1 allocate through it from then on.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
  void **(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} ApiBase;

// OrtAllocator as ONNX Runtime 1.18 and later read it.
typedef struct {
  uint32_t version;
  void *(*Alloc)(void *self, size_t n);
  void (*Free)(void *self, void *p);
  const void *(*Info)(const void *self);
  void *(*Reserve)(void *self, size_t n);
  void *later[8];
} Allocator;

// Places of the functions used in the table of API version 24.
enum {
  kErrorMessage = 2,
  kCreateEnv = 3,
  kCreateMemoryInfo = 68,
  kRegisterAllocator = 176,
};

static void **table;

__attribute__((visibility("default"))) void *CreateEpFactories(const char *name, const ApiBase *base, const void *logger,
                                                               void **factories, size_t max, size_t *count) {
  (void)name, (void)logger, (void)factories, (void)max;
  table = base->GetApi(24);
  *count = 0;
  return NULL;
}

__attribute__((visibility("default"))) void *ReleaseEpFactory(void *factory) {
  (void)factory;
  return NULL;
}

enum { kAlign = 64 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int64_t live, base, peak;
static void *info;

static void *count_alloc(void *self, size_t n) {
  (void)self;
  void *p;
  if (n == 0 || posix_memalign(&p, kAlign, n + kAlign)) return NULL;
  *(size_t *)p = n;
  pthread_mutex_lock(&mu);
  live += (int64_t)n;
  if (live > peak) peak = live;
  pthread_mutex_unlock(&mu);
  return (char *)p + kAlign;
}

static void count_free(void *self, void *p) {
  (void)self;
  if (!p) return;
  void *block = (char *)p - kAlign;
  pthread_mutex_lock(&mu);
  live -= (int64_t)*(size_t *)block;
  pthread_mutex_unlock(&mu);
  free(block);
}

static const void *count_info(const void *self) {
  (void)self;
  return info;
}

static Allocator counter = {.version = 22, .Alloc = count_alloc, .Free = count_free, .Info = count_info, .Reserve = count_alloc};

static const char *reason(void *status) {
  return status ? ((const char *(*)(void *))table[kErrorMessage])(status) : NULL;
}

// counter_register returns NULL or why it could not.
const char *counter_register(void) {
  void *env;
  if (!table) return "the library was not registered";
  const char *why = reason(((void *(*)(int, const char *, void **))table[kCreateEnv])(3, "counter", &env));
  if (why) return why;
  why = reason(((void *(*)(const char *, int, int, int, void **))table[kCreateMemoryInfo])("Cpu", 0, 0, 0, &info));
  return why ? why : reason(((void *(*)(void *, void *))table[kRegisterAllocator])(env, &counter));
}

void counter_mark(void) {
  pthread_mutex_lock(&mu);
  base = peak = live;
  pthread_mutex_unlock(&mu);
}

// counter_peak is the most that was live since the mark, less what was then.
int64_t counter_peak(void) { return peak - base; }
