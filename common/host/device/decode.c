/** @file The tensors of a decode pass: K and V as its step finds them, lengths, pages, a schedule.
 */
#include <stdlib.h>
#include <string.h>

#include "host/device/device.h"
#include "host/io/inputs.h"

/** NaN in every type. */
enum { NAN_BYTE = 0xff };

/** K or V, while it is copied. */
typedef struct CacheCopy {
  const Problem *problem;
  const Cache *cache;
  const Strides *strides; /* on the device */
  const uint16_t *source; /* with the strides of without_pages() */
  uint8_t *target;
} CacheCopy;

/** Copies the keys of one head of a sequence; those of e4m3 get one byte an element. */
static bool copy_head(const CacheCopy *copy, int batch, int head) {
  const Problem *p = copy->problem, host = without_pages(p);
  const Strides *from = copy->strides == &p->k_strides ? &host.k_strides : &host.v_strides;
  const size_t element = element_bytes(cache_dtype(p)), bytes = element * (size_t)p->head_dim;
  bool ok = true;
  for (int key = 0; ok && key < copy->cache->lengths[batch]; key++) {
    const uint16_t *row = copy->source + batch * from->batch + head * from->head + key * from->row;
    uint8_t packed[MAX_HEAD_DIM];
    for (int d = 0; element == 1 && d < p->head_dim; d++) packed[d] = (uint8_t)row[d];
    uint8_t *target = copy->target + (int64_t)element * cache_offset(p, copy->cache, copy->strides,
                                                                     batch, head, key);
    const void *source = element == 1 ? (const void *)packed : row;
#ifdef SIMT_BACKEND /* row by row: the lab then knows which are never set */
    ok = cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice) == cudaSuccess;
#else
    memcpy(target, source, bytes);
#endif
  }
  return ok;
}

static bool copy_cache(const CacheCopy *copy) {
  const Problem *p = copy->problem;
  bool ok = true;
#ifndef SIMT_BACKEND
#pragma omp parallel for collapse(2) reduction(&& : ok)
#endif
  for (int b = 0; b < p->batch; b++) {
    for (int h = 0; h < p->kv_heads; h++) ok = copy_head(copy, b, h) && ok;
  }
  return ok;
}

bool device_cache_upload(const Problem *p, const Cache *cache, const Strides *strides,
                         const uint16_t *source, const void **pointer, const char *what,
                         Error *error) {
  const int blocks = p->page_size > 0 ? cache->pages : p->batch;
  const size_t rows = (size_t)blocks * (size_t)(p->page_size > 0 ? p->page_size : p->kv_len);
  const size_t bytes = element_bytes(cache_dtype(p)) * rows * p->kv_heads * p->head_dim;
  CacheCopy copy = {p, cache, strides, source, NULL};
#ifdef SIMT_BACKEND /* memory that was never set is full of NaN */
  if (!device_allocate((void **)&copy.target, bytes, what, error)) return false;
  *pointer = copy.target;
  return copy_cache(&copy) || fail(error, EXIT_DEVICE, "%s: cannot copy it to the device", what);
#else
  copy.target = malloc(bytes);
  if (copy.target == NULL) return fail(error, EXIT_DEVICE, "out of host memory: %s", what);
  memset(copy.target, NAN_BYTE, bytes);
  copy_cache(&copy);
  const bool ok = device_upload(pointer, copy.target, bytes, what, error);
  free(copy.target);
  return ok;
#endif
}

bool device_decode_create(const Problem *p, const Inputs *inputs, DeviceTensors *t, Error *error) {
  const Cache *cache = &inputs->cache;
  DecodeTensors *d = &t->decode;
  *d = (DecodeTensors){.q = t->tensors.q,
                       .k = t->tensors.k,
                       .v = t->tensors.v,
                       .page_table_stride = cache->table_stride,
                       .k_scales = t->tensors.k_scales,
                       .v_scales = t->tensors.v_scales,
                       .o = t->tensors.o,
                       .lse = t->tensors.lse,
                       .workspace = t->tensors.workspace};
  const size_t batch = (size_t)p->batch;
  t->schedule_bytes = step.schedule_bytes == NULL ? 0 : step.schedule_bytes(p);
  return device_upload((const void **)&d->lengths, cache->lengths, sizeof(int) * batch, "lengths",
                       error) &&
         (cache->page_table == NULL ||
          device_upload((const void **)&d->page_table, cache->page_table,
                        sizeof(int) * batch * (size_t)cache->table_stride, "page table", error)) &&
         (t->schedule_bytes == 0 ||
          (device_allocate(&d->schedule, t->schedule_bytes, "schedule", error) &&
           device_ok(step_build()->schedule(p, d, 0), "schedule", error) &&
           device_ok(cudaDeviceSynchronize(), "schedule", error)));
}

void device_decode_free(DeviceTensors *t) {
  cudaFree((void *)t->decode.lengths);
  cudaFree((void *)t->decode.page_table);
  cudaFree(t->decode.schedule);
}
