/* Results of all launches, sorted by kernel and line of source. */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/** All launches of one kernel. */
typedef struct KernelStore {
  const void *kernel;
  uint64_t launches, blocks;
  SiteTable sites;
  FirstTable first;
  const char *name; /* set while results are taken */
} KernelStore;

static struct {
  KernelStore *kernels;
  size_t kernel_count;
  FindingList findings;
  bool blocks_talk;
  double milliseconds;
} store;

/* --- Launches that have ended --------------------------------------------------------------- */

void lab_forget_store(void) {
  for (size_t i = 0; i < store.kernel_count; i++) {
    lab_free_sites(&store.kernels[i].sites);
    lab_free_first(&store.kernels[i].first);
  }
  free(store.kernels);
  free(store.findings.list);
  memset(&store, 0, sizeof store);
}

static KernelStore *store_of(const void *kernel) {
  for (size_t i = 0; i < store.kernel_count; i++) {
    if (store.kernels[i].kernel == kernel) return &store.kernels[i];
  }
  store.kernels = simt_with_room(store.kernels, store.kernel_count, sizeof *store.kernels);
  KernelStore *made = &store.kernels[store.kernel_count++];
  *made = (KernelStore){.kernel = kernel};
  return made;
}

FindingList *lab_begin_store(const Launch *launch, bool talk) {
  KernelStore *kernel = store_of(launch->kernel);
  kernel->launches++;
  kernel->blocks += launch->block_count;
  store.blocks_talk |= talk;
  return &store.findings;
}

void lab_store(const Launch *launch, const LabWorker *lab) {
  KernelStore *kernel = store_of(launch->kernel);
  for (uint32_t i = 1; i < lab->sites.count; i++) {
    const Site *site = &lab->sites.sites[i];
    lab_add_counts(lab_counts(&kernel->sites, site->pc), &site->counts);
  }
  lab_add_first(&kernel->sites, &kernel->first, &lab->first);
  lab_store_findings(&lab->findings);
}

void lab_store_findings(const FindingList *findings) {
  lab_add_findings(&store.findings, findings);
}

void lab_store_time(double milliseconds) {
  store.milliseconds += milliseconds;
}

extern const char _end[]; /* of the program's data */

/** The pc relative to the program; 0 if it is outside. */
static uint32_t own_pc(uintptr_t pc) {
  const uintptr_t begin = (uintptr_t)__executable_start;
  return pc >= begin && pc < (uintptr_t)_end ? (uint32_t)(pc - begin) : 0;
}

void lab_store_failure(const Failure *failure) {
  RawFinding finding = {.kernel = failure->kernel,
                        .kind = failure->refused ? LAB_LAUNCH_REFUSED : LAB_LAUNCH_FAILED,
                        .pc = own_pc(failure->pc),
                        .other_pc = own_pc(failure->other_pc),
                        .count = 1,
                        .has_thread = failure->worker != NULL,
                        .thread = (uint64_t)failure->thread,
                        .other_thread = (uint64_t)failure->other_thread};
  if (failure->worker != NULL) finding.block = simt_block_number(failure->worker);
  /* Headlines may end in a comma, because reports append "in KERNEL". */
  const size_t length = strlen(failure->what);
  const bool comma = length > 0 && failure->what[length - 1] == ',';
  snprintf(finding.where, sizeof finding.where, "%.*s", (int)(length - comma), failure->what);
  store_of(failure->kernel); /* the kernel may never be launched */
  lab_add_finding(&store.findings, &finding);
}

/* --- Names ---------------------------------------------------------------------------------- */

/** The names that results point to, without duplicates. */
typedef struct Names {
  char **list;
  size_t count;
} Names;

static const char *name_of(Names *names, const char *text) {
  for (size_t i = 0; i < names->count; i++) {
    if (strcmp(names->list[i], text) == 0) return names->list[i];
  }
  names->list = simt_with_room(names->list, names->count, sizeof *names->list);
  names->list[names->count] = strdup(text);
  if (names->list[names->count] == NULL) abort();
  return names->list[names->count++];
}

/** The source place of each pc, sorted by pc. */
typedef struct Places {
  SourcePlace *list;
  size_t count;
} Places;

static void want_place(Places *places, uint32_t pc) {
  if (pc == 0) return;
  places->list = simt_with_room(places->list, places->count, sizeof *places->list);
  places->list[places->count++] = (SourcePlace){.pc = (uintptr_t)__executable_start + pc};
}

static int by_pc(const void *a, const void *b) {
  const SourcePlace *x = a, *y = b;
  return (x->pc > y->pc) - (x->pc < y->pc);
}

