/* Finds the source line of an address in the program with addr2line, if that is installed. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime.h"

enum { PATH_BYTES = 1024, LINE_BYTES = 4096 };

/** The object file that holds `pc`. */
typedef struct Module {
  uintptr_t pc;
  uintptr_t offset; /* pc as an address in the file */
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

static bool read_line(FILE *pipe, char *line, size_t size) {
  if (fgets(line, (int)size, pipe) == NULL) return false;
  line[strcspn(line, "\n")] = '\0';
  return true;
}

/** Shortens "/current/directory/step.cu:12 (discriminator 3)" to "step.cu:12". */
static const char *shorten(char *line) {
  char *discriminator = strstr(line, " (discriminator");
  if (discriminator != NULL) *discriminator = '\0';
  char directory[PATH_BYTES];
  if (getcwd(directory, sizeof directory) == NULL) return line;
  const size_t length = strlen(directory);
  return strncmp(line, directory, length) == 0 && line[length] == '/' ? line + length + 1 : line;
}

/** Is it kernel source, except the ptx*.cuh files, whose functions wrap one instruction each? */
static bool is_kernel_source(const char *place) {
  const char *slash = strrchr(place, '/');
  return (strstr(place, ".cu:") != NULL || strstr(place, ".cuh:") != NULL) &&
         strncmp(slash != NULL ? slash + 1 : place, "ptx", 3) != 0;
}

static bool ends_with(const char *text, const char *end) {
  const size_t text_length = strlen(text), end_length = strlen(end);
  return text_length >= end_length && strcmp(text + text_length - end_length, end) == 0;
}

/* --- Places --------------------------------------------------------------------------------- */

enum { PLACES_AT_ONCE = 2000, ADDRESS_TEXT = 20 };

static uint64_t add_to_hash(uint64_t hash, const char *text) {
  for (; *text != '\0'; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3;
  return hash;
}

/** Adds one line of the inlined calls around a place; the innermost comes first. */
static void take_line(SourcePlace *place, char *line) {
  const char *text = shorten(line);
  place->chain = add_to_hash(place->chain * 31 + 1, text);
  if (!is_kernel_source(text)) return;
  const char *colon = strrchr(text, ':');
  const size_t length = strlen(place->calls);
  if (place->file[0] == '\0') {
    snprintf(place->file, sizeof place->file, "%.*s", (int)(colon - text), text);
    place->line = (int)strtol(colon + 1, NULL, 10);
    snprintf(place->innermost, sizeof place->innermost, "%s", text);
  } else if (!ends_with(length > 0 ? place->calls : place->innermost, text)) { /* no repeats */
    snprintf(place->calls + length, sizeof place->calls - length, ", called at %s", text);
  }
}

/** Starts addr2line; NULL if that fails. */
static FILE *ask_addr2line(const Module *module, const char *options, const SourcePlace *places,
                           size_t count) {
  const uintptr_t base = module->pc - module->offset;
  const size_t size = PATH_BYTES + 128 + count * ADDRESS_TEXT;
  char *command = malloc(size);
  if (command == NULL || strchr(module->path, '\'') != NULL) {
    free(command);
    return NULL;
  }
  size_t length = (size_t)snprintf(command, size, "addr2line %s -e '%s'", options, module->path);
  for (size_t i = 0; i < count; i++) {
    length +=
        (size_t)snprintf(command + length, size - length, " %#zx", (size_t)(places[i].pc - base));
  }
  snprintf(command + length, size - length, " 2>/dev/null");
  FILE *pipe = popen(command, "r");
  free(command);
  return pipe;
}

static void find_places(const Module *module, SourcePlace *places, size_t count) {
  char line[LINE_BYTES];
  FILE *pipe = ask_addr2line(module, "-a -i", places, count);
  if (pipe == NULL) return;
  size_t next = 0; /* each answer begins with its address */
  while (read_line(pipe, line, sizeof line)) {
    if (strncmp(line, "0x", 2) == 0) {
      next++;
    } else if (next >= 1 && next <= count) {
      take_line(&places[next - 1], line);
    }
  }
  pclose(pipe);
}

void simt_source_places(SourcePlace *places, size_t count) {
  Module module;
  for (size_t i = 0; i < count; i++) places[i] = (SourcePlace){.pc = places[i].pc};
  if (count == 0 || !find_module(places[0].pc, &module)) return;
  for (size_t i = 0; i < count; i += PLACES_AT_ONCE) {
    const size_t left = count - i;
    find_places(&module, &places[i], left < PLACES_AT_ONCE ? left : PLACES_AT_ONCE);
  }
}

void simt_source_line(uintptr_t pc, char *text, size_t text_size) {
  Module module;
  Dl_info symbol;
  SourcePlace place = {.pc = pc};
  simt_source_places(&place, 1);
  if (place.file[0] != '\0') {
    snprintf(
        text, text_size, "%s%s%s", place.innermost, place.calls,
        simt_source_is_newer(place.file) ? " (newer than this program: lines may differ)" : "");
  } else if (!find_module(pc, &module)) {
    snprintf(text, text_size, "address %#zx", (size_t)pc);
  } else if (dladdr((void *)pc, &symbol) != 0 && symbol.dli_sname != NULL) {
    snprintf(text, text_size, "%s+%#zx in %s", symbol.dli_sname,
             (size_t)(pc - (uintptr_t)symbol.dli_saddr), module.path);
  } else {
    snprintf(text, text_size, "%s+%#zx (addr2line, of binutils, would tell the line)", module.path,
             (size_t)module.offset);
  }
}

bool simt_source_is_newer(const char *file) {
  struct stat source, program;
  Module module;
  /* By its name: under an emulator, stat() of /proc/self/exe tells of the emulator. */
  if (!find_module((uintptr_t)simt_source_is_newer, &module)) return false;
  if (stat(file, &source) != 0 || stat(module.path, &program) != 0) return false;
  const struct timespec s = source.st_mtim, p = program.st_mtim;
  return s.tv_sec != p.tv_sec ? s.tv_sec > p.tv_sec : s.tv_nsec > p.tv_nsec;
}

/* --- Kernels -------------------------------------------------------------------------------- */

void simt_kernel_name(const void *kernel, char *text, size_t text_size) {
  char line[LINE_BYTES], name[LINE_BYTES] = "";
  Module module;
  const SourcePlace place = {.pc = (uintptr_t)kernel};
  FILE *pipe =
      find_module(place.pc, &module) ? ask_addr2line(&module, "-f -C -i", &place, 1) : NULL;
  /* Names and places alternate, inlined functions first: the last name is the kernel's. */
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

void simt_format_threads(const unsigned *lanes, char *text, size_t text_size) {
  size_t length = 0;
  text[0] = '\0';
  for (int begin = 0; begin < MAX_THREADS; begin++) {
    if ((lanes[begin / WARP_SIZE] >> begin % WARP_SIZE & 1) == 0) continue;
    int end = begin;
    while (end + 1 < MAX_THREADS && (lanes[(end + 1) / WARP_SIZE] >> (end + 1) % WARP_SIZE & 1)) {
      end++;
    }
    char range[24];
    const int added = end > begin ? snprintf(range, sizeof range, "%d-%d", begin, end)
                                  : snprintf(range, sizeof range, "%d", begin);
    if (length + (size_t)added + sizeof ",..." > text_size) {
      snprintf(text + length, text_size - length, ",...");
      return;
    }
    length +=
        (size_t)snprintf(text + length, text_size - length, "%s%s", length > 0 ? "," : "", range);
    begin = end;
  }
}
