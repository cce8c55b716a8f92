/* What cards are given to do: heads, and parts of long messages; in lines of those that they do not take yet. */
#include "fabric_types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- jobs of cards ---- */

static job *new_job(fabric_wire *w, int packet) {
    job **spare = packet ? &w->spare_packets : &w->spare_jobs, *one = *spare;
    if (one) {
        *spare = one->next;
        *one = (job){.packet = one->packet, .data = one->packet, .older = one->older};
        return one;
    }
    one = calloc(1, sizeof *one);
    if (one && packet && !(one->packet = one->data = malloc(PACKET))) return free(one), NULL;
    if (one) one->older = w->jobs, w->jobs = one;
    return one;
}

void ap_fabric_drop(fabric_wire *w, job *one) {
    job **spare = one->packet ? &w->spare_packets : &w->spare_jobs;
    one->of = NULL, one->next = *spare, *spare = one;
}

int ap_fabric_refused(fabric_wire *w, uint32_t rank, int code, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "the connection to rank %u is lost: libfabric: %s", rank, ap_fabric_says(code));
}

/* Whether the card took it; if not, it is to be asked again. */
static int offer(fabric_wire *w, job *one, int *taken, ap_error *error) {
    fabric_endpoint *end = w->fabric->rail[one->rail].end;
    uint64_t where = w->peers[one->rank].at[one->rail];
    ssize_t said = one->out ? end->tagged->send(end, one->data, one->bytes, NULL, where, one->tag, one)
                            : end->tagged->receive(end, one->data, one->bytes, NULL, where, one->tag, 0, one);
    *taken = !said;
    return !said || said == -EAGAIN ? AP_OK : ap_fabric_refused(w, one->rank, (int)-said, error);
}

static int give(fabric_wire *w, job *one, ap_error *error) {
    peer *p = &w->peers[one->rank];
    line *behind = one->out ? &p->out : &p->in;
    int taken = 0, code = behind->first ? AP_OK : offer(w, one, &taken, error);
    if (taken) return AP_OK;
    one->next = NULL, *behind->end = one, behind->end = &one->next, w->waiting++;
    return code;
}

static int give_again(fabric_wire *w, line *behind, ap_error *error) {
    int code = AP_OK, taken = 1;
    while (!code && taken && behind->first) {
        job *one = behind->first;
        code = offer(w, one, &taken, error);
        if (code || !taken) break;
        behind->first = one->next, w->waiting--;
        if (!behind->first) behind->end = &behind->first;
    }
    return code;
}

/* All that wait, another rank first each time. */
int ap_fabric_give_again(fabric_wire *w, ap_error *error) {
    int code = AP_OK;
    w->turn++;
    for (uint32_t k = 0; k < w->base.ranks && w->waiting && !code; k++) {
        peer *p = &w->peers[(w->turn + k) % w->base.ranks];
        code = give_again(w, &p->in, error);
        if (!code) code = give_again(w, &p->out, error);
    }
    return code;
}

int ap_fabric_ready(fabric_wire *w, uint32_t rank, uint32_t place, ap_error *error) {
    job *one = new_job(w, 1);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    one->rank = rank, one->bytes = PACKET, one->tag = HEAD_TAG;
    w->peers[rank].ready[place] = one;
    return give(w, one, error);
}

/* ---- long messages ---- */

static uint64_t part_of(const fabric_wire *w, uint64_t bytes) {
    uint64_t part = (bytes + w->rails - 1) / w->rails;
    if (part < PART) part = PART;
    return part < w->longest ? part : w->longest;
}

/* `room` of a letter: its parts that are under way. */
int ap_fabric_parts(fabric_wire *w, uint32_t rank, letter *one, uint32_t serial, int out, ap_error *error) {
    uint64_t part = part_of(w, one->bytes);
    int code = AP_OK;
    one->room = (one->bytes + part - 1) / part;
    uint32_t rail = serial;
    for (uint64_t at = 0; at < one->bytes && !code; at += part, rail++) {
        job *next = new_job(w, 0);
        if (!next) return ap_fail(error, AP_MEMORY, "out of memory");
        next->of = one, next->data = one->data + at, next->bytes = one->bytes - at < part ? one->bytes - at : part;
        next->tag = serial & (HEAD_TAG - 1), next->rank = rank, next->rail = rail % w->rails, next->out = out;
        w->peers[rank].under_way++;
        code = give(w, next, error);
    }
    return code;
}

int ap_fabric_part_over(fabric_wire *w, job *one, ap_error *error) {
    letter *whole = one->of;
    int code = AP_OK;
    w->peers[one->rank].under_way--;
    if (!--whole->room) {
        code = ap_done_add(&w->done, whole->number, error);
        drop(&w->spare, whole);
    }
    ap_fabric_drop(w, one);
    return code;
}

/* ---- heads that go ---- */

int ap_fabric_head(fabric_wire *w, uint32_t rank, const start *first, const void *data, letter *of, ap_error *error) {
    job *one = new_job(w, 1);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    memcpy(one->packet, first, sizeof *first);
    if (data) memcpy(one->packet + sizeof *first, data, first->head.bytes);
    one->bytes = sizeof *first + (data ? first->head.bytes : 0);
    one->rank = rank, one->out = 1, one->tag = HEAD_TAG, one->of = of;
    w->peers[rank].under_way++;
    return give(w, one, error);
}

int ap_fabric_head_sent(fabric_wire *w, job *one, ap_error *error) {
    int code = one->of ? ap_done_add(&w->done, one->of->number, error) : AP_OK; /* a short message is done with its head */
    if (one->of) drop(&w->spare, one->of);
    w->peers[one->rank].under_way--;
    ap_fabric_drop(w, one);
    return code;
}
