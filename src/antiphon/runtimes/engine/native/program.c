/* Reading a program file: nothing in it is trusted before it has been checked.
 *
 * program.h defines line, point, base, class, part and finish. The structs below are as in docs/data/program-layout.csv. A file
 * is a head (header, tables of the collective, directory) and for each rank a section: its header, then its tables.
 *
 * Threading: a program is read-only once open. The table for checksums is filled before main.
 * Ownership: the bytes are the caller's, are used where they are and outlive the program; ap_close frees the rest.
 */
#include "program.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "program files are little-endian; this engine reads them where they lie"
#endif

_Static_assert(sizeof(ap_point) == 16 && sizeof(ap_base) == 24 && sizeof(ap_class) == 24, "as in the file");
_Static_assert(sizeof(ap_operation) == 32 && sizeof(ap_part) == 12 && sizeof(ap_finish) == 24, "as in the file");

enum { HEADER = AP_PROGRAM_HEADER, ENTRY = 24, VERSION = 1, MAX_RANKS = 1 << 24 }; /* HEADER, ENTRY (of the directory): bytes */

/* The beginning of a file. `crc`: of the head from `head_bytes` on. `variants`: bit 0: out of place, bit 1: in place. `label`:
 * bytes of the collective's name. Of a custom collective, the rows of its relation: `pre` (block, rank, contribution), `post`
 * (block, rank, number of a want), different wants, and contributions in all wants (`wanted`). */
typedef struct {
    char magic[8];
    uint32_t version, crc;
    uint64_t head_bytes, file_bytes;
    uint32_t kind, ranks, members, roots, blocks, channels, variants, label;
    uint64_t denominator, buffer_weight;
    uint32_t pre, post, wants, wanted;
} file_header;

/* The beginning of a rank's section: the weights of its buffers, and the rows of its tables. `variant`: 1: in place. */
typedef struct {
    uint32_t rank, variant;
    uint64_t input_weight, output_weight;
    uint32_t points, bases, classes, slots, operations, parts, waits, finishes;
} section_header;

/* Where a section lies in the file; `begin` 0: there is none. */
typedef struct {
    uint64_t begin, bytes;
    uint32_t crc, zero;
} directory_entry;

_Static_assert(sizeof(file_header) == HEADER && sizeof(section_header) == 56 && sizeof(directory_entry) == ENTRY, "as in the file");

/* The header of an open file. */
static file_header header_of(const ap_program *p) {
    file_header header;
    memcpy(&header, p->bytes, sizeof header);
    return header;
}

int ap_abi(void) { return AP_ABI; }

int ap_fail(ap_error *error, int code, const char *format, ...) {
    if (error) {
        va_list rest;
        va_start(rest, format);
        error->code = code;
        vsnprintf(error->text, sizeof error->text, format, rest);
        va_end(rest);
    }
    return code;
}

/* CRC-32 (of zlib, polynomial 0xEDB88320) by slicing-by-8: crc[k][b] is the effect of byte b, k bytes before the end. */
static uint32_t crc[8][256];

__attribute__((constructor)) static void make_crc(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        crc[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++) crc[k][i] = crc[0][crc[k - 1][i] & 0xFF] ^ (crc[k - 1][i] >> 8);
}

uint32_t ap_crc32(const unsigned char *bytes, size_t size) {
    uint32_t c = 0xFFFFFFFFu;
    for (; size >= 8; bytes += 8, size -= 8) {
        uint32_t low = u32_at(bytes) ^ c, high = u32_at(bytes + 4);
        c = crc[7][low & 0xFF] ^ crc[6][low >> 8 & 0xFF] ^ crc[5][low >> 16 & 0xFF] ^ crc[4][low >> 24] ^ crc[3][high & 0xFF] ^
            crc[2][high >> 8 & 0xFF] ^ crc[1][high >> 16 & 0xFF] ^ crc[0][high >> 24];
    }
    for (; size; bytes++, size--) c = crc[0][(c ^ *bytes) & 0xFF] ^ (c >> 8);
    return ~c;
}

