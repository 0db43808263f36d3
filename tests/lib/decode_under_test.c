/**
 * @file
 * Calls a decode step directly, with tensors that the command line cannot ask for, and compares the
 * bits of the answer with those of the same problem in compact tensors. The argument chooses the
 * trial:
 *
 * padded   gaps after every row, head, and sequence or page, different ones in each tensor; they
 *          hold NaN, as all keys past a length do, and the gaps of O hold the same bits afterwards
 * guarded  K and V end with the last key that a sequence has
 * pointers each of Q, K, V and O in turn begins at an odd element: the step computes the same, or
 *          refuses them
 * again    the same once more, or SAME_BITS_RUNS times, with longer sequences
 * graph    a CUDA graph, replayed with other lengths
 * old-gpu  the device reports compute capability 7.5: does the step take the problem?
 *
 * One line is printed for each problem. The exit code is 0, 1 when an answer is wrong, or 3 when
 * the device failed.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "host/device/graph.h"
#include "host/io/cache.h"
#include "place_tensors.h"

enum { MOST_SEQUENCES = 4, SPARE_PAGES = 3 };

static bool all_right = true;

static int pretended = 0; /* compute capability times 10; 0: that of the device */
cudaError_t __real_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  const cudaError_t status = __real_cudaDeviceGetAttribute(value, attribute, device);
  if (pretended != 0 && attribute == cudaDevAttrComputeCapabilityMajor) *value = pretended / 10;
  if (pretended != 0 && attribute == cudaDevAttrComputeCapabilityMinor) *value = pretended % 10;
  return status;
}

/** A problem with the lengths of its sequences, and its pages in reverse order. */
typedef struct Case {
  Problem p;
  int lengths[MOST_SEQUENCES];
  int pages, table_stride; /* 0 without pages */
  int page_table[1024];
} Case;

/** The tensors of a case on the device. */
typedef struct Pass {
  Case *c;
  Place places[TENSORS];
  DecodeTensors t;
  size_t workspace_bytes;
} Pass;

typedef struct Answer {
  uint16_t *o;
  float *lse;
} Answer;

static void free_answer(Answer *answer) {
  free(answer->o);
  free(answer->lse);
}

static void wrong(const char *what) {
  printf("WRONG: %s\n", what);
  all_right = false;
}

/* --- Tensors -------------------------------------------------------------------------------- */

/** The problem whose batch entries are those of the cache: sequences, or pages. */
static Problem stored(const Case *c, int tensor) {
  Problem p = c->p;
  if (c->pages == 0 || tensor == Q || tensor == O) return p;
  p.batch = c->pages;
  p.kv_len = p.page_size;
  return p;
}

static void set_pages(Case *c) {
  if (c->p.page_size == 0) return;
  c->table_stride = page_count(&c->p, c->p.kv_len);
  c->pages = SPARE_PAGES;
  for (int b = 0; b < c->p.batch; b++) c->pages += page_count(&c->p, c->lengths[b]);
  int page = c->pages - 1;
  for (int b = 0; b < c->p.batch; b++) {
    for (int i = 0; i < c->table_stride; i++) {
      const bool used = i < page_count(&c->p, c->lengths[b]);
      c->page_table[b * c->table_stride + i] = used ? page : NO_PAGE;
      page -= used;
    }
  }
}

/** Offset of a key in elements. */
static int64_t key_offset(const Case *c, int tensor, int batch, int head, int key) {
  const Cache cache = {.page_table = c->pages > 0 ? (int *)(uintptr_t)c->page_table : NULL,
                       .table_stride = c->table_stride};
  const Strides *s = tensor == K ? &c->p.k_strides : &c->p.v_strides;
  return cache_offset(&c->p, &cache, s, batch, head, key);
}

/** Writes the keys that the sequences have; a number depends on its own place alone. */
static void fill_cache(Case *c, int tensor, char *base) {
  const Dtype dtype = cache_dtype(&c->p);
  const int bytes = dtype == DTYPE_E4M3 ? 1 : 2, dim = c->p.head_dim;
  char row[2 * MAX_HEAD_DIM];
  for (int b = 0; b < c->p.batch; b++) {
    for (int h = 0; h < c->p.kv_heads; h++) {
      for (int key = 0; key < c->lengths[b]; key++) {
        const int64_t first = (((int64_t)b * c->p.kv_heads + h) * 100000 + key) * dim;
        for (int d = 0; d < dim; d++) {
          const uint16_t bits = value_of(dtype, tensor, first + d);
          memcpy(row + d * bytes, &bits, (size_t)bytes);
        }
        require(cudaMemcpy(base + bytes * key_offset(c, tensor, b, h, key), row,
                           (size_t)(bytes * dim), cudaMemcpyHostToDevice),
                "copy of the cache");
      }
    }
  }
}

