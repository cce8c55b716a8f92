/* One input: the bytes of a program file or of a book. Whatever they are, ranks drawn from them are prepared and run, in
 * place and not, at several sizes and types, on buffers that end where the program's needs do; AddressSanitizer sees any byte beyond.
 *
 * Messages go nowhere: what is sent is read, what is received is filled, and both are done in an order of the input's own.
 * So one thread is enough, nothing waits, and the same bytes always do the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "book.h"
#include "plan.h"
#include "transport.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BUFFER = 1 << 20, MOST_SCRATCH = 1 << 24, MOST_RANKS = 6, MOST_PROGRAMS = 4, TURNS = 6, MAX_COUNT = 1 << 12 };

static uint64_t state;

static uint32_t draw_number(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static void insist(int holds, const char *promise) {
    if (holds) return;
    fprintf(stderr, "broken promise: %s\n", promise);
    abort();
}

/* ---- a wire to nowhere ---- */

typedef struct {
    ap_wire base;
    uint32_t *under_way;
    size_t count, space;
    uint64_t digest; /* of what was sent, so that it is read */
} nowhere;

static int note_message(nowhere *w, uint32_t number) {
    if (w->count == w->space) {
        w->space = 2 * w->space + 64;
        uint32_t *larger = realloc(w->under_way, w->space * sizeof *larger);
        if (!larger) abort();
        w->under_way = larger;
    }
    w->under_way[w->count++] = number;
    return AP_OK;
}

static int send_message(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                ap_error *error) {
    nowhere *w = (nowhere *)self;
    (void)error;
    insist(bytes > 0 && peer < self->ranks, "a message has bytes and goes to a rank");
    for (size_t i = 0; i < bytes; i++) w->digest = w->digest * 31 + ((const unsigned char *)data)[i] + channel;
    return note_message(w, number);
}

static int receive_message(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                   ap_error *error) {
    (void)error;
    insist(bytes > 0 && peer < self->ranks, "a message has bytes and comes from a rank");
    memset(data, (int)(channel + number) & 63, bytes);
    return note_message((nowhere *)self, number);
}

static int complete_messages(ap_wire *self, int block, double timeout, uint32_t *numbers, int limit, int *count,
                     ap_error *error) {
    nowhere *w = (nowhere *)self;
    insist(!block || w->count, "nobody waits for nothing");
    (void)timeout, (void)error;
    *count = 0;
    int needed = block || draw_number(2) ? 1 + (int)draw_number(4) : 0;
    for (; w->count && *count < limit && *count < needed; ++*count) {
        size_t at = draw_number((uint32_t)w->count);
        numbers[*count] = w->under_way[at];
        w->under_way[at] = w->under_way[--w->count];
    }
    return AP_OK;
}

/* ---- one rank at one size ---- */

/* What docs/program.md promises of any plan: its scratch is what operations write there and an element for each piece. */
static void check_scratch(const ap_plan *plan, const ap_program *program, int in_place) {
    unsigned __int128 written = 0;
    ap_section s;
    insist(ap_read_section(program, plan->rank, in_place, &s, NULL) == AP_OK, "what has been prepared can be read");
    for (uint32_t o = 0; o < plan->tasks; o++)
        if (plan->task[o].kind == AP_RECEIVE || plan->task[o].kind == AP_FOLD)
            written += (unsigned __int128)plan->task[o].elements + (uint64_t)s.operation[o].pieces * s.operation[o].parts;
    insist(plan->sizes[AP_SCRATCH] <= written, "scratch is no more than what is written there");
}

static void *allocate_exactly(uint64_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) abort();
    memset(memory, 1, bytes);
    return memory;
}

