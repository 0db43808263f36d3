/*
 * Tensor maps and the copies that use them (PTX ISA 8.7, 5.5 and 9.7.9.27.1), without im2col,
 * interleave. A load lands when no thread of the block can run; until then its target
 * holds NaN. A store reads shared memory when its thread waits for it.
 *
 * A bulk copy without a map (9.7.9.25) is a box of a tensor that has as many bytes, and a bulk
 * reduction is a store that adds. In a cluster a load may go to other blocks, and its source may be
 * shared memory of its own block or, for st.async, registers.
 */
#include <cudaTypedefs.h>
#include <stdatomic.h>
#include <string.h>
#include <tensor_map_limits.h>

#include "hopper.h"

enum {
  CHUNK = 16, /* bytes that swizzling moves */
  IS_MAP = 0xa7,
  MOST_BOX_ELEMENTS = 256,
  MOST_ROW_BYTES = MOST_BOX_ELEMENTS * 8,
  TARGET_ALIGNMENT = 128,
  BULK_ALIGNMENT = 16
};

/* --- Tensor maps ------------------------------------------------------------------------------ */

static unsigned bytes_of(CUtensorMapDataType type) {
  switch ((int)type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return 8;
  }
  return 0;
}

static bool is_not_simulated(const TensorMapRequest *r, CUtensorMapFloatOOBfill fill, char *why,
                             size_t why_size) {
  bool steps = false;
  for (unsigned i = 1; i < r->tensorRank; i++) steps |= r->elementStrides[i] != 1;
  const char *what = r->element_bytes == 0                            ? "tensorDataType"
                     : r->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ? "interleave"
                     : r->swizzle > CU_TENSOR_MAP_SWIZZLE_128B        ? "swizzle"
                     : fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE      ? "oobFill"
                     : steps                                          ? "elementStrides"
                                                                      : NULL;
  if (what == NULL) return false;
  snprintf(why, why_size, "the CPU backend does not simulate the value of %s", what);
  return true;
}

