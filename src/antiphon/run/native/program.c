/* Reading a program file: nothing in it is believed before it has been checked. */
#include "program.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "program files are little-endian; this engine reads them where they lie"
#endif

_Static_assert(sizeof(ap_point) == 16 && sizeof(ap_base) == 24 && sizeof(ap_class) == 24, "as in the file");
_Static_assert(sizeof(ap_operation) == 32 && sizeof(ap_part) == 12 && sizeof(ap_finish) == 24, "as in the file");

enum { HEADER = 96, ENTRY = 24, VERSION = 1, MOST_RANKS = 1 << 24 };

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

uint32_t ap_crc32(const unsigned char *bytes, size_t size) {
    uint32_t table[256], crc = 0xFFFFFFFFu;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        table[i] = c;
    }
    for (size_t i = 0; i < size; i++) crc = table[(crc ^ bytes[i]) & 0xFF] ^ (crc >> 8);
    return ~crc;
}

/* Bytes of the head's tables before the directory, as the header counts them; 2^64 - 1 where that is absurd. */
static uint64_t tables_of(const unsigned char *bytes, const ap_facts *f) {
    uint64_t pre = u32_at(bytes + 80), post = u32_at(bytes + 84);
    return padded(4ull * f->members) + padded(4ull * f->roots) + 8ull * f->blocks + padded(u32_at(bytes + 60)) +
           3 * padded(4 * pre) + 3 * padded(4 * post) + padded(4ull * u32_at(bytes + 88)) +
           padded(4ull * u32_at(bytes + 92));
}

static int read_head(ap_program *p, ap_error *error) {
    const unsigned char *b = p->bytes;
    if (p->size < HEADER || memcmp(b, "ANTIPROG", 8))
        return ap_fail(error, AP_INVALID, "this is no program file, or only the beginning of one");
    if (u32_at(b + 8) != VERSION)
        return ap_fail(error, AP_UNSUPPORTED, "the program file has version %u, this engine reads version %d",
                       u32_at(b + 8), VERSION);
    uint64_t head = u64_at(b + 16), whole = u64_at(b + 24);
    if (whole != p->size)
        return ap_fail(error, AP_INVALID, "the program file has %zu bytes, and says it has %llu: it was cut off or mixed up",
                       p->size, (unsigned long long)whole);
    if (head < HEADER || head > p->size || head % 8)
        return ap_fail(error, AP_INVALID, "the program file is damaged: its head ends at byte %llu",
                       (unsigned long long)head);
    if (ap_crc32(b + 16, head - 16) != u32_at(b + 12))
        return ap_fail(error, AP_INVALID, "the program file is damaged: the checksum of its head is wrong");
    ap_facts *f = &p->facts;
    f->kind = u32_at(b + 32), f->ranks = u32_at(b + 36), f->members = u32_at(b + 40), f->roots = u32_at(b + 44);
    f->blocks = u32_at(b + 48), f->channels = u32_at(b + 52), f->variants = u32_at(b + 56);
    f->buffer_weight = u64_at(b + 72);
    p->denominator = u64_at(b + 64);
    uint64_t at = HEADER + tables_of(b, f);
    int variants = 2;
    if (f->kind > 8 || !f->ranks || f->ranks > MOST_RANKS || !f->variants || f->variants > 3 || !p->denominator ||
        p->denominator >> 62 || at > head || (head - at) / ENTRY != (uint64_t)variants * f->ranks || (head - at) % ENTRY)
        return ap_fail(error, AP_INVALID, "the program file is damaged: the numbers in its head do not fit together");
    p->directory = at;
    return AP_OK;
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
    free(p);
    return NULL;
}

ap_program *ap_open(const char *path, ap_error *error) {
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) || about.st_size <= 0) {
        if (file >= 0) close(file);
        ap_fail(error, AP_INVALID, "%.200s: no such file, or nothing in it", path);
        return NULL;
    }
    void *bytes = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (bytes == MAP_FAILED) {
        ap_fail(error, AP_INVALID, "%.200s: cannot be read", path);
        return NULL;
    }
    ap_program *p = ap_open_bytes(bytes, (size_t)about.st_size, error);
    if (p)
        p->mapped = 1;
    else
        munmap(bytes, (size_t)about.st_size);
    return p;
}

void ap_close(ap_program *p) {
    if (!p) return;
    if (p->mapped) munmap((void *)p->bytes, p->size);
    free(p);
}

void ap_describe(const ap_program *p, ap_facts *facts) { *facts = p->facts; }

/* The next table of a section: `count` rows of `size` bytes; NULL where it would reach beyond the end. */
static const void *table(const unsigned char *start, uint64_t *at, uint64_t end, uint64_t count, uint64_t size) {
    const void *here = start + *at;
    uint64_t bytes = padded(count * size); /* below 2^32 * 32 */
    if (bytes > end - *at) return NULL;
    *at += bytes;
    return here;
}

static int bad_part(const ap_section *s, uint32_t begin, uint32_t end, uint32_t base) {
    return begin >= s->points || end >= s->points || base >= s->bases;
}

