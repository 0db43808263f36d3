/* The lab's state of an OS thread, and the memory that it needs until the end of a launch. */
#include <stdlib.h>

#include "internal.h"

enum { PART_BYTES = 64 << 10 };

_Thread_local LabWorker *lab_worker;

typedef struct ArenaPart {
  struct ArenaPart *next;
  size_t used, size;
  _Alignas(16) char bytes[];
} ArenaPart;

void *lab_allocate(LabWorker *lab, size_t size) {
  size = (size + 15) / 16 * 16;
  ArenaPart *part = lab->arena;
  if (part == NULL || part->size - part->used < size) {
    const size_t fresh = size > PART_BYTES ? size : PART_BYTES;
    part = simt_zeroed(1, sizeof *part + fresh);
    part->size = fresh;
    part->next = lab->arena;
    lab->arena = part;
  }
  part->used += size;
  return part->bytes + part->used - size;
}

void lab_free_arena(LabWorker *lab) {
  while (lab->arena != NULL) {
    ArenaPart *next = lab->arena->next;
    free(lab->arena);
    lab->arena = next;
  }
}
