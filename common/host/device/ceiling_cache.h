/**
 * @file
 * The ceilings of a GPU, kept in a file so that every run need not measure them again.
 */
#ifndef HOST_CEILING_CACHE_H
#define HOST_CEILING_CACHE_H

#include <stddef.h>

#include "host/device/ceiling.h"
#include "host/device/device.h"

/**
 * The ceilings of the current device: those kept, or else measured now and kept. A file that is
 * damaged, or was made with another driver, clock or power limit, toolkit or source of the loops,
 * is replaced. A process measures once at most.
 */
bool ceilings_find(const Device *device, Ceilings *ceilings, Error *error);

/** Measures whatever is kept. `path` gets the file's name, "" if they could not be kept. */
bool ceilings_renew(const Device *device, Ceilings *ceilings, char *path, size_t path_size,
                    Error *error);

/* What the two consist of. */

/** The file of a device: in XDG_CACHE_HOME, or ~/.cache. "" if the environment names neither. */
void ceilings_path(const char *uuid, char *path, size_t size);

/** What `path` keeps, if it was kept under the same key and no byte of it has changed since. */
bool ceilings_read(const char *path, const char *key, Ceilings *ceilings);

/** Keeps them under a key of one line. The file is there in full or not at all. */
bool ceilings_write(const char *path, const char *key, const Ceilings *ceilings);

#endif
