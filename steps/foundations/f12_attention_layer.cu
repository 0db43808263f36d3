/**
 * @file
 * f12: an attention layer, forward and backward, from kernels that exist: products by the pipeline
 * of f08c, for any shape (gemm.cuh), attention and its gradients by two of the steps.
 *
 * X [B, N, C] is projected to Q, K and V, of H heads with D = C / H numbers each, and of fewer
 * heads of K and V. Each head of queries attends to the tokens before it. The heads of a token,
 * side by side, are projected once more, to Y [B, N, C]. Nothing is transposed or copied between
 * the parts: Q, K and V are columns of the same matrix, and strides tell the steps where the heads
 * lie.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backward.h"
#include "foundation.h"
#include "gemm.cuh"
#include "layer_reference.h"

/** The steps that the program is linked with: `make f12 LAYER="FORWARD BACKWARD"`. */
extern "C" const Step forward_step, backward_step;

// [shapes]
// On a GPU a layer of 2048 channels, on the CPU one of 256.
constexpr int HEADS_ON_GPU = 16, KV_HEADS_ON_GPU = 4, HEAD_DIM_ON_GPU = 128;
constexpr int HEADS_ON_CPU = 4, KV_HEADS_ON_CPU = 2, HEAD_DIM_ON_CPU = 64;
constexpr int TOKENS_ON_GPU = 16384;  // of sequences of N >= 512; of shorter ones there are two

static int tokens;     // B N, rows of X
static int channels;   // C = H D, columns of X
static int qkv_width;  // (H + 2 H_kv) D, columns of QKV: all heads of Q, then of K, then of V

static __half *x, *o, *y, *d_y, *d_o, *d_x;  // [B N, C]
static __half *qkv, *d_qkv;                  // [B N, qkv_width]
static __half *w_qkv, *w_o;                  // [C, qkv_width], [C, C]
static float *d_w_qkv, *d_w_o;               // the same; sums over all tokens, so fp32
static float *lse;                           // [B, H, N]

static Problem problem;  // what the steps are told
static Tensors forward;
static BackwardTensors backward;
static Layer layer;  // what the check is told
// [shapes]

// [views]
/** Says where the heads lie: head h of token n of sequence b begins at b N W + n W + h D, in rows
 * of W numbers. So the next head is D numbers further, and not N D, as in [B, H, N, D]. */
static void describe(int sequences, int n, int heads, int kv_heads, int head_dim) {
  tokens = sequences * n, channels = heads * head_dim;
  qkv_width = (heads + 2 * kv_heads) * head_dim;
  const Strides of_qkv = {(int64_t)n * qkv_width, head_dim, qkv_width};
  const Strides of_o = {(int64_t)n * channels, head_dim, channels};
  problem.batch = sequences, problem.q_heads = heads, problem.kv_heads = kv_heads;
  problem.q_len = problem.kv_len = n, problem.head_dim = head_dim;
  problem.dtype = problem.o_dtype = problem.kv_dtype = DTYPE_FP16;
  problem.mask = MASK_CAUSAL;
  problem.scale = 1 / sqrtf((float)head_dim);
  problem.q_strides = problem.k_strides = problem.v_strides = of_qkv;
  problem.o_strides = of_o;
}

static __half *k_of(__half *q) {
  return q + channels;
}
static __half *v_of(__half *q) {
  return k_of(q) + problem.kv_heads * problem.head_dim;
}
// [views]

// [gemm]
template <bool A_ACROSS, bool B_ACROSS, typename T>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_kernel(const __half *a, const __half *b, T *c, int rows, int columns, int k) {
  extern __shared__ __align__(16) unsigned char smem[];
  gemm_block<A_ACROSS, B_ACROSS>((Tiles *)smem, a, b, c, rows, columns, k);
}

enum Form { PLAIN, TRANSPOSED };

/** C = A B: C is rows x columns, A rows x k and B k x columns, or TRANSPOSED in memory: k x rows,
 * columns x k. Rows lie behind each other. Lengths are multiples of 8. */
