/* An alltoall of uneven lengths, without a plan. First all processes learn whether every two agree on their lengths: where any
 * do not, nothing moves, and all know it.
 *
 * Threading: the caller's thread, which alone uses the wire. Ownership: buffers are the caller's.
 */
#include <stdlib.h>

#include "copy.h"
#include "transport.h"

enum { BATCH = 64 };

/* A message to or from a peer: its data and length. `comes`: it is received. */
typedef struct {
    uint32_t peer;
    int comes;
    void *data;
    size_t bytes;
} leg;

static int start_message(ap_wire *wire, const leg *l, uint32_t number, ap_error *error) {
    if (l->comes) return wire->receive(wire, l->peer, 0, l->data, l->bytes, number, error);
    return wire->send(wire, l->peer, 0, l->data, l->bytes, number, error);
}

/* One round of messages, at most one each way between two ranks: starts all and waits for them. */
static int exchange_messages(ap_wire *wire, const leg *legs, uint32_t count, double timeout, ap_error *error) {
    uint32_t numbers[BATCH];
    int code = AP_OK;
    for (int comes = 1; comes >= 0; comes--) /* receives first, so that data need not be buffered on arrival */
        for (uint32_t i = 0; i < count && !code; i++)
            if (legs[i].comes == comes) code = start_message(wire, &legs[i], i, error);
    for (uint32_t pending = count; pending && !code;) {
        int done = 0;
        code = wire->completed(wire, 1, timeout, numbers, BATCH, &done, error);
        pending -= (uint32_t)done;
    }
    return code;
}

/* What each rank tells all others. `sum`: the sum of all its send lengths minus that of its receive lengths, each multiplied by
 * a pseudo-random number of sender and receiver. If every two ranks agree, the sums of all ranks add up to 0. `differ`: whether
 * its lengths are not all the same. */
typedef struct {
    uint64_t sum, differ;
} word;

/* A pseudo-random function of a number, the same at all ranks. */
static uint64_t hash_number(uint64_t n) {
    n = (n + 1) * 0x9E3779B97F4A7C15u;
    n = (n ^ (n >> 30)) * 0xBF58476D1CE4E5B9u;
    n = (n ^ (n >> 27)) * 0x94D049BB133111EBu;
    return n ^ (n >> 31);
}

static word make_word(uint32_t ranks, uint32_t me, const uint64_t *send_bytes, const uint64_t *receive_bytes) {
    word w = {0, 0};
    for (uint32_t i = 0; i < ranks; i++) {
        w.sum += hash_number((uint64_t)me * ranks + i) * send_bytes[i] -
                 hash_number((uint64_t)i * ranks + me) * receive_bytes[i];
        w.differ |= send_bytes[i] != send_bytes[0] || receive_bytes[i] != send_bytes[0];
    }
    return w;
}

/* Exchanges words: afterwards words[i] is that of rank i. */
static int exchange_words(ap_wire *wire, uint32_t me, word *words, leg *legs, double timeout, ap_error *error) {
    const uint32_t ranks = wire->ranks;
    uint32_t count = 0;
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t from = (me + ranks - i) % ranks, to = (me + i) % ranks;
        legs[count++] = (leg){from, 1, &words[from], sizeof *words};
        legs[count++] = (leg){to, 0, &words[me], sizeof *words};
    }
    return exchange_messages(wire, legs, count, timeout, error);
}

static int exchange_data(ap_wire *wire, uint32_t me, unsigned char *from, const uint64_t *send_bytes, unsigned char *to,
                         const uint64_t *receive_bytes, leg *legs, double timeout, ap_error *error) {
    const unsigned char *own = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < wire->ranks; from += send_bytes[i++])
        if (i == me)
            own = from;
        else if (send_bytes[i])
            legs[count++] = (leg){i, 0, from, send_bytes[i]};
    for (uint32_t i = 0; i < wire->ranks; to += receive_bytes[i++])
        if (i == me)
            ap_copy(to, own, receive_bytes[i]);
        else if (receive_bytes[i])
            legs[count++] = (leg){i, 1, to, receive_bytes[i]};
    return exchange_messages(wire, legs, count, timeout, error);
}

int ap_uneven(ap_wire *wire, const void *from, const uint64_t *send_bytes, void *to, const uint64_t *receive_bytes,
              double timeout, int *outcome, ap_error *error) {
    const uint32_t ranks = wire->ranks, me = wire->call ? wire->call->rank : 0;
    word all = {0, 0};
    if (wire->broken) return ap_fail(error, AP_TRANSPORT, "an earlier run failed; make a new connection");
    if (!wire->call || me >= ranks) return ap_fail(error, AP_INVALID, "this wire compares no calls");
    word *words = calloc(ranks, sizeof *words);
    leg *legs = calloc(ranks, 2 * sizeof *legs);
    int code = words && legs ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
    if (!code) {
        wire->expected = (uint64_t)(ranks - 1) * (sizeof *words + 2 * AP_MESSAGE_OVERHEAD); /* also of the next exchange */
        for (uint32_t i = 0; i < ranks; i++) wire->expected += i == me ? 0 : receive_bytes[i];
        ap_begin_call(wire);
        words[me] = make_word(ranks, me, send_bytes, receive_bytes);
        code = exchange_words(wire, me, words, legs, timeout, error);
        for (uint32_t i = 0; i < ranks; i++) all.sum += words[i].sum, all.differ |= words[i].differ;
        *outcome = all.sum ? AP_DISAGREED : all.differ ? AP_MOVED : AP_EVEN;
        /* the data to send is only read */
        if (!code && *outcome == AP_MOVED)
            code = exchange_data(wire, me, (unsigned char *)(uintptr_t)from, send_bytes, to, receive_bytes, legs, timeout,
                                 error);
        if (code) ap_wire_break(wire);
    }
    free(words), free(legs);
    return code;
}
