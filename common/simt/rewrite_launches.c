/**
 * @file
 * Translates CUDA C to C++: rewrites each kernel launch into an expression that any C++ compiler
 * accepts, and stores each kernel's launch bounds in its body.
 *
 *     kernel<64><<<grid, block, bytes, stream>>>(a, b)
 *     kernel<64> *simt::launch(grid, block, bytes, stream)(a, b)
 *
 *     __global__ void __launch_bounds__(128) kernel(int *a) {
 *     __global__ void __launch_bounds__(128) kernel(int *a) { SIMT_KERNEL(128)
 *
 * Everything else is copied unchanged, so that line numbers stay the same, and diagnostics and
 * debuggers show the .cu file. Comments, strings and characters are recognised and not changed.
 *
 * Usage: rewrite_launches FILE.cu > FILE.cpp
 */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum TokenKind {
  END,
  BLANK,
  NAME,
  LITERAL,
  OPENING,
  CLOSING,
  LAUNCH_OPEN,
  LAUNCH_CLOSE,
  OTHER
} TokenKind;

/** A piece of the source; BLANK is white space or a comment. */
typedef struct Token {
  TokenKind kind;
  const char *begin, *end;
} Token;

static bool is_name_char(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

static bool starts_with(const char *text, const char *prefix) {
  return strncmp(text, prefix, strlen(prefix)) == 0;
}

/** Past the end of a // comment; a backslash before the line break continues it. */
static const char *skip_line_comment(const char *p) {
  while (*p != '\0' && *p != '\n') p += p[0] == '\\' && p[1] != '\0' ? 2 : 1;
  return p;
}

static const char *skip_block_comment(const char *p) {
  const char *end = strstr(p + 2, "*/");
  return end != NULL ? end + 2 : p + strlen(p);
}

/** Past a quoted literal. A line break ends it too: #error lines may hold a lone apostrophe. */
static const char *skip_quoted(const char *p) {
  const char quote = *p++;
  while (*p != '\0' && *p != '\n' && *p != quote) p += p[0] == '\\' && p[1] != '\0' ? 2 : 1;
  return *p == quote ? p + 1 : p;
}

/** Past a number as the preprocessor sees it: 1'000, 0x1p-3f, 1e+5. */
static const char *skip_number(const char *p) {
  while (is_name_char(*p) || *p == '.' || (*p == '\'' && is_name_char(p[1]))) {
    const bool exponent = strchr("eEpP", *p) != NULL && (p[1] == '+' || p[1] == '-');
    p += exponent ? 2 : 1;
  }
  return p;
}

/** Also the prefix of a literal, as in u8"text"; raw strings are not supported. */
static Token name(const char *p) {
  Token token = {NAME, p, p};
  while (is_name_char(*token.end)) token.end++;
  return token;
}

static Token next_token(const char *p) {
  if (*p == '\0') return (Token){END, p, p};
  if (isspace((unsigned char)*p)) return (Token){BLANK, p, p + strspn(p, " \t\r\n\v\f")};
  if (starts_with(p, "//")) return (Token){BLANK, p, skip_line_comment(p)};
  if (starts_with(p, "/*")) return (Token){BLANK, p, skip_block_comment(p)};
  if (*p == '"' || *p == '\'') return (Token){LITERAL, p, skip_quoted(p)};
  const char *digit = *p == '.' ? p + 1 : p;
  if (isdigit((unsigned char)*digit)) return (Token){LITERAL, p, skip_number(p)};
  if (is_name_char(*p)) return name(p);
  if (starts_with(p, "<<<")) return (Token){LAUNCH_OPEN, p, p + 3};
  /* In >>>> the last three may end a launch; the first ends a template argument list. */
  if (starts_with(p, ">>>") && p[3] != '>') return (Token){LAUNCH_CLOSE, p, p + 3};
  if (strchr("([{", *p) != NULL) return (Token){OPENING, p, p + 1};
  if (strchr(")]}", *p) != NULL) return (Token){CLOSING, p, p + 1};
  return (Token){OTHER, p, p + 1};
}

static bool arguments_follow(const char *p) {
  Token token = next_token(p);
  while (token.kind == BLANK) token = next_token(token.end);
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

static bool is_name(Token token, const char *name) {
  const size_t length = strlen(name);
  return token.kind == NAME && (size_t)(token.end - token.begin) == length &&
         starts_with(token.begin, name);
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

/** The definition of a kernel: its {, and its bounds. */
typedef struct Kernel {
  const char *body;
  Bounds bounds;
} Kernel;

/** p is the text after `__launch_bounds__`. */
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

/** p is the text after `__global__`, `bounds` are those before it. A declaration has no body. */
static Kernel find_kernel(const char *p, Bounds bounds) {
  Kernel kernel = {NULL, bounds};
  int depth = 0;
  for (Token token = next_token(p); token.kind != END; token = next_token(token.end)) {
    if (depth == 0 && is_name(token, "__launch_bounds__")) kernel.bounds = find_bounds(token.end);
    if (depth == 0 && *token.begin == ';') break;
    if (depth == 0 && *token.begin == '{') {
      kernel.body = token.begin;
      break;
    }
    depth += (token.kind == OPENING) - (token.kind == CLOSING);
  }
  return kernel;
}

/** Line breaks are omitted, so that lines keep their numbers. */
static void write_bounds(Bounds bounds) {
  fputs(" SIMT_KERNEL(", stdout);
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

static bool rewrite(const char *path, const char *source) {
  const char *close = NULL; /* of the current launch */
  static const Bounds none = {NULL, NULL};
  Kernel kernel = {NULL, none};         /* whose body follows */
  Bounds bounds = none;                 /* of a kernel whose __global__ follows */
  Token before = {END, source, source}; /* the last token that is not blank */
  for (Token token = next_token(source); token.kind != END; token = next_token(token.end)) {
    /* a.operator<<<int>(b) is a shift operator and a template argument */
    if (token.kind == LAUNCH_OPEN && !is_name(before, "operator")) {
      close = find_launch_close(token.end);
      if (close == NULL) {
        fprintf(stderr, "%s:%d: error: this <<< has no matching >>>(arguments)\n", path,
                line_of(source, token.begin));
        return false;
      }
      fputs(" *simt::launch(", stdout);
    } else if (token.begin == close) {
      putchar(')');
    } else {
      fwrite(token.begin, 1, (size_t)(token.end - token.begin), stdout);
    }
    if (token.begin == kernel.body) write_bounds(kernel.bounds);
    if (token.begin >= bounds.end && strchr(";{}", *token.begin) != NULL) bounds = none;
    if (is_name(token, "__launch_bounds__") && !in_directive(source, token.begin)) {
      bounds = find_bounds(token.end);
    }
    if (is_name(token, "__global__") && !in_directive(source, token.begin)) {
      kernel = find_kernel(token.end, bounds);
    }
    if (token.kind != BLANK) before = token;
  }
  return true;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE.cu > FILE.cpp\n", argv[0]);
    return 2;
  }
  char *text = NULL;
  size_t room = 0;
  FILE *file = fopen(argv[1], "r");
  const char *source = file != NULL && getdelim(&text, &room, '\0', file) > 0 ? text : "";
  if (file == NULL || ferror(file)) {
    perror(argv[1]);
    return 1;
  }
  fclose(file);
  write_line_directive(argv[1]);
  const bool ok = rewrite(argv[1], source);
  free(text);
  if (fflush(stdout) != 0) {
    perror("standard output");
    return 1;
  }
  return ok ? 0 : 1;
}
