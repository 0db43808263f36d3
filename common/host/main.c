/** @file The main program of every step. */
#include <errno.h> /* program_invocation_short_name */
#include <limits.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "host/base/version.h"
#include "host/cli/cases.h"
#include "host/cli/options.h"
#include "host/device/ceiling.h"
#include "host/device/device.h"
#include "host/io/outputs.h"
#include "host/report/report.h"
#include "host/run.h"

/** libgomp keeps a table of its threads on the stack; a very long table would overflow it. */
enum { MOST_THREADS = 256 };

static void print_ceilings(const Ceilings *c, const Device *device, FILE *out) {
  fprintf(out, "ceilings   of %s, the best of a fixed set of loops\n", device->name);
  if (c->mma_tflops > 0) {
    fprintf(out, "mma.sync   %.1f TFLOP/s: m16n8k16 from registers, fp16 in, fp32 out\n",
            c->mma_tflops);
  }
  if (c->wgmma_tflops > 0) {
    fprintf(out, "wgmma      %.1f TFLOP/s: m64n256k16 from shared memory, fp16 in, fp32 out\n",
            c->wgmma_tflops);
  }
  if (c->wgmma_e4m3_tflops > 0) {
    fprintf(out, "wgmma e4m3 %.1f TFLOP/s: m64n256k32 from shared memory, e4m3 in, fp32 out\n",
            c->wgmma_e4m3_tflops);
  }
  fprintf(out, "FFMA       %.1f TFLOP/s: fp32 multiply-adds from registers\n", c->ffma_tflops);
  fprintf(out, "exp        %.0f G/s: ex2.approx from registers\n", c->exp_g_per_s);
  fprintf(out, "copy       %.0f GB/s: device memory, bytes read plus bytes written\n",
          c->copy_gb_per_s);
}

/** --ceilings: measures, prints and saves the ceilings; appends a JSON record for --json. */
static ExitCode run_ceilings(const Options *options, const Device *device, Error *error) {
  Ceilings ceilings;
  char path[PATH_MAX];
  if (device->simulated) {
    fail(error, EXIT_USAGE,
         "--ceilings: needs a GPU; the CPU backend does not know how fast one is");
    return error->code;
  }
  const char *json = options->json_path;
  if (json != NULL && !json_check_path("--json ", json, error)) return error->code;
  if (!ceilings_measure(&ceilings, error)) return error->code;
  const bool kept = ceilings_write(device->name, &ceilings, path);
  FILE *out = options_report_stream(options);
  print_ceilings(&ceilings, device, out);
  if (kept) {
    fprintf(out, "kept in    %s\n", path);
  } else {
    fprintf(out, "not kept   XDG_CACHE_HOME, or HOME, must name a directory that can be written\n");
  }
  if (json != NULL && !json_append_ceilings(device, &ceilings, json, error)) return error->code;
  return EXIT_RIGHT;
}

/** Runs each case and prints a line for it. Returns the largest exit code of all cases. */
static ExitCode run_cases(const Options *base, const Device *device, Error *error) {
  const char *path = base->cases_path;
  CaseList list = {0};
  ExitCode worst = EXIT_RIGHT;
  if (!cases_read(path, base, &list, error)) worst = error->code;
  for (size_t i = 0; i < list.count && error->text[0] == '\0'; i++) {
    static const char *const VERDICTS[] = {"right", "WRONG", "refused", "failed"};
    const Case *c = &list.cases[i];
    const Options *o = &c->options;
    Error reason = {0};
    const ExitCode code = run_options(o, device, true, &reason);
    const bool unchecked =
        code == EXIT_RIGHT && (o->check == CHECK_NONE || o->info || o->draw_mask);
    FILE *out = options_report_stream(o);
    fprintf(out, "%s:%d: %s: %s\n", path, c->line, unchecked ? "not checked" : VERDICTS[code],
            c->text);
    fflush(out);
    if (code >= EXIT_USAGE) fprintf(stderr, "%s:%d: %s\n", path, c->line, reason.text);
    if (code > worst) worst = code;
  }
  cases_free(&list);
  return worst;
}

