#include "host/io/npy_header.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *excerpt(const char *bytes, size_t length, Excerpt *out) {
  char *at = out->text;
  for (size_t i = 0; i < length && i < 24; i++) {
    const unsigned char byte = (unsigned char)bytes[i];
    const bool printable = byte >= ' ' && byte <= '~' && byte != '\\' && byte != '"';
    at += sprintf(at, printable ? "%c" : "\\x%02x", byte);
  }
  *at = '\0';
  return out->text;
}

/* The header is a Python dictionary literal. Only the literals that describe an array are accepted:
 * keys in any order, either kind of quotes, free blanks, a trailing comma, Python 2's long
 * integers. */

typedef struct Parser {
  const char *path;
  const char *start, *at, *end;
  NpyTypes types;
  Error *error;
} Parser;

/** A piece of the header. */
typedef struct Slice {
  const char *start;
  size_t length;
} Slice;

static bool expected(const Parser *parser, const char *what) {
  Excerpt found = {""};
  if (parser->at == parser->end) {
    return fail(parser->error, EXIT_USAGE, "%s: the header ends too early: expected %s",
                parser->path, what);
  }
  excerpt(parser->at, (size_t)(parser->end - parser->at), &found);
  return fail(parser->error, EXIT_USAGE, "%s: byte %td of the header: expected %s, found \"%s\"",
              parser->path, parser->at - parser->start, what, found.text);
}

static void skip_blanks(Parser *parser) {
  while (parser->at < parser->end && memchr(" \t\r\n", *parser->at, 4)) parser->at++;
}

/** Steps over `symbol`, which blanks may precede; false if something else comes next. */
static bool take(Parser *parser, char symbol) {
  skip_blanks(parser);
  if (parser->at == parser->end || *parser->at != symbol) return false;
  parser->at++;
  return true;
}

static bool take_word(Parser *parser, const char *word) {
  skip_blanks(parser);
  const size_t length = strlen(word);
  if ((size_t)(parser->end - parser->at) < length || memcmp(parser->at, word, length)) return false;
  parser->at += length;
  return true;
}

static bool slice_is(Slice slice, const char *text) {
  return slice.length == strlen(text) && memcmp(slice.start, text, slice.length) == 0;
}

static bool parse_string(Parser *parser, const char *what, Slice *slice) {
  const char quote = take(parser, '\'') ? '\'' : take(parser, '"') ? '"' : '\0';
  if (!quote) return expected(parser, what);
  const char *closing = memchr(parser->at, quote, (size_t)(parser->end - parser->at));
  if (!closing) return expected(parser, "text that ends with a quote");
  *slice = (Slice){parser->at, (size_t)(closing - parser->at)};
  parser->at = closing + 1;
  return true;
}

/** Whether the header names `type` in this order of bytes, '<' or '>'. */
static bool is_type(Slice name, NpyType type, char order) {
  const char *wanted = npy_type_name(type);
  if (name.length != 3 || memcmp(name.start + 1, wanted + 1, 2) != 0) return false;
  /* One byte has no order: some writers put '<' where numpy puts '|'. */
  return type == NPY_B1 ? memchr("|<>", name.start[0], 3) != NULL : name.start[0] == order;
}

static bool parse_type(Parser *parser, NpyType *type) {
  Slice name;
  Excerpt found = {""};
  if (!parse_string(parser, "an element type such as '<f2'", &name)) return false;
  for (int i = 0; i <= NPY_B1; i++) {
    *type = (NpyType)i;
    if (!(parser->types.set >> i & 1)) continue;
    if (is_type(name, *type, '<')) return true;
    if (is_type(name, *type, '>')) {
      return fail(parser->error, EXIT_USAGE,
                  "%s: big-endian elements (>%s): expected little-endian, .astype('%s')",
                  parser->path, npy_type_name(*type) + 1, npy_type_name(*type));
    }
  }
  excerpt(name.start, name.length, &found);
  return fail(parser->error, EXIT_USAGE, "%s: element type \"%s\": expected %s", parser->path,
              found.text, parser->types.names);
}

static bool parse_order(Parser *parser) {
  if (take_word(parser, "False")) return true;
  if (!take_word(parser, "True")) return expected(parser, "True or False");
  return fail(parser->error, EXIT_USAGE,
              "%s: Fortran order: expected C order, numpy.ascontiguousarray(...)", parser->path);
}

static bool parse_length(Parser *parser, int64_t *length) {
  skip_blanks(parser);
  const char *const first = parser->at;
  bool ok = true;
  *length = 0;
  for (; parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9'; parser->at++) {
    ok = ok && !__builtin_mul_overflow(*length, 10, length) &&
         !__builtin_add_overflow(*length, *parser->at - '0', length);
  }
  /* A leading zero means octal to Python 2 and nothing to Python 3. */
  const bool octal = parser->at > first + 1 && *first == '0';
  if (!ok || octal || parser->at == first) {
    parser->at = first;
    return expected(parser, "a length from 0 to 2^63 - 1");
  }
  if (parser->at < parser->end && *parser->at == 'L') parser->at++;
  return true;
}

static bool parse_shape(Parser *parser, NpyArray *array) {
  if (!take(parser, '(')) return expected(parser, "a shape such as (3, 4)");
  bool comma = true;
  while (!take(parser, ')')) {
    if (!comma) return expected(parser, "',' or ')'");
    if (array->rank == NPY_MAX_RANK) return expected(parser, "')' after at most 8 dimensions");
    if (!parse_length(parser, &array->shape[array->rank])) return false;
    array->rank++;
    comma = take(parser, ',');
  }
  if (array->rank != 1 || comma) return true;
  parser->at--;
  return expected(parser, "',' because (3) is a number to Python and (3,) a shape");
}

static bool parse_header(Parser *parser, NpyArray *array) {
  static const char *const keys[] = {"descr", "fortran_order", "shape"};
  bool seen[3] = {false, false, false};
  bool comma = true;
  if (!take(parser, '{')) return expected(parser, "'{'");
  while (!take(parser, '}')) {
    if (!comma) return expected(parser, "',' or '}'");
    const Parser before = *parser;
    Slice key;
    if (!parse_string(parser, "a key in quotes", &key)) return false;
    int which = 0;
    while (which < 3 && !slice_is(key, keys[which])) which++;
    if (which == 3 || seen[which]) {
      return expected(&before, "each of 'descr', 'fortran_order' and 'shape' once");
    }
    seen[which] = true;
    if (!take(parser, ':')) return expected(parser, "':'");
    if (which == 0 && !parse_type(parser, &array->type)) return false;
    if (which == 1 && !parse_order(parser)) return false;
    if (which == 2 && !parse_shape(parser, array)) return false;
    comma = take(parser, ',');
  }
  for (int i = 0; i < 3; i++) {
    if (seen[i]) continue;
    return fail(parser->error, EXIT_USAGE, "%s: the header has no '%s'", parser->path, keys[i]);
  }
  skip_blanks(parser);
  return parser->at == parser->end || expected(parser, "nothing after '}'");
}

bool npy_parse_header(const char *path, const char *text, size_t length, NpyTypes types,
                      NpyArray *array, Error *error) {
  Parser parser = {path, text, text, text + length, types, error};
  return parse_header(&parser, array);
}