template <Form A, Form B, typename T>
static void gemm(const __half *a, const __half *b, T *c, int rows, int columns, int k) {
  const auto kernel = gemm_kernel<A == PLAIN, B == TRANSPOSED, T>;
  const int bytes = STAGES * sizeof(Tiles);
  const dim3 grid((columns + TILE_COLUMNS - 1) / TILE_COLUMNS, (rows + TILE_ROWS - 1) / TILE_ROWS);
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, THREADS, bytes>>>(a, b, c, rows, columns, k);
}
// [gemm]

// [parts]
static void project(void) {  // QKV = X [Wq Wk Wv]
  gemm<PLAIN, PLAIN>(x, w_qkv, qkv, tokens, qkv_width, channels);
}
static void attend(void) {  // O = softmax(scale Q K^T) V, head by head
  CHECK(forward_step.forward(&problem, &forward, problem.batch * problem.q_heads, 0));
}
static void project_out(void) {  // Y = O Wo
  gemm<PLAIN, PLAIN>(o, w_o, y, tokens, channels, channels);
}

static void project_out_backward(void) {  // dO = dY Wo^T, dWo = O^T dY
  gemm<PLAIN, TRANSPOSED>(d_y, w_o, d_o, tokens, channels, channels);
  gemm<TRANSPOSED, PLAIN>(o, d_y, d_w_o, channels, channels, tokens);
}
static void attend_backward(void) {  // dQ, dK and dV
  CHECK(backward_step.backward(&problem, &backward, problem.batch * problem.q_heads, 0));
}
static void project_backward(void) {  // dX = dQKV W^T, which adds up three; dW = X^T dQKV
  gemm<PLAIN, TRANSPOSED>(d_qkv, w_qkv, d_x, tokens, channels, qkv_width);
  gemm<TRANSPOSED, PLAIN>(x, d_qkv, d_w_qkv, channels, qkv_width, tokens);
}
// [parts]

static void (*const PARTS[])(void) = {
    project, attend, project_out, project_out_backward, attend_backward, project_backward};

static int parts_launched;

/** Launches a part; those before it too, if they have not been launched, as with --stage. */
template <int PART>
static void run(void) {
  if (parts_launched > PART) return PARTS[PART]();
  while (parts_launched <= PART) PARTS[parts_launched++]();
}

/** Are these tensors right, which a part has written? */
template <LayerTensor FIRST, LayerTensor SECOND>
static bool are_right(char note[200]) {
  return layer_is_right(&layer, FIRST, note) && layer_is_right(&layer, SECOND, note);
}
template <LayerTensor ONE>
static bool is_right(char note[200]) {
  return layer_is_right(&layer, ONE, note);
}

/** Device memory, all NaN, so that what a part does not write is found. */
template <typename T>
static void allocate(T *&array, LayerTensor tensor, size_t count) {
  CHECK(cudaMalloc(&array, sizeof(T) * count));
  CHECK(cudaMemset(array, 0xff, sizeof(T) * count));
  layer.at[tensor] = array;
}

/** An input: random numbers of this size, uniform around 0. */
static void allocate_input(__half *&array, LayerTensor tensor, size_t count, float size,
                           uint64_t seed) {
  __half *const numbers = (__half *)foundation_allocate(sizeof(__half) * count);
  for (size_t i = 0; i < count; i++) {
    numbers[i] = __float2half_rn(size * foundation_float(seed + tensor, i));
  }
  allocate(array, tensor, count);
  CHECK(cudaMemcpy(array, numbers, sizeof(__half) * count, cudaMemcpyHostToDevice));
  free(numbers);
}

/** What a step needs beside the tensors, for all heads; ends the program if it cannot run. */
static void *workspace_of(const Step &of) {
  char why[200];
  void *workspace = NULL;
  if (of.supports != NULL && !of.supports(&problem, why, sizeof why)) {
    fprintf(stderr, "f12: %s: docs/f12.md says how to build with other steps\n", why);
    exit(2);
  }
  if (of.workspace_bytes == NULL) return NULL;
  const size_t bytes = of.workspace_bytes(&problem) * problem.batch * problem.q_heads;
  CHECK(cudaMalloc(&workspace, bytes));
  CHECK(cudaMemset(workspace, 0, bytes));
  return workspace;
}

