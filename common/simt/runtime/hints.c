/*
 * Hints: what kernels did that is no error by itself, or has no effect if the value is not used,
 * but is often why a result is wrong.
 */
#include <string.h>

#include "runtime.h"

/* Of the launches since the last reset. */
static Hints kept;

static Hint *find(Hints *hints, HintKind kind, const void *call_site) {
  for (int i = 0; i < hints->count; i++) {
    Hint *hint = &hints->list[i];
    if (hint->kind == kind && hint->call_site == call_site) return hint;
  }
  return NULL;
}

Hint *simt_note_hint(Worker *worker, HintKind kind, const void *call_site) {
  Hints *hints = &worker->hints;
  const uint64_t block = simt_block_number(worker);
  Hint *hint = find(hints, kind, call_site);
  if (hint != NULL && hint->block <= block) return NULL;
  if (hint == NULL && hints->count == SIMT_MOST_HINTS) return NULL;
  if (hint == NULL) hint = &hints->list[hints->count++];
  *hint = (Hint){.kind = kind, .call_site = call_site, .block = block, .lanes = hint->lanes};
  return hint;
}

void simt_keep_hints(const Hints *hints) {
  for (int i = 0; i < hints->count; i++) {
    const Hint *hint = &hints->list[i];
    Hint *known = find(&kept, hint->kind, hint->call_site);
    if (known == NULL && kept.count == SIMT_MOST_HINTS) return;
    if (known == NULL) {
      kept.list[kept.count++] = *hint;
      continue;
    }
    const unsigned lanes = known->lanes | hint->lanes;
    if (hint->block < known->block) *known = *hint;
    known->lanes = lanes;
  }
}

void simt_forget_hints(void) {
  kept.count = 0;
}

/** Why lanes kept their value, and what that means for a reduction. */
static void describe_kept(const Hint *hint, const char *where, SimtHint *said) {
  const unsigned warp[MAX_WARPS] = {hint->lanes};
  const bool one = (hint->lanes & (hint->lanes - 1)) == 0;
  char lanes[128], rule[128] = "";
  simt_format_threads(warp, lanes, sizeof lanes);
  if (hint->goes_down) {
    snprintf(rule, sizeof rule,
             ": a reduction leaves its result in the first of %d lanes only; __shfl_xor_sync gives "
             "it to all",
             hint->width);
  }
  snprintf(said->text, sizeof said->text,
           "%s at %s gave %s %s %s own value back, as the lane to read lies %s %s %d lanes%s",
           hint->operation->name, where, one ? "lane" : "lanes", lanes, one ? "its" : "their",
           hint->goes_up ? "before" : "past", one ? "its" : "their", hint->width, rule);
}

bool simt_hint(int i, SimtHint *said) {
  if (i >= kept.count) return false;
  const Hint *hint = &kept.list[i];
  char where[512], there[512];
  simt_source_line((uintptr_t)hint->call_site - 1, where, sizeof where);
  said->reading = SIMT_AS_WRITTEN;
  switch (hint->kind) {
    case SOURCE_MISSING:
      snprintf(said->text, sizeof said->text, "%s at %s: %s, so the value is undefined",
               hint->operation->name, where, hint->what);
      break;
    case KEPT_OWN_VALUE:
      said->reading = hint->goes_down ? SIMT_DOWN_AS_XOR : SIMT_KEPT_LARGEST;
      describe_kept(hint, where, said);
      break;
    case FAR_LANE:
      snprintf(said->text, sizeof said->text, "%s at %s goes by %s", hint->operation->name, where,
               hint->what);
      break;
    case LANES_APART:
      simt_source_line((uintptr_t)hint->other_site - 1, there, sizeof there);
      if (strcmp(where, there) == 0) { /* one line that is compiled twice */
        said->text[0] = '\0';
        break;
      }
      snprintf(said->text, sizeof said->text,
               "%s at %s met lanes at %s: %s; all lanes of the mask must reach the same one",
               hint->operation->name, where, there, hint->what);
      break;
    case ACTIVE_MASK:
      said->reading = SIMT_ACTIVE_TOGETHER;
      snprintf(said->text, sizeof said->text,
               "__activemask() at %s gave each lane itself alone, and CUDA promises no more: name "
               "the lanes that must take part, as in 0xffffffff",
               where);
      break;
  }
  return true;
}