/**
 * Runs a step that takes masks with several in turn: draws each mask, then runs it and prints the
 * report. Stops at the first run that is not right.
 */
static ExitCode run_tour(const Options *base, const Device *device, Error *error) {
  static const char *const MASKS[] = {"causal", "window:200", "document:3", "interleaved:1",
                                      "random:0.5"};
  const size_t count = sizeof MASKS / sizeof *MASKS - step.block_masks->takes_spans;
  ExitCode code = EXIT_RIGHT;
  for (size_t i = 0; i < count && code == EXIT_RIGHT; i++) {
    Options options = *base;
    options.batch = 1;
    options.q_len = 1024;
    options.mask = MASKS[i];
    options.mask_block_q = options.mask_block_kv = 64;
    options.min_time = 0.1;
    printf("%s./%s -b 1 -n 1024 --mask %s --mask-block 64x64 --min-time 0.1\n\n",
           i == 0 ? "" : "\n", program_invocation_short_name, MASKS[i]);
    options.draw_mask = true;
    code = run_options(&options, device, false, error);
    options.draw_mask = false;
    if (code == EXIT_RIGHT) code = run_options(&options, device, false, error);
  }
  return code;
}

static ExitCode run(int argc, char **argv, Error *error) {
  Options options = options_default();
  Device device;
  if (!options_parse(argc, argv, &options, error)) return error->code;
  if (options.help) {
    options_help(stdout);
    return EXIT_RIGHT;
  }
  if (options.version) {
    printf("%s %s, commit %s\n", step.name, VERSION, version_commit());
    return EXIT_RIGHT;
  }
  if (!device_open(&device, error)) return error->code;
  if (options.ceilings) return run_ceilings(&options, &device, error);
  if (options.cases_path != NULL) return run_cases(&options, &device, error);
  if (argc == 1 && step.block_masks != NULL) return run_tour(&options, &device, error);
  return run_options(&options, &device, false, error);
}

/** The threads of OpenMP have stacks as large as the shell's limit, which may have no room for
 * their thread-local variables; those of the CPU backend's shared memory are large. */
static void set_least_thread_stack(void) {
  static const size_t LEAST = (size_t)8 << 20;
  pthread_attr_t attributes;
  size_t bytes;
  if (pthread_getattr_default_np(&attributes) != 0) return;
  if (pthread_attr_getstacksize(&attributes, &bytes) == 0 && bytes < LEAST) {
    pthread_attr_setstacksize(&attributes, LEAST);
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
}

static bool finished;

/** Libraries give up with exit(1), as OpenMP does without threads; here 1 means a wrong answer. */
static void end_without_result(int code, void *unused) {
  (void)unused;
  if (finished) return;
  outputs_remove_empty();
  if (code != EXIT_WRONG) return;
  fflush(NULL);
  fprintf(stderr, "%s: a library or the step has ended the program, so there is no result\n",
          program_invocation_short_name);
  _exit(EXIT_DEVICE);
}

int main(int argc, char **argv) {
  Error error = {0};
  on_exit(end_without_result, NULL);
  set_least_thread_stack();
  signal(SIGXFSZ, SIG_IGN); /* a file over the size limit gives an error of write() */
  if (omp_get_max_threads() > MOST_THREADS) omp_set_num_threads(MOST_THREADS);
  const ExitCode code = run(argc, argv, &error);
  const bool written = fflush(stdout) == 0 && !ferror(stdout);
  if (error.text[0] != '\0') {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, error.text);
  } else if (!written) {
    fprintf(stderr, "%s: cannot write to standard output\n", program_invocation_short_name);
  }
  finished = true;
  return code == EXIT_RIGHT && !written ? EXIT_DEVICE : code;
}
