/**
 * @file
 * The two builds of a step in one program of the CPU backend: the plain one, which is fast, and the
 * checking one, whose kernels report each load and store to the lab.
 */
#ifndef HOST_STEP_BUILD_H
#define HOST_STEP_BUILD_H

#include "attention.h"

/** The build to call. Names and texts are the same in both. */
const Step *step_build(void);

/** Chooses the checking build, or the plain one; false if this program has no checking build. */
bool step_build_choose(bool checking);

#endif
