/* Messages over libfabric, by one card or several.
 *
 * Before each message goes a head, in order, to one of some buffers that the receiver keeps ready for each rank; a short
 * message goes with it. A long one stays where it is until the receiver knows where it belongs: then both hand it to their
 * cards, in parts dealt round to these, and nothing is copied but by the cards. Heads beyond what may be meant for this run are
 * left with the card. Between two ranks there is also a socket, which tells when one is gone, and by which mail goes.
 */
#include "transport_fabric.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "fabric_types.h"
#include "transport_sockets.h"

/* Seconds for what is left of who has said farewell, and for others to say so. */
static const double GRACE = 1.0, LINGER = 0.25;

static int connected(fabric_wire *w, uint32_t rank, ap_error *error) {
    if (rank < w->base.ranks && w->peers[rank].fd >= 0) return AP_OK;
    return ap_fail(error, AP_INVALID, "there is no connection to rank %u", rank);
}

static int send_message(ap_wire *self, uint32_t rank, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    fabric_wire *w = (fabric_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    letter *one = new_letter(&w->spare);
    if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
    one->data = (unsigned char *)(uintptr_t)data, one->bytes = bytes, one->number = number;
    start first = {{channel, MARK, bytes, w->base.now}, w->peers[rank].serial++, 0};
    if (bytes <= SHORT) return ap_fabric_head(w, rank, &first, one->data ? one->data : (void *)&first, one, error);
    code = ap_fabric_head(w, rank, &first, NULL, NULL, error);
    return code ? code : ap_fabric_parts(w, rank, one, first.serial, 1, error);
}

static int receive_message(ap_wire *self, uint32_t rank, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    fabric_wire *w = (fabric_wire *)self;
    int code = connected(w, rank, error);
    if (code) return code;
    peer *p = &w->peers[rank];
    letter *one = take(&p->aside, channel);
    if (!one) {
        one = new_letter(&w->spare);
        if (!one) return ap_fail(error, AP_MEMORY, "out of memory");
        one->data = data, one->bytes = bytes, one->channel = channel, one->number = number;
        put(&p->receives, one);
        return AP_OK;
    }
    unsigned char *own = one->data;
    uint32_t serial = one->number;
    p->kept -= sizeof *one + (one->bytes <= SHORT ? one->bytes : 0);
    one->data = data, one->number = number;
    code = ap_compare(&w->base, &one->head.call, error);
    if (!code && one->bytes != bytes) code = ap_fabric_unfit(w, rank, one->bytes, bytes, error);
    if (!code && bytes > SHORT) {
        free(own);
        return ap_fabric_parts(w, rank, one, serial, 0, error);
    }
    if (!code) memcpy(data, own, bytes), code = ap_done_add(&w->done, number, error);
    free(own), drop(&w->spare, one);
    return code;
}

/* ---- waiting ---- */

static int wanted(const peer *p) { return p->receives.first || p->under_way; }

static int busy(const fabric_wire *w) {
    for (uint32_t r = 0; r < w->base.ranks; r++)
        if (wanted(&w->peers[r])) return 1;
    return 0;
}

/* What a socket says: a farewell, or that nobody is there. */
static void listen_to(fabric_wire *w, uint32_t rank) {
    peer *p = &w->peers[rank];
    int heard = p->farewell || p->gone ? 0 : ap_sockets_heard(w->sockets, rank);
    p->farewell |= heard == 1, p->gone |= heard == 2;
}

/* Somebody is gone of whom something is wanted: 2; or has said farewell: 1. `ask`: sockets may have something to say. */
static int find_gone(fabric_wire *w, int ask, uint32_t *rank) {
    int found = 0;
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        peer *p = &w->peers[r];
        if (p->fd < 0) continue;
        if (ask) listen_to(w, r);
        if (wanted(p) && (p->gone || p->farewell) && found < 2) *rank = r, found = p->farewell ? 1 : 2;
    }
    return found;
}

