// What programs that print every answer share: a line for each call with its code, and one for each query with its size and value.
#pragma once
#include "check.h"
#include <stdint.h>

static cl_int code;
static const char *subject;
#define SUBJECT(name) (subject = (name), printf("%s\n", subject))
#define SHOW(what, call) (code = CL_SUCCESS, (call), printf("  %-44s %s\n", what, code_name(code)))
#define IS(what, call) SHOW(what, code = (call))

enum { ROOM = 1 << 16 };
static unsigned char value[ROOM];

static void show(cl_int is, const char *how, unsigned parameter, size_t size, int has_value) {
    printf("  %#06x %-6s %s", parameter, how, code_name(is));
    if (is == CL_SUCCESS) {
        printf(" %zu", size);
        unsigned sum = 0;
        for (size_t i = 0; has_value && i < size && i < ROOM; i++) sum = sum * 31 + value[i];
        if (has_value) printf(" %08x", sum);
    }
    printf("\n");
}
