#include "counting.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// OrtAllocator as ONNX Runtime 1.18 and later read it; what came later stays
// out of use because of the version that is claimed.
typedef struct {
  uint32_t version;
  void *(*Alloc)(void *self, size_t n);
  void (*Free)(void *self, void *p);
  const OrtMemoryInfo *(*Info)(const void *self);
  void *(*Reserve)(void *self, size_t n);
  void *later[8];
} AllocatorTable;

enum { kAllocatorVersion = 22, kAlign = 64 };

// Released blocks of kCacheFrom bytes and more are kept for reuse, oldest
// first in the list, so that a step does not pay for fresh pages each time. What
// is kept and what is live together never exceed the largest live peak so far
// by more than 1/kCacheSlack.
enum { kCacheFrom = 1 << 16, kCacheBlocks = 512, kCacheSlack = 8 };

union Header;

struct Counter {
  AllocatorTable table;  // first: its address is the allocator's
  pthread_mutex_t mu;
  OrtMemoryInfo *info;
  CounterState s;
  uint64_t next;
  int trace, closed;
  CounterEvent *events;
  size_t capacity;
  int64_t highest;  // live peak since the beginning
  int64_t kept;     // capacity of the blocks below
  union Header *cache[kCacheBlocks];
  int cached;
};

// Every block is preceded by one line that holds its size and number.
typedef union Header {
  struct {
    size_t bytes, capacity;
    uint64_t id;
  } h;
  char line[kAlign];
} Header;

// record is called with the lock held.
static void record(Counter *c, int64_t bytes, uint64_t id) {
  if (!c->trace || c->s.lost) return;
  if (c->s.events == c->capacity) {
    size_t n = c->capacity ? 2 * c->capacity : 4096;
    CounterEvent *p = realloc(c->events, n * sizeof *p);
    if (!p) {
      c->s.lost = 1;
      return;
    }
    c->events = p;
    c->capacity = n;
  }
  c->events[c->s.events++] = (CounterEvent){bytes, id};
}

// drop releases kept block i for good. The lock is held here and below.
static void drop(Counter *c, int i) {
  c->kept -= (int64_t)c->cache[i]->h.capacity;
  free(c->cache[i]);
  c->cached--;
  memmove(c->cache + i, c->cache + i + 1, (size_t)(c->cached - i) * sizeof *c->cache);
}

// shrink drops the oldest blocks until the rest is within bounds.
static void shrink(Counter *c, int64_t live) {
  int64_t bound = (live > c->highest ? live : c->highest);
  bound += bound / kCacheSlack;
  while (c->cached > 0 && live + c->kept > bound) drop(c, 0);
}

// reuse takes the smallest kept block that holds n bytes without wasting a
// quarter of itself, or NULL.
static Header *reuse(Counter *c, size_t n) {
  int best = -1;
  if (n < kCacheFrom) return NULL;
  for (int i = c->cached - 1; i >= 0; i--) {
    size_t have = c->cache[i]->h.capacity;
    if (have < n || have - n > have / 4) continue;
    if (best < 0 || have < c->cache[best]->h.capacity) best = i;
    if (have == n) break;
  }
  if (best < 0) return NULL;
  Header *h = c->cache[best];
  c->kept -= (int64_t)h->h.capacity;
  c->cached--;
  memmove(c->cache + best, c->cache + best + 1, (size_t)(c->cached - best) * sizeof *c->cache);
  return h;
}

static void keep(Counter *c, Header *h) {
  if (h->h.capacity < kCacheFrom) {
    free(h);
    return;
  }
  if (c->cached == kCacheBlocks) drop(c, 0);
  c->cache[c->cached++] = h;
  c->kept += (int64_t)h->h.capacity;
  shrink(c, c->s.live);
}

static void destroy(Counter *c) {
  while (c->cached > 0) drop(c, c->cached - 1);
  pthread_mutex_destroy(&c->mu);
  ortReleaseMemoryInfo(c->info);
  free(c->events);
  free(c);
}

static void *count_alloc(void *self, size_t n) {
  Counter *c = self;
  if (n == 0 || n > SIZE_MAX / 2) return NULL;
  pthread_mutex_lock(&c->mu);
  Header *h = reuse(c, n);
  if (!h) {
    void *p;
    shrink(c, c->s.live + (int64_t)n);
    if (posix_memalign(&p, kAlign, n + sizeof(Header))) {
      pthread_mutex_unlock(&c->mu);
      return NULL;
    }
    h = p;
    h->h.capacity = n;
  }
  h->h.bytes = n;
  h->h.id = ++c->next;
  c->s.live += (int64_t)n;
  if (c->s.live > c->s.peak) c->s.peak = c->s.live;
  if (c->s.live > c->highest) c->highest = c->s.live;
  c->s.allocations++;
  c->s.blocks++;
  record(c, (int64_t)n, h->h.id);
  pthread_mutex_unlock(&c->mu);
  return h + 1;
}

static void count_free(void *self, void *p) {
  if (!p) return;
  Counter *c = self;
  Header *h = (Header *)p - 1;
  pthread_mutex_lock(&c->mu);
  c->s.live -= (int64_t)h->h.bytes;
  c->s.blocks--;
  record(c, ~(int64_t)h->h.bytes, h->h.id);
  keep(c, h);
  int last = c->closed && c->s.blocks == 0;
  pthread_mutex_unlock(&c->mu);
  if (last) destroy(c);
}

static const OrtMemoryInfo *count_info(const void *self) { return ((const Counter *)self)->info; }

Counter *counter_new(OrtMemoryInfo *info) {
  Counter *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->table.version = kAllocatorVersion;
  c->table.Alloc = c->table.Reserve = count_alloc;
  c->table.Free = count_free;
  c->table.Info = count_info;
  c->info = info;
  pthread_mutex_init(&c->mu, NULL);
  return c;
}

OrtAllocator *counter_allocator(Counter *c) { return (OrtAllocator *)c; }
OrtMemoryInfo *counter_info(Counter *c) { return c->info; }

// counter_mark starts a step: the peak restarts from what is live, and the
// trace from nothing.
void counter_mark(Counter *c, int trace) {
  pthread_mutex_lock(&c->mu);
  c->s.base = c->s.peak = c->s.live;
  c->s.allocations = 0;
  c->s.events = 0;
  c->s.lost = 0;
  c->trace = trace;
  pthread_mutex_unlock(&c->mu);
}

void counter_state(Counter *c, CounterState *out) {
  pthread_mutex_lock(&c->mu);
  *out = c->s;
  pthread_mutex_unlock(&c->mu);
}

size_t counter_events(Counter *c, CounterEvent *out, size_t n) {
  pthread_mutex_lock(&c->mu);
  if (n > c->s.events) n = c->s.events;
  if (n) memcpy(out, c->events, n * sizeof *out);
  pthread_mutex_unlock(&c->mu);
  return n;
}

// counter_close gives the counter up: it goes when its last block does, since
// values that outlive their session release their memory through it.
void counter_close(Counter *c) {
  pthread_mutex_lock(&c->mu);
  c->closed = 1;
  int last = c->s.blocks == 0;
  pthread_mutex_unlock(&c->mu);
  if (last) destroy(c);
}
