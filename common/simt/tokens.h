/**
 * @file
 * The tokens of CUDA C, as far as rewrite_launches.c must know them. Raw strings are not supported.
 */
#ifndef SIMT_TOKENS_H
#define SIMT_TOKENS_H

#include <ctype.h>
#include <stdbool.h>
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

/** Also the prefix of a literal, as in u8"text". */
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

/** The next token that is not blank. */
static Token next_word(const char *p) {
  Token token = next_token(p);
  while (token.kind == BLANK) token = next_token(token.end);
  return token;
}

static bool is_name(Token token, const char *name) {
  const size_t length = strlen(name);
  return token.kind == NAME && (size_t)(token.end - token.begin) == length &&
         starts_with(token.begin, name);
}

static bool same_text(Token a, Token b) {
  const size_t length = (size_t)(a.end - a.begin);
  return length == (size_t)(b.end - b.begin) && strncmp(a.begin, b.begin, length) == 0;
}

/** Is it one of these names? A NULL ends them. */
static bool is_any(Token token, const char *const *names) {
  while (*names != NULL && !is_name(token, *names)) names++;
  return *names != NULL;
}

#endif
