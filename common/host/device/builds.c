/** @file The two builds of the step: as it is, and with the checks of the lab. */
#include "host/device/device.h"

/** Linked into programs of the CPU backend only. */
extern const Step step_checked __attribute__((weak));

static bool is_checking;

const Step *step_build(void) {
  return is_checking ? &step_checked : &step;
}

bool step_build_choose(bool checking) {
  if (checking && &step_checked == NULL) return false;
  is_checking = checking;
  return true;
}
