/* Memory of the runtime and of the lab, whose sizes programs do not choose. */
#include <stdlib.h>

#include "runtime.h"

enum { LEAST_ROOM = 64 };

void *simt_zeroed(size_t count, size_t size) {
  void *memory = calloc(count + 1, size); /* never 0 bytes */
  if (memory == NULL) abort();
  return memory;
}

void *simt_resized(void *memory, size_t bytes) {
  void *resized = realloc(memory, bytes + 1);
  if (resized == NULL) abort();
  return resized;
}

void *simt_with_room(void *list, size_t count, size_t size) {
  const bool full = count >= LEAST_ROOM && (count & (count - 1)) == 0;
  if (list != NULL && !full) return list;
  return simt_resized(list, (list == NULL ? LEAST_ROOM : 2 * count) * size);
}
