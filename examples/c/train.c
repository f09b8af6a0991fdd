/* Trains five steps from a bundle, by the C API.
 *
 *   remat rewrite step.onnx --strategy full --bundle B --for c
 *   cc -O2 train.c -I ONNXRUNTIME/include -L ONNXRUNTIME/lib -lonnxruntime -o train
 *   ./train B            with ONNX Runtime's arena
 *   ./train B count      without it, by an allocator that counts, and prints the live peak
 */
#include <onnxruntime_c_api.h>
#include <stdatomic.h>

#include "json.h"

static const OrtApi *ort;

static void check(OrtStatus *status) {
  if (!status) return;
  fprintf(stderr, "train: %s\n", ort->GetErrorMessage(status));
  exit(1);
}

static void fail(const char *what, const char *why) {
  fprintf(stderr, "train: %s: %s\n", what, why);
  exit(1);
}

/* ---- an allocator that counts: a header before each block holds its size */

enum { HEADER = 64 };
static atomic_llong live, peak;
static OrtMemoryInfo *counted;

static void *ORT_API_CALL count_alloc(OrtAllocator *self, size_t n) {
  (void)self;
  if (n == 0) return NULL;
  char *block = aligned_alloc(HEADER, (n + 2 * HEADER - 1) / HEADER * HEADER);
  if (!block) return NULL;
  *(size_t *)block = n;
  long long now = atomic_fetch_add(&live, (long long)n) + (long long)n, most = atomic_load(&peak);
  while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) {
  }
  return block + HEADER;
}

static void ORT_API_CALL count_free(OrtAllocator *self, void *p) {
  (void)self;
  if (!p) return;
  char *block = (char *)p - HEADER;
  atomic_fetch_sub(&live, (long long)*(size_t *)block);
  free(block);
}

static const OrtMemoryInfo *ORT_API_CALL count_info(const OrtAllocator *self) {
  (void)self;
  return counted;
}

static OrtAllocator counting = {.version = ORT_API_VERSION, .Alloc = count_alloc, .Free = count_free, .Info = count_info, .Reserve = count_alloc};

/* ---- the manifest */

typedef struct {
  char *name, *next, *fed;
  int64_t shape[8];
  size_t rank, bytes;
  ONNXTensorElementDataType type;
  void *data;
  OrtValue *value;
} Input;

static char *join(const char *folder, const char *file) {
  char *path = malloc(strlen(folder) + strlen(file) + 2);
  sprintf(path, "%s/%s", folder, file);
  return path;
}

static char *read_text(const char *path) {
  FILE *f = fopen(path, "rb");
  if (!f) fail(path, "no such file");
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  char *text = calloc((size_t)n + 1, 1);
  if (!text || fread(text, 1, (size_t)n, f) != (size_t)n) fail(path, "cannot be read");
  fclose(f);
  return text;
}

static void read_values(const char *folder, const char *at, Input *in) {
  char *file = json_text(json_get(at, "file")), *path = join(folder, file);
  FILE *f = fopen(path, "rb");
  if (!f || fseek(f, (long)json_int(json_get(at, "offset")), SEEK_SET) || fread(in->data, 1, in->bytes, f) != in->bytes)
    fail(path, "cannot be read, or is too short");
  fclose(f);
  free(path);
  free(file);
}

