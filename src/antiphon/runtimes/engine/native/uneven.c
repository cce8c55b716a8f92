/* From each to each as much as those two say, by no plan. First all learn whether any two say the same: where they do not,
 * nothing moves, and all know it. */
#include <stdlib.h>

#include "copy.h"
#include "transport.h"

enum { BATCH = 64 };

/* A message to or from a peer, whose length both know. */
typedef struct {
    uint32_t peer;
    int comes;
    void *data;
    size_t bytes;
} leg;

static int start(ap_wire *wire, const leg *l, uint32_t number, ap_error *error) {
    if (l->comes) return wire->receive(wire, l->peer, 0, l->data, l->bytes, number, error);
    return wire->send(wire, l->peer, 0, l->data, l->bytes, number, error);
}

/* One round of messages, at most one each way between two ranks: starts all and waits for them. */
static int exchange(ap_wire *wire, const leg *legs, uint32_t count, double timeout, ap_error *error) {
    uint32_t numbers[BATCH];
    int code = AP_OK;
    for (int comes = 1; comes >= 0; comes--) /* receives first: data finds its place on arrival */
        for (uint32_t i = 0; i < count && !code; i++)
            if (legs[i].comes == comes) code = start(wire, &legs[i], i, error);
    for (uint32_t pending = count; pending && !code;) {
        int done = 0;
        code = wire->completed(wire, 1, timeout, numbers, BATCH, &done, error);
        pending -= (uint32_t)done;
    }
    return code;
}

/* What each tells all: `sum` of what it sends and, taken off, of what it expects, each times a number of those two, so that
 * the sum of all is 0 where they say the same; whether its lengths `differ`. */
typedef struct {
    uint64_t sum, differ;
} word;

/* Another number that looks random, the same everywhere. */
static uint64_t scattered(uint64_t n) {
    n = (n + 1) * 0x9E3779B97F4A7C15u;
    n = (n ^ (n >> 30)) * 0xBF58476D1CE4E5B9u;
    n = (n ^ (n >> 27)) * 0x94D049BB133111EBu;
    return n ^ (n >> 31);
}

static word word_of(uint32_t ranks, uint32_t me, const uint64_t *sent, const uint64_t *come) {
    word w = {0, 0};
    for (uint32_t i = 0; i < ranks; i++) {
        w.sum += scattered((uint64_t)me * ranks + i) * sent[i] - scattered((uint64_t)i * ranks + me) * come[i];
        w.differ |= sent[i] != sent[0] || come[i] != sent[0];
    }
    return w;
}

/* What all have told: `every` holds a word of each. */
static int tell(ap_wire *wire, uint32_t me, word *every, leg *legs, double timeout, ap_error *error) {
    const uint32_t ranks = wire->ranks;
    uint32_t count = 0;
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t from = (me + ranks - i) % ranks, to = (me + i) % ranks;
        legs[count++] = (leg){from, 1, &every[from], sizeof *every};
        legs[count++] = (leg){to, 0, &every[me], sizeof *every};
    }
    return exchange(wire, legs, count, timeout, error);
}

static int deal(ap_wire *wire, uint32_t me, unsigned char *from, const uint64_t *sent, unsigned char *to,
                const uint64_t *come, leg *legs, double timeout, ap_error *error) {
    const unsigned char *own = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < wire->ranks; from += sent[i++])
        if (i == me)
            own = from;
        else if (sent[i])
            legs[count++] = (leg){i, 0, from, sent[i]};
    for (uint32_t i = 0; i < wire->ranks; to += come[i++])
        if (i == me)
            ap_copy(to, own, come[i]);
        else if (come[i])
            legs[count++] = (leg){i, 1, to, come[i]};
    return exchange(wire, legs, count, timeout, error);
}

int ap_uneven(ap_wire *wire, const void *from, const uint64_t *sent, void *to, const uint64_t *come, double timeout,
              int *found, ap_error *error) {
    const uint32_t ranks = wire->ranks, me = wire->call ? wire->call->rank : 0;
    word all = {0, 0};
    if (wire->broken) return ap_fail(error, AP_TRANSPORT, "an earlier run failed; make a new connection");
    if (!wire->call || me >= ranks) return ap_fail(error, AP_INVALID, "this wire compares no calls");
    word *every = calloc(ranks, sizeof *every);
    leg *legs = calloc(ranks, 2 * sizeof *legs);
    int code = every && legs ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
    if (!code) {
        wire->expected = (uint64_t)(ranks - 1) * (sizeof *every + 2 * AP_LETTER); /* others may be ahead */
        for (uint32_t i = 0; i < ranks; i++) wire->expected += i == me ? 0 : come[i];
        ap_begin(wire);
        every[me] = word_of(ranks, me, sent, come);
        code = tell(wire, me, every, legs, timeout, error);
        for (uint32_t i = 0; i < ranks; i++) all.sum += every[i].sum, all.differ |= every[i].differ;
        *found = all.sum ? AP_DISAGREED : all.differ ? AP_MOVED : AP_EVEN;
        /* what goes out is only read */
        if (!code && *found == AP_MOVED)
            code = deal(wire, me, (unsigned char *)(uintptr_t)from, sent, to, come, legs, timeout, error);
        if (code) ap_wire_fails(wire);
    }
    free(every), free(legs);
    return code;
}
