// The counting allocator. See counting.go.
#ifndef REMAT_ORT_COUNTING_H
#define REMAT_ORT_COUNTING_H

#include "api.h"
#include "slab.h"

typedef struct Counter Counter;

// One allocation (bytes >= 0) or release (bytes < 0: ~bytes).
typedef struct {
  int64_t bytes;
  uint64_t id;
} CounterEvent;

typedef struct {
  int64_t live, peak, base;
  int64_t reserved;  // what was used of the slab since the mark, and the most that lay elsewhere
  uint64_t allocations, blocks, refused, asked, astray;
  size_t events;
  int lost;
} CounterState;

// counter_new counts the host's memory (device -1) or a CUDA device's. It takes over
// info, unless it returns NULL: then *why says why, NULL where there is no memory.
Counter *counter_new(OrtMemoryInfo *info, int device, const char **why);
OrtAllocator *counter_allocator(Counter *c);
OrtMemoryInfo *counter_info(Counter *c);
void counter_mark(Counter *c, int trace);
void counter_state(Counter *c, CounterState *out);
size_t counter_events(Counter *c, CounterEvent *out, size_t n);
void counter_close(Counter *c);
void counter_drain(void);
// counter_place makes a copy of the places of a step's requests in a slab of so many
// bytes; 0 where there is no memory for it.
int counter_place(Counter *c, const Place *places, size_t n, int64_t slab);
// counter_unmarked says that steps follow one another without counter_mark.
void counter_unmarked(Counter *c);
void counter_alone(void);
void counter_limit(Counter *c, int64_t bytes);
int64_t counter_kept(void);
void counter_within(int64_t bytes);
void counter_throws(void (*function)(void));

#endif
