/* Messages by MPI itself, between processes that share no memory: the tag is the channel, and MPI keeps the order. If calls are
 * compared (ap_wire_call: a process in another call than its peer is an error), every message begins with a packet that carries
 * the identity of its call (mpi_types.h). Data of at most PACK bytes are in the packet; more follow as a second message.
 *
 * Pieces (not those of a chunk). Open MPI by TCP sends a message above its eager limit only when the receiver has agreed. Where
 * two processes send to each other, an agreement waits behind all data that its sender has begun to send the other way: the link
 * carries one direction at a time. So messages are cut into pieces below that limit, which Open MPI sends at once, up to
 * MAX_PIECES of them (a late receiver has to buffer them). Example: with a limit of 64 KiB a piece has at most 65,024 bytes, and
 * a message of 1 MiB 17 pieces; one of more than 64 pieces is sent whole.
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: packets belong to their transfer, then to the wire's list of spare ones.
 */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mpi_types.h"

/* Functions with `error` return AP_OK or its code, all others that return an int named `code` an error code of MPI. Names: `w` is
 * this process's wire, `f` describes one request of MPI that is under way. */

int ap_mpi_failed(ap_error *error, const char *function, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    PMPI_Error_string(code, text, &length);
    return ap_fail(error, AP_TRANSPORT, "%s: %.200s", function, text);
}

/* MAX_PIECES: of a message. ALIGN: bytes of a cache line, where pieces begin. MPI_HEADER: at least the bytes that Open MPI sends
 * before the data, which its limit includes. */
enum { MAX_PIECES = 64, ALIGN = 64, MPI_HEADER = 512 };

/* The value of a parameter of Open MPI; 0: there is none, or its component is not in use. */
static size_t read_parameter(const char *name) {
    MPI_T_cvar_handle handle;
    int index, count = 0;
    size_t value = 0; /* a parameter of type int fills its low bytes, as the machine is little-endian (program.c) */
    if (PMPI_T_cvar_get_index(name, &index) || PMPI_T_cvar_handle_alloc(index, NULL, &handle, &count)) return 0;
    if (count == 1) PMPI_T_cvar_read(handle, &value);
    PMPI_T_cvar_handle_free(&handle);
    return value;
}

int ap_mpi_find_piece(mpi_wire *w) {
    uint64_t own = 0, least = 0; /* bytes of a piece, here and at all processes; 0: messages are not cut */
    int level;
    if (!PMPI_T_init_thread(MPI_THREAD_SINGLE, &level)) {
        /* its component ob1 sends by TCP between hosts, unless that of InfiniBand is in use */
        const int is_tcp = read_parameter("pml_ob1_priority") && !read_parameter("btl_openib_eager_limit");
        const uint64_t limit = is_tcp ? read_parameter("btl_tcp_eager_limit") : 0;
        own = limit > 2 * MPI_HEADER ? (limit - MPI_HEADER) / ALIGN * ALIGN : 0;
        PMPI_T_finalize();
    }
    const int code = PMPI_Allreduce(&own, &least, 1, MPI_UINT64_T, MPI_MIN, w->caller_comm); /* alike at all processes */
    w->piece = least ? least : SIZE_MAX;
    return code;
}

/* Makes room for the MPI requests (here: transfers) of one more message: a packet, and its data in pieces. */
static int reserve_transfers(mpi_wire *w, ap_error *error) {
    if (w->active + 1 + MAX_PIECES <= w->space) return AP_OK;
    int space = w->space ? 2 * w->space : 2 * MAX_PIECES; /* either has room for 1 + MAX_PIECES more */
    MPI_Request *request = realloc(w->request, space * sizeof *request);
    if (request) w->request = request;
    flight *flights = realloc(w->flight, space * sizeof *flights);
    if (flights) w->flight = flights;
    int *index = realloc(w->index, space * sizeof *index);
    if (index) w->index = index;
    if (!request || !flights || !index) return ap_fail(error, AP_MEMORY, "out of memory");
    w->space = space;
    return AP_OK;
}

