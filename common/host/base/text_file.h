/** @file Text files that users write. */
#ifndef HOST_TEXT_FILE_H
#define HOST_TEXT_FILE_H

#include <stdio.h>

/** fopen() for reading, behind the byte order mark with which some editors begin a file. */
FILE *text_file_open(const char *path);

#endif
