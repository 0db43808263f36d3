/**
 * @file
 * A bar on stderr while the reference is computed.
 */
#ifndef HOST_PROGRESS_H
#define HOST_PROGRESS_H

#include <stddef.h>

/** Starts a new bar; it appears only after one second, and only if stderr is a terminal. */
void progress_start(void);

/** Draws at times, and wipes the bar away when all is done; has the signature of ReferenceProgress.
 */
void progress_update(size_t done, size_t total);

/** Wipes the bar away if it is there still. */
void progress_end(void);

#endif