/* Makes a data type for more bytes than an int can count: runs of RUN bytes, and the remainder. The caller frees it. */
static int large_type(size_t bytes, MPI_Datatype *type) {
    enum { RUN = 1 << 24 }; /* an int then counts up to 2^55 bytes */
    MPI_Datatype run, types[2];
    int lengths[2] = {(int)(bytes / RUN), (int)(bytes % RUN)};
    MPI_Aint begins[2] = {0, (MPI_Aint)(bytes / RUN * RUN)};
    int code = PMPI_Type_contiguous(RUN, MPI_BYTE, &run);
    if (code) return code;
    types[0] = run, types[1] = MPI_BYTE;
    code = PMPI_Type_create_struct(2, lengths, begins, types, type);
    PMPI_Type_free(&run);
    return code ? code : PMPI_Type_commit(type);
}

/* Starts a request of MPI, which `f` describes. The caller has reserved room for it (reserve_transfers). */
static int start_transfer(mpi_wire *w, void *data, size_t bytes, int tag, flight f, ap_error *error) {
    MPI_Datatype type = MPI_BYTE;
    int count = (int)bytes, code = MPI_SUCCESS, process = w->process_of[f.peer];
    if (bytes > INT_MAX) count = 1, code = large_type(bytes, &type);
    if (code) return ap_mpi_failed(error, "MPI_Type_create_struct", code);
    MPI_Request *request = &w->request[w->active];
    code = f.is_receive ? PMPI_Irecv(data, count, type, process, tag, w->comm, request)
                        : PMPI_Isend(data, count, type, process, tag, w->comm, request);
    if (type != MPI_BYTE) PMPI_Type_free(&type); /* MPI keeps it until the request is done */
    if (code) return ap_mpi_failed(error, f.is_receive ? "MPI_Irecv" : "MPI_Isend", code);
    w->flight[w->active++] = f;
    return AP_OK;
}

/* A packet is sent from its field `call` on: HEAD bytes, then the data. */
enum { HEAD = offsetof(packet, data) - offsetof(packet, call) };

/* A spare packet, or one from malloc; NULL: out of memory. */
static packet *take_packet(mpi_wire *w) {
    packet *p = w->spare;
    if (!p) return malloc(sizeof *p);
    w->spare = p->next;
    return p;
}

static void give_packet(mpi_wire *w, packet *p) { p->next = w->spare, w->spare = p; }

/* Starts sending or receiving a packet, with the data in it if they are at most PACK bytes. A receive always has room for PACK
 * bytes: the message may be of another call, and then of any length. */
static int start_packet(mpi_wire *w, const void *data, int tag, flight f, ap_error *error) {
    packet *p = f.packet = take_packet(w);
    size_t packed = f.bytes <= PACK ? f.bytes : 0;
    if (!p) return ap_fail(error, AP_MEMORY, "out of memory");
    if (!f.is_receive) {
        p->call = w->base.current_call, p->bytes = f.bytes;
        if (packed) memcpy(p->data, data, packed);
    }
    int code = start_transfer(w, &p->call, HEAD + (f.is_receive ? (size_t)PACK : packed), tag, f, error);
    if (code) give_packet(w, p);
    return code;
}

int ap_mpi_start(mpi_wire *w, int sends, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                 ap_error *error) {
    size_t pieces = bytes > w->piece ? (bytes - 1) / w->piece + 1 : 1;
    if (pieces > MAX_PIECES) pieces = 1; /* too much for a late receiver to buffer */
    /* `call` is NULL if calls are not compared (ap_wire_call): then no packet need say which call this is */
    const int has_packet = w->base.call != NULL, is_packed = has_packet && bytes <= PACK;
    /* is_shared: the message has several requests, and is done with the last of them */
    flight f = {.number = number, .peer = peer, .is_shared = pieces > 1 || (has_packet && !is_packed), .is_receive = !sends,
                .target = data, .bytes = bytes};
    int code = reserve_transfers(w, error), tag = (int)channel;
    if (code) return code;
    if (w->process_of[peer] < 0 || tag >= w->most_tag)
        return ap_fail(error, AP_INVALID,
                       w->process_of[peer] < 0 ? "rank %u is no process here" : "channel of rank %u: beyond MPI's tags", peer);
    if (has_packet) code = start_packet(w, data, tag, f, error);
    if (is_packed) return code;
    const size_t piece = pieces > 1 ? ((bytes - 1) / pieces / ALIGN + 1) * ALIGN : bytes; /* as equal as ALIGN allows */
    size_t begin = 0, length;
    do {
        length = bytes - begin < piece ? bytes - begin : piece;
        code = code ? code : start_transfer(w, (unsigned char *)data + begin, length, tag, f, error);
        begin += length;
    } while (begin < bytes);
    return code;
}

