/*
 * Device memory: one large range of addresses, of which only the allocations are accessible.
 * Freeing an allocation unmaps its pages; its addresses are reused only after the rest of the range
 * has been used. So accesses outside of allocations, and accesses after a free, fault.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

enum { ALIGNMENT = 256, NAME_BYTES = 32, MAX_FREED = 1024 };

static const size_t RED_ZONE = (size_t)1 << 20;    /* between any two allocations */
static const size_t FILL_BYTES = (size_t)32 << 20; /* at each end of a new allocation */
static const unsigned char FILL = 0xff;

typedef struct Allocation {
  uintptr_t begin, end;             /* the requested bytes */
  uintptr_t pages_begin, pages_end; /* accessible; the bytes around the request are slack */
  size_t guard;                     /* bytes at each end that kernels must not use */
  unsigned ordinal;
  char name[NAME_BYTES];
} Allocation;

static struct {
  pthread_mutex_t lock;
  uintptr_t begin, end; /* the range of addresses */
  uintptr_t next;       /* where the search for room starts */
  size_t used;
  unsigned ordinal;
  Allocation *live;
  size_t live_count;
  Allocation freed[MAX_FREED]; /* the last ones, in a ring */
  size_t freed_count;
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t round_up(size_t size, size_t unit) {
  return (size + unit - 1) / unit * unit;
}

/* --- Addresses ------------------------------------------------------------------------------ */

/** Reserves addresses for four times the memory, or fewer if the machine refuses. */
static bool reserve_addresses(void) {
  if (memory.begin != 0) return true;
  const size_t least = (size_t)64 << 20;
  for (size_t size = 4 * simt_settings()->memory_bytes + ((size_t)16 << 30); size >= least;
       size /= 2) {
    void *range = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    memory.begin = memory.next = (uintptr_t)range;
    memory.end = memory.begin + size;
    return true;
  }
  return false;
}

/** Maps fresh pages, all zero. */
static bool map_pages(uintptr_t begin, uintptr_t end, int protection) {
  return mmap((void *)begin, end - begin, protection,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/** The allocation whose pages and red zones overlap [begin, end), or NULL. */
static const Allocation *overlapping(uintptr_t begin, uintptr_t end) {
  for (size_t i = 0; i < memory.live_count; i++) {
    const Allocation *a = &memory.live[i];
    if (begin < a->pages_end + RED_ZONE && a->pages_begin < end + RED_ZONE) return a;
  }
  return NULL;
}

/** Finds addresses for `size` bytes of pages, searching from the last allocation on. */
static bool find_room(size_t size, uintptr_t *begin) {
  for (int rounds = 0; rounds < 2;) {
    const uintptr_t candidate = memory.next + RED_ZONE;
    if (size + 2 * RED_ZONE > memory.end - memory.next) {
      memory.next = memory.begin;
      rounds++;
      continue;
    }
    const Allocation *in_the_way = overlapping(candidate, candidate + size);
    if (in_the_way == NULL) {
      memory.next = candidate + size;
      *begin = candidate;
      return true;
    }
    memory.next = in_the_way->pages_end;
  }
  return false;
}

/* --- Allocations ---------------------------------------------------------------------------- */

static Allocation *find_live(const void *pointer) {
  for (size_t i = 0; i < memory.live_count; i++) {
    if (memory.live[i].begin == (uintptr_t)pointer) return &memory.live[i];
  }
  return NULL;
}

static void fill_new(const Allocation *a) {
  const size_t size = a->pages_end - a->pages_begin;
  if (size <= 2 * FILL_BYTES) {
    memset((void *)a->pages_begin, FILL, size);
  } else {
    memset((void *)a->pages_begin, FILL, FILL_BYTES);
    memset((void *)(a->pages_end - FILL_BYTES), FILL, FILL_BYTES);
  }
}

static cudaError_t allocate(void **pointer, size_t size, size_t limit) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (memory.live_count >= MAX_ALLOCATIONS) return cudaErrorMemoryAllocation;
  if (size > limit || memory.used > limit) return cudaErrorMemoryAllocation;
  const size_t pages = round_up(size, page);
  if (size > limit - memory.used || !reserve_addresses()) return cudaErrorMemoryAllocation;
  Allocation a = {.pages_begin = 0};
  if (!find_room(pages, &a.pages_begin)) return cudaErrorMemoryAllocation;
  a.pages_end = a.pages_begin + pages;
  a.begin = a.pages_end - round_up(size, ALIGNMENT);
  a.end = a.begin + size;
  if (!map_pages(a.pages_begin, a.pages_end, PROT_READ | PROT_WRITE)) {
    return cudaErrorMemoryAllocation;
  }
  fill_new(&a);
  a.ordinal = ++memory.ordinal;
  memory.used += size;
  memory.live = simt_with_room(memory.live, memory.live_count, sizeof a);
  memory.live[memory.live_count++] = a;
  *pointer = (void *)a.begin;
  if (simt_observer != NULL) simt_observer->memory_allocated(a.begin, size);
  return cudaSuccess;
}

static cudaError_t release(void *pointer) {
  Allocation *a = find_live(pointer);
  if (a == NULL) return cudaErrorInvalidValue;
  map_pages(a->pages_begin, a->pages_end, PROT_NONE);
  if (simt_observer != NULL) simt_observer->memory_freed(a->begin);
  memory.used -= a->end - a->begin;
  memory.freed[memory.freed_count++ % MAX_FREED] = *a;
  *a = memory.live[--memory.live_count];
  return cudaSuccess;
}

cudaError_t simt_memory_allocate(void **pointer, size_t size) {
  *pointer = NULL;
  if (size == 0) return cudaSuccess;
  const size_t limit = simt_settings()->memory_bytes; /* before the lock: may end the program */
  pthread_mutex_lock(&memory.lock);
  const cudaError_t error = allocate(pointer, size, limit);
  pthread_mutex_unlock(&memory.lock);
  return error;
}

cudaError_t simt_memory_free(void *pointer) {
  if (pointer == NULL) return cudaSuccess;
  pthread_mutex_lock(&memory.lock);
  const cudaError_t error = release(pointer);
  pthread_mutex_unlock(&memory.lock);
  return error;
}

void simt_memory_reset(void) {
  pthread_mutex_lock(&memory.lock);
  while (memory.live_count > 0) release((void *)memory.live[0].begin);
  free(memory.live);
  memory.live = NULL;
  memory.ordinal = 0;
  pthread_mutex_unlock(&memory.lock);
}

size_t simt_memory_used(void) {
  return memory.used;
}

cudaError_t simt_name_allocation(const void *pointer, const char *name) {
  pthread_mutex_lock(&memory.lock);
  Allocation *a = find_live(pointer);
  if (a != NULL) snprintf(a->name, sizeof a->name, "%s", name);
  pthread_mutex_unlock(&memory.lock);
  return a != NULL ? cudaSuccess : simt_set_last_error(cudaErrorInvalidValue);
}

cudaError_t simt_guard_allocation(const void *pointer, size_t bytes) {
  pthread_mutex_lock(&memory.lock);
  Allocation *a = find_live(pointer);
  const bool ok = a != NULL && bytes % ALIGNMENT == 0 && bytes <= (a->end - a->begin) / 2;
  if (ok) a->guard = bytes;
  pthread_mutex_unlock(&memory.lock);
  return ok ? cudaSuccess : simt_set_last_error(cudaErrorInvalidValue);
}

size_t simt_memory_list(SimtAllocation **list) {
  pthread_mutex_lock(&memory.lock);
  const size_t count = memory.live_count;
  *list = simt_resized(NULL, count * sizeof **list);
  for (size_t i = 0; i < count; i++) {
    const Allocation *a = &memory.live[i];
    SimtAllocation *own = &(*list)[i];
    *own = (SimtAllocation){.begin = a->begin + a->guard,
                            .end = a->end - a->guard,
                            .guard = a->guard,
                            .ordinal = a->ordinal};
    memcpy(own->name, a->name, sizeof own->name);
  }
  pthread_mutex_unlock(&memory.lock);
  return count;
}

/* --- Pages lent to accesses out of bounds ----------------------------------------------------- */

enum { MAX_LENT = 4096, LENT_BYTES = 4096 };

static struct {
  _Atomic uint32_t count;
  uintptr_t pages[MAX_LENT];
} lent;

bool simt_memory_lend(uintptr_t address) {
  const uintptr_t page = address / LENT_BYTES * LENT_BYTES;
  if (!simt_memory_is_device((const void *)address)) return false;
  const uint32_t i = atomic_fetch_add(&lent.count, 1);
  if (i >= MAX_LENT) return false;
  lent.pages[i] = page;
  return mprotect((void *)page, LENT_BYTES, PROT_READ | PROT_WRITE) == 0;
}

void simt_memory_take_back(void) {
  const uint32_t count = atomic_exchange(&lent.count, 0);
  for (uint32_t i = 0; i < count && i < MAX_LENT; i++) {
    map_pages(lent.pages[i], lent.pages[i] + LENT_BYTES, PROT_NONE);
  }
}

/* --- Queries ---------------------------------------------------------------------------------- */

bool simt_memory_is_device(const void *pointer) {
  return (uintptr_t)pointer - memory.begin < memory.end - memory.begin;
}

bool simt_memory_is_global(const void *pointer) {
  return simt_memory_is_device(pointer) || simt_is_device_variable((uintptr_t)pointer);
}

bool simt_memory_contains(const void *pointer, size_t size) {
  const uintptr_t begin = (uintptr_t)pointer;
  bool found = false;
  pthread_mutex_lock(&memory.lock);
  for (size_t i = 0; i < memory.live_count && !found; i++) {
    const Allocation *a = &memory.live[i];
    found = begin >= a->begin && begin <= a->end && size <= a->end - begin;
  }
  pthread_mutex_unlock(&memory.lock);
  SimtVariable variable;
  if (found || !simt_is_device_variable(begin)) return found;
  return simt_find_variable(begin, &variable) && size <= variable.begin + variable.size - begin;
}

/** Distance in bytes from the part of the allocation that kernels may use; 0 within it, 1 for the
 * adjacent bytes. */
static uintptr_t distance(const Allocation *a, uintptr_t address) {
  const uintptr_t begin = a->begin + a->guard, end = a->end - a->guard;
  if (address < begin) return begin - address;
  return address < end ? 0 : address - end + 1;
}

static const Allocation *nearest(const Allocation *list, size_t count, uintptr_t address) {
  const Allocation *best = NULL;
  for (size_t i = 0; i < count; i++) {
    if (best == NULL || distance(&list[i], address) < distance(best, address)) best = &list[i];
  }
  return best;
}

static void describe_position(const Allocation *a, bool freed, uintptr_t address, char *text,
                              size_t text_size) {
  const size_t away = distance(a, address);
  char where[64];
  if (away == 0) {
    snprintf(where, sizeof where, "at byte %zu of", (size_t)(address - a->begin - a->guard));
  } else {
    snprintf(where, sizeof where, "%zu %s %s", away, simt_bytes(away),
             address < a->begin + a->guard ? "before" : "past");
  }
  const bool named = a->name[0] != '\0';
  snprintf(text, text_size, "%s %s %u%s%s%s (%zu bytes)", where,
           freed ? "freed allocation" : "allocation", a->ordinal, named ? " \"" : "", a->name,
           named ? "\"" : "", (size_t)(a->end - a->begin - 2 * a->guard));
}

/** Describes an address outside of all allocations, without its number, which differs by run. */
static void describe_host(uintptr_t address, char *text, size_t text_size) {
  SimtVariable variable;
  if (address == 0) {
    snprintf(text, text_size, "at a null pointer");
  } else if (address < RED_ZONE) {
    snprintf(text, text_size, "%zu %s past a null pointer", (size_t)address, simt_bytes(address));
  } else if (simt_find_variable(address, &variable)) {
    snprintf(
        text, text_size, "at byte %zu of %s \"%s\" (%zu bytes)", (size_t)(address - variable.begin),
        simt_is_constant(address) ? "constant" : "host variable", variable.name, variable.size);
  } else {
    snprintf(text, text_size, "at no address of the device");
  }
}

void simt_memory_describe(uintptr_t address, char *text, size_t text_size) {
  pthread_mutex_lock(&memory.lock);
  const size_t freed_count = memory.freed_count < MAX_FREED ? memory.freed_count : MAX_FREED;
  const Allocation *live = nearest(memory.live, memory.live_count, address);
  const Allocation *freed = nearest(memory.freed, freed_count, address);
  if (!simt_memory_is_device((const void *)address)) {
    describe_host(address, text, text_size);
  } else if (live != NULL && distance(live, address) <= RED_ZONE) {
    describe_position(live, false, address, text, text_size);
  } else if (freed != NULL && distance(freed, address) == 0) {
    describe_position(freed, true, address, text, text_size);
  } else if (live != NULL) {
    describe_position(live, false, address, text, text_size);
  } else {
    snprintf(text, text_size, "in device memory, of which nothing is allocated");
  }
  pthread_mutex_unlock(&memory.lock);
}

/** The first byte of [begin, end) that is not FILL, or `end`. */
static uintptr_t first_damage(uintptr_t begin, uintptr_t end) {
  uintptr_t p = begin;
  while (p < end && *(const unsigned char *)p == FILL) p++;
  return p;
}

bool simt_memory_find_damage(char *text, size_t text_size) {
  bool found = false;
  pthread_mutex_lock(&memory.lock);
  for (size_t i = 0; i < memory.live_count && !found; i++) {
    const Allocation *a = &memory.live[i];
    const uintptr_t before = first_damage(a->pages_begin, a->begin);
    const uintptr_t after = first_damage(a->end, a->pages_end);
    found = before < a->begin || after < a->pages_end;
    if (!found) continue;
    describe_position(a, false, before < a->begin ? before : after, text, text_size);
    memset((void *)a->pages_begin, FILL, a->begin - a->pages_begin);
    memset((void *)a->end, FILL, a->pages_end - a->end);
  }
  pthread_mutex_unlock(&memory.lock);
  return found;
}
