/**
 * @file
 * What is known of kernels and of the variables of the program.
 */
#ifndef SIMT_KERNELS_H
#define SIMT_KERNELS_H

#include "runtime.h"

/* --- kernel.c ------------------------------------------------------------------------------- */

/** Refuses a launch that asks for more than the device has, or than the kernel was declared for. */
cudaError_t simt_check_launch(const Launch *launch);
void simt_forget_kernel_attributes(void);

/* --- symbols.c ------------------------------------------------------------------------------- */

/** How a kernel was declared; zeros where that is not known. */
typedef struct SimtDeclaration {
  int most_threads;           /* in a block: __launch_bounds__ */
  size_t static_shared_bytes; /* in the kernel itself, not in what it calls */
} SimtDeclaration;

SimtDeclaration simt_declaration(const void *kernel);

/** Whose a thread-local variable is. All but the last two kinds are static shared arrays. */
typedef enum SimtOwner {
  OF_KERNEL,
  OF_DEVICE_FUNCTION,
  OF_OTHER_KERNEL,
  OF_RUNTIME,
  OF_COMPILER /* notes that an array has been initialised: on a GPU there are none */
} SimtOwner;

typedef struct SimtVariable {
  uintptr_t begin; /* an address; of thread-local variables, behind the start of all of them */
  size_t size;
  const char *symbol;
  char name[48]; /* as in the source, without what it belongs to */
  SimtOwner owner;
} SimtVariable;

/** All thread-local variables of the program, by offset, in an array to be freed; 0: none known. */
size_t simt_shared_variables(const void *kernel, SimtVariable **list);

/** Is it an instruction of C++, as all of kernels is and nothing of the runtime? */
bool simt_is_kernel_code(uintptr_t pc);

/** May kernels read there, as it is read-only or `__constant__`? */
bool simt_is_constant(uintptr_t address);

/** The variable of the program that holds the address, but for thread-local ones. */
bool simt_find_variable(uintptr_t address, SimtVariable *variable);

#endif
