// Stock ONNX Runtime under Python, with the steps of a written file in one slab.
//
//	register_execution_provider_library ──▶ CreateEpFactories: the API; no provider is made
//	remat_slab_register ──▶ CreateEnv (the one that is there) ──▶ RegisterAllocator
//	remat_slab_load     ──▶ the places that the file carries (remat.slab)
//
// Sessions with session.use_env_allocators=1 allocate through it from then on. The
// allocator is remat's own (runtime/ort/counting.c): a request that has no place, or whose
// place is taken, lies in memory of its own, and is counted as astray. Nothing marks where
// a step begins: the request after a table's last one is the next step's first.
//
// The Python module exports no C API; it hands it to libraries of execution providers. So
// the table of functions is reached through that door, of API version 22, whose places
// later versions keep.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../runtime/ort/counting.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  void **(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} ApiBase;

enum { kApiVersion = 22 };

enum {
#define X(name, index) k##name = index,
  REMAT_API(X)
#undef X
};

static void **api;
static Counter *counter;
static int64_t slab;
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // of the two above

EXPORT void *CreateEpFactories(const char *name, const ApiBase *base, const void *logger, void **factories, size_t max,
                               size_t *count) {
  (void)name, (void)logger, (void)factories, (void)max;
  api = base->GetApi(kApiVersion);
  *count = 0;
  return NULL;
}

EXPORT void *ReleaseEpFactory(void *factory) {
  (void)factory;
  return NULL;
}

// What counting.c takes from its surroundings.
void ortReleaseMemoryInfo(OrtMemoryInfo *m) { ((void (*)(OrtMemoryInfo *))api[kReleaseMemoryInfo])(m); }
void remat_forget_error(void) {}

// say writes why something is not done, and returns 1.
static int say(const char *why) {
  fprintf(stderr, "remat_slab: %s\n", why);
  return 1;
}

// failed says what ONNX Runtime says, if it failed.
static int failed(void *status) {
  if (!status) return 0;
  say(((const char *(*)(void *))api[kGetErrorMessage])(status));
  ((void (*)(void *))api[kReleaseStatus])(status);
  return 1;
}

static int make_counter(void) {
  OrtMemoryInfo *info;
  void *env;
  const char *why;
  if (failed(((void *(*)(int, const char *, void **))api[kCreateEnv])(3, "remat_slab", &env))) return 1;
  if (failed(((void *(*)(const char *, int, int, int, OrtMemoryInfo **))api[kCreateMemoryInfo])("Cpu", 0, 0, 0, &info))) return 1;
  Counter *c = counter_new(info, -1, &why);
  if (!c) {
    ortReleaseMemoryInfo(info);
    return say("no memory for the allocator");
  }
  counter_unmarked(c);
  if (failed(((void *(*)(void *, OrtAllocator *))api[kRegisterAllocator])(env, counter_allocator(c)))) {
    counter_close(c);
    return 1;
  }
  void *cxx = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);  // what a request ends in that cannot be met
  if (cxx) counter_throws((void (*)(void))dlsym(cxx, "_ZSt17__throw_bad_allocv"));
  counter = c;
  return 0;
}

// remat_slab_register puts the allocator into ONNX Runtime's environment, once. This and
// remat_slab_load return 0, or 1 after a line on stderr that says why not.
EXPORT int remat_slab_register(void) {
  if (!api) return say("the library is not registered: call register_execution_provider_library first, of onnxruntime 1.23 or newer");
  pthread_mutex_lock(&mu);
  int why = counter ? 0 : make_counter();
  pthread_mutex_unlock(&mu);
  return why;
}

// remat_slab_load has the steps from here on lie where a file's entry says. Where that is
// not right, or NULL, no further step has places. The sessions are made before: what
// making one allocates is no step's.
EXPORT int remat_slab_load(const char *text) {
  if (!counter) return say("remat_slab_register comes first");
  SlabTable t = {0};
  int64_t at = -1;
  const char *why = text ? slab_read(text, strlen(text), &t, &at) : NULL;
  pthread_mutex_lock(&mu);
  slab = t.size;
  int placed = counter_place(counter, t.places, t.n, t.size);
  counter_mark(counter, 0);
  pthread_mutex_unlock(&mu);
  free(t.places);
  char line[256];
  if (why && at >= 0) snprintf(line, sizeof line, "remat.slab: request %lld %s: steps have no places", (long long)at + 1, why);
  else if (why) snprintf(line, sizeof line, "remat.slab: %s: steps have no places", why);
  else if (!placed) snprintf(line, sizeof line, "remat.slab: there is no memory for it: steps have no places");
  else return 0;
  return say(line);
}

// remat_slab_step begins a step, where somebody wants its figures by themselves, or ended
// the one before in the middle.
EXPORT void remat_slab_step(void) {
  if (counter) counter_mark(counter, 0);
}

static CounterState state(void) {
  CounterState s = {0};
  if (counter) counter_state(counter, &s);
  return s;
}

// Figures in bytes: the slab; the most that steps held at once, and what they had
// elsewhere though it should have had a place, both since the last load or step.
EXPORT int64_t remat_slab_bytes(void) { return slab; }
EXPORT int64_t remat_slab_live_peak(void) {
  CounterState s = state();
  return s.peak - s.base;
}
EXPORT int64_t remat_slab_astray(void) { return (int64_t)state().astray; }
