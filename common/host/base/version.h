/** @file Which source this program was built from. */
#ifndef HOST_VERSION_H
#define HOST_VERSION_H

/** The newest version that CHANGELOG.md describes. */
#define VERSION "0.1.0"

/** The abbreviated git commit, with "-dirty" when the tree differs from it; or "unknown". */
const char *version_commit(void);

#endif
