/*
 * Reads the program's symbol table: the static shared arrays and their owners, the number of
 * threads that a kernel was declared for, the addresses of constants and variables. If a program
 * has no symbols, nothing is known of these.
 *
 * A local variable `v` of the function `f` has the symbol `_ZZ<f>E<length><v>` if that of the
 * function is `_Z<f>`, or `_ZZ<length><f>E<length><v>` if it is `f` (`extern "C"`). SIMT_KERNEL()
 * in cuda_runtime.h adds one to every kernel, which distinguishes kernels from other functions.
 */
#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"

static const char BOUND_NAME[] = "17simt_launch_bound", CLUSTER_NAME[] = "17simt_cluster_dims";
static const char CONSTANT_SECTION[] = "simt_constant", DEVICE_SECTION[] = "simt_device";

enum { MAX_RANGES = 256 };

typedef struct Ranges {
  struct {
    uintptr_t begin, end;
  } list[MAX_RANGES];
  size_t count;
} Ranges;

static struct {
  pthread_once_t read;
  uintptr_t base; /* load address minus the address in the file */
  const ElfW(Sym) * list;
  size_t count;
  const char *names;
  Ranges constants, devices; /* what kernels may read; variables of global memory */
  SimtVariable *shared;      /* thread-local, by offset */
  size_t shared_count;
} symbols = {.read = PTHREAD_ONCE_INIT};

/* --- The file ------------------------------------------------------------------------------- */

static const char *map_file(const char *path) {
  struct stat status;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  void *bytes = MAP_FAILED;
  if (fstat(file, &status) == 0 && status.st_size > (off_t)sizeof(ElfW(Ehdr))) {
    bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  }
  close(file);
  return bytes != MAP_FAILED ? bytes : NULL;
}

static void add_range(Ranges *ranges, uintptr_t begin, size_t size) {
  if (ranges->count == MAX_RANGES) return;
  ranges->list[ranges->count].begin = begin;
  ranges->list[ranges->count++].end = begin + size;
}

static bool in_ranges(const Ranges *ranges, uintptr_t address) {
  for (size_t i = 0; i < ranges->count; i++) {
    if (address >= ranges->list[i].begin && address < ranges->list[i].end) return true;
  }
  return false;
}

/** Finds the program's file, and notes its read-only segments as constants. */
static int find_program(struct dl_phdr_info *info, size_t size, void *argument) {
  (void)size;
  char *path = argument;
  bool ours = false;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    const uintptr_t offset = (uintptr_t)&symbols - info->dlpi_addr - segment->p_vaddr;
    ours |= segment->p_type == PT_LOAD && offset < segment->p_memsz;
  }
  if (!ours) return 0;
  symbols.base = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    const bool read_only = segment->p_type == PT_LOAD && !(segment->p_flags & PF_W);
    if (!read_only && segment->p_type != PT_GNU_RELRO) continue;
    add_range(&symbols.constants, info->dlpi_addr + segment->p_vaddr, segment->p_memsz);
  }
  snprintf(path, PATH_MAX, "%s", info->dlpi_name[0] != '\0' ? info->dlpi_name : "/proc/self/exe");
  return 1;
}

