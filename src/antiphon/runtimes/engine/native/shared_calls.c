/* Comparing calls through shared memory: every message carries the digest of its call, and the board of a process
 * (shared_types.h) shows the last calls that it began, so that others can name the call of a digest.
 *
 * Threading: one thread per process. A board is written by its process alone; readers verify its digest.
 * Ownership: boards are part of the shared memory.
 */
#include <string.h>

#include "shared_types.h"
#include "transport.h"

/* The digest of a call: of its fields before `rank`, which is each process's own. Odd, as 0 means that no call is
 * compared. */
static uint64_t digest_of(const ap_call_id *call) {
    uint64_t words[(offsetof(ap_call_id, rank) + 7) / 8] = {0}, digest = 0x9E3779B97F4A7C15u;
    memcpy(words, call, offsetof(ap_call_id, rank));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        digest = (digest ^ words[i]) * 0xBF58476D1CE4E5B9u;
        digest ^= digest >> 29;
    }
    return digest | 1;
}

void ap_shared_begin(ap_shared *s, ap_wire *wire) {
    board *own_board = board_of(s, s->me);
    /* a call has several stages: itself, and exchanges before and after it (ap_call_id) */
    uint64_t at = (wire->current_call.number * STAGES + wire->current_call.stage) % CALLS;
    s->wire = wire, s->call = digest_of(&wire->current_call);
    own_board->last[at].call = wire->current_call, own_board->last[at].digest = s->call;
}

/* Reads entry at % CALLS of a member's board; false if it is empty or being written: then call and digest do not match. */
static int read_board(const ap_shared *s, uint32_t member, uint64_t at, ap_call_id *call) {
    const board *their_board = board_of(s, member);
    uint64_t digest = their_board->last[at % CALLS].digest;
    *call = their_board->last[at % CALLS].call;
    return digest_of(call) == digest;
}

/* Finds the call with that digest on a member's board; false if the board does not have it, or no longer. */
static int find_call(const ap_shared *s, uint32_t member, uint64_t digest, ap_call_id *call) {
    for (uint64_t at = 0; at < CALLS; at++)
        if (read_board(s, member, at, call) && digest_of(call) == digest) return 1;
    return 0;
}

int ap_report_other_call(ap_shared *s, uint32_t from, uint64_t call_digest, ap_error *error) {
    ap_call_id other;
    if (find_call(s, from, call_digest, &other)) return ap_compare(s->wire, &other, error);
    return ap_fail(error, AP_TRANSPORT, "process %u here is in another call", from); /* too far ahead or behind for its board */
}

int ap_shared_has_messages_with(const ap_shared *s, uint32_t member) {
    if (s->out[member].first) return 1;
    for (uint32_t i = 0; i < s->in[member].count; i++)
        if (s->in[member].lanes[i].posted) return 1;
    return 0;
}

/* Whether a member has given up after an error. */
static int gave_up(const ap_shared *s, uint32_t member) {
    return atomic_load(&((shared_head *)s->memory)->bells[member].gave_up) != 0;
}

int ap_shared_check_members(ap_shared *s, ap_error *error) {
    ap_call_id other;
    int code = AP_OK;
    for (uint32_t i = 0; i < s->members && !code && s->call; i++) {
        if (i == s->me) continue;
        for (uint64_t stage = 0; stage < STAGES && !code; stage++)
            if (read_board(s, i, s->wire->current_call.number * STAGES + stage, &other))
                code = ap_compare_loosely(s->wire, &other, error); /* a call of another number is no error */
        if (!code && gave_up(s, i) && ap_shared_has_messages_with(s, i))
            code = ap_fail(error, AP_TRANSPORT, "process %u here has given up after an error", i);
    }
    return code;
}

/* Only the first entry of a queue: a later one is of the same call or of a later one. */
int ap_shared_check_unreceived(ap_shared *s, ap_error *error) {
    ap_call_id other;
    int code = AP_OK;
    for (uint32_t i = 0; i < s->members && !code && s->call; i++) {
        const incoming *in = &s->in[i];
        if (i == s->me || in->tail == atomic_load(&in->queue->head)) continue;
        if (find_call(s, i, in->queue->entries[in->tail % QUEUE].call, &other) && other.number <= s->wire->current_call.number)
            code = ap_compare(s->wire, &other, error);
    }
    return code;
}

void ap_shared_give_up(ap_shared *s) { atomic_store(&((shared_head *)s->memory)->bells[s->me].gave_up, 1); }
