#include "host/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef SIMT_BACKEND
#include <omp.h>
#include <simt.h>
#endif

#include "host/base/memory.h"
#include "host/cli/options.h"
#include "host/compare.h"
#include "host/device/device.h"
#include "host/device/flush.h"
#include "host/io/inputs.h"
#include "host/io/outputs.h"
#include "host/masks/host_block_mask.h"
#include "host/masks/mask.h"
#include "host/report/report.h"

/** What a run frees at its end, also after a failure. */
typedef struct Resources {
  const Options *options;
  Inputs inputs;
  HostBlockMask built;
  const HostBlockMask *block_mask; /**< `built`, or the mask of a directory */
  DeviceMask mask;
  DeviceTensors tensors;
  HostOutputs outputs;
  CheckPlan plan;
  CheckPlan key_plan; /**< rows of dK and dV; `plan` has those of O or dQ */
} Resources;

static void resources_free(Resources *resources) {
  inputs_free(&resources->inputs);
  block_mask_free(&resources->built);
  device_mask_free(&resources->mask);
  device_tensors_free(&resources->tensors);
  device_outputs_free(&resources->outputs);
  check_plan_free(&resources->plan);
  check_plan_free(&resources->key_plan);
}

/** Bytes that a step's workspace must leave free, for the L2 flush and for the runtime. */
static size_t workspace_reserve(const Device *device) {
  return device->simulated ? 0 : flush_bytes(device->l2_bytes) + (64u << 20);
}

/** --info: describes the run as prepare() does, without allocating the tensors. */
static void describe_only(RunRecord *run) {
  const Problem *p = &run->request->problem;
  const size_t taken = (size_t)device_tensors_bytes(p) + workspace_reserve(run->device);
  const size_t room = device_free_bytes(taken);
  run->heads_at_a_time = heads_at_a_time(p, room);
  run->fits = room > 0 && run->heads_at_a_time > 0;
  record_description(run, run->heads_at_a_time > 0 ? run->heads_at_a_time : 1);
}

/** Runs one pass on poisoned outputs and waits for it. */
static bool run_once(RunRecord *run, Resources *r, Error *error) {
  DeviceTensors *t = &r->tensors;
#ifdef SIMT_BACKEND
  simt_reset_counters();
  simt_set_progress(isatty(STDERR_FILENO) ? progress_blocks : NULL);
  /* Idle OpenMP threads would spin for some milliseconds on cores that the kernel needs. */
  omp_pause_resource_all(omp_pause_soft);
#endif
  if (!device_outputs_poison(t, error)) return false;
  progress_start();
  const double start = clock_ms();
  const bool ok =
      device_ok(device_launch(step_build(), &run->request->problem, t), "launch", error) &&
      device_ok(cudaDeviceSynchronize(), "kernel", error);
  run->simulation_ms = clock_ms() - start;
  progress_end();
#ifdef SIMT_BACKEND
  simt_set_time_limit(0); /* kernels that prepare a later mask have no limit */
  simt_set_progress(NULL);
  simt_read_counters(&run->counts);
#endif
  return ok;
}

/** CPU backend: counts the memory of the device's copy of the mask, and of what the step prepares
 * from it. */
static bool take_device_mask(const RunRecord *run, const HostBlockMask *blocks, Error *error) {
  char what[256];
  double bytes = (double)step.block_masks->prepared_bytes(&run->request->problem, &blocks->mask);
  for (int i = 0; i < MASK_TENSORS; i++) bytes += (double)blocks->bytes[i];
  snprintf(what, sizeof what, "--mask %.200s", run->request->mask.text);
  return memory_take(what, bytes, error);
}

/** Writes the block mask for --save-mask. A mask from files is written in canonical form, and one
 * of spans as blocks. */
