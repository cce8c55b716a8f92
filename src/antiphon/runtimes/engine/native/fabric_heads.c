/* What cards have done: heads that have come, and where what belongs to them goes. */
#include "fabric_types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ap_fabric_unfit(fabric_wire *w, uint32_t rank, uint64_t come, uint64_t wanted, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %llu are expected", rank,
                   (unsigned long long)come, (unsigned long long)wanted);
}

static int no_message(fabric_wire *w, uint32_t rank, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "rank %u sent what is no message", rank);
}

/* Keeps what nobody has asked for yet; *full: it is too much, and stays where it is. */
static int keep_aside(fabric_wire *w, uint32_t rank, const start *first, int *full, ap_error *error) {
    peer *p = &w->peers[rank];
    uint64_t own = first->head.bytes <= SHORT ? first->head.bytes : 0;
    *full = p->kept + sizeof(letter) + own > w->base.expected + BEYOND;
    if (*full) return AP_OK;
    letter *one = new_letter(&w->spare);
    if (!one || !(one->data = malloc(own ? own : 1))) return ap_fail(error, AP_MEMORY, "out of memory");
    memcpy(one->data, first + 1, own);
    one->head = first->head, one->bytes = first->head.bytes, one->channel = first->head.channel, one->number = first->serial;
    p->kept += sizeof *one + own;
    put(&p->aside, one);
    return AP_OK;
}

static int head_came(fabric_wire *w, uint32_t rank, const job *one, int *full, ap_error *error) {
    peer *p = &w->peers[rank];
    start *first = (start *)one->packet;
    *full = 0;
    if (one->come < sizeof *first) return no_message(w, rank, error);
    if (first->head.mark == GREETS && !p->greeted) return p->greeted = 1, AP_OK;
    if (first->head.mark != MARK && first->head.mark != TELLS) return no_message(w, rank, error);
    if (one->come != sizeof *first + (first->head.bytes <= SHORT ? first->head.bytes : 0)) return no_message(w, rank, error);
    first->head.call.rank = rank;
    if (first->head.mark == TELLS) return ap_compare_loosely(&w->base, &first->head.call, error);
    /* with a receive open, what is for a later call cannot come yet */
    int now = p->receives.first || first->head.call.number < w->base.now.number;
    int code = now ? ap_compare(&w->base, &first->head.call, error) : AP_OK;
    if (code) return code;
    letter *mine = take(&p->receives, first->head.channel);
    if (!mine) return keep_aside(w, rank, first, full, error);
    if (mine->bytes != first->head.bytes) {
        code = ap_fabric_unfit(w, rank, first->head.bytes, mine->bytes, error);
    } else if (mine->bytes > SHORT) {
        return ap_fabric_parts(w, rank, mine, first->serial, 0, error);
    } else {
        memcpy(mine->data, first + 1, mine->bytes);
        code = ap_done_add(&w->done, mine->number, error);
    }
    drop(&w->spare, mine);
    return code;
}

/* Heads that have come, in their order. */
static int read_heads(fabric_wire *w, uint32_t rank, ap_error *error) {
    peer *p = &w->peers[rank];
    int code = AP_OK, full = 0;
    while (!code && p->ready[p->oldest] && p->ready[p->oldest]->over) {
        job *one = p->ready[p->oldest];
        code = head_came(w, rank, one, &full, error);
        if (code || full) break;
        uint32_t place = p->oldest;
        p->oldest = (p->oldest + 1) % w->heads;
        ap_fabric_drop(w, one);
        code = ap_fabric_ready(w, rank, place, error);
    }
    return code;
}

/* ---- what cards have done ---- */

static int fault_of(fabric_wire *w, fabric_queue *queue, ap_error *error) {
    fabric_fault fault = {0};
    if (queue->ops->fault(queue, &fault, 0) <= 0) return AP_OK;
    const job *one = fault.context;
    if (one) return ap_fabric_refused(w, one->rank, fault.error, error);
    w->base.broken = 1;
    return ap_fail(error, AP_TRANSPORT, "libfabric: %s", ap_fabric_says(fault.error));
}

static int over(fabric_wire *w, const fabric_done *done, ap_error *error) {
    job *one = done->context;
    w->moved = 1;
    if (!one->packet) {
        if (!one->out && done->length != one->bytes) return ap_fabric_unfit(w, one->rank, done->length, one->bytes, error);
        return ap_fabric_part_over(w, one, error);
    }
    if (one->out) return ap_fabric_head_sent(w, one, error);
    one->over = 1, one->come = done->length;
    return AP_OK;
}

int ap_fabric_progress(fabric_wire *w, ap_error *error) {
    fabric_done done[BATCH];
    int code = AP_OK;
    for (uint32_t k = 0; k < w->fabric->rails && !code; k++) {
        fabric_queue *queue = w->fabric->rail[k].queue;
        ssize_t count;
        do {
            count = queue->ops->read(queue, done, BATCH);
            for (ssize_t i = 0; i < count && !code; i++) code = over(w, &done[i], error);
            if (count == -FABRIC_ERROR_WAITS)
                code = fault_of(w, queue, error);
            else if (count < 0 && count != -EAGAIN && count != -EINTR)
                w->base.broken = 1, code = ap_fail(error, AP_TRANSPORT, "libfabric: %s", ap_fabric_says((int)-count));
        } while (count == BATCH && !code);
    }
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) code = read_heads(w, r, error);
    return code || !w->waiting ? code : ap_fabric_give_again(w, error);
}