/* Called when a request is done. If it was a packet, takes it back; a received one's call is first compared with the one under
 * way, and its data are copied to where they belong. */
static int finish_packet(mpi_wire *w, const flight *f, ap_error *error) {
    packet *p = f->packet;
    int code = AP_OK;
    if (!p) return code;
    if (f->is_receive) {
        p->call.rank = f->peer; /* so that an error names the peer by its rank in this group */
        code = ap_compare(&w->base, &p->call, error);
        if (!code && p->bytes != f->bytes)
            code = ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %zu are expected", f->peer,
                           (unsigned long long)p->bytes, f->bytes);
        if (!code && f->bytes && f->bytes <= PACK) memcpy(f->target, p->data, f->bytes);
    }
    give_packet(w, p);
    return code;
}

/* MPI has reported an error, perhaps a wrong length: a packet received before may show that the message is of another call. MPI
 * sets the requests that are done to MPI_REQUEST_NULL. */
static int explain_failure(mpi_wire *w, int failure, ap_error *error) {
    int code = AP_OK;
    for (int i = 0; i < w->active && !code; i++)
        if (w->flight[i].packet && w->flight[i].is_receive && w->request[i] == MPI_REQUEST_NULL)
            code = ap_compare(&w->base, &w->flight[i].packet->call, error);
    return code ? code : ap_mpi_failed(error, "MPI could not finish a message", failure);
}

/* Tests `count` requests from `first` on; with `block`, until one is done or `timeout` seconds are over (0: no limit). *done: how
 * many are; w->index: which, counted from `first`. MPI itself waits only without a timeout and with enough processors. Otherwise
 * this polls and yields the processor: MPI might spin on it while the processes that it waits for need it. */
static int test_some(mpi_wire *w, int first, int count, int block, double timeout, int *done) {
    if (block && timeout <= 0 && !w->crowded)
        return PMPI_Waitsome(count, w->request + first, done, w->index, MPI_STATUSES_IGNORE);
    int code = PMPI_Testsome(count, w->request + first, done, w->index, MPI_STATUSES_IGNORE);
    for (double end = 0; block && !code && !*done;) { /* end: of the wait; 0: the clock was not read yet */
        enum { POLLS = 64 }; /* between two looks at the clock */
        for (int i = 0; i < POLLS && !code && !*done; i++) {
            if (w->crowded || i == POLLS - 1) sched_yield();
            code = PMPI_Testsome(count, w->request + first, done, w->index, MPI_STATUSES_IGNORE);
        }
        if (timeout > 0 && !*done) {
            if (end == 0) end = ap_now() + timeout;
            if (ap_now() > end) break;
        }
    }
    return code;
}

/* For qsort: greater numbers first. */
static int descending(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }

/* Finds requests that are done, at most `capacity` of them: *done and w->index, counted from the front of the list. Tests them
 * in portions of `capacity` from the front on, until some of a portion are done; with `block` it waits until one of all is. */
static int test_transfers(mpi_wire *w, int block, double timeout, int capacity, int *done, ap_error *error) {
    int code;
    *done = 0;
    if (w->active <= capacity) {
        code = test_some(w, 0, w->active, block, timeout, done);
    } else {
        code = test_some(w, 0, capacity, /* block */ 0, /* timeout */ 0, done);
        for (int at = capacity; !code && !*done && at < w->active; at += capacity) {
            const int count = w->active - at < capacity ? w->active - at : capacity;
            code = test_some(w, at, count, /* block */ 0, /* timeout */ 0, done);
            for (int i = 0; i < *done; i++) w->index[i] += at;
        }
        /* Testany, as Testsome of all might report more than `capacity`; requests that end meanwhile are reported next time */
        if (!code && !*done && block) {
            double end = timeout > 0 ? ap_now() + timeout : 0;
            for (int index = MPI_UNDEFINED, done_one = 0; !code && !done_one;) {
                code = PMPI_Testany(w->active, w->request, &index, &done_one, MPI_STATUS_IGNORE);
                if (done_one) *done = 1, w->index[0] = index;
                if (!done_one) sched_yield();
                if (!done_one && timeout > 0 && ap_now() > end) break;
            }
        }
    }
    return code ? explain_failure(w, code, error) : AP_OK;
}