static bool save_mask(const RunRecord *run, const Resources *r, Error *error) {
  const Options *o = r->options;
  const char *directory = o->mask_directory;
  if (directory == NULL) return true;
  if (run->request->mask.preset != PRESET_DIRECTORY && run->request->problem.q_block_size > 0)
    return block_mask_write(directory, r->block_mask, error);
  HostBlockMask canonical;
  const bool ok =
      block_mask_build(&run->request->mask, o->mask_block_q, o->mask_block_kv, &canonical, error) &&
      block_mask_write(directory, &canonical, error);
  block_mask_free(&canonical);
  return ok;
}

/** Builds the block mask, if the step takes one, as spans or as blocks, which it counts. */
static bool build_mask(RunRecord *run, Resources *r, Error *error) {
  if (step.block_masks == NULL) return true;
  const Problem *p = &run->request->problem;
  const double start = clock_ms();
  const bool spans = p->q_block_size == 0;
  r->block_mask = &run->request->mask.blocks; /* of a directory, as it was read */
  if (run->request->mask.preset != PRESET_DIRECTORY) {
    r->block_mask = &r->built;
    if (!(spans ? row_spans_build(&run->request->mask, &r->built, error)
                : block_mask_build(&run->request->mask, p->q_block_size, p->kv_block_size,
                                   &r->built, error))) {
      return false;
    }
  }
  run->mask_facts = (MaskFacts){.form = spans ? "row spans" : "blocks",
                                .q_block_size = p->q_block_size,
                                .kv_block_size = p->kv_block_size,
                                .blocks = block_mask_statistics(&r->block_mask->mask, p->kv_len),
                                .build_ms = clock_ms() - start};
  return !run->device->simulated || r->options->draw_mask ||
         take_device_mask(run, r->block_mask, error);
}

/** Saves the block mask and copies it to the device. */
static bool prepare_mask(RunRecord *run, Resources *r, Error *error) {
  if (step.block_masks == NULL) return true;
  if (!save_mask(run, r, error) ||
      !device_mask_create(&run->request->problem, step_build(), r->block_mask, &r->mask, error)) {
    return false;
  }
  run->mask_facts.mask_bytes = r->mask.mask_bytes;
  run->mask_facts.prepared_bytes = r->mask.prepared_bytes;
  run->mask_facts.upload_ms = r->mask.upload_ms;
  run->mask_facts.prepare_ms = r->mask.prepare_ms;
  r->tensors.tensors.block_mask = &r->mask.mask;
  r->tensors.tensors.prepared = r->mask.prepared;
  r->tensors.backward.block_mask = &r->mask.mask;
  r->tensors.backward.prepared = r->mask.prepared;
  return true;
}

/** Creates the tensors of a backward step. The lab forgets the forward pass behind O and LSE. */
static bool prepare_gradients(const RunRecord *run, Resources *r, Error *error) {
  const Problem *p = &run->request->problem;
  DeviceMask mask = {0}; /* as the forward step prepares it */
  bool ok = step.block_masks == NULL || r->inputs.o != NULL ||
            device_mask_create(p, step_before_backward(), r->block_mask, &mask, error);
  r->tensors.tensors.block_mask = &mask.mask;
  r->tensors.tensors.prepared = mask.prepared;
  ok = ok && device_gradients_create(p, &r->inputs, &r->tensors, error) &&
       lab_report_start(&r->options->report, error);
  device_mask_free(&mask);
  return ok;
}

/** Copies the problem to the device and asks the step for its launches. */
static bool prepare(RunRecord *run, Resources *r, Error *error) {
  const Problem *p = &run->request->problem;
  if (!device_tensors_create(p, &r->inputs, &r->tensors, error) ||
      (step.backward != NULL && !prepare_gradients(run, r, error)) ||
      !prepare_mask(run, r, error) ||
      !device_workspace_create(p, device_free_bytes(workspace_reserve(run->device)), &r->tensors,
                               error) ||
      (step.decode != NULL && !device_decode_create(p, &r->inputs, &r->tensors, error))) {
    return false;
  }
  run->heads_at_a_time = r->tensors.heads;
  run->workspace_bytes = r->tensors.workspace_bytes + r->tensors.schedule_bytes;
  if (step.decode != NULL) record_cache(run, &r->inputs.cache);
  run->cache.schedule_bytes = r->tensors.schedule_bytes;
  record_description(run, run->heads_at_a_time);
  record_work(run);
  return record_facts(run, error);
}