static Places find_places(void) {
  Places places = {NULL, 0};
  for (size_t k = 0; k < store.kernel_count; k++) {
    const SiteTable *sites = &store.kernels[k].sites;
    for (uint32_t i = 1; i < sites->count; i++) want_place(&places, sites->sites[i].pc);
  }
  for (size_t i = 0; i < store.findings.count; i++) {
    want_place(&places, store.findings.list[i].pc);
    want_place(&places, store.findings.list[i].other_pc);
  }
  if (places.count == 0) return places;
  qsort(places.list, places.count, sizeof *places.list, by_pc);
  size_t kept = 1;
  for (size_t i = 1; i < places.count; i++) {
    if (places.list[i].pc != places.list[kept - 1].pc) places.list[kept++] = places.list[i];
  }
  places.count = kept;
  simt_source_places(places.list, places.count);
  return places;
}

static const SourcePlace *place_of(const Places *places, uint32_t pc) {
  const SourcePlace key = {.pc = (uintptr_t)__executable_start + pc};
  return bsearch(&key, places->list, places->count, sizeof *places->list, by_pc);
}

static const char *place_text(const Places *places, uint32_t pc, Names *names) {
  if (pc == 0) return NULL;
  const SourcePlace *place = place_of(places, pc);
  return name_of(names, place->file[0] != '\0' ? place->innermost : "an unknown line");
}

static const char *calls_text(const Places *places, uint32_t pc, Names *names) {
  return name_of(names, pc != 0 ? place_of(places, pc)->calls : "");
}

/* --- Lines ---------------------------------------------------------------------------------- */

static int by_line(const void *a, const void *b) {
  const LabLine *x = a, *y = b;
  const int kernels = strcmp(x->kernel, y->kernel);
  if (kernels != 0) return kernels;
  const int files = strcmp(x->file, y->file);
  return files != 0 ? files : x->line - y->line;
}

static void add_line(LabResults *results, const LabLine *line) {
  for (size_t i = 0; i < results->line_count; i++) {
    LabLine *own = &results->lines[i];
    if (by_line(own, line) != 0) continue;
    lab_add_counts(&own->counts, &line->counts);
    return;
  }
  results->lines[results->line_count++] = *line;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const LabKernel *)a)->name, ((const LabKernel *)b)->name);
}

static void take_kernels(LabResults *results, const Places *places, Names *names) {
  size_t sites = 0;
  for (size_t k = 0; k < store.kernel_count; k++) sites += store.kernels[k].sites.count;
  results->kernels = simt_resized(NULL, store.kernel_count * sizeof *results->kernels);
  results->lines = simt_resized(NULL, sites * sizeof *results->lines);
  for (size_t k = 0; k < store.kernel_count; k++) {
    KernelStore *kernel = &store.kernels[k];
    char name[256];
    simt_kernel_name(kernel->kernel, name, sizeof name);
    kernel->name = name_of(names, name);
    LabKernel *own = &results->kernels[results->kernel_count++];
    *own = (LabKernel){.kernel = kernel->kernel,
                       .name = kernel->name,
                       .launches = kernel->launches,
                       .blocks = kernel->blocks};
    for (uint32_t i = 1; i < kernel->sites.count; i++) {
      const Site *site = &kernel->sites.sites[i];
      const SourcePlace *place = place_of(places, site->pc);
      const LabLine line = {own->name, name_of(names, place->file), place->line, site->counts};
      lab_add_counts(&own->counts, &site->counts);
      add_line(results, &line);
    }
  }
  qsort(results->kernels, results->kernel_count, sizeof *results->kernels, by_name);
  qsort(results->lines, results->line_count, sizeof *results->lines, by_line);
}

/* --- Findings ------------------------------------------------------------------------------- */

static int compare_names(const char *a, const char *b) {
  return strcmp(a != NULL ? a : "", b != NULL ? b : "");
}

static int by_kind_and_place(const void *a, const void *b) {
  const LabFinding *x = a, *y = b;
  if (x->kind != y->kind) return (int)x->kind - (int)y->kind;
  const int kernels = strcmp(x->kernel, y->kernel);
  if (kernels != 0) return kernels;
  const int places = compare_names(x->place, y->place);
  if (places != 0) return places;
  if (x->place == NULL) return strcmp(x->where, y->where);
  const int calls = strcmp(x->calls, y->calls);
  if (calls != 0) return calls;
  const int others = compare_names(x->other_place, y->other_place);
  return others != 0 ? others : strcmp(x->other_calls, y->other_calls);
}

/** Merges findings of several pcs on one line: adds the counts and keeps the earliest. */
static void add_result(LabResults *results, const LabFinding *finding) {
  for (size_t i = 0; i < results->finding_count; i++) {
    LabFinding *own = &results->findings[i];
    if (by_kind_and_place(own, finding) != 0) continue;
    const uint64_t count = own->count + finding->count;
    const int order = finding->block != own->block     ? (finding->block < own->block ? -1 : 1)
                      : finding->thread != own->thread ? (finding->thread < own->thread ? -1 : 1)
                                                       : strcmp(finding->where, own->where);
    if (order < 0) *own = *finding;
    own->count = count;
    return;
  }
  results->findings[results->finding_count++] = *finding;
}