/* The first operation in which something is out of range; s->operations if there is none. */
static uint32_t bad_operation(const ap_program *p, const ap_section *s, uint32_t rank) {
    uint32_t o = 0, when = 0;
    for (; o < s->operations; o++) {
        const ap_operation *op = &s->operation[o];
        int message = op->kind == AP_SEND || op->kind == AP_RECEIVE;
        if (op->kind > AP_JOIN || !op->pieces || op->pieces > 1u << 28 || op->when < when) break;
        if (message ? op->peer >= p->facts.ranks || op->peer == rank || op->channel >= p->facts.channels
                    : op->peer != rank)
            break;
        if (op->first_part > s->parts || op->parts > s->parts - op->first_part) break;
        if (op->first_wait > s->waits || op->waits > s->waits - op->first_wait) break;
        if ((op->kind == AP_FOLD && op->parts < 2) || (op->kind == AP_JOIN && op->parts)) break;
        uint32_t w = op->first_wait, last = w + op->waits;
        while (w < last && s->wait[w] < o) w++;
        if (w < last) break;
        uint32_t i = op->first_part, end = i + op->parts;
        for (; i < end; i++) {
            const ap_part *part = &s->part[i];
            if (bad_part(s, part->begin, part->end, part->base)) break;
            const ap_base *base = &s->base[part->base];
            int writes = op->kind == AP_RECEIVE || (op->kind == AP_FOLD && i == op->first_part);
            if (writes && base->buffer == AP_INPUT) break;
            if (base->buffer == AP_SCRATCH && op->pieces > 1 && s->class[s->slot[base->slot]].pieces != op->pieces)
                break;
        }
        if (i < end) break;
        when = op->when;
    }
    return o;
}

static int check_section(const ap_program *p, ap_section *s, uint32_t rank, ap_error *error) {
    const char *what = NULL;
    uint64_t at = 0;
    for (uint32_t i = 0; i < s->points && !what; i++)
        if (s->point[i].part < 0 || (uint64_t)s->point[i].part >= p->denominator) what = "point", at = i;
    for (uint32_t i = 0; i < s->classes && !what; i++)
        if (s->class[i].whole < 0 || s->class[i].part < 0 || (uint64_t)s->class[i].part >= p->denominator ||
            !s->class[i].pieces)
            what = "class", at = i;
    for (uint32_t i = 0; i < s->slots && !what; i++)
        if (s->slot[i] >= s->classes) what = "slot", at = i;
    for (uint32_t i = 0; i < s->bases && !what; i++) {
        const ap_base *b = &s->base[i];
        if (b->buffer > AP_SCRATCH || (b->buffer == AP_SCRATCH && (b->slot >= s->slots || b->origin >= s->points)))
            what = "base", at = i;
    }
    for (uint32_t i = 0; i < s->finishes && !what; i++) {
        const ap_finish *f = &s->finish[i];
        if (bad_part(s, f->begin, f->end, f->base) || s->base[f->base].buffer == AP_INPUT || !f->count)
            what = "finish", at = i;
    }
    if (!what && (at = bad_operation(p, s, rank)) < s->operations) what = "operation";
    if (!what) return AP_OK;
    return ap_fail(error, AP_INVALID, "the program file is wrong: rank %u, %s %llu", rank, what,
                   (unsigned long long)at);
}

int ap_read_section(const ap_program *p, uint32_t rank, int in_place, ap_section *s, ap_error *error) {
    if (rank >= p->facts.ranks)
        return ap_fail(error, AP_INVALID, "rank %u: the program is for %u ranks", rank, p->facts.ranks);
    uint64_t entry = p->directory + ((uint64_t)(in_place ? p->facts.ranks : 0) + rank) * ENTRY;
    uint64_t begin = u64_at(p->bytes + entry), size = u64_at(p->bytes + entry + 8), at = 56;
    if (!begin || !(p->facts.variants & (in_place ? 2u : 1u)))
        return ap_fail(error, AP_UNSUPPORTED, "this program file has no program %s", in_place ? "in place" : "out of place");
    if (begin % 8 || begin > p->size || size > p->size - begin || size < at)
        return ap_fail(error, AP_INVALID, "the program file is damaged: the part of rank %u lies outside of it", rank);
    const unsigned char *b = p->bytes + begin;
    if (ap_crc32(b, size) != u32_at(p->bytes + entry + 16))
        return ap_fail(error, AP_INVALID, "the program file is damaged: the checksum of rank %u is wrong", rank);
    s->input_weight = u64_at(b + 8), s->output_weight = u64_at(b + 16);
    s->points = u32_at(b + 24), s->bases = u32_at(b + 28), s->classes = u32_at(b + 32), s->slots = u32_at(b + 36);
    s->operations = u32_at(b + 40), s->parts = u32_at(b + 44), s->waits = u32_at(b + 48), s->finishes = u32_at(b + 52);
    if (u32_at(b) != rank || u32_at(b + 4) != (uint32_t)!!in_place || !(s->point = table(b, &at, size, s->points, 16)) ||
        !(s->base = table(b, &at, size, s->bases, 24)) || !(s->class = table(b, &at, size, s->classes, 24)) ||
        !(s->slot = table(b, &at, size, s->slots, 4)) ||
        !(s->operation = table(b, &at, size, s->operations, 32)) || !(s->part = table(b, &at, size, s->parts, 12)) ||
        !(s->wait = table(b, &at, size, s->waits, 4)) || !(s->finish = table(b, &at, size, s->finishes, 24)))
        return ap_fail(error, AP_INVALID, "the program file is damaged: the tables of rank %u do not fit", rank);
    return check_section(p, s, rank, error);
}