/* ---- the collective: what every rank sends and receives, from the head alone ---- */

static const uint64_t MAX_WEIGHT = (uint64_t)1 << 61; /* of all blocks together */
enum { MAX_BLOCKS = 1 << 25 };

/* Ranks that have data before or after a collective, each a block of its own. */
typedef struct {
    const int32_t *rank; /* NULL: every member has every block instead */
    uint32_t count;      /* of ranks; 1 if `rank` is NULL */
} holders;

typedef struct {
    ap_program *program;
    const ap_facts *facts;        /* the program's: lengths of the tables */
    const int32_t *member, *root; /* ranks */
    const int64_t *weight;        /* per block */
} program_head;

static int bad_head(ap_error *error, const char *problem) {
    return ap_fail(error, AP_INVALID, "the program file is damaged: the numbers in its head do not fit together: %s", problem);
}

/* Whether members ascend, roots are members, and none of either is listed twice. */
static int members_fit(const program_head *h) {
    const ap_facts *f = h->facts;
    const int rooted = ap_has_root((int)f->kind);
    int ok = rooted == (f->roots > 0) && f->members && f->members <= f->ranks;
    if (f->kind < AP_KINDS && f->members < 2) ok = 0; /* AP_KINDS itself is a custom collective, which may have one member */
    for (uint32_t i = 0; i < f->members && ok; i++)
        ok = h->member[i] >= 0 && (uint32_t)h->member[i] < f->ranks && (!i || h->member[i - 1] < h->member[i]);
    if (!ok || !rooted) return ok;
    unsigned char *is_free_root = calloc(f->ranks, 1); /* per rank: a member that has not been listed as a root yet */
    if (!is_free_root) return 0;
    for (uint32_t i = 0; i < f->members; i++) is_free_root[h->member[i]] = 1;
    for (uint32_t i = 0; i < f->roots && ok; i++) {
        ok = h->root[i] >= 0 && (uint32_t)h->root[i] < f->ranks && is_free_root[h->root[i]];
        if (ok) is_free_root[h->root[i]] = 0;
    }
    free(is_free_root);
    return ok;
}

/* Sets the length of the line, and whether all blocks weigh 1. False: a weight is negative, or all are too much. */
static int add_weights(const program_head *h) {
    uint64_t sum = 0;
    h->program->even = 1;
    for (uint32_t b = 0; b < h->facts->blocks; b++) {
        if (h->weight[b] < 0 || (uint64_t)h->weight[b] > MAX_WEIGHT - sum) return 0;
        sum += (uint64_t)h->weight[b];
        h->program->even &= h->weight[b] == 1;
    }
    h->program->line = sum;
    return 1;
}

/* Adds up the buffers of each rank for a collective that is not custom. With n holders before it, block b goes from
 * number b mod n of these to number b / n of the holders after it; -1: from or to all members. Returns AP_OK or the
 * error's code, like all functions here with `error`. */
