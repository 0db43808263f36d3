/*
 * Where in the source an address of the program is: asked of addr2line, where there is one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime.h"

enum { PATH_BYTES = 1024, LINE_BYTES = 4096 };

/** The object file that holds `pc`. */
typedef struct Module {
  uintptr_t pc;
  uintptr_t offset; /* of pc, as the file counts addresses */
  char path[PATH_BYTES];
} Module;

static int module_holds(struct dl_phdr_info *info, size_t size, void *argument) {
  (void)size;
  Module *module = argument;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    if (segment->p_type != PT_LOAD) continue;
    if (module->pc - info->dlpi_addr - segment->p_vaddr >= segment->p_memsz) continue;
    module->offset = module->pc - info->dlpi_addr;
    snprintf(module->path, sizeof module->path, "%s", info->dlpi_name);
    return 1;
  }
  return 0;
}

static bool find_module(uintptr_t pc, Module *module) {
  *module = (Module){.pc = pc};
  if (dl_iterate_phdr(module_holds, module) == 0) return false;
  if (module->path[0] != '\0') return true;
  const ssize_t length = readlink("/proc/self/exe", module->path, sizeof module->path - 1);
  return length > 0;
}

/** Starts addr2line; NULL if that is impossible. */
static FILE *ask_addr2line(const Module *module, const char *options) {
  char command[PATH_BYTES + 128];
  if (strchr(module->path, '\'') != NULL) return NULL;
  snprintf(command, sizeof command, "addr2line %s -e '%s' %#zx 2>/dev/null", options, module->path,
           (size_t)module->offset);
  return popen(command, "r");
}

static bool read_line(FILE *pipe, char *line, size_t size) {
  if (fgets(line, (int)size, pipe) == NULL) return false;
  line[strcspn(line, "\n")] = '\0';
  return true;
}

/** Makes "/where/we/are/step.cu:12 (discriminator 3)" of a line "step.cu:12". */
static const char *shorten(char *line) {
  char *discriminator = strstr(line, " (discriminator");
  if (discriminator != NULL) *discriminator = '\0';
  char directory[PATH_BYTES];
  if (getcwd(directory, sizeof directory) == NULL) return line;
  const size_t length = strlen(directory);
  return strncmp(line, directory, length) == 0 && line[length] == '/' ? line + length + 1 : line;
}

static bool is_kernel_source(const char *line) {
  return strstr(line, ".cu:") != NULL || strstr(line, ".cuh:") != NULL;
}

static bool ends_with(const char *text, const char *end) {
  const size_t text_length = strlen(text), end_length = strlen(end);
  return text_length >= end_length && strcmp(text + text_length - end_length, end) == 0;
}

/** The lines of kernel source that led to the address, innermost first; else the first line known.
 */
static bool ask_source_line(const Module *module, char *text, size_t text_size) {
  char line[LINE_BYTES];
  size_t length = 0;
  bool in_kernel = false;
  FILE *pipe = ask_addr2line(module, "-i");
  if (pipe == NULL) return false;
  while (read_line(pipe, line, sizeof line)) {
    if (strncmp(line, "??", 2) == 0 || length >= text_size) continue;
    const char *place = shorten(line);
    if (is_kernel_source(place)) {
      if (in_kernel && ends_with(text, place)) continue; /* a lambda, say, on the same line */
      if (!in_kernel) length = 0;
      length += (size_t)snprintf(text + length, text_size - length, "%s%s",
                                 in_kernel ? ", called at " : "", place);
      in_kernel = true;
    } else if (length == 0) {
      length += (size_t)snprintf(text, text_size, "%s", place);
    }
  }
  pclose(pipe);
  return length > 0;
}

void simt_source_line(uintptr_t pc, char *text, size_t text_size) {
  Module module;
  Dl_info symbol;
  if (!find_module(pc, &module)) {
    snprintf(text, text_size, "address %#zx", (size_t)pc);
  } else if (!ask_source_line(&module, text, text_size)) {
    if (dladdr((void *)pc, &symbol) != 0 && symbol.dli_sname != NULL) {
      snprintf(text, text_size, "%s+%#zx in %s", symbol.dli_sname,
               (size_t)(pc - (uintptr_t)symbol.dli_saddr), module.path);
    } else {
      snprintf(text, text_size, "%s+%#zx (addr2line, of binutils, would tell the line)",
               module.path, (size_t)module.offset);
    }
  }
}

void simt_kernel_name(const void *kernel, char *text, size_t text_size) {
  char line[LINE_BYTES], name[LINE_BYTES] = "";
  Module module;
  FILE *pipe = find_module((uintptr_t)kernel, &module) ? ask_addr2line(&module, "-f -C -i") : NULL;
  /* Names and places by turns. What is inlined at the kernel's first instruction comes first. */
  while (pipe != NULL && read_line(pipe, name, sizeof name) && read_line(pipe, line, sizeof line)) {
  }
  if (pipe != NULL) pclose(pipe);
  name[strcspn(name, "(")] = '\0';
  if (name[0] == '\0' || name[0] == '?') {
    snprintf(text, text_size, "the kernel");
  } else {
    snprintf(text, text_size, "%s", strncmp(name, "void ", 5) == 0 ? name + 5 : name);
  }
}