static const void *upload(const void *source, size_t bytes) {
  void *target = device_memory(bytes);
  require(cudaMemcpy(target, source, bytes, cudaMemcpyHostToDevice), "upload");
  return target;
}

/** Scales of a cache in e4m3, another for each key/value head. */
static const float *scales_of(const Case *c, int tensor) {
  float scales[64];
  if (cache_dtype(&c->p) != DTYPE_E4M3) return NULL;
  const int count = c->p.batch * c->p.kv_heads;
  for (int i = 0; i < count; i++) scales[i] = 1 + (float)(3 * i + tensor) / 16;
  return upload(scales, sizeof *scales * (size_t)count);
}

/** Bytes of K or V up to the end of the last key that a sequence has. */
static size_t used_bytes(const Case *c, int tensor) {
  int64_t end = 0;
  for (int b = 0; b < c->p.batch; b++) {
    for (int key = 0; key < c->lengths[b]; key++) {
      const int64_t offset = key_offset(c, tensor, b, c->p.kv_heads - 1, key) + c->p.head_dim;
      if (offset > end) end = offset;
    }
  }
  return (size_t)end * (cache_dtype(&c->p) == DTYPE_E4M3 ? 1 : 2);
}

/** Gaps after rows, heads and sequences or pages; 0: none. `gaps` < 0: K and V end early. */
static void place_tensors(Pass *pass, int gaps, int odd) {
  Case *c = pass->c;
  for (int tensor = Q; tensor <= O; tensor++) {
    Problem p = stored(c, tensor);
    const int wide = gaps > 0;
    *strides_of(&p, tensor) =
        strides_with_gaps(&p, tensor, 8 * (tensor + 1) * wide, (5 - tensor) * wide,
                          (1 + tensor % 2) * wide, NO_STRIDE);
    *strides_of(&c->p, tensor) = *strides_of(&p, tensor);
    pass->places[tensor] = place_in_one(&p, tensor, tensor == odd);
    if (gaps >= 0 || tensor == Q || tensor == O) continue;
    require(cudaFree(pass->places[tensor].allocation), "free");
    const size_t bytes = used_bytes(c, tensor);
    char *memory = device_memory(bytes);
    pass->places[tensor] = (Place){.allocation = memory, .bytes = bytes, .base = memory};
  }
}

/** Fills the tensors, and allocates what else a pass needs. */
static void prepare(Pass *pass) {
  Case *c = pass->c;
  const size_t batch = (size_t)c->p.batch;
  fill(&c->p, Q, Q, pass->places[Q].base);
  fill_cache(c, K, pass->places[K].base);
  fill_cache(c, V, pass->places[V].base);
  pass->workspace_bytes = step.workspace_bytes == NULL ? 0 : step.workspace_bytes(&c->p);
  pass->t = (DecodeTensors){
      .q = pass->places[Q].base,
      .k = pass->places[K].base,
      .v = pass->places[V].base,
      .lengths = upload(c->lengths, sizeof(int) * batch),
      .page_table_stride = c->table_stride,
      .k_scales = scales_of(c, K),
      .v_scales = scales_of(c, V),
      .o = pass->places[O].base,
      .lse = device_memory(sizeof(float) * (size_t)row_count(&c->p, O)),
      .workspace = pass->workspace_bytes > 0 ? device_memory(pass->workspace_bytes) : NULL,
  };
  if (c->pages > 0) {
    pass->t.page_table = upload(c->page_table, sizeof(int) * batch * (size_t)c->table_stride);
  }
  if (step.workspace_zero && pass->workspace_bytes > 0) {
    const size_t zeros = step.zero_bytes == NULL ? pass->workspace_bytes : step.zero_bytes(&c->p);
    require(cudaMemset(pass->t.workspace, 0, zeros), "workspace");
  }
  if (step.schedule == NULL) return;
  pass->t.schedule = device_memory(step.schedule_bytes(&c->p));
  require(step.schedule(&c->p, &pass->t, 0), "schedule");
}