/** Runs the pass that is checked. The kernels are loaded already, so device memory that is missing
 * afterwards was allocated by the pass itself. */
static bool make_pass(RunRecord *run, Resources *r, Error *error) {
  const size_t before = device_free_bytes(0);
#ifdef SIMT_BACKEND
  simt_set_time_limit(r->options->time_limit);
#endif
  run->complete = run_once(run, r, error);
  if (!run->complete) return false;
  const size_t after = device_free_bytes(0);
  run->extra_bytes = run->workspace_bytes + (before > after ? before - after : 0);
  return device_outputs_download(&r->tensors, &r->outputs, error);
}

/** Compares outputs with the reference; prints what is wrong to `failure`, which may be NULL. */
static bool compare(const RunRecord *run, const Resources *r, const HostOutputs *outputs,
                    FILE *failure, CheckResult *result, Error *error) {
  const Comparison comparison = {run,          &r->inputs,
                                 outputs,      &r->plan,
                                 &r->key_plan, r->block_mask != NULL ? &r->block_mask->mask : NULL};
  return compare_outputs(&comparison, failure, result, error);
}

/** Checks the outputs of that pass. */
static bool check(RunRecord *run, Resources *r, Error *error) {
  const Problem *p = &run->request->problem;
  const Options *o = r->options;
  run->total_rows = (size_t)p->batch * p->q_heads * p->q_len;
  if (step.backward != NULL) run->total_rows += (size_t)2 * p->batch * p->kv_heads * p->kv_len;
  if (o->check == CHECK_NONE) return true;
  const bool planned =
      step.backward == NULL
          ? check_plan(p, &run->request->mask, o->check, o->check_rows, run->description.block_m,
                       o->seed, &r->plan, error)
          : check_plan_gradients(p, &run->request->mask, o->check, o->check_rows, &run->description,
                                 o->seed, &r->plan, &r->key_plan, error);
  if (!planned) return false;
  run->checked = compare(run, r, &r->outputs, stderr, &run->check, error);
  return run->checked;
}

#ifdef SIMT_BACKEND
/** Another run of the same kernels. */
typedef struct Rerun {
  bool differs;        /**< another answer, or none */
  bool failed;         /**< a fault, or a loop without an end */
  size_t values_wrong; /**< SIMT_DOWN_AS_XOR only, if it differs */
} Rerun;

static Rerun run_again(RunRecord *run, Resources *r, SimtReading reading) {
  const SimtCounters counts = run->counts;
  const double ms = run->simulation_ms, limit = r->options->time_limit, most = 1 + ms / 100;
  HostOutputs other = {0};
  Rerun again = {.differs = true, .values_wrong = SIZE_MAX};
  CheckResult check;
  Error unused;
  lab_start(0);
  simt_read_as(reading);
  simt_set_time_limit(limit > 0 && limit < most ? limit : most);
  again.failed = !run_once(run, r, &unused);
  if (!again.failed && device_outputs_download(&r->tensors, &other, &unused)) {
    again.differs = device_outputs_differ(&r->tensors, &other, &r->outputs);
    if (reading == SIMT_DOWN_AS_XOR && again.differs &&
        compare(run, r, &other, NULL, &check, &unused)) {
      again.values_wrong = check.values_wrong;
    }
  }
  simt_read_as(SIMT_AS_WRITTEN);
  device_outputs_free(&other);
  run->counts = counts;
  run->simulation_ms = ms;
  return again;
}