/** Barriers that threads miss come in the order of time: the first of them is the cause. */
static int by_kind_and_time(const void *a, const void *b) {
  const LabFinding *x = a, *y = b;
  if (x->kind == y->kind && (x->kind == LAB_BARRIER_APART || x->kind == LAB_BARRIER_EXITED)) {
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    if (x->order != y->order) return x->order < y->order ? -1 : 1;
  }
  return by_kind_and_place(a, b);
}

/* --- First accesses ------------------------------------------------------------------------- */

static int by_line_and_time(const void *a, const void *b) {
  const FirstAccess *x = a, *y = b;
  const LabLine line_x = {
      .kernel = x->access.kernel, .file = x->access.file, .line = x->access.line};
  const LabLine line_y = {
      .kernel = y->access.kernel, .file = y->access.file, .line = y->access.line};
  const int lines = by_line(&line_x, &line_y);
  if (lines != 0) return lines;
  return lab_first_is_earlier(x, y) ? -1 : lab_first_is_earlier(y, x);
}

static void take_accesses(LabResults *results, const Places *places, Names *names) {
  size_t most = 0, count = 0;
  for (size_t k = 0; k < store.kernel_count; k++) most += store.kernels[k].first.count;
  FirstAccess *all = simt_resized(NULL, most * sizeof *all);
  for (size_t k = 0; k < store.kernel_count; k++) {
    const KernelStore *kernel = &store.kernels[k];
    for (size_t i = 0; i < kernel->first.count; i++) {
      const FirstAccess *first = &kernel->first.list[i];
      if (!first->taken) continue;
      const SourcePlace *place = place_of(places, first->pc);
      all[count] = *first;
      all[count].access.kernel = kernel->name;
      all[count].access.file = name_of(names, place->file);
      all[count++].access.line = place->line;
    }
  }
  qsort(all, count, sizeof *all, by_line_and_time);
  results->accesses = simt_resized(NULL, count * sizeof *results->accesses);
  for (size_t i = 0; i < count; i++) results->accesses[i] = all[i].access;
  results->access_count = count;
  free(all);
}

/** Are both pcs the same place in the source? The compiler may duplicate a call. */
static bool is_one_place(const Places *places, const RawFinding *raw) {
  if (raw->kind != LAB_BARRIER_APART && raw->kind != LAB_WARP_APART) return false;
  const SourcePlace *a = place_of(places, raw->pc), *b = place_of(places, raw->other_pc);
  return a->file[0] != '\0' && a->chain == b->chain;
}

static void take_findings(LabResults *results, const Places *places, Names *names) {
  results->findings = simt_resized(NULL, store.findings.count * sizeof *results->findings);
  for (size_t i = 0; i < store.findings.count; i++) {
    const RawFinding *raw = &store.findings.list[i];
    if (is_one_place(places, raw)) continue;
    LabFinding finding = {
        .kind = raw->kind,
        .kernel = store_of(raw->kernel)->name,
        .place = place_text(places, raw->pc, names),
        .other_place = place_text(places, raw->other_pc, names),
        .calls = calls_text(places, raw->pc, names),
        .other_calls = calls_text(places, raw->other_pc, names),
        .count = raw->count,
        .has_thread = raw->has_thread,
        .block = raw->block,
        .thread = raw->thread,
        .other_thread = raw->other_thread,
        .other_block = raw->other_block,
        .order = raw->order,
    };
    memcpy(finding.where, raw->where, sizeof finding.where);
    add_result(results, &finding);
  }
  qsort(results->findings, results->finding_count, sizeof *results->findings, by_kind_and_time);
  size_t *count = &results->finding_count; /* notes are the last kind */
  while (*count > 0 && results->findings[*count - 1].kind == LAB_SUM_UNORDERED) {
    results->notes = &results->findings[--*count];
    results->note_count++;
  }
}

void lab_take_results(LabResults *results) {
  Names *names = simt_resized(NULL, sizeof *names);
  *names = (Names){NULL, 0};
  Places places = find_places();
  *results = (LabResults){
      .blocks_talk = store.blocks_talk, .kernel_ms = store.milliseconds, .strings = names};
  take_kernels(results, &places, names);
  take_findings(results, &places, names);
  take_accesses(results, &places, names);
  free(places.list);
}

void lab_free_results(LabResults *results) {
  Names *names = results->strings;
  for (size_t i = 0; names != NULL && i < names->count; i++) free(names->list[i]);
  if (names != NULL) free(names->list);
  free(names);
  free(results->kernels);
  free(results->lines);
  free(results->findings);
  free(results->accesses);
  *results = (LabResults){.strings = NULL};
}