/* Sleeps until a card has something, a socket says something, or so many microseconds. Whether a socket may. */
static int doze(fabric_wire *w, int microseconds) {
    nfds_t count = 0, cards;
    int said = 0;
    int most = w->looks_only ? SHORT_NAP : NAP;
    for (uint32_t k = 0; k < w->fabric->rails; k++) {
        ap_rail *r = &w->fabric->rail[k];
        fabric_object *queue = &r->queue->object;
        if (r->file < 0) continue;
        if (r->provider->ops->may_wait(r->provider, &queue, 1)) return 1; /* something has come: nobody knows of the sockets */
        w->polled[count++] = (struct pollfd){.fd = r->file, .events = POLLIN};
    }
    cards = count;
    for (uint32_t r = 0; r < w->base.ranks; r++) /* of who is gone, a socket would always say so */
        if (w->peers[r].fd >= 0 && !w->peers[r].farewell && !w->peers[r].gone)
            w->polled[count++] = (struct pollfd){.fd = w->peers[r].fd, .events = POLLIN};
    if (microseconds > most) microseconds = most;
    const struct timespec time = {0, 1000L * microseconds};
    if (ppoll(w->polled, count, &time, NULL) <= 0) return 0;
    for (nfds_t i = cards; i < count; i++) said |= w->polled[i].revents != 0;
    return said;
}

static int tell_all(fabric_wire *w, ap_error *error) {
    int code = AP_OK;
    start first = {{0, TELLS, 0, w->base.now}, 0, 0};
    for (uint32_t r = 0; r < w->base.ranks && !code; r++)
        if (w->peers[r].fd >= 0 && !w->peers[r].farewell) code = ap_fabric_head(w, r, &first, NULL, NULL, error);
    w->quiet = 1;
    return code;
}

/* Of messages that nobody has asked for; `done`: this one's call is. */
static int compare_aside(fabric_wire *w, int done, ap_error *error) {
    int code = AP_OK;
    uint64_t first = w->base.now.number + (done ? 1 : 0); /* what is for a later call may lie there */
    for (uint32_t r = 0; r < w->base.ranks && !code; r++)
        for (const letter *one = w->peers[r].aside.first; one && !code; one = one->next)
            code = one->head.call.number < first ? ap_compare(&w->base, &one->head.call, error)
                                                 : ap_compare_loosely(&w->base, &one->head.call, error);
    return code;
}

static int look_around(fabric_wire *w, ap_error *error) {
    int code = w->quiet ? AP_OK : tell_all(w, error);
    return code ? code : compare_aside(w, 0, error);
}

static int lost(uint32_t rank, ap_error *error) {
    return ap_fail(error, AP_TRANSPORT, "the connection to rank %u is lost: it has been closed", rank);
}

static int wait_for_one(fabric_wire *w, double timeout, ap_error *error) {
    double end = 0, quiet = 0, grace = 0;
    uint32_t who = 0;
    int code = AP_OK, gone = 0, said = 0;
    for (unsigned turn = 0; !code && !ap_done_any(&w->done); turn++) {
        w->moved = 0;
        code = ap_fabric_progress(w, error);
        if (code || ap_done_any(&w->done)) break;
        if (w->moved) {
            turn = 0, end = 0, gone = 0, grace = 0;
        } else if (turn < w->looks) {
            sched_yield();
        } else {
            double time = ap_now();
            if (end == 0) end = time + timeout, quiet = time + AP_QUIET;
            if (gone == 2 || (gone == 1 && time >= grace)) return lost(who, error);
            if (w->base.call && time >= quiet) code = look_around(w, error);
            if (!code && time >= quiet) code = ap_hear(&w->base, time, error);
            if (!code && timeout > 0 && time >= end)
                return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call", timeout);
            gone = find_gone(w, said, &who); /* what it left behind may still be on its way: so look once more */
            if (gone == 1 && grace == 0) grace = time + GRACE;
            const int most = timeout > 0 && end - time < 1e-6 * NAP ? (int)(1e6 * (end - time)) + 1 : NAP;
            if (!code && gone != 2) said = doze(w, most);
        }
    }
    return code;
}

static int completed(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count,
                     ap_error *error) {
    fabric_wire *w = (fabric_wire *)self;
    int code = AP_OK;
    *count = 0;
    if (!ap_done_any(&w->done) && busy(w)) code = block ? wait_for_one(w, timeout, error) : ap_fabric_progress(w, error);
    if (code) {
        self->broken = 1;
        return code;
    }
    *count = ap_done_take(&w->done, numbers, most);
    return AP_OK;
}

