/** @file What a program has: kernels, variables, device memory. */
#ifndef SIMT_PROGRAM_H
#define SIMT_PROGRAM_H

#include "runtime.h"

/* --- kernel.c ------------------------------------------------------------------------------- */

/** Refuses a launch that exceeds the limits of the device or of the kernel's declaration. */
cudaError_t simt_check_launch(const Launch *launch);
void simt_forget_kernel_attributes(void);

/* --- symbols.c ------------------------------------------------------------------------------- */

/** How a kernel was declared; unknown members are 0. */
typedef struct SimtDeclaration {
  int most_threads;           /* in a block: __launch_bounds__ */
  size_t static_shared_bytes; /* in the kernel itself, not in what it calls */
  dim3 cluster;               /* __cluster_dims__; without, one block */
} SimtDeclaration;

SimtDeclaration simt_declaration(const void *kernel);

/** What a thread-local variable belongs to. All but the last two kinds are static shared arrays. */
typedef enum SimtOwner {
  OF_KERNEL,
  OF_DEVICE_FUNCTION,
  OF_OTHER_KERNEL,
  OF_RUNTIME,
  OF_COMPILER /* guard variables of initialised arrays: a GPU has none */
} SimtOwner;

typedef struct SimtVariable {
  uintptr_t begin; /* an address; for thread-local variables, an offset in their segment */
  size_t size;
  const char *symbol;
  char name[48]; /* as in the source, without its scope */
  SimtOwner owner;
} SimtVariable;

/** Lists the thread-local variables by offset; returns their count. The caller frees the list. */
size_t simt_shared_variables(const void *kernel, SimtVariable **list);

/** Is it in a C++ function? All kernel code is, nothing of the runtime is. */
bool simt_is_kernel_code(uintptr_t pc);

/** Is the address read-only or `__constant__`, so that kernels may read it? */
bool simt_is_constant(uintptr_t address);

/** Is it in a `__device__` variable, which is global memory? */
bool simt_is_device_variable(uintptr_t address);

/** Lists these variables; returns their count. The caller frees the list. */
size_t simt_device_variables(SimtVariable **list);

/** Finds the variable that holds the address; thread-local ones are not searched. */
bool simt_find_variable(uintptr_t address, SimtVariable *variable);

/* --- transfer.c, launch.c: what runs at once, whatever waits in streams ------------------------
 */

cudaError_t simt_copy_now(void *target, const void *source, size_t count, cudaMemcpyKind kind);
cudaError_t simt_set_now(void *pointer, int value, size_t count);
void simt_launch_now(const Launch *launch);

/* --- stream.c ------------------------------------------------------------------------------- */

/** Runs what waits in all streams, or in those that the default stream waits for. */
void simt_finish_streams(bool all);

/* --- memory.c ------------------------------------------------------------------------------- */

cudaError_t simt_memory_allocate(void **pointer, size_t size);
cudaError_t simt_memory_free(void *pointer);
void simt_memory_reset(void);
size_t simt_memory_used(void);

/** Is the whole range within one allocation, or in one `__device__` variable? */
bool simt_memory_contains(const void *pointer, size_t size);

/** An allocation, as lookups return it. */
typedef struct SimtAllocation {
  uintptr_t begin, end; /* of the part that kernels may use */
  size_t guard;         /* bytes before and behind that */
  unsigned ordinal;
  char name[32];
} SimtAllocation;

/** Lists the live allocations and returns their number; the caller frees the list. */
size_t simt_memory_list(SimtAllocation **list);

/** Makes the page of an address outside of all allocations accessible until the next call of
 * simt_memory_take_back(). May be called in a signal handler. */
bool simt_memory_lend(uintptr_t address);
void simt_memory_take_back(void);

/** Is it an address of memory for allocations, allocated or not? The second: or a variable's? */
bool simt_memory_is_device(const void *pointer);
bool simt_memory_is_global(const void *pointer);

/** Describes where the address lies relative to the nearest allocation. */
void simt_memory_describe(uintptr_t address, char *text, size_t text_size);

/** Finds an allocation with damaged slack, repairs it, and describes the damage. */
bool simt_memory_find_damage(char *text, size_t text_size);

#endif
