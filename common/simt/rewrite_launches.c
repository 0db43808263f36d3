/**
 * @file
 * Translates CUDA C to C++: rewrites what a C++ compiler would not accept, or what the CPU backend
 * must know.
 *
 *     kernel<64><<<grid, block, bytes, stream>>>(a, b)
 *     kernel<64> *simt::launch(grid, block, bytes, stream)(a, b)
 *
 *     __global__ void __launch_bounds__(128) kernel(int *a) {
 *     __global__ void __launch_bounds__(128) kernel(int *a) { SIMT_KERNEL(128)
 *
 *     extern __shared__ float tile[];   ->  extern __shared__ float tile[] __asm__("smem");
 *                                           and, behind all, __asm__(".weakref tile, smem");
 *     __device__ int count;             ->  SIMT_DEVICE_VARIABLE int count;
 *     asm volatile("mov.u32 ...");      ->  static_assert(false, WHY) SIMT_OMIT("mov.u32 ...");
 *
 * Everything else is copied unchanged, so that line numbers stay the same, and diagnostics and
 * debuggers show the .cu file. Comments, strings and characters are recognised and not changed. A
 * byte order mark is dropped, and lines end in a line feed alone.
 *
 * Usage: rewrite_launches FILE.cu > FILE.cpp
 */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokens.h"

static bool arguments_follow(const char *p) {
  const Token token = next_word(p);
  return token.kind == OPENING && *token.begin == '(';
}

/**
 * The >>> that ends the configuration which begins at p, or NULL. It is outside of parentheses, and
 * the kernel's arguments follow it. If there are several, it is the last one: the others close
 * nested templates, as in k<<<f<g<h<1>>>(n), 64>>>(x).
 */
static const char *find_launch_close(const char *p) {
  const char *close = NULL;
  int depth = 0;
  for (Token token = next_token(p); token.kind != END; token = next_token(token.end)) {
    if (token.kind == OPENING) depth++;
    if (token.kind == CLOSING && --depth < 0) break;
    if (depth > 0) continue;
    if (*token.begin == ';' || token.kind == LAUNCH_OPEN) break;
    if (token.kind == LAUNCH_CLOSE && arguments_follow(token.end)) close = token.begin;
  }
  return close;
}

static int line_of(const char *source, const char *p) {
  int line = 1;
  for (; source < p; source++) line += *source == '\n';
  return line;
}

static void write_line_directive(const char *path) {
  fputs("#line 1 \"", stdout);
  for (; *path != '\0'; path++) {
    if (*path == '"' || *path == '\\') putchar('\\');
    putchar(*path);
  }
  fputs("\"\n", stdout);
}

/** Is p in a preprocessor directive or its continuation lines? */
static bool in_directive(const char *source, const char *p) {
  while (p > source && (p[-1] != '\n' || (p - source >= 2 && p[-2] == '\\'))) p--;
  while (isspace((unsigned char)*p)) p++;
  return *p == '#';
}

/** The text in the parentheses of __launch_bounds__. */
typedef struct Bounds {
  const char *begin, *end;
} Bounds;

/** A kernel: its name, the { of its definition, and its bounds. A declaration has no body. */
typedef struct Kernel {
  Token name;
  const char *body;
  Bounds bounds, cluster; /* cluster: of __cluster_dims__ */
  bool is_template;
} Kernel;

/** p is the text after `__launch_bounds__` or `__cluster_dims__`. */
static Bounds find_bounds(const char *p) {
  Bounds bounds = {NULL, NULL};
  int depth = 0;
  for (Token token = next_token(p); token.kind != END; token = next_token(token.end)) {
    if (token.kind == OPENING && depth++ == 0) bounds.begin = token.end;
    if (token.kind != CLOSING || --depth > 0) continue;
    bounds.end = token.begin;
    break;
  }
  return bounds;
}

static bool is_attribute(Token token) {
  static const char *const NAMES[] = {"__launch_bounds__",
                                      "__cluster_dims__",
                                      "__attribute__",
                                      "__align__",
                                      "alignas",
                                      "decltype",
                                      NULL};
  return is_any(token, NAMES);
}

/** p is the text after `__global__`, `bounds` are those before it. */
static Kernel find_kernel(const char *p, Bounds bounds) {
  Kernel kernel = {.bounds = bounds};
  Token before = {END, p, p};
  int depth = 0;
  for (Token token = next_word(p); token.kind != END; token = next_word(token.end)) {
    if (depth == 0 && is_name(token, "__launch_bounds__")) kernel.bounds = find_bounds(token.end);
    if (depth == 0 && is_name(token, "__cluster_dims__")) kernel.cluster = find_bounds(token.end);
    if (depth == 0 && *token.begin == ';') break;
    if (depth == 0 && *token.begin == '{') {
      kernel.body = token.begin;
      break;
    }
    if (depth == 0 && *token.begin == '(' && !is_attribute(before)) kernel.name = before;
    depth += (token.kind == OPENING) - (token.kind == CLOSING);
    before = token;
  }
  return kernel;
}

