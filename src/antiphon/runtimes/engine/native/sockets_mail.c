/* A wire over sockets that carries mail: others are connected to it one by one, go one by one, and several threads use it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "sockets_types.h"
#include "transport_sockets.h"

/* Of who sleeps: all sockets by which something may come or is to go, and the bell. */
static int lie_down(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    if (ap_done_any(&w->done)) return 0;
    w->sleeps = 0;
    w->slept[w->sleeps++] = (struct pollfd){.fd = w->bell, .events = POLLIN};
    for (uint32_t i = 0; i < w->base.ranks; i++) {
        const stream *s = &w->streams[i];
        int in = ap_sockets_wanted(w, &w->peers[i], s);
        short events = (short)((ap_sockets_sends(w, s) ? POLLOUT : 0) | (in ? POLLIN : 0));
        if (s->fd >= 0 && events && !w->peers[i].lost) w->slept[w->sleeps++] = (struct pollfd){.fd = s->fd, .events = events};
    }
    return 1;
}

static void sleep_on(ap_wire *self, int microseconds) {
    socket_wire *w = (socket_wire *)self;
    poll(w->slept, w->sleeps, (microseconds + 999) / 1000);
}

static void get_up(ap_wire *self) {
    uint64_t rung;
    while (read(((socket_wire *)self)->bell, &rung, sizeof rung) < 0 && errno == EINTR) continue;
}

static void wake(ap_wire *self) {
    const uint64_t once = 1;
    while (write(((socket_wire *)self)->bell, &once, sizeof once) < 0 && errno == EINTR) continue;
}

static int is_gone(ap_wire *self, uint32_t rank) { return ((socket_wire *)self)->peers[rank].lost; }

static void give_up(ap_wire *self) {
    socket_wire *w = (socket_wire *)self;
    for (uint32_t i = 0; i < w->base.ranks; i++)
        if (w->streams[i].fd >= 0) shutdown(w->streams[i].fd, SHUT_WR);
}

static int of_internet(int fd) {
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    return !getsockname(fd, (struct sockaddr *)&own, &bytes) && own.ss_family != AF_UNIX;
}

/* Whether some of what was sent is not yet with the other's system, where it stays whatever becomes of this end: what lies here
 * is lost once the other sends something to a socket that is closed. Of a socket within a host nothing lies here. */
static int lies_here(int fd) {
    int bytes = 0;
    return of_internet(fd) && !ioctl(fd, TIOCOUTQ, &bytes) && bytes > 0;
}

static void see_off(ap_wire *self, double seconds) {
    socket_wire *w = (socket_wire *)self;
    const double end = ap_now() + seconds;
    for (uint32_t i = 0; i < w->base.ranks; i++) {
        struct pollfd one = {.fd = w->streams[i].fd};
        while (one.fd >= 0 && !one.revents && lies_here(one.fd) && ap_now() < end) poll(&one, 1, 1);
    }
}

static void let_go(ap_wire *self, uint32_t rank) {
    socket_wire *w = (socket_wire *)self;
    peer *p = &w->peers[rank];
    stream *s = p->rail;
    if (s->coming && !s->coming->own) free(s->coming);
    s->coming = NULL;
    forget(&s->sends, 0), forget(&p->receives, 0), forget(&p->aside, 1);
    if (s->fd >= 0) close(s->fd);
    s->fd = -1, p->lost = 1;
}

static uint64_t moved(ap_wire *self, uint32_t rank, int sends) {
    const peer *p = &((socket_wire *)self)->peers[rank];
    return sends ? p->gone_out : p->come_in;
}

static int meet(ap_wire *self, uint32_t rank, int socket, ap_error *error) {
    socket_wire *w = (socket_wire *)self;
    int flags = fcntl(socket, F_GETFL);
    if (w->streams[rank].fd >= 0 || flags < 0 || fcntl(socket, F_SETFL, flags | O_NONBLOCK) < 0) {
        close(socket);
        return ap_fail(error, AP_INVALID, "the socket to rank %u is none, or the second one", rank);
    }
    w->streams[rank].fd = socket;
    return AP_OK;
}

const ap_by_turns ap_sockets_turns = {lie_down, sleep_on, get_up, wake, is_gone, give_up, see_off, let_go, moved, meet};

ap_wire *ap_sockets_for_mail(uint32_t rank, uint32_t ranks, ap_error *error) {
    int32_t *none = malloc(ranks * sizeof *none);
    for (uint32_t i = 0; none && i < ranks; i++) none[i] = -1;
    ap_wire *made = none ? ap_sockets_open(rank, ranks, 1, none, error) : NULL;
    socket_wire *w = (socket_wire *)made;
    free(none);
    if (!w) {
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    w->mail = 1;
    w->slept = calloc(ranks + 1, sizeof *w->slept);
    w->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!w->slept || w->bell < 0) {
        made->close(made);
        ap_fail(error, AP_MEMORY, "no memory, or no descriptor, for messages from one to another");
        return NULL;
    }
    made->turns = &ap_sockets_turns;
    return made;
}
