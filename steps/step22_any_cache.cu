/**
 * @file
 * Step 22: one step for every cache.
 *
 * The idea: no kernel is the fastest for every pass. Step 20h has 16 rows of Q in a tile, enough
 * for a few queries of each head; for more it reads K and V again. Step 20i has 64, and computes
 * with all of them even if there are eight. Step 21 converts a cache in e4m3. A library has all of
 * them, and a rule on the host that says which one a pass takes.
 *
 * What changed since step 20h: there is no kernel here. The program is linked with the three steps,
 * and each function of this descriptor calls that of the step that the rule has chosen.
 *
 * What it costs: the machine code of all kernels. And the rule knows what the host knows, which are
 * shapes, but not how long the sequences are.
 *
 * What to look at: choose(). What must not change between schedule() and decode()?
 */
#include <stdio.h>
#include <string.h>

#include "decode.h"

// The tables beside their sources say which steps these are.
extern const Step few_rows_step, many_rows_step, e4m3_cache_step;

// [choose]
constexpr int FEW_ROWS = 16; /**< of Q, all with the same K and V, for which one mma is enough */

/** The step for a problem. It depends on nothing else, so all functions below get the same one. */
static const Step *choose(const Problem *problem) {
  char why[256];
  if (cache_dtype(problem) == DTYPE_E4M3) return &e4m3_cache_step;
  const int rows = group_size(problem) * problem->q_len;
  // All blocks may have parts of one head in one sequence: of 64 rows they take long to merge.
  const bool alone = problem->batch * problem->kv_heads == 1;
  // Step 20i has no D = 256, and wgmma is on Hopper alone.
  const bool many = rows > FEW_ROWS && !alone && many_rows_step.supports(problem, why, sizeof why);
  return many ? &many_rows_step : &few_rows_step;
}
// [choose]

/** Step::supports. Each reason of a step has its name, in whose place comes that of this one. */
static bool supports(const Problem *problem, char *why, size_t why_size) {
  const Step *const chosen = choose(problem);
  char reason[256];
  if (chosen->supports(problem, reason, sizeof reason)) return true;
  const char *const name = strstr(reason, chosen->name);
  if (name == NULL) return snprintf(why, why_size, "%s", reason), false;
  snprintf(why, why_size, "%.*s%s%s", (int)(name - reason), reason, step.name,
           name + strlen(chosen->name));
  return false;
}

/** Step::workspace_bytes */
static size_t workspace_bytes(const Problem *problem) {
  return choose(problem)->workspace_bytes(problem);
}

/** Step::describe. The report says which step it is. */
static void describe(const Problem *problem, int heads, Description *description) {
  choose(problem)->describe(problem, heads, description);
  description->launches[0].name = choose(problem)->name;
}

/** Step::decode */
static cudaError_t decode(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  return choose(problem)->decode(problem, t, stream);
}

/** Step::schedule_bytes */
static size_t schedule_bytes(const Problem *problem) {
  return choose(problem)->schedule_bytes(problem);
}

/** Step::schedule */
static cudaError_t schedule(const Problem *problem, const DecodeTensors *t, cudaStream_t stream) {
  return choose(problem)->schedule(problem, t, stream);
}

const Step step = {
    .name = "step22",
    .after = "step20h",
    .title = "One step for every cache",
    .idea = "No kernel is the fastest for every pass, so the host chooses one by the shapes.",
    .head_dims = "D = 64, 128 or 256",
    .supports = supports,
    .workspace_bytes = workspace_bytes,
    .workspace_zero = true,
    .describe = describe,
    .decode = decode,
    .caches = CACHE_16_BIT | CACHE_E4M3 | CACHE_PAGES,
    .schedule_bytes = schedule_bytes,
    .schedule = schedule,
};
