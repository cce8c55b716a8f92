/* A second wire by the sockets of one for calls, for mail: others go one by one, and several threads use it. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sockets_types.h"

static void ring(int bell) {
    const uint64_t once = 1;
    while (write(bell, &once, sizeof once) < 0 && errno == EINTR) continue;
}

void ap_sockets_ring(const socket_wire *w) { ring(w->bell); }

void ap_sockets_hush(const socket_wire *w) {
    uint64_t rung;
    while (read(w->bell, &rung, sizeof rung) < 0 && errno == EINTR) continue;
}

/* Who waits for calls is told what this thread has found for him. */
static void pass_on(sockets *n) {
    socket_wire *calls = n->of[CALLS];
    if (calls->asleep && (ap_done_any(&calls->done) || calls->fault.code || calls->roused)) ap_sockets_ring(calls);
}

/* It never blocks: whoever waits lies down. */
static int completed(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count, ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    sockets *n = w->on;
    (void)block, (void)timeout;
    ap_sockets_settle(w);
    if (!ap_done_any(&w->done) && !w->fault.code) {
        ap_sockets_watch(n, MAIL, &n->looks);
        int found = n->looks.count ? poll(n->looks.of, n->looks.count, 0) : 0;
        if (found > 0) ap_sockets_attend(n, MAIL, &n->looks, found, 0);
        ap_sockets_settle(w);
    }
    pass_on(n); /* what was sent before this, too */
    *count = 0, w->news = 0;
    if (w->fault.code) return *error = w->fault, w->fault.code;
    *count = ap_done_take(&w->done, numbers, most);
    return AP_OK;
}

static int lie_down(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    if (ap_done_any(&w->done) || w->news) return 0;
    ap_sockets_watch(w->on, MAIL, &w->slept);
    return 1;
}

static void sleep_on(ap_wire *self, int microseconds) {
    const socket_wire *w = (socket_wire *)self;
    poll(w->slept.of, w->slept.count, (microseconds + 999) / 1000);
}

static void get_up(ap_wire *self) { ap_sockets_hush((socket_wire *)self); }

static void wake(ap_wire *self) { ap_sockets_ring((socket_wire *)self); }

static int is_gone(ap_wire *self, uint32_t rank) { return ((socket_wire *)self)->peers[rank].lost; }

/* What is under way to and from one is let go of. A frame that has begun is ended, as calls come behind it. */
static void let_go(ap_wire *self, uint32_t rank) {
    socket_wire *w = (socket_wire *)self;
    peer *p = &w->peers[rank];
    flow *f = p->by;
    ap_sockets_abandon(w->on, ap_sockets_stream(w, rank, f), MAIL);
    if (f->coming && !f->coming->own) free(f->coming);
    f->coming = NULL, f->sent = 0;
    ap_sockets_forget_ahead(w, f);
    forget(&f->sends, 0), forget(&p->receives, 0), forget(&p->aside, 1);
    p->lost = 1;
}

/* Whether the end of mail, or the frame before it, is still to go there. */
static int untold(const stream *s) {
    return s->fd >= 0 && !s->deaf && (s->last_mail || s->rest || (s->out_head && s->out.what != OF + CALLS));
}

/* Of those that are not told; the bell is the first. */
static void watch_untold(sockets *n) {
    watch *k = &n->looks;
    k->whose[0] = NULL, k->of[0] = (struct pollfd){.fd = n->off_bell, .events = POLLIN}, k->count = 1;
    for (uint32_t r = 0; r < n->ranks; r++) {
        stream *s = &n->streams[r * n->rails];
        if (untold(s)) k->whose[k->count] = s, k->of[k->count++] = (struct pollfd){.fd = s->fd, .events = POLLOUT};
    }
}

/* This process may make no call for long, and the others wait meanwhile for what has begun. */
static void *see_off(void *given) {
    sockets *n = given;
    ap_sockets_lock(n);
    for (watch_untold(n); !n->closing && n->looks.count > 1; watch_untold(n)) {
        ap_sockets_unlock(n);
        poll(n->looks.of, n->looks.count, -1);
        ap_sockets_lock(n);
        for (nfds_t i = 1; i < n->looks.count; i++) ap_sockets_push(n, n->looks.whose[i]);
        pass_on(n);
    }
    ap_sockets_unlock(n);
    return NULL;
}

static void begin_to_see_off(sockets *n) {
    int some = 0;
    for (uint32_t r = 0; r < n->ranks; r++) some |= untold(&n->streams[r * n->rails]);
    if (!some) return;
    n->off_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (n->off_bell >= 0 && !pthread_create(&n->off, NULL, see_off, n)) return;
    if (n->off_bell >= 0) close(n->off_bell), n->off_bell = -1;
    for (uint32_t r = 0; r < n->ranks; r++) /* the others would wait for it */
        if (untold(&n->streams[r * n->rails])) shutdown(n->streams[r * n->rails].fd, SHUT_RDWR), n->streams[r * n->rails].deaf = 1;
}

void ap_sockets_stop(sockets *n) {
    if (n->off_bell < 0) return;
    if (n->process == getpid()) {
        ap_sockets_lock(n);
        n->closing = 1;
        ap_sockets_unlock(n);
        ring(n->off_bell);
        pthread_join(n->off, NULL);
    }
    close(n->off_bell);
}

static void give_up(ap_wire *self, int all) {
    socket_wire *w = (socket_wire *)self;
    for (uint32_t r = 0; r < w->base.ranks; r++) {
        stream *s = ap_sockets_stream(w, r, w->peers[r].by);
        if (all && s->goes == MAIL && s->out_left) s->deaf = 1; /* what has begun stays without an end, as all does */
        let_go(self, r);
        s->last_mail = 1;
        ap_sockets_push(w->on, s);
    }
    if (!all) begin_to_see_off(w->on);
    pass_on(w->on);
}

static uint64_t moved(ap_wire *self, uint32_t rank, int sends) {
    const peer *p = &((socket_wire *)self)->peers[rank];
    return sends ? p->gone_out : p->come_in;
}

static const ap_by_turns by_turns = {lie_down, sleep_on, get_up, wake, is_gone, give_up, let_go, moved};

static void close_wire(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    sockets *n = w->on;
    ap_sockets_lock(n);
    n->of[MAIL] = NULL;
    ap_sockets_unlock(n);
    ap_sockets_free(w);
}

ap_wire *ap_sockets_beside(ap_wire *first, ap_error *error) {
    socket_wire *calls = (socket_wire *)first, *w = ap_sockets_wire(calls->on, MAIL, 1);
    sockets *n = calls->on;
    if (w) w->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), calls->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!w || w->bell < 0 || calls->bell < 0 || !(n->lock = ap_lock_new()) || !ap_sockets_new_watch(&n->looks, n->ranks + 1)) {
        if (w) ap_sockets_free(w);
        ap_fail(error, AP_MEMORY, "no memory, or no descriptor, for messages from one to another");
        return NULL;
    }
    w->base = (ap_wire){.send = ap_sockets_send_message, .receive = ap_sockets_receive_message, .completed = completed,
                        .close = close_wire, .ranks = n->ranks, .turns = &by_turns, .lock = n->lock};
    n->of[MAIL] = w, n->framed = 1;
    for (uint32_t r = 0; r < n->ranks; r++)
        w->peers[r].room = UINT64_MAX, calls->peers[r].room = ROOM;
    for (uint32_t i = 0; i < n->ranks * n->rails; i++) n->streams[i].in_left = n->streams[i].out_left = 0;
    return &w->base;
}