/** Prints what the kernels did that may explain a wrong answer. */
static void print_hints(RunRecord *run, Resources *r) {
  SimtHint hints[SIMT_MOST_HINTS];
  bool asks[SIMT_ACTIVE_TOGETHER + 1] = {false};
  int count = 0;
  for (; count < SIMT_MOST_HINTS && simt_hint(count, &hints[count]); count++) {
    asks[hints[count].reading] = true;
  }
  Rerun kept = {0}, down = {0}, active = {0};
  if (asks[SIMT_KEPT_LARGEST] || asks[SIMT_DOWN_AS_XOR]) {
    kept = run_again(run, r, SIMT_KEPT_LARGEST);
    if (!kept.differs) kept = run_again(run, r, SIMT_KEPT_SMALLEST);
  }
  /* Lanes that skip a kept value do not depend on it, but may still lack a sum that only the first
   * lane has. Half of them have it if the shuffle is read so; a right one then makes more wrong. */
  if (asks[SIMT_DOWN_AS_XOR] && !kept.differs) down = run_again(run, r, SIMT_DOWN_AS_XOR);
  const size_t wrong = run->check.values_wrong, left = down.values_wrong;
  const bool mends = down.differs && left < wrong / 4 * 3;
  if (asks[SIMT_ACTIVE_TOGETHER]) active = run_again(run, r, SIMT_ACTIVE_TOGETHER);
  /* If the same run differs, too, another run shows nothing. */
  const bool shows =
      (kept.differs || mends || active.differs) && !run_again(run, r, SIMT_AS_WRITTEN).differs;
  for (int i = 0; i < count; i++) {
    const SimtReading reading = hints[i].reading;
    const Rerun *again = reading == SIMT_ACTIVE_TOGETHER ? &active : &kept;
    if (hints[i].text[0] == '\0') continue;
    if (reading == SIMT_AS_WRITTEN) {
      fprintf(stderr, "  hint: %s\n", hints[i].text);
    } else if (shows && again->differs) {
      fprintf(stderr, "  hint: %s; %s\n", hints[i].text,
              again->failed           ? "with another value the kernel fails"
              : step.backward == NULL ? "O or LSE depends on it"
                                      : "a gradient depends on it");
    } else if (shows && mends && reading == SIMT_DOWN_AS_XOR) {
      fprintf(stderr,
              "  hint: %s; with it %zu values are wrong instead of %zu; also let no lane skip what "
              "it gets\n",
              hints[i].text, left, wrong);
    }
  }
}
#endif

/** Times the pass. */
static bool measure(RunRecord *run, Resources *r, Error *error) {
  const Options *o = r->options;
  if (run->device->simulated || o->repeat == 0) return true;
  if (run->checked && !run->check.right) return true; /* the time of a wrong answer means nothing */
  ceilings_read(run->device->name, &run->ceilings);   /* zeros if none are known */
  const Problem *p = &run->request->problem;
  const size_t l2 = run->device->l2_bytes;
  const Sampling sampling = {o->repeat, o->repeat_if_slow, o->min_time};
  if (!(step.decode == NULL ? time_pass(p, &r->tensors, l2, sampling, &run->timing, error)
                            : time_decode(p, &r->tensors, run->cache.tensor_bytes, o->graph, l2,
                                          sampling, &run->timing, &run->cache.timing, error))) {
    return false;
  }
  record_speed(run);
  return true;
}

static bool fill_inputs(RunRecord *run, const Options *o, Inputs *inputs, Error *error) {
  int32_t *spiky_keys = NULL;
  bool ok = o->input != INPUT_SPIKY || mask_draw_keys(&run->request->mask, &run->request->problem,
                                                      o->seed, &spiky_keys, error);
  ok = ok && inputs_fill(&run->request->problem, o->input, o->seed, spiky_keys, o->one_scale,
                         inputs, error);
  free(spiky_keys);
  run->nan_inputs = inputs->nan_count;
  return ok;
}

/** Runs one pass and checks it. `out` is NULL for a quiet run. */
static bool run_problem(RunRecord *run, Resources *r, FILE *out, Error *error) {
  /* The mask first, because it may still be refused. */
  if (!build_mask(run, r, error) || !fill_inputs(run, r->options, &r->inputs, error) ||
      !prepare(run, r, error)) {
    return false;
  }
  if (out != NULL) report_request(run, out);
  return make_pass(run, r, error) && check(run, r, error);
}

