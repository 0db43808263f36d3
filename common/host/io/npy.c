#include "host/io/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "data is read and written unchanged");

static const struct {
  const char *name;
  size_t bytes;
} TYPES[] = {
    [NPY_F2] = {"<f2", 2}, [NPY_F4] = {"<f4", 4}, [NPY_F8] = {"<f8", 8}, [NPY_I1] = {"|i1", 1},
    [NPY_I2] = {"<i2", 2}, [NPY_I4] = {"<i4", 4}, [NPY_I8] = {"<i8", 8}, [NPY_U1] = {"|u1", 1},
    [NPY_U2] = {"<u2", 2}, [NPY_U4] = {"<u4", 4}, [NPY_U8] = {"<u8", 8}, [NPY_B1] = {"|b1", 1}};

/* A file of version 1 begins with the magic, 2 bytes of version and 2 of header length. */
enum { MAGIC_BYTES = 6, PREAMBLE_BYTES = 10, MOST_HEADER_BYTES = 4096, ALIGNMENT = 64 };

static const char MAGIC[] = "\x93NUMPY";

#define BLANKS " \t\r\n"

void npy_free(NpyArray *array) {
  free(array->data);
  array->data = NULL;
}

const char *npy_type_name(NpyType type) {
  return TYPES[type].name;
}

NpySigns npy_signs(const NpyArray *array) {
  const size_t size = TYPES[array->type].bytes;
  const char kind = TYPES[array->type].name[1];
  const uint64_t sign = kind == 'f' || kind == 'i' ? (uint64_t)1 << (8 * size - 1) : 0;
  static const uint64_t INFINITIES[] = {[2] = 0x7c00, [4] = 0x7f800000, [8] = 0x7ff0000000000000};
  NpySigns signs = {false, false};
  for (size_t i = 0; i < array->bytes; i += size) {
    uint64_t bits = 0;
    memcpy(&bits, (const char *)array->data + i, size);
    if ((kind == 'f' ? bits & ~sign : bits) == 0) continue; /* -0.0, too */
    const bool nan = kind == 'f' && (bits & ~sign) > INFINITIES[size];
    signs.negative |= nan || (bits & sign) != 0;
    signs.positive |= nan || (bits & sign) == 0;
  }
  return signs;
}

/** False if the size of the data does not fit 63 bits. */
static bool data_bytes(NpyType type, int rank, const int64_t *shape, size_t *bytes) {
  int64_t product = (int64_t)TYPES[type].bytes;
  for (int i = 0; i < rank; i++) {
    if (__builtin_mul_overflow(product, shape[i], &product)) return false;
  }
  *bytes = (size_t)product;
  return true;
}

/* --- Reading ---------------------------------------------------------------------------------- */

/** Start of the value of `key` in the header, a Python dictionary; NULL if it is missing. */
static const char *find_value(const char *header, const char *key) {
  for (const char *at = strstr(header, key); at != NULL; at = strstr(at + 1, key)) {
    const char *end = at + strlen(key);
    if (at == header || (at[-1] != '\'' && at[-1] != '"') || *end != at[-1]) continue;
    const char *colon = end + 1 + strspn(end + 1, BLANKS);
    if (*colon == ':') return colon + 1 + strspn(colon + 1, BLANKS);
  }
  return NULL;
}

/** True if `value` is the quoted name of a type in this byte order, '<' or '>'. */
static bool is_type(const char *value, NpyType type, char order) {
  if (strlen(value) < 5 || (*value != '\'' && *value != '"') || value[4] != value[0]) return false;
  if (memcmp(value + 2, TYPES[type].name + 1, 2) != 0) return false;
  return TYPES[type].bytes == 1 || value[1] == order; /* one byte has no order: '|', '<' or '>' */
}

static bool parse_type(const char *path, const char *value, NpyTypes types, NpyType *type,
                       Error *error) {
  for (int i = 0; i <= NPY_B1; i++) {
    *type = (NpyType)i;
    if (!(types.set >> i & 1)) continue;
    if (is_type(value, *type, '<')) return true;
    if (is_type(value, *type, '>')) {
      return fail(error, EXIT_USAGE,
                  "%s: big-endian elements (>%s): expected little-endian, .astype('%s')", path,
                  TYPES[i].name + 1, TYPES[i].name);
    }
  }
  return fail(error, EXIT_USAGE, "%s: element type %.*s: expected %s", path,
              (int)strcspn(value, ","), value, types.names);
}

