/* Inputs made from inputs: numbers of a program file or a book are changed, rows of tables copied, exchanged, added and taken
 * away; then all checksums are made right, so that what is behind them is reached. Knows the formats of docs/program.md.
 */
#include <stdlib.h>
#include <string.h>

#include "book.h"

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t limit, unsigned int seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t limit);

enum { ENTRY = 24, SECTION = 56, TABLES = 8, BOOK_HEADER = 64, PAGE = 64 };

static uint64_t state;

static uint32_t draw_number(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % (below ? below : 1));
}

static void write_number(unsigned char *p, int bytes, uint64_t value) { memcpy(p, &value, (size_t)bytes); }

static uint64_t read_number(const unsigned char *p, int bytes) {
    uint64_t value = 0;
    memcpy(&value, p, (size_t)bytes);
    return value;
}

/* Another number: near, round, huge, negative, or that of a neighbour. */
static void change_field(unsigned char *p, int bytes, const unsigned char *other) {
    uint64_t old = read_number(p, bytes);
    switch (draw_number(10)) {
    case 0: write_number(p, bytes, 0); break;
    case 1: write_number(p, bytes, old + 1); break;
    case 2: write_number(p, bytes, old - 1); break;
    case 3: write_number(p, bytes, (uint64_t)1 << draw_number(64)); break;
    case 4: write_number(p, bytes, ((uint64_t)1 << draw_number(64)) - 1); break;
    case 5: write_number(p, bytes, old * 2); break;
    case 6: write_number(p, bytes, -(int64_t)((uint64_t)1 << draw_number(63))); break;
    case 7: write_number(p, bytes, draw_number(9)); break;
    case 8: write_number(p, bytes, read_number(other, bytes)); break;
    default: write_number(p, bytes, (uint64_t)draw_number(UINT32_MAX) << 32 | draw_number(UINT32_MAX));
    }
}

/* ---- programs ---- */

typedef struct {
    unsigned char *bytes;
    size_t size;
    uint64_t head, ranks;
} file;

static int open_input(file *f, unsigned char *bytes, size_t size) {
    *f = (file){bytes, size, 0, 0};
    if (size < AP_PROGRAM_HEADER) return 0;
    f->head = read_number(bytes + 16, 8), f->ranks = u32_at(bytes + 36);
    return f->head >= AP_PROGRAM_HEADER && f->head <= size && f->ranks && f->ranks <= (f->head - AP_PROGRAM_HEADER) / (2 * ENTRY);
}

static unsigned char *find_entry(const file *f, uint64_t number) { return f->bytes + f->head - ENTRY * (2 * f->ranks - number); }

static unsigned char *find_section(const file *f, uint64_t number, uint64_t *size) {
    uint64_t begin = read_number(find_entry(f, number), 8);
    *size = read_number(find_entry(f, number) + 8, 8);
    return begin >= f->head && begin <= f->size && *size <= f->size - begin && *size >= SECTION ? f->bytes + begin : NULL;
}

static void mend_program(file *f) {
    for (uint64_t i = 0; i < 2 * f->ranks; i++) {
        uint64_t size;
        unsigned char *s = find_section(f, i, &size);
        if (s) write_number(find_entry(f, i) + 16, 4, ap_crc32(s, size));
    }
    write_number(f->bytes + 12, 4, ap_crc32(f->bytes + 16, f->head - 16));
}

static const int row_bytes[TABLES] = {16, 24, 24, 4, 32, 12, 4, 24};
/* The width of the fields of a row, one after another. */
static const char *const fields[TABLES] = {"88", "84444", "8844", "4", "224444444", "444", "4", "44448"};

static unsigned char *find_table(unsigned char *s, uint64_t size, int which, uint32_t *rows) {
    uint64_t at = SECTION;
    for (int t = 0; t <= which; t++) {
        uint64_t bytes = padded((uint64_t)u32_at(s + 24 + 4 * t) * (uint64_t)row_bytes[t]);
        if (bytes > size - at) return NULL;
        *rows = u32_at(s + 24 + 4 * t);
        if (t == which) return s + at;
        at += bytes;
    }
    return NULL;
}

