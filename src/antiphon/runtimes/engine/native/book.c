/* Reading a book (book.h): every number in it is checked here, as the file may be damaged.
 *
 * Threading: none of its own; a book is read-only once open, and any number of threads may read it.
 * Ownership: ap_book_close frees the book and its programs. The bytes are the caller's, are used where they are and outlive it.
 */
#include "book.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "transport.h"

enum { HEADER = 64, PAGE = 64, ENTRY = 24, VERSION = 1 }; /* bytes of the header, of a page, and of a program's entry */

/* The structs of a file (docs/data/program-layout.csv). `name` (of the machine), `labels`, `dead` (the failure that the book is
 * for): bytes of these texts. */
typedef struct {
    char magic[8];
    uint32_t version, crc;
    uint64_t head_bytes, file_bytes;
    uint32_t ranks, pages, programs, members, hosts, name, labels, dead; /* hosts: 0, or as many as ranks */
} book_header;

typedef struct {
    uint32_t kind;
    int32_t root;
    uint32_t first_member, members; /* an index into the table of members, and their number */
    uint64_t from, to;              /* bytes of a call: from <= bytes < to */
    int32_t program;                /* its number; -1: the library's own collective */
    uint32_t flags, label, label_bytes; /* flags: bit 0 measured, bit 1 ordered (book.h); label: its offset in the labels */
    double seconds;
    uint64_t key; /* 0: none */
} page_entry;

typedef struct {
    uint64_t begin, bytes;
    uint32_t crc, zero;
} program_entry;

_Static_assert(sizeof(book_header) == HEADER && sizeof(page_entry) == PAGE && sizeof(program_entry) == ENTRY, "as in the file");

static const uint64_t MAX_MEMBERS = (uint64_t)1 << 32; /* of all pages together: bounds the time of checking them */

int ap_is_book(const void *bytes, size_t size) { return size >= 8 && !memcmp(bytes, "ANTIBOOK", 8); }

/* The length of the book that these bytes begin with (others may follow); 0: there is none, or it is cut off. */
uint64_t ap_book_bytes(const void *bytes, uint64_t size) {
    if (size < HEADER || !ap_is_book(bytes, size)) return 0;
    book_header h;
    memcpy(&h, bytes, sizeof h);
    return h.file_bytes <= size ? h.file_bytes : 0;
}

/* The tables in a book's head: members (ranks), labels (text), pages, and one entry per program (offset, bytes, checksum). */
typedef struct {
    const unsigned char *bytes;
    uint64_t head, size; /* bytes of the head, and of the book */
    uint32_t members, labels; /* elements of `member`; bytes of `label` */
    const int32_t *member;
    const char *label;
    const unsigned char *page, *entry;
} book_tables;

static int report_damage(ap_error *error, const char *problem) {
    return ap_fail(error, AP_INVALID, "the book is damaged: %s; make it anew from its table", problem);
}

/* Functions return AP_OK or the code of `error`. */

static int read_head(ap_book *book, book_tables *t, ap_error *error) {
    const unsigned char *b = t->bytes;
    if (t->size < HEADER || !ap_is_book(b, t->size)) return ap_fail(error, AP_INVALID, "this is no book of Antiphon");
    book_header h;
    memcpy(&h, b, sizeof h);
    if (h.version != VERSION)
        return ap_fail(error, AP_UNSUPPORTED, "the book has version %u, this engine reads version %d", h.version, VERSION);
    t->head = h.head_bytes;
    if (h.file_bytes != t->size || t->head < HEADER || t->head > t->size || t->head % 8)
        return ap_fail(error, AP_INVALID, "the book is cut off or damaged; make it anew from its table");
    const size_t checked = offsetof(book_header, head_bytes); /* the checksum is of the head from here on */
    if (ap_crc32(b + checked, t->head - checked) != h.crc) return report_damage(error, "the checksum of its head is wrong");
    const uint32_t hosts = h.hosts;
    book->ranks = h.ranks, book->pages = h.pages, book->programs = h.programs;
    book->machine_bytes = h.name, t->members = h.members, t->labels = h.labels, book->dead_bytes = h.dead;
    enum { NAME, HOSTS, MEMBERS, LABELS, PAGES, ENTRIES, DEAD, TABLES }; /* in the order of the file */
    uint64_t lengths[TABLES] = {book->machine_bytes, 4ull * hosts, 4ull * t->members, t->labels, (uint64_t)PAGE * book->pages,
                                (uint64_t)ENTRY * book->programs, book->dead_bytes};
    uint64_t at = HEADER, begin[TABLES];
    for (int i = 0; i < TABLES; i++) { /* each below 2^38: no sum is beyond 2^64 */
        begin[i] = at;
        at += padded(lengths[i]);
    }
    if (at != t->head || (hosts && hosts != book->ranks) || !book->ranks || book->ranks > INT32_MAX)
        return report_damage(error, "its tables do not fill its head");
    book->machine = (const char *)b + begin[NAME];
    book->host = hosts ? (const int32_t *)(const void *)(b + begin[HOSTS]) : NULL;
    t->member = (const int32_t *)(const void *)(b + begin[MEMBERS]), t->label = (const char *)b + begin[LABELS];
    t->page = b + begin[PAGES], t->entry = b + begin[ENTRIES], book->dead = (const char *)b + begin[DEAD];
    return AP_OK;
}