static void begin(ap_wire *self) { ((fabric_wire *)self)->quiet = 0; }

static int left(ap_wire *self, ap_error *error) {
    fabric_wire *w = (fabric_wire *)self;
    int code = ap_fabric_progress(w, error);
    return code ? code : compare_aside(w, 1, error);
}

/* ---- the end ---- */

/* Whether anybody has not yet said farewell, and is there. */
static int awaited(fabric_wire *w) {
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        const peer *p = &w->peers[r];
        if (p->fd < 0) continue;
        listen_to(w, r);
        if (!p->farewell && !p->gone) return 1;
    }
    return 0;
}

/* What has been sent is to arrive, though nobody looks after it any longer: so the cards go on for a while. */
static void say_farewell(fabric_wire *w) {
    ap_error ignored;
    double end = ap_now() + FLUSH;
    int sends = 1;
    while (sends && !w->base.broken && ap_now() < end) {
        sends = 0;
        for (uint32_t r = 0; r < w->base.ranks; r++) sends |= w->peers[r].under_way != 0;
        if (sends && ap_fabric_progress(w, &ignored)) return;
    }
    if (w->base.broken) return;
    for (uint32_t r = 0; r < w->base.ranks; r++)
        if (w->peers[r].fd >= 0) w->sockets->send(w->sockets, r, 0, NULL, 0, 0, &ignored);
    end = ap_now() + LINGER;
    while (awaited(w) && ap_now() < end && !ap_fabric_progress(w, &ignored)) doze(w, NAP);
}

/* With the messages that were under way. */
static void free_jobs(job *newest) {
    for (job *one = newest, *older; one; one = older) {
        older = one->older;
        if (one->of && (!one->of->room || !--one->of->room)) free(one->of);
        free(one->packet), free(one);
    }
}

static void close_wire(ap_wire *self) {
    fabric_wire *w = (fabric_wire *)self;
    if (!self->broken) say_farewell(w);
    ap_fabric_close(w->fabric); /* from now on nothing is written to any memory */
    for (uint32_t r = 0; r < self->ranks; r++) {
        peer *p = &w->peers[r];
        forget(&p->receives, 0), forget(&p->aside, 1);
    }
    w->sockets->broken = self->broken;
    w->sockets->close(w->sockets);
    free_jobs(w->jobs);
    for (letter *one = w->spare, *next; one; one = next) next = one->next, free(one);
    free(w->peers), free(w->polled), free(w->done.number), free(w);
}

static ap_wire *beside(ap_wire *self, ap_error *error) {
    ap_wire *sockets = ((fabric_wire *)self)->sockets;
    return sockets->beside(sockets, error);
}

/* ---- the beginning ---- */

static int meet(fabric_wire *w, uint32_t rank, const ap_fabric_name *name, ap_error *error) {
    for (uint32_t k = 0; k < w->rails; k++) {
        fabric_book *book = w->fabric->rail[k].book;
        if (book->ops->insert(book, name->address[k], 1, &w->peers[rank].at[k], 0, NULL) != 1)
            return ap_fail(error, AP_INVALID, "libfabric cannot reach rank %u at the address that it told", rank);
    }
    int code = AP_OK;
    for (uint32_t k = 0; k < w->heads && !code; k++) code = ap_fabric_ready(w, rank, k, error);
    return code;
}

static int fits(const ap_fabric_name *name, const ap_fabric_name *mine, uint32_t rank, ap_error *error) {
    if (memcmp(name->provider, mine->provider, sizeof mine->provider))
        return ap_fail(error, AP_INVALID, "rank %u goes by another provider of libfabric, %.63s and not %.63s; set ANTIPHON_WIRE",
                       rank, name->provider, mine->provider);
    if (!name->rails || name->rails > AP_RAILS || name->longest < PART)
        return ap_fail(error, AP_INVALID, "rank %u told what is no address", rank);
    return AP_OK;
}

