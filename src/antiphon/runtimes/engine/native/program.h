/* The program file, field by field as in docs/program.md: accessors, and the counters that bound the work of a checked file. A
 * program says where data lies independently of its size: all blocks stand end to end on a line measured in units of weight,
 * and at a size each unit becomes `unit` elements.
 *
 * Threading: a program is read-only once open. Ownership: an ap_program points into the caller's bytes; ap_close frees the
 *   rest.
 */
#pragma once

#include <string.h>

#include "api.h"

/* Numbers in files: little-endian, like the machine (program.c checks it), and not necessarily aligned. */
static inline uint32_t u32_at(const unsigned char *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The bytes of a table in a file: tables begin at multiples of 8. */
static inline uint64_t padded(uint64_t bytes) { return (bytes + 7) & ~(uint64_t)7; }

enum {
    AP_BROADCAST, AP_REDUCE, AP_SCATTER, AP_GATHER, AP_ALLGATHER, AP_REDUCESCATTER, AP_ALLREDUCE, AP_ALLTOALL, AP_KINDS
}; /* kinds of collectives; a custom one has the number AP_KINDS */
static inline int ap_has_root(int kind) { return kind <= AP_GATHER; } /* the kinds before AP_ALLGATHER */
/* In pages of a book that number is the kind of uneven alltoalls, which programs for even ones serve. */
enum { AP_ALLTOALLV = AP_KINDS, AP_PAGE_KINDS };
enum { AP_SEND, AP_RECEIVE, AP_FOLD, AP_JOIN }; /* a fold copies or combines values within the rank, a join only waits */
enum { AP_INPUT, AP_OUTPUT, AP_SCRATCH }; /* buffers; scratch is the engine's own, for data in transit */
enum { AP_PROGRAM_HEADER = 96 }; /* bytes */

/* Limits on what a program may require (docs/program.md, "Limits"). An operation has one instance per piece.
 * Instances: the total over operations that have more than AP_FEW_INSTANCES.
 * Work: the sum over operations of instances * (1 + parts + waits). Splitting a call into slices (ap_split) turns
 *   an operation of one instance into AP_FEW_INSTANCES, so the work may become that many times as much.
 * Elements: of a buffer, a message or an address. */
enum { AP_FEW_INSTANCES = 4, AP_MOST_INSTANCES = 1 << 20, AP_MOST_WORK = 1 << 25 };
static const uint64_t AP_MOST_ELEMENTS = (uint64_t)1 << 59; /* of eight bytes each: no sum of addresses overflows */

/* Totals so far, as defined above. */
typedef struct {
    uint64_t instances, work;
} ap_workload;

/* Adds an operation to the totals; returns false if a limit is exceeded. No sum wraps: every addend is below 2^63, and callers
 * stop at the first false. `most_work`: AP_MOST_WORK; for operations split into slices, AP_FEW_INSTANCES times that. */
static inline int ap_add_workload(ap_workload *b, uint64_t instances, uint64_t parts, uint64_t waits, uint64_t most_work) {
    if (instances > AP_FEW_INSTANCES) b->instances += instances;
    if (b->instances > AP_MOST_INSTANCES) return 0;
    b->work += instances * (1 + parts + waits);
    return b->work <= most_work;
}

/* Sizes of a rank's buffers, in units of weight: input, output, and its single buffer if the call is in place. */
typedef struct {
    uint64_t input, output, in_place;
} ap_buffer_weights;

struct ap_program {
    const unsigned char *bytes;
    size_t size;
    ap_facts facts;
    uint64_t denominator;         /* of all points */
    uint64_t relation, directory; /* offsets in `bytes` of who contributes and wants which block, and of the ranks' sections */
    uint64_t line;                /* length of the line: weight of all blocks together */
    int even;                     /* flag: each block weighs 1 */
    ap_buffer_weights *buffer_weights; /* of each rank */
};

/* A point of the line: whole + part / denominator units of weight. (Elsewhere a part is an ap_part.) */
typedef struct {
    int64_t whole, part;
} ap_point;

/* Maps the line to memory. Input, output: moved by `shift` units. Scratch: the point `origin` lies at the start of `slot`.
 * Here and below `origin`, `begin` and `end` are indices into the section's points, `base` into its bases. */
typedef struct {
    int64_t shift;
    uint32_t buffer, slot, origin, unused;
} ap_base;

/* The size of slots of scratch: room for that length of the line, in `pieces` equal pieces. */
typedef struct {
    int64_t whole, part;
    uint32_t pieces, unused;
} ap_class;

/* An operation. `when`: logical time of its first piece: 2 s for messages of step s, 2 s + 1 for folds. Piece i is i steps
 * later, at when + 2 i. A rank starts its instances in the order of these times (docs/program.md). Parts and waits: rows of the
 * section's tables. */
typedef struct {
    uint16_t kind, channel; /* messages between two ranks match in order on each channel */
    uint32_t peer, pieces, when, first_part, parts, first_wait, waits;
} ap_operation;

/* The data of an operation is made of parts: the line from one point to another, through a base. A fold writes its first part. */
typedef struct {
    uint32_t begin, end, base;
} ap_part;

/* A part of the output that an average divides by `count` at the end. */
typedef struct {
    uint32_t begin, end, base, unused;
    uint64_t count;
} ap_finish;

/* The section of one rank: pointers to its tables within the file. Every index in them has been checked. */
typedef struct {
    uint64_t input_weight, output_weight;
    uint32_t points, bases, classes, slots, operations, parts, waits, finishes;
    const ap_point *point;
    const ap_base *base;
    const ap_class *class;
    const uint32_t *slot; /* per slot the number of its class */
    const ap_operation *operation;
    const ap_part *part;
    const uint32_t *wait; /* numbers of earlier operations of this rank */
    const ap_finish *finish;
} ap_section;

/* Checks the section of a rank, for calls in place or not, and fills *section. AP_OK, or the error's code. */
int ap_read_section(const ap_program *program, uint32_t rank, int in_place, ap_section *section, ap_error *error);

/* CRC-32, as zlib's crc32 computes it. */
uint32_t ap_crc32(const unsigned char *bytes, size_t size);
