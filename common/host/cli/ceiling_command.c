#define _POSIX_C_SOURCE 200809L /* PATH_MAX */
#include "host/cli/ceiling_command.h"

#include <limits.h>
#include <stdio.h>

#include "host/device/ceiling.h"
#include "host/report/json_record.h"

static void print(const Ceilings *c, const Device *device, FILE *out) {
  fprintf(out, "ceilings   of %s, the best of a fixed set of loops\n", device->name);
  if (c->mma_tflops > 0) {
    fprintf(out, "mma.sync   %.1f TFLOP/s: m16n8k16 from registers, fp16 in, fp32 out\n",
            c->mma_tflops);
  }
  fprintf(out, "FFMA       %.1f TFLOP/s: fp32 multiply-adds from registers\n", c->ffma_tflops);
  fprintf(out, "exp        %.0f G/s: ex2.approx from registers\n", c->exp_g_per_s);
  fprintf(out, "copy       %.0f GB/s: device memory, bytes read plus bytes written\n",
          c->copy_gb_per_s);
}

ExitCode run_ceilings(const Options *options, const Device *device, Error *error) {
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
  print(&ceilings, device, out);
  if (kept) {
    fprintf(out, "kept in    %s\n", path);
  } else {
    fprintf(out, "not kept   XDG_CACHE_HOME, or HOME, must name a directory that can be written\n");
  }
  if (json != NULL && !json_append_ceilings(device, &ceilings, json, error)) return error->code;
  return EXIT_RIGHT;
}