/* Whether a message has requests that are not done. */
static int is_under_way(const mpi_wire *w, uint32_t number) {
    int i = 0;
    while (i < w->active && w->flight[i].number != number) i++;
    return i < w->active;
}

int ap_mpi_progress_remote(mpi_wire *w, int block, double timeout, uint32_t *numbers, int capacity, int *count,
                           ap_error *error) {
    int done = 1, code = AP_OK; /* done: requests that the last test found done; 1 to begin */
    *count = 0;
    while (w->active && done && !code && !*count) { /* until all requests of a message are done */
        code = test_transfers(w, block, timeout, capacity, &done, error);
        if (code) return code;
        if (done > 1) qsort(w->index, (size_t)done, sizeof(int), descending);
        for (int i = 0; i < done; i++) { /* from the last, so that the request moved into the gap is never one that is done */
            int last = --w->active, at = w->index[i];
            flight f = w->flight[at];
            w->request[at] = w->request[last], w->flight[at] = w->flight[last];
            if (!code) code = finish_packet(w, &f, error);
            if (f.number != AP_NO_NUMBER && !(f.is_shared && is_under_way(w, f.number))) numbers[(*count)++] = f.number;
        }
    }
    return code;
}

/* ---- notes to other processes: which call this one is in, or that it has given up ---- */

static const uint64_t GAVE_UP = UINT64_MAX; /* `bytes` of a packet whose sender has given up */

/* Whether messages to a rank go by MPI: it is another process, without memory shared with this one. */
static int is_far(const mpi_wire *w, uint32_t rank) {
    return rank != w->base.current_call.rank && w->process_of[rank] >= 0 && (!w->shared || w->member[rank] < 0);
}

/* Starts sending all others a packet without data, with the tag that messages do not use. `note`: 0, or GAVE_UP. */
static int notify_all(mpi_wire *w, uint64_t note, ap_error *error) {
    int code = AP_OK;
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) {
        if (!is_far(w, r)) continue;
        packet *p = take_packet(w);
        if (!p) return ap_fail(error, AP_MEMORY, "out of memory");
        p->call = w->base.current_call, p->bytes = note;
        code = reserve_transfers(w, error);
        flight f = {.number = AP_NO_NUMBER, .peer = r, .packet = p};
        if (!code) code = start_transfer(w, &p->call, HEAD, w->most_tag, f, error);
        if (code) give_packet(w, p); /* no request has it */
    }
    return code;
}

int ap_mpi_check_others(mpi_wire *w, ap_error *error) {
    int code = w->shared ? ap_shared_check_members(w->shared, error) : AP_OK, arrived = 1;
    if (!code && !w->has_notified) code = notify_all(w, 0, error);
    w->has_notified = 1;
    while (!code && arrived) {
        MPI_Status from;
        packet p;
        int failure = PMPI_Iprobe(MPI_ANY_SOURCE, w->most_tag, w->comm, &arrived, &from);
        if (!failure && arrived)
            failure = PMPI_Recv(&p.call, HEAD, MPI_BYTE, from.MPI_SOURCE, w->most_tag, w->comm, MPI_STATUS_IGNORE);
        if (failure) return ap_mpi_failed(error, "MPI_Recv", failure);
        if (arrived && p.bytes == GAVE_UP)
            code = ap_fail(error, AP_TRANSPORT, "rank %u has given up after an error", p.call.rank);
        else if (arrived) /* loosely: the sender may be in an earlier or later call */
            code = ap_compare_loosely(&w->base, &p.call, error);
    }
    return code;
}

/* Requests under way are never completed, so their memory is leaked (close_wire). Errors of notify_all are ignored, as this
 * process fails anyway. */
void ap_mpi_give_up(mpi_wire *w) {
    ap_error ignored;
    if (w->shared) ap_shared_give_up(w->shared);
    if (w->base.call) notify_all(w, GAVE_UP, &ignored);
}