static int by_offset(const void *a, const void *b) {
  const SimtVariable *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

static const char *name_of(const ElfW(Sym) * symbol) {
  return symbols.names + symbol->st_name;
}

/** The next symbol of this type after `symbol`, the first after NULL; NULL: there is none. */
static const ElfW(Sym) * next_of(int type, const ElfW(Sym) * symbol) {
  const ElfW(Sym) *end = symbols.list + symbols.count;
  for (symbol = symbol != NULL ? symbol + 1 : symbols.list; symbol < end; symbol++) {
    if (ELF64_ST_TYPE(symbol->st_info) == type) return symbol;
  }
  return NULL;
}

/** Loops over the symbols of a type. */
#define FOR_EACH(type, symbol) \
  for (const ElfW(Sym) *symbol = NULL; (symbol = next_of(type, symbol)) != NULL;)

/** The last part of a mangled name: "tile" of "_ZZ1kPiE4tile". Other names are copied. */
static void shorten(const char *symbol, char *text, size_t text_size) {
  snprintf(text, text_size, "%s", symbol);
  if (strncmp(symbol, "_Z", 2) != 0) return;
  for (const char *p = symbol; *p != '\0'; p++) {
    if (!isdigit((unsigned char)*p)) continue;
    char *name;
    const size_t length = strtoul(p, &name, 10);
    if (length == 0 || length > strlen(name)) continue;
    /* Only the end of its scope, or a number that distinguishes equal names, may follow. */
    const char *rest = name + length;
    if (rest[strspn(rest, "_0123456789")] != '\0' && strcmp(rest, "E") != 0) continue;
    snprintf(text, text_size, "%.*s", (int)length, name);
    return;
  }
}

static SimtVariable variable_of(const ElfW(Sym) * symbol, uintptr_t base) {
  SimtVariable variable = {
      .begin = base + symbol->st_value, .size = symbol->st_size, .symbol = name_of(symbol)};
  shorten(variable.symbol, variable.name, sizeof variable.name);
  return variable;
}

/** Is it a local variable of a kernel? Any kernel may use those of device functions. */
static bool is_in_a_kernel(const SimtVariable *array) {
  FOR_EACH(STT_OBJECT, symbol) {
    const char *name = name_of(symbol);
    const char *bound = strstr(name, BOUND_NAME);
    if (bound != NULL && strncmp(name, array->symbol, (size_t)(bound - name)) == 0) return true;
  }
  return false;
}

/** Compares full names: a kernel's arrays may have names with the same beginning. */
static bool is_of_runtime(const SimtVariable *variable) {
  static const char *const names[] = {"smem", "simt_shared_space", "simt_worker", "simt_last_error",
                                      "lab_worker"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (strcmp(variable->symbol, names[i]) == 0) return true;
  }
  return false;
}

/** Arrays of a class with constructors have a guard, even if the constructors do nothing. */
static bool is_guard(const SimtVariable *variable) {
  return strncmp(variable->symbol, "_ZGV", 4) == 0 || strcmp(variable->symbol, "__tls_guard") == 0;
}

static SimtOwner owner_of(const SimtVariable *variable) {
  if (is_of_runtime(variable)) return OF_RUNTIME;
  if (is_guard(variable)) return OF_COMPILER;
  return is_in_a_kernel(variable) ? OF_OTHER_KERNEL : OF_DEVICE_FUNCTION;
}

static void list_shared(void) {
  FOR_EACH(STT_TLS, symbol) {
    if (symbol->st_size == 0) continue;
    symbols.shared = simt_with_room(symbols.shared, symbols.shared_count, sizeof *symbols.shared);
    SimtVariable *variable = &symbols.shared[symbols.shared_count++];
    *variable = variable_of(symbol, 0);
    variable->owner = owner_of(variable);
  }
  if (symbols.shared_count == 0) return;
  qsort(symbols.shared, symbols.shared_count, sizeof *symbols.shared, by_offset);
}

static void read_symbols(void) {
  char path[PATH_MAX];
  if (dl_iterate_phdr(find_program, path) == 0) return;
  const char *file = map_file(path); /* stays mapped: it holds the names */
  if (file == NULL) return;
  const ElfW(Ehdr) *header = (const void *)file;
  const ElfW(Shdr) *sections = (const void *)(file + header->e_shoff);
  const char *section_names = file + sections[header->e_shstrndx].sh_offset;
  for (int i = 0; i < header->e_shnum; i++) {
    const ElfW(Shdr) *section = &sections[i];
    if (section->sh_type == SHT_SYMTAB) {
      symbols.list = (const void *)(file + section->sh_offset);
      symbols.count = section->sh_size / sizeof *symbols.list;
      symbols.names = file + sections[section->sh_link].sh_offset;
    }
    const char *name = section_names + section->sh_name;
    const bool constant = strncmp(name, CONSTANT_SECTION, strlen(CONSTANT_SECTION)) == 0;
    if (!constant && strncmp(name, DEVICE_SECTION, strlen(DEVICE_SECTION)) != 0) continue;
    add_range(constant ? &symbols.constants : &symbols.devices, symbols.base + section->sh_addr,
              section->sh_size);
  }
  list_shared();
}

static void read_once(void) {
  pthread_once(&symbols.read, read_symbols);
}

/* --- Kernels -------------------------------------------------------------------------------- */

/** Is this symbol a local variable of the function? If so, `*variable` is its own mangled name. */
static bool is_local_of(const char *symbol, const char *function, const char **variable) {
  if (strncmp(symbol, "_ZZ", 3) != 0) return false;
  const bool mangled = strncmp(function, "_Z", 2) == 0;
  char *owner = (char *)symbol + 3;
  if (mangled) {
    function += 2;
  } else if (strtoul(owner, &owner, 10) != strlen(function)) {
    return false;
  }
  const size_t length = strlen(function);
  if (strncmp(owner, function, length) != 0 || owner[length] != 'E') return false;
  *variable = owner + length + 1;
  return true;
}

static const ElfW(Sym) * kernel_symbol(const void *kernel) {
  FOR_EACH(STT_FUNC, symbol) {
    if (symbols.base + symbol->st_value == (uintptr_t)kernel) return symbol;
  }
  return NULL;
}

/**
 * The number of symbols of the same type and name below this value. A program may hold two builds
 * of a kernel, or two kernels of one name; the linker places all symbols of one before those of the
 * other.
 */
static int rank_of(int type, const char *name, uintptr_t value) {
  int rank = 0;
  FOR_EACH(type, other) {
    rank += other->st_value < value && strcmp(name_of(other), name) == 0;
  }
  return rank;
}

/** Is this symbol a local variable of the function itself? If so, `*variable` is as above. */
static bool is_own(int type, const char *symbol, uintptr_t value, const ElfW(Sym) * function,
                   const char **variable) {
  const char *name = name_of(function);
  return is_local_of(symbol, name, variable) &&
         rank_of(type, symbol, value) == rank_of(STT_FUNC, name, function->st_value);
}

/** Is it a static shared array of the function itself? */
static bool is_own_array(const SimtVariable *array, const ElfW(Sym) * function) {
  const char *variable;
  return is_own(STT_TLS, array->symbol, array->begin, function, &variable);
}

/** The local constant of this name that a macro has put into a kernel; 0: it has none. */
static int constant_of(const ElfW(Sym) * function, const char *constant) {
  const char *variable;
  FOR_EACH(STT_OBJECT, symbol) {
    if (!is_own(STT_OBJECT, name_of(symbol), symbol->st_value, function, &variable)) continue;
    if (strcmp(variable, constant) == 0) return *(const int *)(symbols.base + symbol->st_value);
  }
  return 0;
}

SimtDeclaration simt_declaration(const void *kernel) {
  SimtDeclaration declaration = {.cluster = {1, 1, 1}};
  read_once();
  const ElfW(Sym) *function = kernel_symbol(kernel);
  if (function == NULL) return declaration;
  declaration.most_threads = constant_of(function, BOUND_NAME);
  const unsigned packed = (unsigned)constant_of(function, CLUSTER_NAME);
  if (packed != 0) declaration.cluster = (dim3){packed & 0xff, packed >> 8 & 0xff, packed >> 16};
  for (size_t i = 0; i < symbols.shared_count; i++) {
    const SimtVariable *array = &symbols.shared[i];
    if (is_own_array(array, function)) declaration.static_shared_bytes += array->size;
  }
  return declaration;
}

size_t simt_shared_variables(const void *kernel, SimtVariable **list) {
  read_once();
  const ElfW(Sym) *function = kernel_symbol(kernel);
  *list = simt_zeroed(symbols.shared_count, sizeof **list);
  for (size_t i = 0; i < symbols.shared_count; i++) {
    SimtVariable *variable = &(*list)[i];
    *variable = symbols.shared[i];
    if (variable->owner == OF_RUNTIME || variable->owner == OF_COMPILER) continue;
    if (function == NULL || is_own_array(variable, function)) variable->owner = OF_KERNEL;
  }
  return symbols.shared_count;
}

/* --- Addresses ------------------------------------------------------------------------------ */

bool simt_is_kernel_code(uintptr_t pc) {
  read_once();
  FOR_EACH(STT_FUNC, symbol) {
    if (pc - symbols.base - symbol->st_value >= symbol->st_size) continue;
    return strncmp(name_of(symbol), "_Z", 2) == 0;
  }
  return false;
}

bool simt_is_constant(uintptr_t address) {
  read_once();
  return in_ranges(&symbols.constants, address);
}

bool simt_is_device_variable(uintptr_t address) {
  read_once();
  return in_ranges(&symbols.devices, address);
}

size_t simt_device_variables(SimtVariable **list) {
  size_t count = 0;
  read_once();
  *list = NULL;
  FOR_EACH(STT_OBJECT, symbol) {
    if (!in_ranges(&symbols.devices, symbols.base + symbol->st_value)) continue;
    if (symbol->st_size == 0) continue;
    *list = simt_with_room(*list, count, sizeof **list);
    (*list)[count++] = variable_of(symbol, symbols.base);
  }
  return count;
}

bool simt_find_variable(uintptr_t address, SimtVariable *variable) {
  read_once();
  FOR_EACH(STT_OBJECT, symbol) {
    if (address - symbols.base - symbol->st_value >= symbol->st_size) continue;
    *variable = variable_of(symbol, symbols.base);
    return true;
  }
  return false;
}