/** Checks before the run that its results can be written. */
static bool check_destinations(const Options *o, Error *error) {
  return outputs_directory_create("--output", o->output_directory, error) &&
         outputs_directory_create("--save-mask", o->mask_directory, error) &&
         (o->json_path == NULL || json_check_path("--json ", o->json_path, error));
}

static bool write_results(const RunRecord *run, const Resources *r, Error *error) {
  const Options *o = r->options;
  return (o->output_directory == NULL ||
          (step.backward != NULL
               ? outputs_write_gradients(&run->request->problem, r->outputs.gradients,
                                         o->output_directory, error)
               : outputs_write(&run->request->problem, r->outputs.o, r->outputs.lse,
                               o->output_directory, error))) &&
         (o->json_path == NULL || json_append_run(run, o->json_path, error));
}

/** The plain build of the step, or the checking one for reports that need it. */
static bool choose_build(const ReportRequest *report, Error *error) {
  return step_build_choose((report->parts & ~(unsigned)REPORT_COUNTS) != 0) ||
         fail(error, EXIT_USAGE, "--report: this program was linked without the checking build");
}

/** Runs the problem, prints the report and writes the results. */
static bool run_and_write(RunRecord *run, Resources *r, bool quiet, Error *error) {
  const Options *o = r->options;
  FILE *out = options_report_stream(o);
  const bool started = check_destinations(o, error) && choose_build(&o->report, error) &&
                       lab_report_start(&o->report, error);
  bool ok = started && run_problem(run, r, quiet ? NULL : out, error);
  if (ok) {
    const bool measured = measure(run, r, error); /* a failure does not stop the report */
    if (!quiet) report_result(run, out);
    ok = lab_report_finish(run, out, error) && write_results(run, r, error) && measured;
#ifdef SIMT_BACKEND
    if (run->checked && !run->check.right) print_hints(run, r);
#endif
  } else if (started) {
    Error unused;
    lab_report_finish(run, out, &unused); /* the findings may show why a kernel failed */
  }
  return ok;
}

/** --draw-mask: prints the mask; --save-mask then needs no run. */
static bool draw(RunRecord *run, Resources *r, Error *error) {
  const Options *o = r->options;
  if (o->mask_directory != NULL &&
      (!check_destinations(o, error) || !build_mask(run, r, error) || !save_mask(run, r, error))) {
    return false;
  }
  return draw_mask(&run->request->mask, o->mask_block_q, o->mask_block_kv, stdout, error);
}

/** EXIT_WRONG also if no row could be judged. */
static ExitCode verdict(const RunRecord *run) {
  const bool right = !run->checked || (run->check.right && run->check.judged);
  return right && run->lab.findings == 0 ? EXIT_RIGHT : EXIT_WRONG;
}

ExitCode run_options(const Options *options, const Device *device, bool quiet, Error *error) {
  Options o = *options;
  Resources resources = {.options = &o};
  RunRequest request = {.seed = 0};
  RunRecord run = {
      .step = step.name, .add_problem = json_add_problem, .request = &request, .device = device};
  memory_start();
  bool ok = options_request(&o, &request, &resources.inputs, error);
  if (ok && request.mask.preset == PRESET_DIRECTORY) { /* its tiles set the size of the blocks */
    o.mask_block_q = request.problem.q_block_size;
    o.mask_block_kv = request.problem.kv_block_size;
  }
  if (ok && o.draw_mask) {
    ok = draw(&run, &resources, error);
  } else if (ok && o.info) {
    describe_only(&run);
    ok = check_destinations(&o, error);
    if (ok) report_info(&run, options_report_stream(&o));
    ok = ok && (o.json_path == NULL || json_append_info(&run, o.json_path, error));
  } else if (ok) {
    ok = run_and_write(&run, &resources, quiet, error);
  }
  outputs_remove_empty();
  resources_free(&resources);
  mask_free(&request.mask);
  if (!ok) return run.lab.findings > 0 ? EXIT_WRONG : error->code;
  return verdict(&run);
}
