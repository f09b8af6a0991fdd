//go:build linux && amd64

// Loading into this process, and calls of what was loaded.
#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

const char *loaded_from(const char *name) {
  void *h = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (!h) return NULL;
  struct link_map *m = NULL;
  int error = dlinfo(h, RTLD_DI_LINKMAP, &m);
  dlclose(h);  // it stays: others hold it
  return error ? "" : m->l_name;
}

const char *load(const char *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL) ? NULL : dlerror(); }

void *look_up(const char *soname, const char *name, const char *version) {
  void *h = dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
  if (!h) return NULL;
  void *f = version ? dlvsym(h, name, version) : dlsym(h, name);
  dlclose(h);
  return f;
}
