/**
 * @file
 * What only nvidia-smi and the driver know about a GPU.
 */
#ifndef HOST_GPU_STATE_H
#define HOST_GPU_STATE_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Asks nvidia-smi about the current device: the values of `fields` (names of --query-gpu),
 * separated by ", ", without units. False if there is no nvidia-smi, and on the CPU backend.
 */
bool gpu_query(const char *fields, char *line, size_t size);

/** The device's UUID in 32 hexadecimal digits, or "" if it has none. */
void gpu_uuid(char uuid[33]);

#endif