/** Parses a tuple of lengths: "(3, 4)", "(3,)", "()". Returns its end; NULL if malformed. */
static const char *parse_shape(const char *text, NpyArray *array) {
  if (*text++ != '(') return NULL;
  for (array->rank = 0;; array->rank++) {
    char *end;
    text += strspn(text, BLANKS);
    if (*text == ')') return text + 1;
    if (*text < '0' || *text > '9' || array->rank == NPY_MAX_RANK) return NULL;
    errno = 0;
    array->shape[array->rank] = strtoll(text, &end, 10);
    if (errno != 0) return NULL;
    text = end + (*end == 'L'); /* Python 2 */
    text += strspn(text, BLANKS);
    if (*text == ',') {
      text++;
    } else if (*text != ')') {
      return NULL;
    }
  }
}

/** Sets type, rank, shape and bytes of the array. `found` is the size of the data in the file. */
static bool parse_header(const char *path, const char *header, NpyTypes types, uint64_t found,
                         NpyArray *array, Error *error) {
  const char *type = find_value(header, "descr"), *order = find_value(header, "fortran_order");
  const char *shape = find_value(header, "shape");
  if (type == NULL || order == NULL || shape == NULL) {
    return fail(error, EXIT_USAGE,
                "%s: expected a header with 'descr', 'fortran_order' and 'shape'", path);
  }
  if (!parse_type(path, type, types, &array->type, error)) return false;
  if (strncmp(order, "False", 5) != 0) {
    return fail(error, EXIT_USAGE,
                "%s: Fortran order: expected C order, numpy.ascontiguousarray(...)", path);
  }
  const char *end = parse_shape(shape, array);
  if (end == NULL) {
    return fail(error, EXIT_USAGE,
                "%s: shape %.40s: expected at most %d dimensions, each a length from 0 to 2^63 - 1",
                path, shape, NPY_MAX_RANK);
  }
  const int length = (int)(end - shape);
  const char *type_name = TYPES[array->type].name;
  if (!data_bytes(array->type, array->rank, array->shape, &array->bytes)) {
    return fail(error, EXIT_USAGE, "%s: shape %.*s of %s is too big: expected below 2^63 bytes",
                path, length, shape, type_name);
  }
  if (found == array->bytes) return true;
  return fail(error, EXIT_USAGE,
              "%s: %s: %" PRIu64 " bytes of data, expected %zu for shape %.*s of %s", path,
              found < array->bytes ? "truncated" : "trailing bytes", found, array->bytes, length,
              shape, type_name);
}

/** Reads and parses the header. `size` is that of the file, in bytes. */
static bool read_header(const char *path, FILE *file, uint64_t size, NpyTypes types,
                        NpyArray *array, Error *error) {
  unsigned char preamble[PREAMBLE_BYTES + 2] = {0};
  char header[MOST_HEADER_BYTES + 1];
  if (fread(preamble, 1, PREAMBLE_BYTES, file) != PREAMBLE_BYTES && ferror(file)) {
    return fail(error, EXIT_DEVICE, "%s: cannot read: %s", path, strerror(errno));
  }
  if (memcmp(preamble, MAGIC, MAGIC_BYTES) != 0) {
    return fail(error, EXIT_USAGE, "%s: not a .npy file: it does not start with \"\\x93NUMPY\"",
                path);
  }
  const int major = preamble[MAGIC_BYTES], minor = preamble[MAGIC_BYTES + 1];
  if (size >= PREAMBLE_BYTES && (major < 1 || major > 3 || minor != 0)) {
    return fail(error, EXIT_USAGE, "%s: format version %d.%d: expected 1.0, 2.0 or 3.0", path,
                major, minor);
  }
  size_t length = preamble[8] | (size_t)preamble[9] << 8;
  size_t offset = PREAMBLE_BYTES;
  if (major > 1) { /* the length has 4 bytes */
    offset += fread(preamble + PREAMBLE_BYTES, 1, 2, file);
    length |= (size_t)preamble[10] << 16 | (size_t)preamble[11] << 24;
  }
  if (length > MOST_HEADER_BYTES) {
    return fail(error, EXIT_USAGE, "%s: a header of %zu bytes: expected at most %d", path, length,
                MOST_HEADER_BYTES);
  }
  if (fread(header, 1, length, file) != length || size < offset + length) {
    return fail(error, EXIT_USAGE, "%s: truncated: %" PRIu64 " bytes end within the header", path,
                size);
  }
  header[length] = '\0';
  for (size_t i = 0; i < length; i++) { /* messages show parts of it */
    if (header[i] < ' ' || header[i] > '~') header[i] = ' ';
  }
  return parse_header(path, header, types, size - offset - length, array, error);
}

