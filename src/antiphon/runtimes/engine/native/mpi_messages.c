/* Messages by MPI itself, between processes that share no memory: the tag is the channel, and MPI keeps the order. Where
 * calls are compared, every message bears its own. */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "mpi_types.h"


int ap_mpi_failed(ap_error *error, const char *what, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    PMPI_Error_string(code, text, &length);
    return ap_fail(error, AP_TRANSPORT, "%s: %.200s", what, text);
}

static int reserve(mpi_wire *w, ap_error *error) {
    if (w->active + 2 <= w->space) return AP_OK;
    int space = w->space ? 2 * w->space : 64;
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

/* MPI counts in int: beyond that the message is a number of 2^24 bytes, and what is left. */
static int large_type(size_t bytes, MPI_Datatype *type) {
    enum { CHUNK = 1 << 24 };
    MPI_Datatype chunk, types[2];
    int lengths[2] = {(int)(bytes / CHUNK), (int)(bytes % CHUNK)};
    MPI_Aint begins[2] = {0, (MPI_Aint)(bytes / CHUNK * CHUNK)};
    int code = PMPI_Type_contiguous(CHUNK, MPI_BYTE, &chunk);
    if (code) return code;
    types[0] = chunk, types[1] = MPI_BYTE;
    code = PMPI_Type_create_struct(2, lengths, begins, types, type);
    PMPI_Type_free(&chunk);
    return code ? code : PMPI_Type_commit(type);
}

static int begin(mpi_wire *w, void *data, size_t bytes, int tag, flight one, ap_error *error) {
    MPI_Datatype type = MPI_BYTE;
    int count = (int)bytes, code, process = w->process_of[one.peer];
    if (bytes > INT_MAX) {
        if ((code = large_type(bytes, &type))) return ap_mpi_failed(error, "MPI_Type_create_struct", code);
        count = 1;
    }
    MPI_Request *request = &w->request[w->active];
    code = one.comes ? PMPI_Irecv(data, count, type, process, tag, w->comm, request)
                     : PMPI_Isend(data, count, type, process, tag, w->comm, request);
    if (type != MPI_BYTE) PMPI_Type_free(&type);
    if (code) return ap_mpi_failed(error, one.comes ? "MPI_Irecv" : "MPI_Isend", code);
    w->flight[w->active++] = one;
    return AP_OK;
}

enum { HEAD = offsetof(packet, data) - offsetof(packet, call) };

static packet *take_packet(mpi_wire *w) {
    packet *p = w->spare;
    if (!p) return malloc(sizeof *p);
    w->spare = p->next;
    return p;
}

static void give_packet(mpi_wire *w, packet *p) { p->next = w->spare, w->spare = p; }

/* What goes before the elements, with them where they are few. A receive of either takes either: if what comes is of another
 * call, its length may be any. */
static int begin_packet(mpi_wire *w, const void *data, int tag, flight one, ap_error *error) {
    packet *p = one.packet = take_packet(w);
    size_t more = one.bytes <= PACK ? one.bytes : 0;
    if (!p) return ap_fail(error, AP_MEMORY, "out of memory");
    one.told = one.bytes <= PACK;
    if (!one.comes) {
        p->call = w->base.now, p->bytes = one.bytes;
        if (more) memcpy(p->data, data, more);
    }
    int code = begin(w, &p->call, HEAD + (one.comes ? (size_t)PACK : more), tag, one, error);
    if (code) give_packet(w, p);
    return code;
}

int ap_mpi_start(mpi_wire *w, int sends, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                 ap_error *error) {
    flight one = {.number = number, .peer = peer, .told = 1, .comes = !sends, .room = data, .bytes = bytes};
    int code = reserve(w, error), tag = (int)channel;
    if (code) return code;
    if (w->process_of[peer] < 0 || tag >= w->most_tag)
        return ap_fail(error, AP_INVALID,
                       w->process_of[peer] < 0 ? "rank %u is no process here" : "channel of rank %u: beyond MPI's tags", peer);
    if (w->base.call) code = begin_packet(w, data, tag, one, error);
    return code || (w->base.call && bytes <= PACK) ? code : begin(w, data, bytes, tag, one, error);
}

/* A message is done: what came in a packet is held against the call that is under way. */
static int landed(mpi_wire *w, const flight *one, ap_error *error) {
    packet *p = one->packet;
    int code = AP_OK;
    if (!p) return code;
    if (one->comes) {
        p->call.rank = one->peer;
        code = ap_compare(&w->base, &p->call, error);
        if (!code && p->bytes != one->bytes)
            code = ap_fail(error, AP_TRANSPORT, "rank %u sent a message of %llu bytes where %zu are expected", one->peer,
                           (unsigned long long)p->bytes, one->bytes);
        if (!code && one->told && one->bytes) memcpy(one->room, p->data, one->bytes);
    }
    give_packet(w, p);
    return code;
}

/* MPI complains of a length: what has come before it may tell that it is of another call. */
static int complaint(mpi_wire *w, int failure, ap_error *error) {
    int code = AP_OK;
    for (int i = 0; i < w->active && !code; i++)
        if (w->flight[i].packet && w->flight[i].comes && w->request[i] == MPI_REQUEST_NULL)
            code = ap_compare(&w->base, &w->flight[i].packet->call, error);
    return code ? code : ap_mpi_failed(error, "MPI could not finish a message", failure);
}

/* Waits for one at least by MPI itself; with an end to the patience, or more processes than processors, by asking again and
 * again and letting others work: there MPI would keep a processor from those it waits for. */
static int some(mpi_wire *w, int first, int count, int block, double timeout, int *done) {
    if (block && timeout <= 0 && !w->crowded)
        return PMPI_Waitsome(count, w->request + first, done, w->index, MPI_STATUSES_IGNORE);
    int code = PMPI_Testsome(count, w->request + first, done, w->index, MPI_STATUSES_IGNORE);
    for (double end = 0; block && !code && !*done;) {
        for (int i = 0; i < 64 && !code && !*done; i++) {
            if (w->crowded || i == 63) sched_yield();
            code = PMPI_Testsome(count, w->request + first, done, w->index, MPI_STATUSES_IGNORE);
        }
        if (timeout > 0 && !*done) {
            if (end == 0) end = ap_now() + timeout;
            if (ap_now() > end) break;
        }
    }
    return code;
}

static int by_size(const void *a, const void *b) { return *(const int *)b - *(const int *)a; }

/* All that is done is told, up to `most`: if more messages are under way than that, those that have been for longest are
 * asked for first, and a wait goes over all of them. */
static int look(mpi_wire *w, int block, double patience, int most, int *done, ap_error *error) {
    int code;
    *done = 0;
    if (w->active <= most) {
        code = some(w, 0, w->active, block, patience, done);
    } else {
        code = some(w, 0, most, 0, 0, done);
        for (int at = most; !code && !*done && at < w->active; at += most) {
            code = some(w, at, w->active - at < most ? w->active - at : most, 0, 0, done);
            for (int i = 0; i < *done; i++) w->index[i] += at;
        }
        if (!code && !*done && block) { /* one by one: what is done meanwhile is told next time */
            double end = patience > 0 ? ap_now() + patience : 0;
            for (int one = MPI_UNDEFINED, there = 0; !code && !there;) {
                code = PMPI_Testany(w->active, w->request, &one, &there, MPI_STATUS_IGNORE);
                if (there) *done = 1, w->index[0] = one;
                if (!there) sched_yield();
                if (!there && patience > 0 && ap_now() > end) break;
            }
        }
    }
    return code ? complaint(w, code, error) : AP_OK;
}

int ap_mpi_far(mpi_wire *w, int block, double patience, uint32_t *numbers, int most, int *count, ap_error *error) {
    int done = 1, code = AP_OK;
    *count = 0;
    while (w->active && done && !code && !*count) { /* until one is done that the engine knows of */
        code = look(w, block, patience, most, &done, error);
        if (code) return code;
        if (done > 1) qsort(w->index, (size_t)done, sizeof(int), by_size);
        for (int i = 0; i < done; i++) { /* from the last: the one that moves here is still under way */
            int last = --w->active, at = w->index[i];
            flight one = w->flight[at];
            w->request[at] = w->request[last], w->flight[at] = w->flight[last];
            if (!code) code = landed(w, &one, error);
            if (one.told) numbers[(*count)++] = one.number;
        }
    }
    return code;
}

/* ---- what is no message: which call this one is in, or that it has given up ---- */

static const uint64_t GAVE_UP = UINT64_MAX;

static int is_far(const mpi_wire *w, uint32_t rank) {
    return rank != w->base.now.rank && w->process_of[rank] >= 0 && (!w->shared || w->near[rank] < 0);
}

static int tell_all(mpi_wire *w, uint64_t what, ap_error *error) {
    int code = AP_OK;
    for (uint32_t r = 0; r < w->base.ranks && !code; r++) {
        if (!is_far(w, r)) continue;
        packet *p = take_packet(w);
        if (!p) return ap_fail(error, AP_MEMORY, "out of memory");
        p->call = w->base.now, p->bytes = what;
        code = reserve(w, error);
        if (!code) code = begin(w, &p->call, HEAD, w->most_tag, (flight){.peer = r, .packet = p}, error);
    }
    return code;
}

int ap_mpi_others(mpi_wire *w, ap_error *error) {
    int code = w->shared ? ap_shared_look_around(w->shared, error) : AP_OK, found = 1;
    if (!code && !w->quiet) code = tell_all(w, 0, error);
    w->quiet = 1;
    while (!code && found) {
        MPI_Status from;
        packet p;
        int failure = PMPI_Iprobe(MPI_ANY_SOURCE, w->most_tag, w->comm, &found, &from);
        if (!failure && found)
            failure = PMPI_Recv(&p.call, HEAD, MPI_BYTE, from.MPI_SOURCE, w->most_tag, w->comm, MPI_STATUS_IGNORE);
        if (failure) return ap_mpi_failed(error, "MPI_Recv", failure);
        if (found && p.bytes == GAVE_UP)
            code = ap_fail(error, AP_TRANSPORT, "rank %u has given up after an error", p.call.rank);
        else if (found)
            code = ap_compare_loosely(&w->base, &p.call, error);
    }
    return code;
}

/* What is under way then stays so, with its memory. */
void ap_mpi_give_up(mpi_wire *w) {
    ap_error ignored;
    if (w->shared) ap_shared_give_up(w->shared);
    if (w->base.call) tell_all(w, GAVE_UP, &ignored);
}
