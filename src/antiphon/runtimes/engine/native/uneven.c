/* ap_run_uneven (api.h): an alltoall of uneven lengths, without a plan. First the ranks check that every receiver
 * expects the length that its sender sends. The outcome is the same at all ranks:
 *   AP_MOVED      the data has moved
 *   AP_EVEN       all lengths are equal: no data has moved, and the caller can run a plan
 *   AP_DISAGREED  a receiver expects another length: no data has moved
 *
 * Threading: the caller's thread, which alone uses the wire. Ownership: buffers are the caller's.
 */
#include <stdlib.h>

#include "copy.h"
#include "transport.h"

enum { BATCH = 64 }; /* the most messages that one poll reports done */

typedef struct { /* `data` is written by a receive, and only read by a send */
    uint32_t peer;
    int is_receive;
    void *data;
    size_t bytes;
} message;

/* Functions return AP_OK or the code of `error`. All use channel 0: a wire matches the messages from one rank to another on a
 * channel in the order in which they start, and the exchange of data starts after that of summaries. */

static int start_message(ap_wire *wire, const message *m, uint32_t number, ap_error *error) {
    if (m->is_receive) return wire->receive(wire, m->peer, 0, m->data, m->bytes, number, error);
    return wire->send(wire, m->peer, 0, m->data, m->bytes, number, error);
}

/* Starts all messages and waits for them; at most one each way between two ranks. */
static int exchange_messages(ap_wire *wire, const message *messages, uint32_t count, double timeout, ap_error *error) {
    uint32_t numbers[BATCH];
    int code = AP_OK;
    for (int is_receive = 1; is_receive >= 0; is_receive--) /* receives first, so that data need not be buffered on arrival */
        for (uint32_t i = 0; i < count && !code; i++)
            if (messages[i].is_receive == is_receive) code = start_message(wire, &messages[i], i, error);
    for (uint32_t pending = count; pending && !code;) {
        int done = 0;
        code = wire->completed(wire, /* block */ 1, timeout, numbers, BATCH, &done, error);
        pending -= (uint32_t)done;
    }
    return code;
}

/* What each rank sends to all others about its lengths. `sum`: the sum of all its send lengths minus that of its receive
 * lengths, each multiplied by a pseudo-random number of sender and receiver. If every two ranks agree, the sums of all ranks
 * add up to 0; if not, almost certainly to another number. `differ`: whether the rank's lengths are not all the same. */
typedef struct {
    uint64_t sum, differ;
} summary;

/* A pseudo-random function of a number, the same at all ranks. */
static uint64_t hash_number(uint64_t n) {
    n = (n + 1) * 0x9E3779B97F4A7C15u;
    n = (n ^ (n >> 30)) * 0xBF58476D1CE4E5B9u;
    n = (n ^ (n >> 27)) * 0x94D049BB133111EBu;
    return n ^ (n >> 31);
}

/* The summary of this rank's lengths. */
static summary summarize_lengths(uint32_t ranks, uint32_t me, const uint64_t *send_bytes, const uint64_t *receive_bytes) {
    summary s = {0, 0};
    for (uint32_t i = 0; i < ranks; i++) {
        s.sum += hash_number((uint64_t)me * ranks + i) * send_bytes[i] -
                 hash_number((uint64_t)i * ranks + me) * receive_bytes[i];
        s.differ |= send_bytes[i] != send_bytes[0] || receive_bytes[i] != send_bytes[0];
    }
    return s;
}

/* Exchanges summaries among all ranks: afterwards summaries[i] is that of rank i. */
static int exchange_summaries(ap_wire *wire, uint32_t me, summary *summaries, message *messages, double timeout,
                              ap_error *error) {
    const uint32_t ranks = wire->ranks;
    uint32_t count = 0;
    for (uint32_t i = 1; i < ranks; i++) {
        uint32_t from = (me + ranks - i) % ranks, to = (me + i) % ranks;
        messages[count++] = (message){.peer = from, .is_receive = 1, .data = &summaries[from], .bytes = sizeof *summaries};
        messages[count++] = (message){.peer = to, .data = &summaries[me], .bytes = sizeof *summaries};
    }
    return exchange_messages(wire, messages, count, timeout, error);
}

/* Sends and receives the blocks, which lie one after another at `from` and `to`. `messages`: room for 2 per rank. */
static int exchange_data(ap_wire *wire, uint32_t me, unsigned char *from, const uint64_t *send_bytes, unsigned char *to,
                         const uint64_t *receive_bytes, message *messages, double timeout, ap_error *error) {
    const unsigned char *own_block = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < wire->ranks; i++) {
        if (i == me)
            own_block = from;
        else if (send_bytes[i])
            messages[count++] = (message){.peer = i, .data = from, .bytes = send_bytes[i]};
        from += send_bytes[i]; /* the next rank's block */
    }
    for (uint32_t i = 0; i < wire->ranks; i++) {
        if (i == me)
            ap_copy(to, own_block, receive_bytes[i]);
        else if (receive_bytes[i])
            messages[count++] = (message){.peer = i, .is_receive = 1, .data = to, .bytes = receive_bytes[i]};
        to += receive_bytes[i];
    }
    return exchange_messages(wire, messages, count, timeout, error);
}

int ap_run_uneven(ap_wire *wire, const void *from, const uint64_t *send_bytes, void *to, const uint64_t *receive_bytes,
              double timeout, int *outcome, ap_error *error) {
    const uint32_t ranks = wire->ranks, me = wire->call ? wire->call->rank : 0;
    summary all = {0, 0};
    if (wire->broken) return ap_fail(error, AP_TRANSPORT, "an earlier run failed; make a new connection");
    /* Only a wire whose processes compare which call they are in (ap_wire_call) knows the rank of this one. */
    if (!wire->call || me >= ranks)
        return ap_fail(error, AP_INVALID, "this wire compares no calls");
    summary *summaries = calloc(ranks, sizeof *summaries);
    message *messages = calloc(ranks, 2 * sizeof *messages);
    int code = summaries && messages ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
    if (!code) {
        /* bytes to receive in both exchanges: from each other rank its summary and its data, a message each */
        wire->expected = (uint64_t)(ranks - 1) * (sizeof *summaries + 2 * AP_MESSAGE_OVERHEAD);
        for (uint32_t i = 0; i < ranks; i++) wire->expected += i == me ? 0 : receive_bytes[i];
        ap_begin_call(wire);
        summaries[me] = summarize_lengths(ranks, me, send_bytes, receive_bytes);
        code = exchange_summaries(wire, me, summaries, messages, timeout, error);
        for (uint32_t i = 0; i < ranks; i++) all.sum += summaries[i].sum, all.differ |= summaries[i].differ;
        *outcome = all.sum ? AP_DISAGREED : all.differ ? AP_MOVED : AP_EVEN;
        /* the data to send is only read */
        if (!code && *outcome == AP_MOVED)
            code = exchange_data(wire, me, (unsigned char *)(uintptr_t)from, send_bytes, to, receive_bytes, messages, timeout,
                                 error);
        if (code) ap_wire_break(wire);
    }
    free(summaries), free(messages);
    return code;
}