/* Whether anybody has gone before all were connected; mail may have come already, which nobody carries yet. */
static int closed(const fabric_wire *w, uint32_t *rank) {
    char next;
    for (*rank = 0; *rank < w->base.ranks; ++*rank)
        if (w->peers[*rank].fd >= 0 && !recv(w->peers[*rank].fd, &next, 1, MSG_PEEK | MSG_DONTWAIT)) return 1;
    return 0;
}

/* Each hears each once: then all are connected, and nobody depends on what others do meanwhile for a short message. */
static int greet(fabric_wire *w, double timeout, ap_error *error) {
    start first = {{0, GREETS, 0, w->base.now}, 0, 0};
    uint32_t who = 0;
    int code = AP_OK;
    double end = ap_now() + timeout;
    for (uint32_t r = 0; r < w->base.ranks && !code; r++)
        if (w->peers[r].fd >= 0) code = ap_fabric_head(w, r, &first, NULL, NULL, error);
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) {
        const peer *p = &w->peers[r];
        while (!code && p->fd >= 0 && (!p->greeted || p->under_way)) {
            w->moved = 0;
            code = ap_fabric_progress(w, error);
            if (w->moved || code) continue;
            if (closed(w, &who)) return lost(who, error);
            if (ap_now() > end)
                return ap_fail(error, AP_TIMEOUT, "rank %u did not answer by its card in %g seconds (libfabric, %.63s)", r, timeout,
                               w->fabric->rail[0].info->net->provider);
            doze(w, NAP);
        }
    }
    return code;
}

static int begin_wire(fabric_wire *w, const ap_fabric_name *names, double timeout, ap_error *error) {
    uint32_t ranks = w->base.ranks;
    int code = AP_OK;
    w->rails = AP_RAILS, w->longest = UINT64_MAX;
    for (uint32_t r = 0; r < ranks && !code; r++) {
        code = fits(&names[r], &names[w->rank], r, error);
        if (names[r].rails < w->rails) w->rails = names[r].rails;
        if (names[r].longest < w->longest) w->longest = names[r].longest;
    }
    size_t room = w->fabric->rail[0].info->in->size / 2; /* the other half is for parts */
    w->heads = room / ranks < HEADS ? (uint32_t)(room / ranks) : HEADS;
    if (!code && !w->heads)
        code = ap_fail(error, AP_UNSUPPORTED, "%u processes are too many for a card of %zu messages; ANTIPHON_WIRE=sockets", ranks,
                       2 * room);
    for (uint32_t r = 0; r < ranks && !code; r++)
        if (w->peers[r].fd >= 0) code = meet(w, r, &names[r], error);
    return code ? code : greet(w, timeout, error);
}

ap_wire *ap_fabric_open(ap_fabric *fabric, uint32_t rank, uint32_t ranks, const ap_fabric_name *names, const int32_t *sockets,
                        double timeout, ap_error *error) {
    ap_wire *life = ap_sockets_open(rank, ranks, 1, sockets, error);
    fabric_wire *w = life ? calloc(1, sizeof *w) : NULL;
    if (w) w->peers = calloc(ranks + 1, sizeof *w->peers), w->polled = calloc(ranks + AP_RAILS, sizeof *w->polled);
    if (!w || !w->peers || !w->polled) {
        if (w) free(w->peers), free(w->polled), free(w);
        if (life) life->close(life), ap_fail(error, AP_MEMORY, "out of memory");
        ap_fabric_close(fabric);
        return NULL;
    }
    w->base = (ap_wire){.send = send_message, .receive = receive_message, .completed = completed, .close = close_wire,
                        .begin = begin, .left = left, .beside = beside, .ranks = ranks};
    w->fabric = fabric, w->rank = rank, w->sockets = life;
    for (uint32_t k = 0; k < fabric->rails; k++) w->looks_only |= fabric->rail[k].file < 0;
    w->looks = fabric->over_tcp && !w->looks_only ? FEW : LOOKS;
    for (uint32_t r = 0; r < ranks; r++) {
        peer *p = &w->peers[r];
        p->fd = sockets[r];
        p->receives.end = &p->receives.first, p->aside.end = &p->aside.first;
        p->out.end = &p->out.first, p->in.end = &p->in.first;
    }
    if (begin_wire(w, names, timeout, error)) {
        w->base.broken = 1;
        return close_wire(&w->base), NULL;
    }
    return &w->base;
}