static void run_plan(ap_plan *plan, uint32_t ranks, int in_place, int type) {
    nowhere wire = {.base = {.send = send_message, .receive = receive_message, .completed = complete_messages, .ranks = ranks}};
    ap_error error = {0, ""};
    ap_needs needs;
    const uint64_t item = ap_type_size(type);
    ap_get_needs(plan, &needs);
    if (needs.scratch * item > MOST_SCRATCH) return;
    int small = needs.input * item <= MOST_BUFFER && needs.output * item <= MOST_BUFFER;
    uint64_t bytes[2] = {small ? needs.input * item : 64, small ? needs.output * item : 64};
    void *input = allocate_exactly(bytes[0]), *output = allocate_exactly(bytes[1]);
    int operation = (int)draw_number(AP_OPERATORS);
    if (small && bytes[1])
        insist(ap_run(plan, input, bytes[0], output, bytes[1] - 1, type, operation, &wire.base, 0.5, &error) != AP_OK,
               "an output that is too small is refused");
    if (small && bytes[0] && !in_place)
        insist(ap_run(plan, input, bytes[0] - 1, output, bytes[1], type, operation, &wire.base, 0.5, &error) != AP_OK,
               "an input that is too small is refused");
    insist(wire.count == 0 && !wire.base.broken, "what is refused has not begun");
    int code = ap_run(plan, in_place ? NULL : input, bytes[0], output, bytes[1], type, operation, &wire.base, 0.5, &error);
    insist(small || code != AP_OK, "buffers that are far too small are refused");
    insist(code == AP_OK || error.text[0], "a failure is told");
    insist(code != AP_OK || wire.count == 0, "a run ends when all its messages are done");
    plan->broken = 0; /* nothing of this wire writes anywhere any more: all memory may go */
    free(wire.under_way), free(input), free(output);
}

/* The plan of a rank for uneven blocks of an alltoall; NULL: this program cannot have one, or not for these counts. Most are small, and
 * some nothing. */
static ap_plan *prepare_counts(const ap_program *program, const ap_facts *facts, uint32_t rank, ap_error *error) {
    static const uint64_t greatest[] = {1, 9, 300, (uint64_t)1 << 33, UINT64_MAX};
    const uint64_t most = greatest[draw_number(8) < 7 ? draw_number(3) : 3 + draw_number(2)];
    uint64_t *counts = allocate_exactly(8 * (uint64_t)facts->blocks); /* the program reads that many */
    for (uint32_t b = 0; b < facts->blocks; b++) counts[b] = draw_number(3) ? most - draw_number(2) : 0;
    ap_plan *plan = ap_prepare_counts(program, rank, counts, error);
    free(counts);
    return plan;
}

/* A few of the ranks, sizes and places that there are, by chance: an input that is worth more comes again, changed a little,
 * and meets others. All of them each time would take ten times as long and reach nothing more. */
static void try_program(const ap_program *program) {
    static const uint64_t units[] = {1, 0, 7, 130, (uint64_t)1 << 33, UINT64_MAX};
    static const uint64_t splits[] = {AP_USUAL_SPLIT, 0, 64, 1000};
    ap_facts facts;
    ap_error error = {0, ""};
    ap_describe(program, &facts);
    int remaining = MAX_COUNT; /* instances to be run: a file may have a million */
    for (int turn = 0; turn < TURNS && remaining > 0; turn++) {
        uint32_t rank = draw_number((facts.ranks < MOST_RANKS ? facts.ranks : MOST_RANKS - 1) + 1); /* one of them is none */
        int in_place = (int)draw_number(2);
        uint64_t unit = units[draw_number(sizeof units / sizeof *units)];
        const int uneven = facts.blocks <= 1 << 12 && !draw_number(3);
        if (uneven) in_place = 0;
        ap_plan *plan = uneven ? prepare_counts(program, &facts, rank, &error)
                               : ap_prepare(program, rank, in_place, unit, &error);
        if (!plan) continue;
        check_scratch(plan, program, in_place);
        uint64_t split = splits[draw_number(4)];
        if (split != AP_USUAL_SPLIT) ap_split(plan, split, &error);
        run_plan(plan, facts.ranks, in_place, (int)draw_number(AP_TYPES));
        remaining -= (int)plan->layout.instances + 1;
        if (!draw_number(4)) run_plan(plan, facts.ranks, in_place, (int)draw_number(AP_TYPES)); /* another type: laid out anew */
        ap_release(plan);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ap_error error = {0, ""};
    unsigned char *bytes = allocate_exactly(size); /* nobody else's memory behind it, and at a multiple of 16 */
    memcpy(bytes, data, size);
    state = ap_crc32(bytes, size);
    if (ap_is_book(bytes, size)) {
        ap_book *book = ap_book_open(bytes, size, &error);
        for (uint32_t i = 0; book && i < book->programs && i < MOST_PROGRAMS; i++) try_program(book->program[i]);
        ap_book_close(book);
    } else {
        ap_program *program = ap_open_bytes(bytes, size, &error);
        if (program) try_program(program);
        ap_close(program);
    }
    free(bytes);
    return 0;
}