static int weigh_built_in(const program_head *h, ap_error *error) {
    const ap_facts *f = h->facts;
    const holders every_rank = {NULL, 1}, members = {h->member, f->members}, roots = {h->root, f->roots};
    const holders holders_of[AP_KINDS][2] = { /* before the collective, and after */
        [AP_BROADCAST] = {roots, every_rank},         [AP_REDUCE] = {every_rank, roots},
        [AP_SCATTER] = {roots, members},              [AP_GATHER] = {members, roots},
        [AP_ALLGATHER] = {members, every_rank},       [AP_REDUCESCATTER] = {every_rank, members},
        [AP_ALLREDUCE] = {every_rank, every_rank},    [AP_ALLTOALL] = {members, members}};
    const holders before = holders_of[f->kind][0], after = holders_of[f->kind][1];
    ap_buffer_weights *buffer_weights = h->program->buffer_weights;
    if ((uint64_t)before.count * after.count != f->blocks)
        return bad_head(error, "its blocks are not those of its kind");
    for (uint32_t b = 0; b < f->blocks; b++) {
        int64_t from = before.rank ? before.rank[b % before.count] : -1;
        int64_t to = after.rank ? after.rank[b / before.count] : -1;
        uint64_t weight = (uint64_t)h->weight[b];
        if (from >= 0) buffer_weights[from].input += weight, buffer_weights[from].in_place += weight;
        /* in place, a block that a rank has both before and after lies in its buffer once */
        if (to >= 0) buffer_weights[to].output += weight, buffer_weights[to].in_place += to == from ? 0 : weight;
    }
    for (uint32_t i = 0; i < f->members; i++) {
        ap_buffer_weights *weights = &buffer_weights[h->member[i]];
        if (!before.rank) weights->input = weights->in_place = h->program->line;
        if (!after.rank) weights->output = weights->in_place = h->program->line;
        if (f->kind == AP_ALLTOALL) weights->in_place = weights->input; /* received blocks replace those sent */
    }
    return AP_OK;
}