static const struct {
  const char *name;
  ONNXTensorElementDataType type;
  size_t size;
} types[] = {
    {"float32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4}, {"int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
    {"int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},   {"float64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},     {"uint8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},   {"int8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1},
};

/* batch stands for data of yours. */
static void batch(Input *in, long long below) {
  for (size_t i = 0; in->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && i < in->bytes / 8; i++)
    ((int64_t *)in->data)[i] = (int64_t)(i * 7 + 3) % (below > 0 ? below : 1);
  for (size_t i = 0; in->type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT && i < in->bytes / 4; i++)
    ((float *)in->data)[i] = ((float)((i * 37) % 19) - 9) / 64;
}

static void read_input(const char *folder, const char *j, Input *in, OrtMemoryInfo *memory) {
  in->name = json_text(json_get(j, "name"));
  in->next = json_text(json_get(j, "next"));
  in->fed = json_text(json_get(j, "fed"));
  size_t elements = 1, t = 0;
  for (const char *d = json_first(json_get(j, "shape")); d; d = json_next(d)) {
    if (in->rank == 8) fail(in->name, "has more than 8 axes");
    elements *= (size_t)(in->shape[in->rank++] = json_int(d));
  }
  while (t < sizeof types / sizeof *types && !json_is(json_get(j, "type"), types[t].name)) t++;
  if (t == sizeof types / sizeof *types) fail(in->name, "has a type that this program does not know");
  in->type = types[t].type;
  in->bytes = elements * types[t].size;
  if (!(in->data = calloc(1, in->bytes + 1))) fail(in->name, "no memory");
  if (!strcmp(in->fed, "batch")) {
    batch(in, json_int(json_get(j, "below")));
  } else if (json_get(j, "initial")) {
    read_values(folder, json_get(j, "initial"), in);
  } else if (!strcmp(in->fed, "parameter")) {
    fail(in->name, "the bundle has no first value of it");
  }
  check(ort->CreateTensorWithDataAsOrtValue(memory, in->data, in->bytes, in->shape, in->rank, in->type, &in->value));
}

static OrtSessionOptions *session_options(const char *asked) {
  OrtSessionOptions *o;
  check(ort->CreateSessionOptions(&o));
  if (*json_get(asked, "memory_pattern") == 'f') check(ort->DisableMemPattern(o)); /* a pattern holds more from the second step on */
  if (*json_get(asked, "arena") == 'f') check(ort->DisableCpuMemArena(o));
  check(ort->SetIntraOpNumThreads(o, (int)json_int(json_get(asked, "intra_op_num_threads"))));
  const char *level = json_get(asked, "graph_optimization_level");
  check(ort->SetSessionGraphOptimizationLevel(o, json_is(level, "disabled") ? ORT_DISABLE_ALL : json_is(level, "basic") ? ORT_ENABLE_BASIC : ORT_ENABLE_ALL));
  return o;
}

int main(int argc, char **argv) {
  if (argc < 2) return fprintf(stderr, "usage: train BUNDLE [count]\n"), 2;
  ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  const char *folder = argv[1], *manifest = read_text(join(folder, "manifest.json"));
  int counts = argc > 2, bound = json_is(json_get(manifest, "next_values"), "bound");

  OrtEnv *env;
  OrtMemoryInfo *memory;
  check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "train", &env));
  check(ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  OrtSessionOptions *options = session_options(json_get(manifest, "session"));
  if (counts) {
    counted = memory;
    check(ort->RegisterAllocator(env, &counting));
    check(ort->AddSessionConfigEntry(options, "session.use_env_allocators", "1"));
  }
  OrtSession *session;
  char *graph = json_text(json_get(manifest, "graph"));
  check(ort->CreateSession(env, join(folder, graph), options, &session));

  size_t n = 0, outputs = 0, loss = 0, overflow = (size_t)-1;
  for (const char *j = json_first(json_get(manifest, "inputs")); j; j = json_next(j)) n++;
  Input *inputs = calloc(n, sizeof *inputs);
  n = 0;
  for (const char *j = json_first(json_get(manifest, "inputs")); j; j = json_next(j)) read_input(folder, j, &inputs[n++], memory);
  for (const char *j = json_first(json_get(manifest, "outputs")); j; j = json_next(j)) outputs++;
  char **names = calloc(outputs, sizeof *names), *loss_name = json_text(json_get(manifest, "loss"));
  Input **becomes = calloc(outputs, sizeof *becomes); /* the input that an output is the next value of */
  outputs = 0;
  for (const char *j = json_first(json_get(manifest, "outputs")); j; j = json_next(j), outputs++) {
    names[outputs] = json_text(json_get(j, "name"));
    if (!strcmp(names[outputs], loss_name)) loss = outputs;
    if (!strcmp(names[outputs], "found_inf")) overflow = outputs;
    for (size_t i = 0; i < n; i++)
      if (inputs[i].next && !strcmp(inputs[i].next, names[outputs])) becomes[outputs] = &inputs[i];
  }

  size_t updated = 0;
  for (size_t i = 0; i < n; i++) updated += inputs[i].next != NULL;
  if (!updated) fail("the bundle's graph updates nothing", "derive it with remat grad --optimizer sgd, or another");

  OrtIoBinding *binding;
  OrtAllocator *any;
  check(ort->CreateIoBinding(session, &binding));
  check(ort->GetAllocatorWithDefaultOptions(&any));
  for (size_t i = 0; i < n; i++) check(ort->BindInput(binding, inputs[i].name, inputs[i].value));
  float lr = 1e-3f, scale = 65536;
  int64_t step = 1;
  long long most = 0;
  for (int run = 1; run <= 5; run++) {
    for (size_t i = 0; i < n; i++) {
      if (!strcmp(inputs[i].fed, "lr")) memcpy(inputs[i].data, &lr, sizeof lr);
      if (!strcmp(inputs[i].fed, "step")) memcpy(inputs[i].data, &step, sizeof step);
      if (!strcmp(inputs[i].fed, "loss_scale")) memcpy(inputs[i].data, &scale, sizeof scale);
    }
    ort->ClearBoundOutputs(binding);
    for (size_t o = 0; o < outputs; o++) {
      if (bound && becomes[o]) {
        check(ort->BindOutput(binding, names[o], becomes[o]->value)); /* over its input */
      } else {
        check(ort->BindOutputToDevice(binding, names[o], memory));
      }
    }
    long long before = atomic_load(&live);
    atomic_store(&peak, before);
    check(ort->RunWithBinding(session, NULL, binding));
    if (atomic_load(&peak) - before > most) most = atomic_load(&peak) - before;

    OrtValue **values;
    size_t count;
    float *number;
    bool *found;
    check(ort->GetBoundOutputValues(binding, any, &values, &count));
    check(ort->GetTensorMutableData(values[loss], (void **)&number));
    printf("%d %.9g\n", run, *number);
    for (size_t o = 0; !bound && o < outputs; o++) {
      void *next;
      if (!becomes[o]) continue;
      check(ort->GetTensorMutableData(values[o], &next));
      memcpy(becomes[o]->data, next, becomes[o]->bytes);
    }
    if (overflow != (size_t)-1) check(ort->GetTensorMutableData(values[overflow], (void **)&found));
    if (overflow != (size_t)-1 && *found) {
      scale /= 2; /* a gradient overflowed, and nothing was updated */
    } else {
      step++;
    }
    for (size_t o = 0; o < count; o++) ort->ReleaseValue(values[o]);
    check(ort->AllocatorFree(any, values));
    ort->ClearBoundOutputs(binding);
  }
  if (counts) printf("live peak %lld\n", most);
  return 0;
}