static void free_pass(Pass *pass) {
  const void *const all[] = {pass->t.lengths,  pass->t.page_table, pass->t.k_scales,
                             pass->t.v_scales, pass->t.lse,        pass->t.workspace,
                             pass->t.schedule};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    require(cudaFree((void *)(uintptr_t)all[i]), "free");
  }
  for (int tensor = Q; tensor <= O; tensor++) {
    require(cudaFree(pass->places[tensor].allocation), "free");
  }
}

/** Reads O and LSE. */
static Answer result_of(Pass *pass) {
  Problem *p = &pass->c->p;
  const size_t rows = (size_t)row_count(p, O), lse_bytes = sizeof(float) * rows;
  Answer answer = {host_memory(2 * rows * (size_t)p->head_dim), host_memory(lse_bytes)};
  require(cudaDeviceSynchronize(), "kernel");
  require(cudaMemcpy(answer.lse, pass->t.lse, lse_bytes, cudaMemcpyDeviceToHost), "copy of LSE");
  if (!collect(p, O, &pass->places[O], answer.o)) wrong("O was written to outside its rows");
  return answer;
}

/** Runs the step twice, so that a workspace must be as a pass needs it. */
static Answer solve(Case *c, int gaps) {
  Pass pass = {.c = c};
  place_tensors(&pass, gaps, NO_STRIDE);
  prepare(&pass);
  require(step.decode(&c->p, &pass.t, 0), "launch");
  require(cudaMemset(pass.t.lse, 0xff, sizeof(float) * (size_t)row_count(&c->p, O)), "LSE");
  require(step.decode(&c->p, &pass.t, 0), "second launch");
  const Answer answer = result_of(&pass);
  free_pass(&pass);
  return answer;
}

/* --- What is tried -------------------------------------------------------------------------- */

static void describe(const Case *c, const char *what) {
  const Problem *p = &c->p;
  printf("%s, %s, D=%d Nq=%d pages=%d: ", what, p->dtype == DTYPE_FP16 ? "fp16" : "bf16",
         p->head_dim, p->q_len, p->page_size);
}

static void compare(const Case *c, const Answer *expected, Answer *found) {
  Problem p = c->p;
  const size_t rows = (size_t)row_count(&p, O);
  const bool same = memcmp(found->o, expected->o, 2 * rows * (size_t)p.head_dim) == 0 &&
                    memcmp(found->lse, expected->lse, sizeof(float) * rows) == 0;
  if (same) {
    printf("same bits\n");
  } else {
    wrong("other bits than in compact tensors");
  }
  free_answer(found);
}

static void compare_with(Case *c, int gaps, const char *what) {
  Answer expected = solve(c, 0), found = solve(c, gaps);
  describe(c, what);
  compare(c, &expected, &found);
  free_answer(&expected);
}

static void compare_padded(Case *c) {
  compare_with(c, 1, "gaps everywhere");
}

static void compare_guarded(Case *c) {
  compare_with(c, -1, "nothing past the last key");
}

static void compare_pointers(Case *c) {
  Answer expected = solve(c, 0);
  for (int odd = Q; odd <= O; odd++) {
    Pass pass = {.c = c};
    place_tensors(&pass, 0, odd);
    prepare(&pass);
    const cudaError_t error = step.decode(&c->p, &pass.t, 0);
    char what[32];
    snprintf(what, sizeof what, "%c at an odd element", "QKVO"[odd]);
    describe(c, what);
    if (error == cudaErrorMisalignedAddress) {
      printf("refused\n");
    } else {
      require(error, "launch");
      Answer found = result_of(&pass);
      compare(c, &expected, &found);
    }
    free_pass(&pass);
  }
  free_answer(&expected);
}

static void compare_again(Case *c) {
  const char *runs = getenv("SAME_BITS_RUNS");
  for (int b = 0; b < c->p.batch; b++) c->lengths[b] *= runs == NULL ? 3 : 20;
  c->p.kv_len *= runs == NULL ? 3 : 20;
  set_pages(c);
  Answer expected = solve(c, 0);
  for (int i = 0; i < (runs == NULL ? 1 : atoi(runs)); i++) {
    Answer found = solve(c, 0);
    describe(c, "again");
    compare(c, &expected, &found);
  }
  free_answer(&expected);
}