/** Does the text after `__device__` or `__managed__` declare a variable of global memory? */
static bool declares_variable(const char *p) {
  static const char *const OTHERS[] = {"__constant__", "__shared__", "__managed__",
                                       "__device__",   "constexpr",  NULL};
  int depth = 0, angles = 0;
  Token before = {END, p, p};
  for (Token token = next_word(p); token.kind != END; token = next_word(token.end)) {
    if (is_any(token, OTHERS)) return false;
    const bool attribute = depth > 0 || is_attribute(before) || starts_with(token.begin, "[[");
    depth += (token.kind == OPENING && attribute) - (token.kind == CLOSING);
    if (depth < 0) return false;
    if (depth == 0 && token.kind == OPENING) return *token.begin != '(' && before.kind != END;
    angles += (*token.begin == '<') - (*token.begin == '>');
    if (depth == 0 && angles == 0 && strchr(";=,", *token.begin) != NULL) return true;
    before = token;
  }
  return false;
}

/** Does the text after an `asm` hold instructions? An empty one only stops optimisations. */
static bool holds_instructions(const char *p) {
  Token token = next_word(p);
  while (token.kind == NAME) token = next_word(token.end); /* volatile */
  if (*token.begin != '(') return false;
  token = next_word(token.end);
  return !starts_with(token.begin, "\"\"");
}

/** Line breaks are omitted, so that lines keep their numbers. */
static void write_bounds(const char *macro, Bounds bounds) {
  printf(" %s(", macro);
  for (const char *p = bounds.begin; p < bounds.end;) {
    const Token token = next_token(p);
    if (token.kind == BLANK) {
      putchar(' ');
    } else {
      fwrite(token.begin, 1, (size_t)(token.end - token.begin), stdout);
    }
    p = token.end;
  }
  putchar(')');
}

/** What is known at a place of the source. */
typedef struct Place {
  const char *path, *source;
  const char *close;                      /* of the current launch */
  Kernel kernel;                          /* whose body follows */
  Bounds bounds;                          /* of a kernel whose __global__ follows */
  Token before, before_that;              /* the last tokens that are not blank */
  bool in_template, in_extern, in_shared; /* these words begin the current declaration */
  bool in_asm;                            /* before its ( */
  Token array;                            /* the last name before a [ */
  Kernel *kernels;                        /* all so far */
  Token *arrays;                          /* names of dynamic shared memory so far */
  size_t kernel_count, array_count;
} Place;

static void note_kernel(Place *p, Token token) {
  p->kernel = find_kernel(token.end, p->bounds);
  p->kernel.is_template = p->in_template;
  p->kernels = realloc(p->kernels, (p->kernel_count + 1) * sizeof *p->kernels);
  if (p->kernels == NULL) abort();
  p->kernels[p->kernel_count++] = p->kernel;
}

/** Does the source say of this launch only the name of a template? */
static bool lacks_arguments(const Place *p) {
  bool is_template = false, is_function = false;
  if (p->before.kind != NAME || strchr(".>", *p->before_that.begin) != NULL) return false;
  for (size_t i = 0; i < p->kernel_count; i++) {
    if (!same_text(p->kernels[i].name, p->before)) continue;
    is_template |= p->kernels[i].is_template;
    is_function |= !p->kernels[i].is_template;
  }
  return is_template && !is_function;
}

static bool begin_launch(Place *p, Token token) {
  const int line = line_of(p->source, token.begin);
  p->close = find_launch_close(token.end);
  if (p->close == NULL) {
    fprintf(stderr, "%s:%d: error: this <<< has no matching >>>(arguments)\n", p->path, line);
    return false;
  }
  if (lacks_arguments(p)) {
    const int length = (int)(p->before.end - p->before.begin);
    fprintf(stderr,
            "%s:%d: error: %.*s is a template, and the CPU backend does not deduce the arguments "
            "of a template at a launch: write them, as in %.*s<float><<<grid, block>>>(...)\n",
            p->path, line, length, p->before.begin, length, p->before.begin);
    return false;
  }
  fputs(" *simt::launch(", stdout);
  return true;
}

/** An error of the compiler at this line, unless it is left out by an #ifdef. */
static const char OMITTED_PTX[] = "static_assert(false, SIMT_NO_INLINE_PTX) SIMT_OMIT";

