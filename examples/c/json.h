/* Enough of JSON for a manifest: values point to their text, which stays as it is. */
#ifndef JSON_H
#define JSON_H
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *json_blank(const char *p) {
  while (isspace((unsigned char)*p)) p++;
  return p;
}

static const char *json_string_end(const char *p) { /* behind the closing quote */
  for (p++; *p && *p != '"'; p++)
    if (*p == '\\' && p[1]) p++;
  return *p ? p + 1 : p;
}

/* Behind the value that begins at p. */
static const char *json_skip(const char *p) {
  int depth = 0;
  do {
    p = json_blank(p);
    if (*p == '"') {
      p = json_string_end(p);
    } else if (*p == '{' || *p == '[') {
      depth++, p++;
    } else if (*p == '}' || *p == ']') {
      depth--, p++;
    } else if (*p == ',' || *p == ':') {
      p++;
    } else {
      while (*p && !strchr(",:]}", *p) && !isspace((unsigned char)*p)) p++;
    }
  } while (depth > 0 && *p);
  return p;
}

/* The first element of an array, or the next one after an element; NULL behind the last. */
static const char *json_first(const char *array) {
  if (!array || *(array = json_blank(array)) != '[') return NULL;
  array = json_blank(array + 1);
  return *array && *array != ']' ? array : NULL;
}

static const char *json_next(const char *element) {
  const char *p = json_blank(json_skip(element));
  return *p == ',' ? json_blank(p + 1) : NULL;
}

/* The value of a key of an object, NULL without it. */
static const char *json_get(const char *object, const char *key) {
  size_t n = strlen(key);
  if (!object || *(object = json_blank(object)) != '{') return NULL;
  for (const char *p = json_blank(object + 1); *p == '"'; p = json_blank(p + 1)) {
    const char *end = json_string_end(p), *value = json_blank(end);
    if (*value != ':') return NULL;
    value = json_blank(value + 1);
    if ((size_t)(end - p) == n + 2 && !memcmp(p + 1, key, n)) return value;
    p = json_blank(json_skip(value));
    if (*p != ',') return NULL;
  }
  return NULL;
}

static long long json_int(const char *value) { return value ? strtoll(value, NULL, 10) : 0; }

/* A copy of a string; of escapes, those of quotes, slashes, blanks and plain letters. */
static char *json_text(const char *value) {
  if (!value || *(value = json_blank(value)) != '"') return NULL;
  const char *end = json_string_end(value);
  char *text = malloc((size_t)(end - value) + 1), *to = text;
  for (const char *p = value + 1; p < end - 1; p++) {
    unsigned code;
    if (*p != '\\') {
      *to++ = *p;
    } else if (*++p == 'u' && sscanf(p + 1, "%4x", &code) == 1 && code < 128) {
      *to++ = (char)code, p += 4;
    } else {
      *to++ = *p == 'n' ? '\n' : *p == 't' ? '\t' : *p;
    }
  }
  *to = 0;
  return text;
}

static int json_is(const char *value, const char *text) {
  char *s = json_text(value);
  int same = s && !strcmp(s, text);
  free(s);
  return same;
}
#endif
