/* The program file, field by field as in docs/program.md. */
#ifndef ANTIPHON_PROGRAM_H
#define ANTIPHON_PROGRAM_H

#include <string.h>

#include "api.h"

/* Numbers of files and books: little-endian, as on every machine that this is compiled for, and anywhere in memory. */
static inline uint32_t u32_at(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t u64_at(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t padded(uint64_t bytes) { return (bytes + 7) & ~(uint64_t)7; }

enum { AP_SEND, AP_RECEIVE, AP_FOLD, AP_JOIN };
enum { AP_INPUT, AP_OUTPUT, AP_SCRATCH };

struct ap_program {
    const unsigned char *bytes;
    size_t size;
    int mapped;
    ap_facts facts;
    uint64_t denominator;
    uint64_t directory; /* where it begins */
};

typedef struct {
    int64_t whole, part;
} ap_point;

typedef struct {
    int64_t shift;
    uint32_t buffer, slot, origin, unused;
} ap_base;

typedef struct {
    int64_t whole, part;
    uint32_t pieces, unused;
} ap_class;

typedef struct {
    uint16_t kind, channel;
    uint32_t peer, pieces, when, first_part, parts, first_wait, waits;
} ap_operation;

typedef struct {
    uint32_t begin, end, base;
} ap_part;

typedef struct {
    uint32_t begin, end, base, unused;
    uint64_t count;
} ap_finish;

/* The section of one rank; the tables lie in the file's bytes. Every index in them has been checked. */
typedef struct {
    uint64_t input_weight, output_weight;
    uint32_t points, bases, classes, slots, operations, parts, waits, finishes;
    const ap_point *point;
    const ap_base *base;
    const ap_class *class;
    const uint32_t *slot;
    const ap_operation *operation;
    const ap_part *part;
    const uint32_t *wait;
    const ap_finish *finish;
} ap_section;

int ap_read_section(const ap_program *program, uint32_t rank, int in_place, ap_section *section, ap_error *error);

/* As in zlib. */
uint32_t ap_crc32(const unsigned char *bytes, size_t size);

#endif