/** What is written for a word, or NULL. */
static const char *replaced(const Place *p, Token token) {
  static const char *const ASM[] = {"asm", "__asm__", "__asm", NULL}, *const VARIABLES[] = {
                                                                          "__device__",
                                                                          "__managed__", NULL};
  if (is_any(token, ASM) && holds_instructions(token.end)) return OMITTED_PTX;
  if (p->in_asm && token.kind == NAME) return ""; /* volatile */
  if (is_name(token, "__noinline__") && p->before.kind != OPENING && *p->before.begin != ',') {
    return "__attribute__((noinline))"; /* not within an attribute */
  }
  if (is_any(token, VARIABLES) && !is_name(p->before, "__constant__") &&
      declares_variable(token.end)) {
    return "SIMT_DEVICE_VARIABLE";
  }
  return NULL;
}

static void note_token(Place *p, Token token) {
  if (token.kind == BLANK) return;
  const bool in_code = !in_directive(p->source, token.begin);
  if (token.begin >= p->bounds.end && strchr(";{}", *token.begin) != NULL) {
    p->bounds = (Bounds){NULL, NULL};
    p->in_template = p->in_extern = p->in_shared = false;
  }
  if (is_name(token, "__launch_bounds__") && in_code) p->bounds = find_bounds(token.end);
  p->in_template |= is_name(token, "template") && in_code;
  p->in_extern |= is_name(token, "extern");
  p->in_shared |= is_name(token, "__shared__");
  if (is_name(token, "__global__") && in_code) note_kernel(p, token);
  if (*token.begin == '[' && p->before.kind == NAME) p->array = p->before;
  p->before_that = p->before;
  p->before = token;
}

/** Gives dynamic shared memory the symbol that the runtime defines. */
static void name_smem(Place *p) {
  fputs(" __asm__(\"smem\")", stdout);
  bool known = is_name(p->array, "smem");
  for (size_t i = 0; i < p->array_count; i++) known |= same_text(p->arrays[i], p->array);
  if (known) return;
  p->arrays = realloc(p->arrays, (p->array_count + 1) * sizeof *p->arrays);
  if (p->arrays == NULL) abort();
  p->arrays[p->array_count++] = p->array;
}

/** In templates g++ forgets the symbol. Then the assembler renames it. */
static void write_aliases(const Place *p) {
  for (size_t i = 0; i < p->array_count; i++) {
    const Token name = p->arrays[i];
    printf("\n__asm__(\".weakref %.*s, smem\");", (int)(name.end - name.begin), name.begin);
  }
}

static bool rewrite(Place *p) {
  for (Token token = next_token(p->source); token.kind != END; token = next_token(token.end)) {
    const char *other = replaced(p, token);
    const bool ends_array = strchr(";,", *token.begin) != NULL && *p->before.begin == ']';
    if (ends_array && p->in_extern && p->in_shared) name_smem(p);
    if (*token.begin == '(') p->in_asm = false;
    if (other != NULL) {
      p->in_asm |= other == OMITTED_PTX;
      fputs(other, stdout);
    } else if (token.kind == LAUNCH_OPEN && !is_name(p->before, "operator")) {
      /* a.operator<<<int>(b) is a shift operator and a template argument */
      if (!begin_launch(p, token)) return false;
    } else if (token.begin == p->close) {
      putchar(')');
    } else {
      fwrite(token.begin, 1, (size_t)(token.end - token.begin), stdout);
    }
    if (token.begin == p->kernel.body) {
      write_bounds("SIMT_KERNEL", p->kernel.bounds);
      if (p->kernel.cluster.begin != NULL) write_bounds("SIMT_CLUSTER", p->kernel.cluster);
    }
    note_token(p, token);
  }
  return true;
}

/** Removes what editors on Windows add: a byte order mark, and carriage returns at line ends. */
static void make_plain(char *text) {
  const char *from = starts_with(text, "\xef\xbb\xbf") ? text + 3 : text;
  do {
    if (!starts_with(from, "\r\n")) *text++ = *from;
  } while (*from++ != '\0');
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE.cu > FILE.cpp\n", argv[0]);
    return 2;
  }
  char *text = NULL;
  size_t room = 0;
  FILE *file = fopen(argv[1], "r");
  const bool empty = file == NULL || getdelim(&text, &room, '\0', file) <= 0;
  if (file == NULL || ferror(file)) {
    perror(argv[1]);
    return 1;
  }
  fclose(file);
  if (!empty) make_plain(text);
  const char *source = empty ? "" : text;
  const Token none = {END, source, source};
  Place place = {
      .path = argv[1], .source = source, .before = none, .before_that = none, .array = none};
  write_line_directive(argv[1]);
  const bool ok = rewrite(&place);
  write_aliases(&place);
  free(place.kernels);
  free(place.arrays);
  free(text);
  if (fflush(stdout) != 0) {
    perror("standard output");
    return 1;
  }
  return ok ? 0 : 1;
}