/** The lengths of a graph's replay are those in memory then; the schedule is made anew. */
static void compare_graph(Case *c) {
  Case shorter = *c;
  shorter.lengths[0] = c->lengths[0] / 2;
  shorter.lengths[1] = 0;
  Pass pass = {.c = c};
  place_tensors(&pass, 0, NO_STRIDE);
  prepare(&pass);
  cudaGraphExec_t graph = NULL;
  require(make_decode_graph(&c->p, &pass.t, &graph), "graph");
  const int *const lengths[] = {c->lengths, shorter.lengths};
  Case *const cases[] = {c, &shorter};
  for (int i = 0; i < 2; i++) {
    require(cudaMemcpy((void *)(uintptr_t)pass.t.lengths, lengths[i],
                       sizeof(int) * (size_t)c->p.batch, cudaMemcpyHostToDevice),
            "lengths");
    if (step.schedule != NULL) require(step.schedule(&c->p, &pass.t, 0), "schedule");
    require(cudaGraphLaunch(graph, 0), "replay");
    Answer found = result_of(&pass), expected = solve(cases[i], 0);
    describe(c, "replayed");
    compare(c, &expected, &found);
    free_answer(&expected);
  }
  require(cudaGraphExecDestroy(graph), "graph");
  free_pass(&pass);
}

static void ask_on_old_gpu(Case *c) {
  char why[256];
  pretended = 75;
  const bool supported = step.supports == NULL || step.supports(&c->p, why, sizeof why);
  pretended = 0;
  printf("%s: %s\n", c->p.dtype == DTYPE_BF16 ? "bf16" : "fp16", supported ? "taken" : why);
}

/** The step need not take all of them. */
static void for_each_case(void (*try)(Case *)) {
  static const int HEAD_DIMS[] = {64, 128}, PAGE_SIZES[] = {0, 16, 64};
  for (int i = 0; i < 12; i++) {
    Case c = {
        .p = {.batch = 3, .q_heads = 8, .kv_heads = 2, .q_len = i % 2 ? 5 : 1, .kv_len = 150}};
    const int lengths[] = {133, 2, 70};
    memcpy(c.lengths, lengths, sizeof lengths);
    c.p.head_dim = HEAD_DIMS[i / 2 % 2];
    c.p.dtype = c.p.o_dtype = i % 2 == i / 2 % 2 ? DTYPE_BF16 : DTYPE_FP16;
    const bool e4m3 = !(step.caches & CACHE_16_BIT) || (step.caches & CACHE_E4M3 && i % 3 == 2);
    c.p.kv_dtype = e4m3 ? DTYPE_E4M3 : c.p.dtype;
    c.p.page_size = PAGE_SIZES[i / 4];
    c.p.mask = MASK_CAUSAL;
    c.p.scale = (float)(1 / sqrt(c.p.head_dim));
    char why[256];
    if (c.p.page_size > 0 && !(step.caches & CACHE_PAGES)) continue;
    for (int tensor = Q; tensor <= O; tensor++) {
      const Problem p = stored(&c, tensor);
      *strides_of(&c.p, tensor) = strides_with_gaps(&p, tensor, 0, 0, 0, NO_STRIDE);
    }
    if (step.supports != NULL && !step.supports(&c.p, why, sizeof why)) continue;
    set_pages(&c);
    try(&c);
  }
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*try)(Case *);
  } TRIALS[] = {{"padded", compare_padded},     {"guarded", compare_guarded},
                {"pointers", compare_pointers}, {"again", compare_again},
                {"graph", compare_graph},       {"old-gpu", ask_on_old_gpu}};
  for (size_t i = 0; argc == 2 && i < sizeof TRIALS / sizeof *TRIALS; i++) {
    if (strcmp(argv[1], TRIALS[i].name) != 0) continue;
    for_each_case(TRIALS[i].try);
    return all_right ? EXIT_RIGHT : EXIT_WRONG;
  }
  fprintf(stderr, "usage: %s padded|guarded|pointers|again|graph|old-gpu\n", argv[0]);
  return EXIT_USAGE;
}