static void change_row(unsigned char *s, uint64_t size) {
    uint32_t rows = 0;
    int which = (int)draw_number(TABLES);
    unsigned char *t = find_table(s, size, which, &rows);
    if (!t || !rows) return;
    unsigned char *row = t + (size_t)row_bytes[which] * draw_number(rows), *other = t + (size_t)row_bytes[which] * draw_number(rows);
    int count = (int)strlen(fields[which]), at = 0, field = (int)draw_number((uint64_t)count);
    for (int i = 0; i < field; i++) at += fields[which][i] - '0';
    unsigned char preserved[32];
    switch (draw_number(8)) {
    case 0: memmove(row, other, (size_t)row_bytes[which]); break;
    case 1:
        memcpy(preserved, row, (size_t)row_bytes[which]);
        memmove(row, other, (size_t)row_bytes[which]), memcpy(other, preserved, (size_t)row_bytes[which]);
        break;
    case 2: /* the same field of all rows */
        change_field(row + at, fields[which][field] - '0', other + at);
        for (uint32_t i = 0; i < rows; i++) memmove(t + (size_t)row_bytes[which] * i + at, row + at, (size_t)(fields[which][field] - '0'));
        break;
    default: change_field(row + at, fields[which][field] - '0', other + at);
    }
}

/* One row more or less in a section; whatever lies behind it moves. */
static size_t resize_table(file *f, uint64_t number, size_t limit) {
    uint64_t size;
    unsigned char *s = find_section(f, number, &size);
    uint32_t rows = 0;
    int which = (int)draw_number(TABLES), larger = (int)draw_number(2);
    unsigned char *t = s ? find_table(s, size, which, &rows) : NULL;
    if (!t || (!larger && !rows)) return f->size;
    int64_t before = (int64_t)padded((uint64_t)rows * (uint64_t)row_bytes[which]);
    int64_t after = (int64_t)padded((uint64_t)(rows + (larger ? 1 : -1)) * (uint64_t)row_bytes[which]), by = after - before;
    if ((int64_t)f->size + by > (int64_t)limit) return f->size;
    unsigned char *rest = t + before, *end = f->bytes + f->size;
    uint64_t moved = (uint64_t)(rest - f->bytes);
    memmove(rest + by, rest, (size_t)(end - rest));
    if (by > 0) memset(rest, 0, (size_t)by);
    if (larger && rows) memcpy(t + (size_t)rows * (size_t)row_bytes[which], t + (size_t)row_bytes[which] * draw_number(rows), (size_t)row_bytes[which]);
    write_number(s + 24 + 4 * which, 4, (uint64_t)(rows + (larger ? 1 : -1)));
    write_number(find_entry(f, number) + 8, 8, size + (uint64_t)by);
    for (uint64_t i = 0; i < 2 * f->ranks; i++)
        if (read_number(find_entry(f, i), 8) >= moved) write_number(find_entry(f, i), 8, read_number(find_entry(f, i), 8) + (uint64_t)by);
    f->size = (size_t)((int64_t)f->size + by);
    write_number(f->bytes + 24, 8, f->size);
    return f->size;
}

static const struct { int at, bytes; } head_fields[] = {{32, 4}, {36, 4}, {40, 4}, {44, 4}, {48, 4}, {52, 4}, {56, 4}, {60, 4},
                                                        {64, 8}, {72, 8}, {80, 4}, {84, 4}, {88, 4}, {92, 4}, {16, 8}};
static const struct { int at, bytes; } section_fields[] = {{0, 4}, {4, 4}, {8, 8}, {16, 8}, {24, 4}, {28, 4}, {32, 4}, {36, 4},
                                                           {40, 4}, {44, 4}, {48, 4}, {52, 4}};

