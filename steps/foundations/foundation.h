/**
 * @file
 * What the programs of chapter 0 share from f02 on: options, errors, and the check and the time of
 * each stage. A stage is one way to the result; a program runs all of them.
 *
 *     const Run run = foundation_begin(argc, argv, &program);  // reads the options
 *     ...                                                      // allocates and fills memory
 *     foundation_stage("tree", sum_by_tree, is_right);         // runs and checks a stage
 *     return foundation_end();                                 // times the stages, prints the
 * table
 *
 * Errors end the program with one line and the exit codes of the steps: 0 right, 1 wrong or a
 * finding of --report, 2 bad usage, 3 the device or an output failed, 77 no GPU.
 */
#ifndef FOUNDATION_H
#define FOUNDATION_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a program says of itself on its command line. */
typedef struct Program {
  const char *name;           /**< such as f04 */
  const char *does;           /**< for --help: "Sums N floats." */
  int64_t most;               /**< largest -n; the least is 1 */
  int64_t cpu_size, gpu_size; /**< -n if it is not given, on the CPU backend and on a GPU */
} Program;

/** What the options say. */
typedef struct Run {
  int64_t n; /**< number of elements, or side of the matrices */
  uint64_t seed;
  bool on_gpu;      /**< else on the CPU backend, where times say nothing */
  bool is_examined; /**< by --report */
} Run;

/** Reads the options, and ends the program if they are wrong, ask for help, or there is no GPU. */
Run foundation_begin(int argc, char **argv, const Program *program);

/** The work of the stages that follow, for their rates; 0: no such rate is printed. */
void foundation_work(double bytes, double flops);

/** The stages that follow are parts of a pass of this name: the table also says which share of its
 * time each of them takes. */
void foundation_pass(const char *name);

/**
 * Runs `launch`, which puts kernels into the default stream, and asks `is_right` about the result.
 * `is_right` may leave a line, such as the first fault, in `note`, which the table shows. Returns
 * at once if --stage names another stage.
 */
void foundation_stage(const char *name, void (*launch)(void), bool (*is_right)(char note[200]));

/** A stage that runs only if --stage names it. */
void foundation_stage_if_asked(const char *name, void (*launch)(void),
                               bool (*is_right)(char note[200]));

/** The same for a library's kernel: the times of the other stages are compared with it. */
void foundation_library(const char *name, void (*launch)(void), bool (*is_right)(char note[200]));

/** On a GPU, times all stages in turns. Prints the table and returns the exit code. */
int foundation_end(void);

/** Ends the program if a call of CUDA failed. CHECK(call) names the call in the message. */
void foundation_check(cudaError_t error, const char *call);
#define CHECK(call) foundation_check(call, #call)

/**
 * Copies `count` words of 32 bits from the device and compares their bits with `right`; `note` then
 * names the first that differs. Overwrites the words on the device, so that what the next stage
 * does not write is found.
 */
bool foundation_equal(void *device, const void *right, int64_t count, char note[200]);

/**
 * Is C = A B, for n x n matrices, C in the memory of the device? All numbers are integers, and so
 * small that floats are exact. Compares C r with A (B r) for a random vector r, which takes n^2
 * operations, and not n^3, and finds nearly every fault; `note` names one. Overwrites C on the
 * device.
 */
bool foundation_is_product(float *c, const float *a, const float *b, int n, char note[200]);

/** Sorts keys, by their lower, then by their upper 16 bits. */
void foundation_sort(const uint32_t *from, uint32_t *to, int64_t count);

/** Memory of the host, all bytes 0; ends the program if there is none. */
void *foundation_allocate(size_t bytes);

/** Element `index` of an array of random bits, the same for a seed on every machine. */
uint32_t foundation_bits(uint64_t seed, uint64_t index);

/** The same, uniform from -1 to 1, in steps of 2^-23. */
float foundation_float(uint64_t seed, uint64_t index);

#ifdef __cplusplus
}
#endif

#endif