/* Fills page `number`. Program -1: the library's own. Ranks are those of the machine. */
static int read_page(ap_book *book, const book_tables *t, uint32_t number, ap_error *error) {
    page_entry e;
    memcpy(&e, t->page + (size_t)PAGE * number, sizeof e);
    const uint32_t first = e.first_member, label = e.label;
    ap_page *p = &book->page[number];
    *p = (ap_page){.kind = e.kind, .root = e.root, .members = e.members, .start = e.from, .stop = e.to, .program = e.program,
                   .measured = e.flags & 1, .ordered = e.flags >> 1 & 1, .label_bytes = e.label_bytes,
                   .key = (uint32_t)e.key};
    if (p->kind >= AP_PAGE_KINDS || first > t->members || p->members > t->members - first || !p->members ||
        p->members > book->ranks || label > t->labels || p->label_bytes > t->labels - label || p->start >= p->stop ||
        p->program < -1 || p->program >= (int64_t)book->programs || p->root < -1 || p->root >= (int64_t)book->ranks)
        return report_damage(error, "a page is impossible");
    p->member = t->member + first, p->label = t->label + label;
    int rooted = ap_has_root((int)p->kind), has_root_member = !rooted;
    if (rooted != (p->root >= 0)) return report_damage(error, "a page has a wrong root");
    for (uint32_t i = 0; i < p->members; i++) {
        if (p->member[i] < 0 || p->member[i] >= (int64_t)book->ranks) return report_damage(error, "a page has a wrong member");
        has_root_member |= p->member[i] == p->root;
    }
    return has_root_member ? AP_OK : report_damage(error, "the root of a page is no member");
}

/* A program must agree with its page, and its blocks must all have weight 1, as a page is chosen by bytes alone. */
static int check_program(const ap_book *book, const ap_page *page, ap_error *error) {
    if (page->program < 0) return AP_OK;
    const ap_program *program = book->program[page->program];
    const ap_facts *f = &program->facts;
    const unsigned char *members = program->bytes + AP_PROGRAM_HEADER; /* within the head: it has been checked */
    const uint32_t kind = page->kind == AP_ALLTOALLV ? AP_ALLTOALL : page->kind; /* the same programs serve both */
    int ok = f->kind == kind && f->ranks == book->ranks && f->members == page->members &&
               f->roots == (page->root >= 0) && program->even && !memcmp(members, page->member, 4 * (size_t)page->members);
    if (ok && f->roots) ok = (int32_t)u32_at(members + padded(4ull * f->members)) == page->root;
    return ok ? AP_OK : report_damage(error, "a page and its program do not fit together");
}

/* Opens all programs. */
static int read_programs(ap_book *book, const book_tables *t, ap_error *error) {
    uint64_t end = t->head; /* programs must not overlap */
    for (uint32_t i = 0; i < book->programs; i++) {
        program_entry e;
        memcpy(&e, t->entry + (size_t)ENTRY * i, sizeof e);
        const uint64_t at = e.begin, size = e.bytes;
        if (at < end || at % 8 || at > t->size || size > t->size - at)
            return report_damage(error, "a program lies outside, or upon another");
        end = at + size;
        if (ap_crc32(t->bytes + at, size) != e.crc) return report_damage(error, "the checksum of a program is wrong");
        book->program[i] = ap_open_bytes(t->bytes + at, size, error);
        if (!book->program[i]) return error ? error->code : AP_INVALID;
    }
    return AP_OK;
}

/* Checks all of the book but the sections of single ranks in its programs: ap_prepare checks these. NULL and an
 * error. */
ap_book *ap_book_open(const void *bytes, size_t size, ap_error *error) {
    book_tables t = {.bytes = bytes, .size = size};
    ap_book *book = calloc(1, sizeof *book);
    int code = book ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
    if (!code) code = read_head(book, &t, error);
    if (!code) {
        book->page = calloc(book->pages + 1ul, sizeof *book->page);
        book->program = calloc(book->programs + 1ul, sizeof(ap_program *));
        if (!book->page || !book->program) code = ap_fail(error, AP_MEMORY, "out of memory");
    }
    uint64_t members = 0;
    for (uint32_t i = 0; !code && i < book->pages; i++) {
        code = read_page(book, &t, i, error);
        members += book->page[i].members;
        if (!code && members > MAX_MEMBERS)
            code = report_damage(error, "its pages have too many members");
    }
    if (!code) code = read_programs(book, &t, error);
    for (uint32_t i = 0; !code && i < book->pages; i++) code = check_program(book, &book->page[i], error);
    if (!code) return book;
    ap_book_close(book);
    return NULL;
}

void ap_book_close(ap_book *book) {
    if (!book) return;
    for (uint32_t i = 0; book->program && i < book->programs; i++) ap_close(book->program[i]);
    free(book->page), free(book->program), free(book);
}