static bool read_data(const char *path, FILE *file, NpyArray *array, Error *error) {
  if (!memory_take(path, (double)array->bytes, error)) return false;
  array->data = malloc(array->bytes + 1);
  if (array->data == NULL) return fail(error, EXIT_DEVICE, "%s: out of host memory", path);
  if (fread(array->data, 1, array->bytes, file) != array->bytes) {
    return fail(error, EXIT_DEVICE, "%s: cannot read: %s", path,
                ferror(file) ? strerror(errno) : "the file became shorter");
  }
  const uint8_t *bools = array->data;
  for (size_t i = 0; array->type == NPY_B1 && i < array->bytes; i++) {
    if (bools[i] <= 1) continue;
    return fail(error, EXIT_USAGE, "%s: element %zu is %d: expected a bool, 0 or 1", path, i,
                bools[i]);
  }
  return true;
}

bool npy_read(const char *path, NpyTypes types, NpyArray *array, Error *error) {
  *array = (NpyArray){0};
  /* Before fopen(), because opening a pipe would wait for its other end. */
  struct stat status;
  const bool known = stat(path, &status) == 0;
  if (known && !S_ISREG(status.st_mode)) {
    return fail(error, EXIT_USAGE, "%s: expected a regular file", path);
  }
  FILE *file = known ? fopen(path, "rb") : NULL;
  if (file == NULL) return fail(error, EXIT_USAGE, "%s: cannot open: %s", path, strerror(errno));
  const bool ok = read_header(path, file, (uint64_t)status.st_size, types, array, error) &&
                  read_data(path, file, array, error);
  fclose(file);
  if (!ok) npy_free(array);
  return ok;
}

/* --- Writing ---------------------------------------------------------------------------------- */

/** Writes the header, padded so that the data is aligned for mmap(). Returns its size. */
static size_t format_header(const NpyFile *file, char header[static MOST_HEADER_BYTES]) {
  char *at = header + PREAMBLE_BYTES;
  at += sprintf(at, "{'descr': '%s', 'fortran_order': False, 'shape': (", TYPES[file->type].name);
  for (int i = 0; i < file->rank; i++) {
    at += sprintf(at, i == 0 ? "%" PRId64 : ", %" PRId64, file->shape[i]);
  }
  at += sprintf(at, file->rank == 1 ? ",), }" : "), }");
  while ((at + 1 - header) % ALIGNMENT != 0) *at++ = ' ';
  *at++ = '\n';
  const size_t bytes = (size_t)(at - header), length = bytes - PREAMBLE_BYTES;
  memcpy(header, MAGIC, MAGIC_BYTES);
  header[6] = 1; /* version 1.0 */
  header[7] = 0;
  header[8] = (char)(length & 0xff);
  header[9] = (char)(length >> 8);
  return bytes;
}

static bool write_one(const char *path, const NpyFile *file) {
  char header[MOST_HEADER_BYTES];
  size_t bytes;
  if (!data_bytes(file->type, file->rank, file->shape, &bytes)) return errno = EFBIG, false;
  FILE *stream = fopen(path, "wb");
  if (stream == NULL) return false;
  const size_t header_bytes = format_header(file, header);
  const bool written = fwrite(header, 1, header_bytes, stream) == header_bytes &&
                       (bytes == 0 || fwrite(file->data, 1, bytes, stream) == bytes);
  const int cause = errno;
  if (fclose(stream) == 0 && written) return true;
  if (!written) errno = cause;
  return false;
}

bool npy_write(const char *directory, const NpyFile *files, int count, Error *error) {
  char path[2 * PATH_MAX], temporary[2 * PATH_MAX + 32];
  bool ok = true;
  /* First all temporary files are written, then all are renamed, or removed after a failure. */
  for (int i = 0; i < 2 * count; i++) {
    const NpyFile *file = &files[i % count];
    snprintf(path, sizeof path, "%s/%s", directory, file->name);
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    if (ok && !(i < count ? write_one(temporary, file) : rename(temporary, path) == 0)) {
      ok = fail(error, EXIT_DEVICE, "%s: cannot write: %s", path, strerror(errno));
    }
    if (!ok && i >= count) unlink(temporary);
  }
  return ok;
}