static size_t change_program(file *f, size_t limit) {
    uint64_t size = 0, number = draw_number(2 * f->ranks);
    unsigned char *s = find_section(f, number, &size), *place;
    uint32_t pick = draw_number(24), at;
    if (pick == 0) {
        at = draw_number(sizeof head_fields / sizeof *head_fields);
        change_field(f->bytes + head_fields[at].at, head_fields[at].bytes, f->bytes + 40);
    } else if (pick == 1) { /* members, roots, weights, the relation */
        at = draw_number((f->head - AP_PROGRAM_HEADER) / 4);
        place = f->bytes + AP_PROGRAM_HEADER + 4 * (size_t)at;
        change_field(place, 4, f->bytes + AP_PROGRAM_HEADER);
    } else if (pick == 2) {
        change_field(find_entry(f, number) + 8 * draw_number(2), 8, find_entry(f, draw_number(2 * f->ranks)));
    } else if (pick == 3 && s) {
        at = draw_number(sizeof section_fields / sizeof *section_fields);
        change_field(s + section_fields[at].at, section_fields[at].bytes, s + 24);
    } else if (pick < 6) {
        return resize_table(f, number, limit);
    } else if (s) {
        change_row(s, size);
    }
    return f->size;
}

/* ---- books ---- */

static void change_book(unsigned char *b, uint64_t head) {
    static const char page[] = "444488444448";
    uint32_t pages = u32_at(b + 36), pick = draw_number(8);
    uint64_t tail = (uint64_t)pages * PAGE + (uint64_t)u32_at(b + 40) * ENTRY;
    if (pick == 0) {
        change_field(b + 32 + 4 * draw_number(8), 4, b + 32);
    } else if (pick < 5 && pages && tail <= head - BOOK_HEADER) {
        unsigned char *p = b + head - tail + (size_t)PAGE * draw_number(pages), *other = b + head - tail + (size_t)PAGE * draw_number(pages);
        int field = (int)draw_number(sizeof page - 1), at = 0;
        for (int i = 0; i < field; i++) at += page[i] - '0';
        if (draw_number(8))
            change_field(p + at, page[field] - '0', other + at);
        else
            memmove(p, other, PAGE);
    } else if (head > BOOK_HEADER + 4) {
        change_field(b + BOOK_HEADER + 4 * draw_number((head - BOOK_HEADER) / 4), 4, b + BOOK_HEADER);
    }
}

static int program_in(unsigned char *b, size_t size, uint64_t head, uint32_t number, file *f) {
    uint32_t programs = u32_at(b + 40);
    if ((uint64_t)programs * ENTRY > head - BOOK_HEADER || number >= programs) return 0;
    const unsigned char *e = b + head - (uint64_t)ENTRY * (programs - number);
    uint64_t at = read_number(e, 8), bytes = read_number(e + 8, 8);
    return at >= head && at <= size && bytes <= size - at && open_input(f, b + at, bytes);
}

static void mend_book(unsigned char *b, size_t size) {
    uint64_t head = read_number(b + 16, 8);
    if (head < BOOK_HEADER || head > size) return;
    file f;
    for (uint32_t i = 0; i < u32_at(b + 40) && i < 64; i++)
        if (program_in(b, size, head, i, &f)) {
            mend_program(&f);
            write_number(b + head - (uint64_t)ENTRY * (u32_at(b + 40) - i) + 16, 4, ap_crc32(f.bytes, f.size));
        }
    write_number(b + 12, 4, ap_crc32(b + 16, head - 16));
}

/* ---- any ---- */

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t limit, unsigned int seed) {
    state = seed * 2654435761u + 1;
    file f;
    int book = size >= BOOK_HEADER && ap_is_book(data, size);
    for (uint32_t turns = 1 + draw_number(draw_number(3) ? 1 : 4); turns; turns--) {
        uint64_t head = book ? read_number(data + 16, 8) : 0;
        if (!draw_number(64)) {
            size = LLVMFuzzerMutate(data, size, limit);
            break;
        }
        if (book && head >= BOOK_HEADER && head <= size) {
            if (draw_number(3) && program_in(data, size, head, draw_number(u32_at(data + 40)), &f))
                change_program(&f, 0); /* nothing may grow there */
            else
                change_book(data, head);
        } else if (!book && open_input(&f, data, size)) {
            size = change_program(&f, limit);
        }
    }
    if (size < AP_PROGRAM_HEADER || !draw_number(64)) return size;
    if (ap_is_book(data, size))
        mend_book(data, size);
    else if (open_input(&f, data, size))
        mend_program(&f);
    return size;
}
