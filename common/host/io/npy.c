#define _POSIX_C_SOURCE 200809L

#include "host/io/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/io/npy_header.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "data is read and written as it lies");

static const struct {
  const char *name;
  size_t bytes;
} types[] = {[NPY_F2] = {"<f2", 2}, [NPY_F4] = {"<f4", 4}, [NPY_F8] = {"<f8", 8},
             [NPY_U2] = {"<u2", 2}, [NPY_I4] = {"<i4", 4}, [NPY_B1] = {"|b1", 1}};

static const char MAGIC[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

const char *npy_type_name(NpyType type) {
  return types[type].name;
}

size_t npy_type_bytes(NpyType type) {
  return types[type].bytes;
}

void npy_free(NpyArray *array) {
  free(array->data);
  array->data = NULL;
}

/** False if the size of the data does not fit 63 bits. */
static bool data_bytes(NpyType type, int rank, const int64_t *shape, size_t *bytes) {
  int64_t product = (int64_t)npy_type_bytes(type);
  for (int i = 0; i < rank; i++) {
    if (__builtin_mul_overflow(product, shape[i], &product)) return false;
  }
  *bytes = (size_t)product;
  return true;
}

/** A shape as Python writes it, for headers and messages. */
typedef struct ShapeText {
  char text[NPY_MAX_RANK * sizeof "9223372036854775807, "];
} ShapeText;

static const char *shape_text(int rank, const int64_t *shape, ShapeText *out) {
  char *at = out->text;
  at += sprintf(at, "(");
  for (int i = 0; i < rank; i++) at += sprintf(at, i == 0 ? "%" PRId64 : ", %" PRId64, shape[i]);
  sprintf(at, rank == 1 ? ",)" : ")");
  return out->text;
}

/** A file being read. Every claim of its header is held against its size, known beforehand. */
typedef struct Source {
  const char *path;
  FILE *file;
  uint64_t size;
  NpyTypes types;
  Error *error;
} Source;

static bool read_bytes(const Source *source, void *bytes, size_t count) {
  if (fread(bytes, 1, count, source->file) == count) return true;
  return fail(source->error, EXIT_DEVICE, "%s: cannot read: %s", source->path,
              ferror(source->file) ? strerror(errno) : "the file became shorter");
}

/** Reads everything before the dictionary. `offset` is where the dictionary starts. */
static bool read_preamble(const Source *source, uint64_t *offset, uint64_t *length) {
  enum { VERSION_END = sizeof MAGIC + 2 };
  unsigned char bytes[VERSION_END + 4];
  const size_t available = source->size < VERSION_END ? (size_t)source->size : VERSION_END;
  if (!read_bytes(source, bytes, available)) return false;
  const size_t compared = available < sizeof MAGIC ? available : sizeof MAGIC;
  if (available == 0 || memcmp(bytes, MAGIC, compared) != 0) {
    Excerpt found = {""};
    excerpt((const char *)bytes, available, &found);
    return fail(source->error, EXIT_USAGE,
                "%s: no .npy file: it starts with \"%s\", expected \"\\x93NUMPY\"", source->path,
                found.text);
  }
  const char *const truncated = "%s: truncated: %" PRIu64 " bytes, expected at least %" PRIu64;
  const uint64_t shortest = VERSION_END + 2;
  if (source->size < shortest) {
    return fail(source->error, EXIT_USAGE, truncated, source->path, source->size, shortest);
  }
  const int major = bytes[VERSION_END - 2], minor = bytes[VERSION_END - 1];
  if (major < 1 || major > 3 || minor != 0) {
    return fail(source->error, EXIT_USAGE, "%s: format version %d.%d: expected 1.0, 2.0 or 3.0",
                source->path, major, minor);
  }
  const size_t width = major == 1 ? 2 : 4;
  *offset = VERSION_END + width;
  *length = 0;
  if (source->size >= *offset) {
    if (!read_bytes(source, bytes, width)) return false;
    for (size_t i = 0; i < width; i++) *length |= (uint64_t)bytes[i] << 8 * i;
  }
  if (source->size >= *offset + *length) return true;
  return fail(source->error, EXIT_USAGE, truncated, source->path, source->size, *offset + *length);
}

static bool read_header(const Source *source, NpyArray *array, uint64_t *data_offset) {
  uint64_t offset = 0, length = 0;
  if (!read_preamble(source, &offset, &length)) return false;
  *data_offset = offset + length;
  char *text = malloc((size_t)length + 1);
  if (!text) return fail(source->error, EXIT_DEVICE, "%s: out of memory", source->path);
  const bool ok =
      read_bytes(source, text, (size_t)length) &&
      npy_parse_header(source->path, text, (size_t)length, source->types, array, source->error);
  free(text);
  return ok;
}

/** The data must be what the header says, to the byte: anything else is a damaged file. */
static bool check_size(const Source *source, NpyArray *array, uint64_t data_offset) {
  ShapeText shape = {""};
  shape_text(array->rank, array->shape, &shape);
  if (!data_bytes(array->type, array->rank, array->shape, &array->bytes)) {
    return fail(source->error, EXIT_USAGE,
                "%s: shape %s of %s is too big: expected below 2^63 bytes", source->path,
                shape.text, npy_type_name(array->type));
  }
  const uint64_t found = source->size - data_offset;
  if (found == array->bytes) return true;
  return fail(source->error, EXIT_USAGE,
              "%s: %s: %" PRIu64 " bytes of data, expected %zu for shape %s of %s", source->path,
              found < array->bytes ? "truncated" : "trailing bytes", found, array->bytes,
              shape.text, npy_type_name(array->type));
}

static bool check_bools(const Source *source, const NpyArray *array) {
  const uint8_t *values = array->data;
  for (size_t i = 0; i < array->bytes; i++) {
    if (values[i] <= 1) continue;
    return fail(source->error, EXIT_USAGE, "%s: element %zu is %d: expected a bool, 0 or 1",
                source->path, i, values[i]);
  }
  return true;
}

static bool read_array(const Source *source, NpyArray *array) {
  uint64_t data_offset = 0;
  if (!read_header(source, array, &data_offset)) return false;
  if (!check_size(source, array, data_offset)) return false;
  array->data = malloc(array->bytes ? array->bytes : 1);
  if (!array->data) {
    return fail(source->error, EXIT_DEVICE, "%s: out of memory: %zu bytes", source->path,
                array->bytes);
  }
  if (!read_bytes(source, array->data, array->bytes)) return false;
  return array->type != NPY_B1 || check_bools(source, array);
}

bool npy_read(const char *path, NpyTypes types, NpyArray *array, Error *error) {
  *array = (NpyArray){.rank = 0};
  /* Asked before the file is opened, because opening a pipe would wait for its other end. */
  struct stat status;
  if (stat(path, &status) != 0) {
    return fail(error, EXIT_USAGE, "%s: cannot open: %s", path, strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) return fail(error, EXIT_USAGE, "%s: expected a regular file", path);
  FILE *file = fopen(path, "rb");
  if (!file) return fail(error, EXIT_USAGE, "%s: cannot open: %s", path, strerror(errno));
  const Source source = {path, file, (uint64_t)status.st_size, types, error};
  const bool ok = read_array(&source, array);
  fclose(file);
  if (!ok) npy_free(array);
  return ok;
}

enum { ALIGNMENT = 64, PREAMBLE_BYTES = sizeof MAGIC + 4 };

/** The bytes before the data: padded so that the data can be mapped to memory and read in place. */
static size_t format_header(NpyType type, int rank, const int64_t *shape,
                            char header[static 6 * ALIGNMENT]) {
  ShapeText text = {""};
  memset(header, ' ', 6 * ALIGNMENT);
  const int length =
      sprintf(header + PREAMBLE_BYTES, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
              npy_type_name(type), shape_text(rank, shape, &text));
  header[PREAMBLE_BYTES + length] = ' ';
  const size_t unpadded = PREAMBLE_BYTES + (size_t)length + 1; /* the newline */
  const size_t bytes = (unpadded + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  header[bytes - 1] = '\n';
  memcpy(header, MAGIC, sizeof MAGIC);
  const uint8_t fields[] = {1, 0, (uint8_t)(bytes - PREAMBLE_BYTES),
                            (uint8_t)((bytes - PREAMBLE_BYTES) >> 8)}; /* version, length */
  memcpy(header + sizeof MAGIC, fields, sizeof fields);
  return bytes;
}

/** Opens a new file that no other program uses, beside `path` so that it can be renamed to it. */
static FILE *create_beside(const char *path, char *name, size_t name_size) {
  FILE *file = NULL;
  for (int attempt = 0; attempt < 100; attempt++) {
    snprintf(name, name_size, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
    file = fopen(name, "wbx");
    if (file || errno != EEXIST) break;
  }
  return file;
}

/** Returns 0 when everything has reached the disk, else the errno of what failed first. */
static int write_and_close(FILE *file, const void *header, size_t header_bytes, const void *data,
                           size_t bytes) {
  const bool ok = fwrite(header, 1, header_bytes, file) == header_bytes &&
                  (bytes == 0 || fwrite(data, 1, bytes, file) == bytes) && fflush(file) == 0 &&
                  fsync(fileno(file)) == 0;
  int cause = ok ? 0 : errno;
  if (fclose(file) != 0 && !cause) cause = errno;
  return cause;
}

static void free_draft(NpyDraft *draft) {
  free(draft->path);
  free(draft->temporary);
  *draft = (NpyDraft){0};
}

bool npy_draft(const char *path, NpyType type, int rank, const int64_t *shape, const void *data,
               NpyDraft *draft, Error *error) {
  *draft = (NpyDraft){0};
  size_t bytes;
  if (rank > NPY_MAX_RANK || !data_bytes(type, rank, shape, &bytes)) {
    return fail(error, EXIT_DEVICE, "%s: cannot write: the shape is too big", path);
  }
  struct stat status;
  if (stat(path, &status) == 0 && !S_ISREG(status.st_mode)) {
    return fail(error, EXIT_DEVICE, "%s: cannot write: expected a regular file", path);
  }
  char header[6 * ALIGNMENT];
  const size_t header_bytes = format_header(type, rank, shape, header);
  const size_t name_size = strlen(path) + 64;
  *draft = (NpyDraft){strdup(path), malloc(name_size)};
  int cause = draft->path && draft->temporary ? 0 : ENOMEM;
  if (!cause) {
    FILE *file = create_beside(path, draft->temporary, name_size);
    cause = file ? write_and_close(file, header, header_bytes, data, bytes) : errno;
    if (cause && file) unlink(draft->temporary);
  }
  if (!cause) return true;
  free_draft(draft);
  return fail(error, EXIT_DEVICE, "%s: cannot write: %s", path, strerror(cause));
}

bool npy_publish(NpyDraft *draft, Error *error) {
  if (rename(draft->temporary, draft->path) == 0) {
    free_draft(draft);
    return true;
  }
  fail(error, EXIT_DEVICE, "%s: cannot write: %s", draft->path, strerror(errno));
  npy_discard(draft);
  return false;
}

void npy_discard(NpyDraft *draft) {
  if (draft->temporary) unlink(draft->temporary);
  free_draft(draft);
}

bool npy_write(const char *path, NpyType type, int rank, const int64_t *shape, const void *data,
               Error *error) {
  NpyDraft draft;
  return npy_draft(path, type, rank, shape, data, &draft, error) && npy_publish(&draft, error);
}