static int by_number(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Adds up the buffers of each rank for a custom collective: (rank, block) counts once before and once after, regardless
 * of the number of contributions. The relation's tables `pre` and `post` have three columns each; the first two, blocks
 * and ranks, matter here. A sorted key is rank, block, and 1 for after. */
static int weigh_relation(const program_head *h, ap_error *error) {
    const ap_facts *f = h->facts;
    const file_header header = header_of(h->program);
    const uint64_t count[2] = {header.pre, header.post};
    const unsigned char *at = h->program->bytes + h->program->relation;
    uint64_t *key = calloc(count[0] + count[1] + 1, sizeof *key), n = 0, blocks = 0;
    int ok = key != NULL;
    if (!ok) return ap_fail(error, AP_MEMORY, "out of memory");
    for (int side = 0; side < 2; at += 3 * padded(4 * count[side]), side++)
        for (uint64_t i = 0; i < count[side]; i++) {
            uint64_t block = u32_at(at + 4 * i), rank = u32_at(at + padded(4 * count[side]) + 4 * i);
            ok &= block < f->blocks && rank < f->ranks;
            blocks = block + 1 > blocks ? block + 1 : blocks;
            key[n++] = rank << 32 | block << 1 | (uint64_t)side; /* ranks are below 2^24, blocks below 2^25 */
        }
    ok &= blocks == f->blocks; /* a custom collective has blocks up to the last that its relation names */
    if (ok) qsort(key, n, sizeof *key, by_number);
    for (uint64_t i = 0; i < n && ok; i++) {
        if (i && key[i] == key[i - 1]) continue;
        ap_buffer_weights *weights = &h->program->buffer_weights[key[i] >> 32];
        uint64_t weight = (uint64_t)h->weight[(key[i] & 0xFFFFFFFFu) >> 1];
        if (key[i] & 1)
            weights->output += weight;
        else
            weights->input += weight;
        if (!i || key[i] >> 1 != key[i - 1] >> 1) weights->in_place += weight;
    }
    free(key);
    return ok ? AP_OK : bad_head(error, "its relation names what is not there");
}

/* Checks the collective in the head, and fills `line`, `even` and `buffer_weights` from it, not from any rank's section. */
static int read_buffer_weights(ap_program *p, ap_error *error) {
    const ap_facts *f = &p->facts;
    const unsigned char *at = p->bytes + AP_PROGRAM_HEADER;
    program_head h = {.program = p, .facts = f, .member = (const int32_t *)(const void *)at};
    h.root = (const int32_t *)(const void *)(at + padded(4ull * f->members));
    h.weight = (const int64_t *)(const void *)((const unsigned char *)h.root + padded(4ull * f->roots));
    if (f->blocks > MAX_BLOCKS || !members_fit(&h)) return bad_head(error, "its members, roots or blocks");
    if (!add_weights(&h)) return bad_head(error, "its weights");
    p->buffer_weights = calloc(f->ranks, sizeof *p->buffer_weights);
    if (!p->buffer_weights) return ap_fail(error, AP_MEMORY, "out of memory");
    int code = f->kind < AP_KINDS ? weigh_built_in(&h, error) : weigh_relation(&h, error);
    uint64_t greatest_weight = 1; /* at least 1, also without data: nbytes is divided by it */
    for (uint32_t r = 0; r < f->ranks; r++) {
        greatest_weight = p->buffer_weights[r].input > greatest_weight ? p->buffer_weights[r].input : greatest_weight;
        greatest_weight = p->buffer_weights[r].output > greatest_weight ? p->buffer_weights[r].output : greatest_weight;
    }
    /* nbytes is the size of the greatest buffer. With several groups (custom collectives) it is that of one group. */
    int is_group = f->kind >= AP_KINDS && f->buffer_weight && f->buffer_weight < greatest_weight;
    if (!code && !is_group && f->buffer_weight != greatest_weight) code = bad_head(error, "its greatest buffer");
    return code;
}

/* ---- the head ---- */

/* Bytes of the head's tables before the relation (members, roots, weights of blocks, label), and of the relation, by the counts
 * in the header, each below 2^32: the sums are below 2^40 and cannot wrap. */
static uint64_t bytes_to_relation(const file_header *h) {
    return padded(4ull * h->members) + padded(4ull * h->roots) + 8ull * h->blocks + padded(h->label);
}

static uint64_t bytes_of_relation(const file_header *h) {
    return 3 * padded(4ull * h->pre) + 3 * padded(4ull * h->post) + padded(4ull * h->wants) + padded(4ull * h->wanted);
}

/* Checks the head, and fills the program from it. */
static int read_head(ap_program *p, ap_error *error) {
    const unsigned char *b = p->bytes;
    if (p->size < HEADER || memcmp(b, "ANTIPROG", 8))
        return ap_fail(error, AP_INVALID, "this is no program file, or only the beginning of one");
    const file_header h = header_of(p);
    if (h.version != VERSION)
        return ap_fail(error, AP_UNSUPPORTED, "the program file has version %u, this engine reads version %d", h.version, VERSION);
    const uint64_t head = h.head_bytes;
    if (h.file_bytes != p->size)
        return ap_fail(error, AP_INVALID, "the program file has %zu bytes, and says it has %llu: it was cut off or mixed up",
                       p->size, (unsigned long long)h.file_bytes);
    if (head < HEADER || head > p->size || head % 8)
        return ap_fail(error, AP_INVALID, "the program file is damaged: its head ends at byte %llu", (unsigned long long)head);
    const size_t checked = offsetof(file_header, head_bytes); /* the checksum is of the head from here on */
    if (ap_crc32(b + checked, head - checked) != h.crc)
        return ap_fail(error, AP_INVALID, "the program file is damaged: the checksum of its head is wrong");
    ap_facts *f = &p->facts;
    f->kind = h.kind, f->ranks = h.ranks, f->members = h.members, f->roots = h.roots, f->blocks = h.blocks;
    f->channels = h.channels, f->variants = h.variants, f->buffer_weight = h.buffer_weight;
    p->denominator = h.denominator;
    p->relation = HEADER + bytes_to_relation(&h);
    uint64_t at = p->relation + bytes_of_relation(&h);
    /* `variants`: bit 0 out of place, bit 1 in place; the directory has entries for both */
    const int sections = 2;
    if (f->kind > AP_KINDS || !f->ranks || f->ranks > MAX_RANKS || !f->variants || f->variants > 3 || !p->denominator ||
        p->denominator >> 62 || at > head || (head - at) / ENTRY != (uint64_t)sections * f->ranks || (head - at) % ENTRY)
        return ap_fail(error, AP_INVALID, "the program file is damaged: the numbers in its head do not fit together");
    p->directory = at;
    return read_buffer_weights(p, error);
}

ap_program *ap_open_bytes(const void *bytes, size_t size, ap_error *error) {
    ap_program *p = calloc(1, sizeof *p);
    if (!p) {
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    p->bytes = bytes, p->size = size;
    if (((uintptr_t)bytes & 7) != 0)
        ap_fail(error, AP_INVALID, "the bytes of a program must begin at a multiple of 8");
    else if (read_head(p, error) == AP_OK)
        return p;
    ap_close(p);
    return NULL;
}

void ap_close(ap_program *p) {
    if (!p) return;
    free(p->buffer_weights);
    free(p);
}

void ap_describe(const ap_program *p, ap_facts *facts) { *facts = p->facts; }

/* The next table of a section: `count` rows of `size` bytes; NULL where it would reach beyond the end. */
static const void *read_table(const unsigned char *start, uint64_t *at, uint64_t end, uint64_t count, uint64_t size) {
    const void *table_start = start + *at;
    uint64_t bytes = padded(count * size); /* below 2^32 * 32 */
    if (bytes > end - *at) return NULL;
    *at += bytes;
    return table_start;
}

typedef __int128 wide;

/* The length from one point to another, in units / denominator; may be negative. Below 2^124, as points lie on the line, which
 * is at most 2^61 long, and the denominator is below 2^62. */
static wide part_length(const ap_program *p, ap_point begin, ap_point end) {
    return (wide)(end.whole - begin.whole) * (wide)p->denominator + (end.part - begin.part);
}

/* Whether a part names what its section does not have, or ends before it begins. */
static int is_bad_part(const ap_program *p, const ap_section *s, uint32_t begin, uint32_t end, uint32_t base) {
    return begin >= s->points || end >= s->points || base >= s->bases || part_length(p, s->point[begin], s->point[end]) < 0;
}

/* Whether a point lies outside the line, which begins at 0 and is as long as all blocks weigh. */
static int is_off_line(const ap_program *p, ap_point at) {
    return at.whole < 0 || (uint64_t)at.whole > p->line || at.part < 0 || (uint64_t)at.part >= p->denominator ||
           ((uint64_t)at.whole == p->line && at.part);
}

/* Whether all parts of an operation are valid. Marks in `filled` the slots that a part fills to the end. */
static int are_parts_good(const ap_program *p, const ap_section *s, const ap_operation *op, unsigned char *filled) {
    for (uint32_t i = op->first_part, end = i + op->parts; i < end; i++) {
        const ap_part *part = &s->part[i];
        if (is_bad_part(p, s, part->begin, part->end, part->base)) return 0;
        const ap_base *base = &s->base[part->base];
        int writes = op->kind == AP_RECEIVE || (op->kind == AP_FOLD && i == op->first_part);
        if (writes && base->buffer == AP_INPUT) return 0;
        if (base->buffer != AP_SCRATCH) continue;
        const ap_class *slot_class = &s->class[s->slot[base->slot]];
        if (slot_class->pieces != op->pieces) return 0; /* the pieces of a slot lie apart (ap_stretch.stride) */
        const wide length = part_length(p, s->point[part->begin], s->point[part->end]);
        if (writes && length >= part_length(p, (ap_point){0, 0}, (ap_point){slot_class->whole, slot_class->part}))
            filled[base->slot] = 1;
    }
    return 1;
}

/* The first invalid operation; s->operations if there is none. Operations take the parts and waits in order, without gaps. */
static uint32_t find_bad_operation(const ap_program *p, const ap_section *s, uint32_t rank, unsigned char *filled) {
    uint32_t o = 0, when = 0, parts = 0, waits = 0;
    /* of the operations before: `when`: the latest logical time (program.h); `parts`, `waits`: the rows that they take */
    for (; o < s->operations; o++) {
        const ap_operation *op = &s->operation[o];
        int message = op->kind == AP_SEND || op->kind == AP_RECEIVE;
        if (op->kind > AP_JOIN || !op->pieces || op->when < when) break;
        if (message ? op->peer >= p->facts.ranks || op->peer == rank || op->channel >= p->facts.channels : op->peer != rank)
            break;
        if (op->first_part != parts || op->parts > s->parts - parts) break;
        if (op->first_wait != waits || op->waits > s->waits - waits) break;
        if ((op->kind == AP_FOLD && op->parts < 2) || (op->kind == AP_JOIN && op->parts)) break;
        uint32_t w = waits;
        parts += op->parts, waits += op->waits, when = op->when;
        while (w < waits && s->wait[w] < o) w++; /* waits only for earlier operations, so that no cycle can arise */
        if (w < waits || !are_parts_good(p, s, op, filled)) break;
    }
    /* rows of parts or waits that are left over count as a fault of the last operation */
    return o < s->operations || (parts == s->parts && waits == s->waits) ? o : o - 1;
}

/* The first slot that no operation fills: it would demand memory for nothing. */
static uint32_t first_unfilled_slot(const ap_section *s, const unsigned char *filled) {
    uint32_t i = 0;
    while (i < s->slots && filled[i]) i++;
    return i;
}

/* Checks all tables of a section. `filled`: per slot 0; set to 1 if an operation fills it. */
static int check_section(const ap_program *p, ap_section *s, uint32_t rank, int in_place, unsigned char *filled,
                         ap_error *error) {
    const char *bad_object = NULL;
    uint64_t at = 0;
    for (uint32_t i = 0; i < s->points && !bad_object; i++)
        if (is_off_line(p, s->point[i])) bad_object = "point", at = i;
    for (uint32_t i = 0; i < s->classes && !bad_object; i++)
        if (is_off_line(p, (ap_point){s->class[i].whole, s->class[i].part}) || !s->class[i].pieces)
            bad_object = "class", at = i;
    for (uint32_t i = 0; i < s->slots && !bad_object; i++)
        if (s->slot[i] >= s->classes) bad_object = "slot", at = i;
    for (uint32_t i = 0; i < s->bases && !bad_object; i++) {
        const ap_base *b = &s->base[i];
        if (b->buffer > AP_SCRATCH || (b->buffer == AP_INPUT && in_place) ||
            (b->buffer == AP_SCRATCH && (b->slot >= s->slots || b->origin >= s->points)))
            bad_object = "base", at = i;
    }
    for (uint32_t i = 0; i < s->finishes && !bad_object; i++) {
        const ap_finish *f = &s->finish[i];
        if (is_bad_part(p, s, f->begin, f->end, f->base) || s->base[f->base].buffer != AP_OUTPUT || !f->count)
            bad_object = "finish", at = i;
    }
    if (!bad_object) { /* without operations there must be neither parts nor waits */
        if (s->operations) at = find_bad_operation(p, s, rank, filled);
        if (s->operations ? at < s->operations : s->parts || s->waits) bad_object = "operation";
    }
    if (bad_object)
        return ap_fail(error, AP_INVALID, "the program file is wrong: rank %u, %s %llu", rank, bad_object,
                       (unsigned long long)at);
    at = first_unfilled_slot(s, filled);
    if (at < s->slots)
        return ap_fail(error, AP_INVALID, "the program file is wrong: rank %u, slot %llu has more room than is written there",
                       rank, (unsigned long long)at);
    ap_workload all = {0, 0};
    for (uint32_t o = 0; o < s->operations; o++)
        if (!ap_add_workload(&all, s->operation[o].pieces, s->operation[o].parts, s->operation[o].waits, AP_MOST_WORK))
            return ap_fail(error, AP_UNSUPPORTED,
                           "rank %u: more than 2^20 pieces of operations, or 2^25 of them, their parts and waits; use fewer "
                           "pieces",
                           rank);
    return AP_OK;
}

/* The sizes of buffers in a section must be those of the collective. */
static int check_weights(const ap_program *p, const ap_section *s, uint32_t rank, int in_place, ap_error *error) {
    const ap_buffer_weights *weights = &p->buffer_weights[rank];
    uint64_t input = in_place ? weights->in_place : weights->input, output = in_place ? weights->in_place : weights->output;
    if (s->input_weight == input && s->output_weight == output) return AP_OK;
    return ap_fail(error, AP_INVALID,
                   "the program file is wrong: rank %u says that its buffers weigh %llu and %llu; by the collective it is %llu "
                   "and %llu",
                   rank, (unsigned long long)s->input_weight, (unsigned long long)s->output_weight, (unsigned long long)input,
                   (unsigned long long)output);
}

/* Checks the section of a rank, and fills *s with pointers to its tables. AP_OK, or the error's code. */
int ap_read_section(const ap_program *p, uint32_t rank, int in_place, ap_section *s, ap_error *error) {
    if (rank >= p->facts.ranks) return ap_fail(error, AP_INVALID, "rank %u: the program is for %u ranks", rank, p->facts.ranks);
    directory_entry entry; /* the directory has those of all ranks out of place, then those in place */
    section_header h;
    memcpy(&entry, p->bytes + p->directory + ((uint64_t)(in_place ? p->facts.ranks : 0) + rank) * ENTRY, sizeof entry);
    const uint64_t begin = entry.begin, size = entry.bytes;
    uint64_t at = sizeof h;
    if (!begin || !(p->facts.variants & (in_place ? 2u : 1u)))
        return ap_fail(error, AP_UNSUPPORTED, "this program file has no program %s", in_place ? "in place" : "out of place");
    if (begin % 8 || begin > p->size || size > p->size - begin || size < at)
        return ap_fail(error, AP_INVALID, "the program file is damaged: the part of rank %u lies outside of it", rank);
    const unsigned char *b = p->bytes + begin;
    if (ap_crc32(b, size) != entry.crc)
        return ap_fail(error, AP_INVALID, "the program file is damaged: the checksum of rank %u is wrong", rank);
    memcpy(&h, b, sizeof h);
    s->input_weight = h.input_weight, s->output_weight = h.output_weight;
    s->points = h.points, s->bases = h.bases, s->classes = h.classes, s->slots = h.slots;
    s->operations = h.operations, s->parts = h.parts, s->waits = h.waits, s->finishes = h.finishes;
    if (h.rank != rank || h.variant != (uint32_t)!!in_place ||
        !(s->point = read_table(b, &at, size, s->points, sizeof *s->point)) ||
        !(s->base = read_table(b, &at, size, s->bases, sizeof *s->base)) ||
        !(s->class = read_table(b, &at, size, s->classes, sizeof *s->class)) ||
        !(s->slot = read_table(b, &at, size, s->slots, sizeof *s->slot)) ||
        !(s->operation = read_table(b, &at, size, s->operations, sizeof *s->operation)) ||
        !(s->part = read_table(b, &at, size, s->parts, sizeof *s->part)) ||
        !(s->wait = read_table(b, &at, size, s->waits, sizeof *s->wait)) ||
        !(s->finish = read_table(b, &at, size, s->finishes, sizeof *s->finish)))
        return ap_fail(error, AP_INVALID, "the program file is damaged: the tables of rank %u do not fit", rank);
    int code = check_weights(p, s, rank, in_place, error);
    if (code) return code;
    unsigned char *filled = calloc(s->slots + 1ul, 1);
    if (!filled) return ap_fail(error, AP_MEMORY, "out of memory");
    code = check_section(p, s, rank, in_place, filled, error);
    free(filled);
    return code;
}
