#define _POSIX_C_SOURCE 200809L
#include "host/device/gpu_state.h"

#include <stdio.h>
#include <string.h>

#include "attention.h"

#ifdef SIMT_BACKEND

bool gpu_query(const char *fields, char *line, size_t size) {
  (void)fields, (void)line, (void)size;
  return false;
}

void gpu_uuid(char uuid[33]) {
  uuid[0] = '\0';
}

#else

bool gpu_query(const char *fields, char *line, size_t size) {
  int index = 0;
  char bus[32] = "", command[256];
  cudaGetDevice(&index);
  cudaDeviceGetPCIBusId(bus, sizeof bus, index);
  snprintf(command, sizeof command,
           "nvidia-smi -i %s --query-gpu=%s --format=csv,noheader,nounits 2>/dev/null", bus,
           fields);
  FILE *pipe = popen(command, "r");
  if (pipe == NULL) return false;
  const bool answered = fgets(line, (int)size, pipe) != NULL;
  pclose(pipe);
  if (answered) line[strcspn(line, "\r\n")] = '\0';
  return answered;
}

void gpu_uuid(char uuid[33]) {
  int index = 0;
  struct cudaDeviceProp properties;
  uuid[0] = '\0';
  cudaGetDevice(&index);
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) return;
  for (int i = 0; i < 16; i++) {
    snprintf(uuid + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
  }
}

#endif
