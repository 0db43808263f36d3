/*
 * What the program has been given and has not yet given back: streams, events, memory of the host.
 * So a handle that is none, or no longer one, is refused and not followed.
 */
#include <stdlib.h>

#include "runtime.h"

typedef struct Handle {
  void *pointer;
  HandleKind kind;
} Handle;

static struct {
  pthread_mutex_t lock;
  Handle *list;
  size_t count, capacity;
} handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

static Handle *find(HandleKind kind, const void *pointer) {
  for (size_t i = 0; i < handles.count; i++) {
    if (handles.list[i].pointer == pointer && handles.list[i].kind == kind) {
      return &handles.list[i];
    }
  }
  return NULL;
}

static bool make_place_in_list(void) {
  if (handles.count < handles.capacity) return true;
  const size_t capacity = 2 * handles.capacity + 16;
  Handle *larger = realloc(handles.list, capacity * sizeof *larger);
  if (larger == NULL) return false;
  handles.list = larger;
  handles.capacity = capacity;
  return true;
}

void *simt_handle_create(HandleKind kind, size_t size) {
  void *pointer = calloc(1, size);
  pthread_mutex_lock(&handles.lock);
  const bool listed = pointer != NULL && make_place_in_list();
  if (listed) handles.list[handles.count++] = (Handle){pointer, kind};
  pthread_mutex_unlock(&handles.lock);
  if (listed) return pointer;
  free(pointer);
  return NULL;
}

bool simt_handle_is_live(HandleKind kind, const void *pointer) {
  pthread_mutex_lock(&handles.lock);
  const bool live = find(kind, pointer) != NULL;
  pthread_mutex_unlock(&handles.lock);
  return live;
}

bool simt_handle_destroy(HandleKind kind, void *pointer) {
  pthread_mutex_lock(&handles.lock);
  Handle *handle = find(kind, pointer);
  const bool live = handle != NULL;
  if (live) *handle = handles.list[--handles.count];
  pthread_mutex_unlock(&handles.lock);
  if (live) free(pointer);
  return live;
}

void simt_handles_reset(void) {
  pthread_mutex_lock(&handles.lock);
  for (size_t i = 0; i < handles.count; i++) free(handles.list[i].pointer);
  free(handles.list);
  handles.list = NULL;
  handles.count = handles.capacity = 0;
  pthread_mutex_unlock(&handles.lock);
}