static CUresult encode_tiled(CUtensorMap *target, CUtensorMapDataType type, cuuint32_t rank,
                             void *address, const cuuint64_t *sizes, const cuuint64_t *strides,
                             const cuuint32_t *box, const cuuint32_t *element_strides,
                             CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  (void)promotion;
  char why[128];
  const unsigned element = bytes_of(type);
  const TensorMapRequest request = {target, element,         rank,       address, sizes, strides,
                                    box,    element_strides, interleave, swizzle};
  if (tensor_map_refusal(&request, why, sizeof why) ||
      is_not_simulated(&request, fill, why, sizeof why)) {
    fflush(stdout);
    fprintf(stderr, "simt: cuTensorMapEncodeTiled: %s\n", why);
    return CUDA_ERROR_INVALID_VALUE;
  }
  TensorMap map = {
      .address = (uintptr_t)address,
      .rank = (uint8_t)rank,
      .element_bytes = (uint8_t)element,
      .swizzle_bytes = (uint8_t)(swizzle == CU_TENSOR_MAP_SWIZZLE_NONE ? 0 : 16 << swizzle),
      .is_map = IS_MAP};
  for (unsigned i = 0; i < rank; i++) {
    map.sizes[i] = sizes[i];
    map.strides[i] = i == 0 ? element : strides[i - 1];
    map.box[i] = (uint16_t)box[i];
  }
  memset(target, 0, sizeof *target);
  memcpy(target, &map, sizeof map);
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *status) {
  (void)version, (void)flags;
  const PFN_cuTensorMapEncodeTiled_v12000 encode = encode_tiled;
  const bool known = strcmp(name, "cuTensorMapEncodeTiled") == 0;
  if (known) memcpy(function, &encode, sizeof encode);
  if (status != NULL) {
    *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

/* --- Boxes ------------------------------------------------------------------------------------ */

/** A row of a box: where it is in the tensor. */
typedef struct BoxRow {
  uint64_t address; /* of the element at the first coordinate; valid if `inside` */
  bool inside;      /* in all dimensions but the innermost */
} BoxRow;

static unsigned row_count(const TensorMap *map) {
  unsigned rows = 1;
  for (int i = 1; i < map->rank; i++) rows *= map->box[i];
  return rows;
}

static BoxRow box_row(const TensorCopy *copy, unsigned row) {
  const TensorMap *map = &copy->map;
  BoxRow result = {map->address, true};
  for (int i = 1; i < map->rank; i++) {
    const int64_t at = copy->coordinates[i] + (int64_t)(row % map->box[i]);
    row /= map->box[i];
    result.inside &= at >= 0 && (uint64_t)at < map->sizes[i];
    result.address += (uint64_t)at * map->strides[i];
  }
  return result;
}

/** The elements of a row that are inside of the tensor: from *begin to *end - 1. */
static void inner_range(const TensorCopy *copy, int64_t *begin, int64_t *end) {
  const int64_t first = copy->coordinates[0], size = (int64_t)copy->map.sizes[0];
  const int64_t width = copy->map.box[0];
  *begin = first < 0 ? -first : 0;
  *end = first + width > size ? size - first : width;
  if (*begin > width) *begin = width;
  if (*end < *begin) *end = *begin;
}

bool simt_box_row(const TensorCopy *copy, unsigned row, uintptr_t *address, size_t *bytes) {
  int64_t begin, end;
  if (row >= row_count(&copy->map)) return false;
  const BoxRow found = box_row(copy, row);
  const uint64_t element = copy->map.element_bytes;
  inner_range(copy, &begin, &end);
  *address = (uintptr_t)(found.address + (uint64_t)(copy->coordinates[0] + begin) * element);
  *bytes = found.inside ? (size_t)(end - begin) * element : 0;
  return true;
}

/** Adds a row of floats to those in device memory, each as a whole. */
static void add_row(uintptr_t address, const unsigned char *row, size_t bytes) {
  for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
    _Atomic uint32_t *target = (_Atomic uint32_t *)(address + at);
    uint32_t old = atomic_load(target), operand;
    memcpy(&operand, row + at, sizeof operand);
    while (!atomic_compare_exchange_weak(target, &old,
                                         simt_apply_32(SIMT_ATOMIC_ADD_FLOAT, old, operand))) {
    }
  }
}

/** Copies the box between the tensor and shared memory. */
static void copy_box(const TensorCopy *copy) {
  const TensorMap *map = &copy->map;
  const unsigned row_bytes = map->box[0] * map->element_bytes;
  const bool load = copy->barrier >= 0;
  int64_t begin, end;
  inner_range(copy, &begin, &end);
  unsigned char row_buffer[MOST_ROW_BYTES];
  unsigned char *inside = row_buffer + begin * map->element_bytes;
  uintptr_t address;
  size_t bytes;
  for (unsigned row = 0; simt_box_row(copy, row, &address, &bytes); row++) {
    if (load) {
      memset(row_buffer, 0, row_bytes);
      if (bytes > 0) memcpy(inside, (const void *)address, bytes);
    }
    unsigned char *shared = copy->target->shared;
    const uintptr_t at = copy->shared - (uintptr_t)shared + (uintptr_t)row * row_bytes;
    for (unsigned j = 0; j < row_bytes; j += CHUNK) {
      unsigned char *chunk = shared + simt_swizzled(at + j, map->swizzle_bytes);
      if (load) {
        memcpy(chunk, row_buffer + j, row_bytes < CHUNK ? row_bytes : CHUNK);
      } else {
        memcpy(row_buffer + j, chunk, CHUNK);
      }
    }
    if (load || bytes == 0) continue;
    if (copy->adds) {
      add_row(address, inside, bytes);
    } else {
      memcpy((void *)address, inside, bytes);
    }
  }
}

/** Reads the first and the last byte of each row, so that a bad address is reported where the copy
 * is issued. */
static void touch_box(Worker *worker, const TensorCopy *copy) {
  uintptr_t address;
  size_t bytes;
  worker->access_call_site = copy->call_site;
  worker->access_is_write = copy->barrier < 0;
  for (unsigned row = 0; simt_box_row(copy, row, &address, &bytes); row++) {
    if (bytes == 0) continue;
    (void)*(const volatile char *)address;
    (void)*(const volatile char *)(address + bytes - 1);
  }
  worker->access_call_site = NULL;
}

/** Ends the block unless the copy's part of shared memory is aligned and in bounds. */
static void check_shared(const Worker *worker, const TensorCopy *copy, unsigned alignment) {
  const char *shared = (const char *)copy->shared;
  simt_require_aligned(shared, alignment, "shared memory of a tensor copy", copy->call_site);
  const uintptr_t at = copy->shared - (uintptr_t)smem;
  const size_t size = worker->launch->dynamic_shared_bytes;
  if (at > size || copy->bytes > size - at) {
    simt_complain(
        copy->call_site,
        "a tensor copy of %u bytes at shared + %td, of %zu bytes of dynamic shared memory",
        copy->bytes, shared - (const char *)smem, size);
  }
}

/** Makes it a copy to the shared memory of another block, where it goes to the own one. */
static void send(TensorCopy *copy, Worker *target) {
  copy->shared = copy->shared - (uintptr_t)copy->target->shared + (uintptr_t)target->shared;
  copy->target = target;
}

/** What a copy instruction says, checked. */
static TensorCopy make_copy(Worker *worker, const CUtensorMap *map, const void *shared,
                            const int *coordinates, const void *call_site) {
  TensorCopy copy = {.shared = (uintptr_t)shared,
                     .issuer = worker,
                     .target = worker,
                     .thread = worker->running,
                     .call_site = call_site};
  memcpy(&copy.map, map, sizeof copy.map);
  if (copy.map.is_map != IS_MAP) simt_complain(call_site, "a tensor copy without a tensor map");
  memcpy(copy.coordinates, coordinates, copy.map.rank * sizeof *coordinates);
  copy.bytes = row_count(&copy.map) * copy.map.box[0] * copy.map.element_bytes;
  check_shared(worker, &copy, TARGET_ALIGNMENT);
  return copy;
}

/** The same of a bulk copy, in rows as long as they can be. */
static TensorCopy make_bulk_copy(Worker *worker, const void *global, const void *shared,
                                 unsigned bytes, const void *call_site) {
  if (bytes == 0 || bytes % BULK_ALIGNMENT != 0) {
    simt_complain(call_site, "a bulk copy of %u bytes: must be a multiple of 16", bytes);
  }
  simt_require_aligned(global, BULK_ALIGNMENT, "global memory of a bulk copy", call_site);
  unsigned row_bytes = MOST_ROW_BYTES;
  while (bytes % row_bytes != 0) row_bytes /= 2;
  const unsigned elements = row_bytes / sizeof(float), rows = bytes / row_bytes;
  const TensorCopy copy = {.map = {.address = (uintptr_t)global,
                                   .sizes = {elements, rows},
                                   .strides = {sizeof(float), row_bytes},
                                   .box = {(uint16_t)elements, (uint16_t)rows},
                                   .rank = 2,
                                   .element_bytes = sizeof(float),
                                   .is_map = IS_MAP},
                           .shared = (uintptr_t)shared,
                           .issuer = worker,
                           .target = worker,
                           .bytes = bytes,
                           .thread = worker->running,
                           .call_site = call_site};
  check_shared(worker, &copy, BULK_ALIGNMENT);
  return copy;
}

static void append(TensorCopies *copies, const TensorCopy *copy) {
  copies->list = simt_with_room(copies->list, (size_t)copies->count, sizeof *copy);
  copies->list[copies->count++] = *copy;
}

static TensorCopy take(TensorCopies *copies, int i) {
  const TensorCopy copy = copies->list[i];
  memmove(&copies->list[i], &copies->list[i + 1], sizeof copy * (size_t)(--copies->count - i));
  return copy;
}

/* --- Loads ------------------------------------------------------------------------------------ */

/** `barrier`: where it is in the running block, or there in the target's. */
static void issue_load(TensorCopy copy, const void *barrier) {
  Worker *target = copy.target;
  simt_require_live(target, copy.call_site);
  barrier = (const char *)barrier - (uintptr_t)smem + (uintptr_t)target->shared;
  copy.barrier = simt_find_mbarrier(target, barrier, copy.call_site);
  if (!simt_hopper(target)->mbarriers[copy.barrier].fenced && !copy.has_data) {
    simt_complain(copy.call_site, "a tensor copy for an mbarrier without fence.mbarrier_init");
  }
  if (!copy.has_data) touch_box(copy.issuer, &copy);
  if (simt_observer != NULL && target != copy.issuer) {
    simt_observer->mbarrier_used(barrier, MBARRIER_COUNTS, copy.call_site);
  }
  if (simt_observer != NULL) simt_observer->tensor_copy_issued(&copy);
  memset((void *)copy.shared, 0xff, copy.bytes);
  append(&simt_hopper(target)->loads, &copy);
  if (!copy.repeats) copy.issuer->counters.tensor_copies++;
}

void simt_tensor_load(void *shared, const CUtensorMap *map, void *barrier, const int *coordinates) {
  const void *call_site = __builtin_return_address(0);
  issue_load(make_copy(simt_worker, map, shared, coordinates, call_site), barrier);
}

void simt_bulk_load(void *shared, const void *global, unsigned bytes, void *barrier) {
  const void *call_site = __builtin_return_address(0);
  issue_load(make_bulk_copy(simt_worker, global, shared, bytes, call_site), barrier);
}

void simt_tensor_multicast(void *shared, const CUtensorMap *map, void *barrier,
                           const int *coordinates, unsigned ranks) {
  const void *call_site = __builtin_return_address(0);
  TensorCopy copy = make_copy(simt_worker, map, shared, coordinates, call_site);
  for (unsigned rest = ranks; rest != 0; rest &= rest - 1) {
    send(&copy, simt_cluster_member((unsigned)__builtin_ctz(rest), call_site));
    issue_load(copy, barrier);
    copy.repeats = true;
  }
}

void simt_bulk_send(void *target, const void *source, unsigned bytes, void *barrier,
                    unsigned rank) {
  const void *call_site = __builtin_return_address(0);
  TensorCopy copy = make_bulk_copy(simt_worker, source, target, bytes, call_site);
  copy.between = true;
  send(&copy, simt_cluster_member(rank, call_site));
  issue_load(copy, barrier);
}

void simt_store_async(void *own, const void *value, unsigned bytes, void *barrier, unsigned rank) {
  Worker *worker = simt_worker;
  const void *call_site = __builtin_return_address(0);
  TensorCopy copy = {.map = {.sizes = {bytes / sizeof(float)},
                             .strides = {sizeof(float)},
                             .box = {(uint16_t)(bytes / sizeof(float))},
                             .rank = 1,
                             .element_bytes = sizeof(float),
                             .is_map = IS_MAP},
                     .shared = (uintptr_t)own,
                     .issuer = worker,
                     .target = worker,
                     .between = true,
                     .has_data = true,
                     .bytes = bytes,
                     .thread = worker->running,
                     .call_site = call_site};
  memcpy(copy.data, value, bytes);
  check_shared(worker, &copy, bytes);
  send(&copy, simt_cluster_member(rank, call_site));
  issue_load(copy, barrier);
}

/** The copies in flight to the worker's block or, if there are none, to another one of its cluster;
 * NULL: none. */
static TensorCopies *loads_in_flight(const Worker *worker) {
  const Cluster *cluster = worker->cluster;
  for (unsigned i = 0; i < cluster->size; i++) {
    Hopper *hopper = cluster->members[(worker->rank + i) % cluster->size]->hopper;
    if (hopper != NULL && hopper->loads.count > 0) return &hopper->loads;
  }
  return NULL;
}

bool simt_land_tensor_load(Worker *worker) {
  TensorCopies *loads = loads_in_flight(worker);
  if (loads == NULL) return false;
  /* Copies land in any order. */
  int i = 0;
  if (worker->order == REVERSE) i = loads->count - 1;
  if (worker->order == RANDOM) i = (int)(worker->random_state % (uint64_t)loads->count);
  TensorCopy copy = take(loads, i);
  if (copy.has_data) copy.map.address = (uintptr_t)copy.data;
  if (simt_observer != NULL) simt_observer->tensor_copy_landed(&copy);
  copy_box(&copy);
  simt_mbarrier_complete(&copy);
  return true;
}

void simt_refuse_end_of_loads(Worker *worker) {
  const Cluster *cluster = worker->cluster;
  for (unsigned rank = 0; rank < cluster->size; rank++) {
    const Hopper *hopper = cluster->members[rank]->hopper;
    for (int i = 0; hopper != NULL && i < hopper->loads.count; i++) {
      const TensorCopy *copy = &hopper->loads.list[i];
      const bool own = copy->issuer == worker, reads = own && copy->between && !copy->has_data;
      if (copy->target != worker && !reads) continue;
      if (own) worker->running = copy->thread; /* that the report names */
      simt_complain(copy->call_site,
                    "the block ends while a tensor copy %s its shared memory is in flight",
                    copy->target == worker ? "to" : "from");
    }
  }
}

/* --- Stores ----------------------------------------------------------------------------------- */

static void issue_store(Worker *worker, TensorCopy copy, bool adds) {
  Hopper *hopper = simt_hopper(worker);
  copy.barrier = -1;
  copy.adds = adds;
  copy.group = hopper->store_groups[worker->running];
  touch_box(worker, &copy);
  if (simt_observer != NULL) simt_observer->tensor_copy_issued(&copy);
  append(&hopper->stores, &copy);
  worker->counters.tensor_copies++;
}

void simt_tensor_store(const CUtensorMap *map, const void *shared, const int *coordinates) {
  const void *call_site = __builtin_return_address(0);
  issue_store(simt_worker, make_copy(simt_worker, map, shared, coordinates, call_site), false);
}

void simt_bulk_reduce_add(void *global, const void *shared, unsigned bytes) {
  const void *call_site = __builtin_return_address(0);
  issue_store(simt_worker, make_bulk_copy(simt_worker, global, shared, bytes, call_site), true);
}

void simt_bulk_commit(void) {
  Worker *worker = simt_worker;
  simt_hopper(worker)->store_groups[worker->running]++;
}

void simt_bulk_wait(unsigned pending) {
  Worker *worker = simt_worker;
  Hopper *hopper = simt_hopper(worker);
  const unsigned committed = hopper->store_groups[worker->running];
  for (int i = 0; i < hopper->stores.count;) {
    const TensorCopy *copy = &hopper->stores.list[i];
    if (copy->thread != worker->running || copy->group + pending >= committed) {
      i++;
      continue;
    }
    const TensorCopy done = take(&hopper->stores, i);
    copy_box(&done);
    if (simt_observer != NULL) simt_observer->tensor_copy_landed(&done);
  }
}

void simt_refuse_exit_of_stores(Worker *worker) {
  if (worker->hopper == NULL) return;
  for (int i = 0; i < worker->hopper->stores.count; i++) {
    const TensorCopy *copy = &worker->hopper->stores.list[i];
    if (copy->thread != worker->running) continue;
    simt_complain(copy->call_site,
                  "a thread ends while its tensor copy from shared memory is in flight");
  }
}

void simt_fence_proxy_async(void) {
  if (simt_observer != NULL) simt_observer->proxy_fence(false);
}

void simt_fence_proxy_async_cluster(void) {
  if (simt_observer != NULL) simt_observer->proxy_fence(true);
}
