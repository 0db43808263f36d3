/** @file Properties of kernels and of the program's variables. */
#ifndef SIMT_KERNELS_H
#define SIMT_KERNELS_H

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

#endif
