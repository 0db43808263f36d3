/** @file Errors: a message of one line for the user, and the exit code of the program. */
#ifndef HOST_ERROR_H
#define HOST_ERROR_H

#include <stdbool.h>

/** What the programs return to the shell. */
typedef enum ExitCode {
  EXIT_RIGHT = 0,  /**< the answer is right, or the user asked not to check it */
  EXIT_WRONG = 1,  /**< wrong answer, no row that can be judged, or a finding of --report */
  EXIT_USAGE = 2,  /**< bad usage or unsupported request */
  EXIT_DEVICE = 3, /**< device or output failed: out of memory, launch error, disk full */
  EXIT_NO_GPU = 77 /**< a CUDA build on a machine with no GPU */
} ExitCode;

typedef struct Error {
  ExitCode code;
  char text[6000]; /**< one line; room for a path of PATH_MAX bytes and a message */
} Error;

#ifdef __cplusplus
extern "C" {
#endif

/** Fills `error` and returns false, so that a function can end with `return fail(...)`. */
__attribute__((format(printf, 3, 4))) bool fail(Error *error, ExitCode code, const char *format,
                                                ...);

#ifdef __cplusplus
}
#endif

#endif