static void allocate_all(uint64_t seed) {
  const size_t of_tokens = (size_t)tokens * channels, of_qkv = (size_t)tokens * qkv_width;
  const size_t weights = (size_t)channels * channels, qkv_weights = (size_t)channels * qkv_width;
  const float spread = 3 / sqrtf((float)channels);  // so that Q, K and V have a variance of 1
  allocate_input(x, LAYER_X, of_tokens, 1, seed);
  allocate_input(w_qkv, LAYER_W_QKV, qkv_weights, spread, seed);
  allocate_input(w_o, LAYER_W_O, weights, spread, seed);
  allocate_input(d_y, LAYER_D_Y, of_tokens, 1, seed);
  allocate(qkv, LAYER_QKV, of_qkv), allocate(d_qkv, LAYER_D_QKV, of_qkv);
  allocate(lse, LAYER_LSE, (size_t)tokens * problem.q_heads);
  allocate(o, LAYER_O, of_tokens), allocate(d_o, LAYER_D_O, of_tokens);
  allocate(y, LAYER_Y, of_tokens), allocate(d_x, LAYER_D_X, of_tokens);
  allocate(d_w_o, LAYER_D_W_O, weights), allocate(d_w_qkv, LAYER_D_W_QKV, qkv_weights);

  forward.q = backward.q = qkv, forward.k = backward.k = k_of(qkv);
  forward.v = backward.v = v_of(qkv);
  forward.o = o, forward.lse = lse, forward.workspace = workspace_of(forward_step);
  backward.o = o, backward.lse = lse, backward.workspace = workspace_of(backward_step);
  backward.d_o = d_o;
  backward.d_q = d_qkv, backward.d_k = k_of(d_qkv), backward.d_v = v_of(d_qkv);
}

int main(int argc, char **argv) {
  const Program program = {"f12",
                           "Runs an attention layer on sequences of N tokens, with N x N scores.",
                           16384, 100, 4096};
  const Run options = foundation_begin(argc, argv, &program);
  const int n = (int)options.n, sequences = options.on_gpu && n >= 512 ? TOKENS_ON_GPU / n : 2;
  if (options.on_gpu) describe(sequences, n, HEADS_ON_GPU, KV_HEADS_ON_GPU, HEAD_DIM_ON_GPU);
  if (!options.on_gpu) describe(sequences, n, HEADS_ON_CPU, KV_HEADS_ON_CPU, HEAD_DIM_ON_CPU);
  layer.sequences = problem.batch, layer.n = n, layer.heads = problem.q_heads;
  layer.kv_heads = problem.kv_heads, layer.head_dim = problem.head_dim;
  layer.rounded_p = backward_step.rounded_p;
  allocate_all(options.seed);

  // Operations: 2 for a term of a sum. A token attends to (n + 1) / 2 others on average, with two
  // products of D terms for each head forward, and five backward.
  const double of_qkv = 2.0 * tokens * channels * qkv_width;
  const double of_output = 2.0 * tokens * channels * channels;
  const double of_scores = 2.0 * tokens * channels * (n + 1) / 2;
  foundation_pass("forward");
  foundation_work(0, of_qkv);
  foundation_stage("qkv", run<0>, is_right<LAYER_QKV>);
  foundation_work(0, 2 * of_scores);
  foundation_stage(forward_step.name, run<1>, are_right<LAYER_O, LAYER_LSE>);
  foundation_work(0, of_output);
  foundation_stage("output", run<2>, is_right<LAYER_Y>);
  foundation_pass("backward");
  foundation_work(0, 2 * of_output);
  foundation_stage("d-output", run<3>, are_right<LAYER_D_O, LAYER_D_W_O>);
  foundation_work(0, 5 * of_scores);
  foundation_stage(backward_step.name, run<4>, is_right<LAYER_D_QKV>);
  foundation_work(0, 2 * of_qkv);
  foundation_stage("d-qkv", run<5>, are_right<LAYER_D_X, LAYER_D_W_QKV>);
  const int code = foundation_end();

  for (int i = 0; i < LAYER_TENSORS; i++) CHECK(cudaFree(layer.at[i]));
  CHECK(cudaFree(forward.workspace)), CHECK(cudaFree(backward.workspace));
  return code;
}
