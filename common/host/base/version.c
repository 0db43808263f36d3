#include "host/base/version.h"

#include "commit.h"

const char *version_commit(void) {
  return COMMIT;
}
