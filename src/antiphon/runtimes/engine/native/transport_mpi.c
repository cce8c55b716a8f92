/* Messages over MPI, on a communicator of their own (mpi_messages.c), and between processes of a host through memory. All
 * calls are those of PMPI: this library also offers some of MPI's own names (preload_calls.c). */
#include <sched.h> /* with GNU's sets of processors */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "mpi_types.h"

/* Fruitless looks at shared memory: where there are more processes than processors, until it sleeps, from NAP microseconds
 * to MOST_NAP, one after another longer, with AWAKE looks from one to the next; else until it gives the processor away. */
enum { LOOKS = 2, NAP = 100, MOST_NAP = 500, AWAKE = 8, SPINS = 1000 };

static int goes_near(const mpi_wire *w, uint32_t peer) { return w->shared && w->near[peer] >= 0; }

static int send(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    if (goes_near(w, peer))
        return ap_shared_send(w->shared, (uint32_t)w->near[peer], channel, data, bytes, number, error);
    return ap_mpi_start(w, 1, peer, channel, (void *)(uintptr_t)data, bytes, number, error);
}

static int receive(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                   ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    if (goes_near(w, peer))
        return ap_shared_receive(w->shared, (uint32_t)w->near[peer], channel, data, bytes, number, error);
    return ap_mpi_start(w, 0, peer, channel, data, bytes, number, error);
}

static void begin(ap_wire *self) {
    mpi_wire *w = (mpi_wire *)self;
    w->quiet = 0;
    if (w->shared) ap_shared_begin(w->shared, self);
}

static int left(ap_wire *self, ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    return w->shared ? ap_shared_left(w->shared, error) : AP_OK;
}

static int too_late(mpi_wire *w, double timeout, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call; %d messages are under way", timeout,
                   w->active + (w->shared ? ap_shared_active(w->shared) : 0));
}

/* Where calls are compared a wait is cut into short ones, between which this one looks at the others. */
static int completed_far(mpi_wire *w, int block, double timeout, uint32_t *numbers, int most, int *count,
                         ap_error *error) {
    double end = 0, patience = w->base.call && !(timeout > 0 && timeout < AP_QUIET) ? AP_QUIET : timeout;
    for (;;) {
        int code = ap_mpi_far(w, block, patience, numbers, most, count, error);
        if (code || *count || !block || !w->active) return code;
        if (end == 0) end = ap_now() + timeout - patience;
        if (timeout > 0 && ap_now() >= end) return too_late(w, timeout, error);
        if ((code = ap_mpi_others(w, error))) return code;
    }
}

/* Before a fruitless look at shared memory is repeated. MPI goes on only while it is called, and others may wait for what
 * it has to do: so sleeps are short, between two of them MPI is called several times, as what it does for others takes
 * several steps, and who has messages with MPI himself does not sleep. */
static int idle(mpi_wire *w, unsigned turn) {
    const int waits = w->yields && turn >= LOOKS && !w->active, sleeps = waits && (turn - LOOKS) % AWAKE == 0;
    int found, code = MPI_SUCCESS;
    if (waits || turn % (w->yields ? 4 : 64) == 3)
        code = PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, w->comm == MPI_COMM_NULL ? w->of : w->comm, &found, MPI_STATUS_IGNORE);
    const unsigned naps = (turn - LOOKS) / AWAKE;
    if (sleeps)
        ap_shared_doze(w->shared, naps < MOST_NAP / NAP ? NAP * (int)(naps + 1) : MOST_NAP);
    else if (w->yields || turn > SPINS)
        sched_yield();
    return code;
}

static int completed(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count,
                     ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    double end = 0, quiet = 0;
    *count = 0;
    if (!w->shared || !ap_shared_busy(w->shared)) return completed_far(w, block, timeout, numbers, most, count, error);
    for (unsigned turn = 0;; turn++) {
        int moved, more = 0, code = ap_shared_progress(w->shared, numbers, most, count, &moved, error);
        if (!code && w->active && *count < most) code = ap_mpi_far(w, 0, 0, numbers + *count, most - *count, &more, error);
        *count += more;
        if (code || *count || !block) return code;
        if (moved) turn = 0, end = 0;
        if ((timeout > 0 || self->call) && (turn % 64 == 63 || (w->yields && turn > LOOKS))) {
            double time = ap_now();
            if (end == 0) end = time + timeout, quiet = time + AP_QUIET;
            if (timeout > 0 && time > end) return too_late(w, timeout, error);
            if (self->call && time > quiet && (code = ap_mpi_others(w, error))) return code;
            if (time > quiet) quiet = time + AP_QUIET;
        }
        if ((code = idle(w, turn))) return ap_mpi_failed(error, "MPI_Iprobe", code);
    }
}

/* Processes of this job on this host; 0: nobody has looked yet. */
static int processes_here;

/* A number for the computer whose processors these are, the same in all its namespaces and containers; two computers may
 * have the same by chance. MPI tells of those that share memory, which may be fewer: it can be told to go by TCP. */
static int computer(void) {
    char text[256] = "";
    uint32_t sum = 2166136261u;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!file || !fgets(text, sizeof text, file)) gethostname(text, sizeof text - 1);
    if (file) fclose(file);
    for (const char *at = text; *at; at++) sum = (sum ^ (unsigned char)*at) * 16777619u;
    return (int)(sum & 0x7fffffff);
}

static int count_here(MPI_Comm comm, int *here) {
    MPI_Comm host;
    int code = PMPI_Comm_split(comm, computer(), 0, &host);
    if (code) return code;
    code = PMPI_Comm_size(host, here);
    return code ? code : PMPI_Comm_free(&host);
}

int ap_mpi_look_around(MPI_Comm world) { return count_here(world, &processes_here); }

/* Whether the processes of this host are more than the processors that they may use, and MPI does not care. Those of the
 * whole job count; where nobody has said how many these are, at least those of `comm`. */
static int is_crowded(MPI_Comm comm) {
    int here = processes_here;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const char *told = getenv("MPI_LOCALNRANKS"); /* by MPICH's launcher */
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 1) processors = CPU_COUNT(&set);
    if (!here && told) here = atoi(told);
    if (here < 1 && count_here(comm, &here)) return 0;
    return processors > 0 && here > processors;
}

static void close_wire(ap_wire *self) {
    mpi_wire *w = (mpi_wire *)self;
    int over = 0;
    PMPI_Finalized(&over);
    if (!over && self->broken && w->comm != MPI_COMM_NULL)
        ap_mpi_give_up(w);
    else if (self->broken && w->shared)
        ap_shared_give_up(w->shared);
    if (!over && !self->broken && w->comm != MPI_COMM_NULL) {
        if (w->active) PMPI_Waitall(w->active, w->request, MPI_STATUSES_IGNORE); /* what the engine does not know of */
        PMPI_Comm_free(&w->comm);
    }
    /* after a failure messages may be under way for ever: the communicator and what they use are left as they are */
    if (!self->broken) {
        for (int i = 0; i < w->active; i++) free(w->flight[i].packet);
        free(w->request), free(w->flight), free(w->index);
    }
    for (packet *one = w->spare, *next; one; one = next) next = one->next, free(one);
    if (w->shared) ap_shared_close(w->shared);
    free(w->process_of), free(w->near);
    free(w);
}

static mpi_wire *new_wire(int processes, const int32_t *rank_of, uint32_t ranks, ap_error *error) {
    mpi_wire *w = calloc(1, sizeof *w);
    int *process_of = w ? malloc((ranks ? ranks : 1) * sizeof *process_of) : NULL;
    if (!process_of) {
        free(w);
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    for (uint32_t r = 0; r < ranks; r++) process_of[r] = !rank_of && (int)r < processes ? (int)r : -1;
    for (int i = 0; rank_of && i < processes; i++)
        if (rank_of[i] >= 0 && (uint32_t)rank_of[i] < ranks) process_of[rank_of[i]] = i;
    w->base = (ap_wire){.send = send, .receive = receive, .completed = completed, .close = close_wire,
                        .begin = begin, .left = left, .ranks = ranks};
    w->process_of = process_of, w->comm = MPI_COMM_NULL;
    return w;
}

/* A communicator of the same processes. MPI_Comm_dup would call what the user attached to his to be copied. */
static int twin(MPI_Comm comm, MPI_Comm *made) {
    MPI_Group group;
    int code = PMPI_Comm_group(comm, &group);
    if (code) return code;
    code = PMPI_Comm_create(comm, group, made);
    PMPI_Group_free(&group);
    return code;
}

/* The processes of this host; with ANTIPHON_SHARED=N groups of N of them, with 0 none (MPI_COMM_NULL). */
static int those_near(MPI_Comm comm, MPI_Comm *near) {
    MPI_Comm host;
    const char *told = getenv("ANTIPHON_SHARED");
    int me = 0, most = told && *told ? atoi(told) : 1, code;
    *near = MPI_COMM_NULL;
    if ((code = PMPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host))) return code;
    PMPI_Comm_rank(host, &me);
    code = PMPI_Comm_split(host, most < 1 ? MPI_UNDEFINED : most == 1 ? 0 : me / most, me, near);
    PMPI_Comm_free(&host);
    return code;
}

int ap_mpi_near(MPI_Comm world, int32_t *near_of) {
    MPI_Comm near;
    int32_t first = -1;
    int code = those_near(world, &near);
    if (code) return code;
    if (near != MPI_COMM_NULL) {
        int me = 0;
        PMPI_Comm_rank(world, &me);
        first = me; /* the least of those near: it is there for all of them alone */
        code = PMPI_Bcast(&first, 1, MPI_INT32_T, 0, near);
        PMPI_Comm_free(&near);
    }
    return code ? code : PMPI_Allgather(&first, 1, MPI_INT32_T, near_of, 1, MPI_INT32_T, world);
}

/* Whom each process of `comm` is near to, where the caller does not know. */
static int find_near(mpi_wire *w, int processes, int32_t **near) {
    if (!(*near = malloc((processes ? (size_t)processes : 1) * sizeof **near))) return MPI_ERR_NO_MEM;
    return ap_mpi_near(w->of, *near);
}

/* What a process says of the memory for those near it: where it is, if it is the one that made it. */
typedef struct {
    ap_shared_name name;
    int32_t room; /* it may take as much as it would have to */
} offer;

typedef struct {
    int me, processes, first, members, place; /* first: of those near; place: this one's among them */
    const int32_t *near;
    const int *of;
} near_ones;

static int is_near(const near_ones *n, int process) {
    int at = n->of ? n->of[process] : process, mine = n->of ? n->of[n->me] : n->me;
    return at != MPI_UNDEFINED && mine != MPI_UNDEFINED && n->near[at] >= 0 && n->near[at] == n->near[mine];
}

static near_ones look_near(const mpi_wire *w, int processes, const int32_t *near, const int *of) {
    near_ones n = {.processes = processes, .first = -1, .near = near, .of = of};
    PMPI_Comm_rank(w->of, &n.me);
    for (int i = 0; i < processes; i++) {
        if (!is_near(&n, i)) continue;
        if (n.first < 0) n.first = i;
        if (i == n.me) n.place = n.members;
        n.members++;
    }
    return n;
}

/* Which place among those near each rank of the program has; whether that is all of them in *all. */
static int find_places(mpi_wire *w, const near_ones *n, int *all) {
    *all = 1;
    if (!(w->near = malloc((w->base.ranks ? w->base.ranks : 1) * sizeof *w->near))) return 0;
    int *place = malloc((size_t)n->processes * sizeof *place), count = 0;
    for (int i = 0; place && i < n->processes; i++) place[i] = is_near(n, i) ? count++ : -1;
    for (uint32_t r = 0; place && r < w->base.ranks; r++) w->near[r] = w->process_of[r] < 0 ? -1 : place[w->process_of[r]];
    for (int i = 0; place && i < n->processes; i++) *all &= place[i] >= 0;
    free(place);
    return place != NULL;
}

/* Memory with those of the wire's processes that are near, if all can have it: a round tells where it is, another whether
 * all have found it. *alone: nobody is far, so messages need no MPI. *room is false where it is more than somebody may take. */
static int share(mpi_wire *w, const near_ones *n, uint64_t most, int *alone, int *room) {
    enum { FEW = 256 };
    offer mine = {.room = n->members < 2 || ap_shared_bytes((uint32_t)n->members) <= most};
    offer few[FEW], *all = n->processes <= FEW ? few : malloc((size_t)n->processes * sizeof *all);
    ap_shared *shared = NULL;
    int code = MPI_SUCCESS, good = all != NULL, everybody = 0;
    if (n->members > 1 && n->me == n->first && mine.room) shared = ap_shared_make((uint32_t)n->members, &mine.name);
    if (all) code = PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, w->of);
    for (int i = 0; good && !code && i < n->processes; i++) *room &= all[i].room;
    if (good && !code && *room) {
        if (n->members > 1 && n->me != n->first) shared = ap_shared_join(&all[n->first].name, (uint32_t)n->place);
        good = find_places(w, n, alone) && (shared || n->members < 2);
        code = PMPI_Allreduce(&good, &everybody, 1, MPI_INT, MPI_MIN, w->of);
    }
    if (all != few) free(all);
    if (shared) ap_shared_complete(shared);
    if (!code && everybody) {
        w->shared = shared;
    } else {
        *alone = 0;
        if (shared) ap_shared_close(shared);
    }
    return code ? code : all ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

/* For messages to those that are far. */
static int connect_far(mpi_wire *w) {
    int found = 0, *most = NULL, code = twin(w->of, &w->comm);
    if (!code) code = PMPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
    if (!code) code = PMPI_Comm_get_attr(w->comm, MPI_TAG_UB, &most, &found);
    w->most_tag = found ? *most : 32767;
    return code;
}

ap_wire *ap_mpi_open(MPI_Comm comm, const int32_t *rank_of, uint32_t ranks, const ap_vicinity *vicinity, ap_error *error) {
    int processes = 0, alone = 0, room = 1, code = PMPI_Comm_size(comm, &processes);
    int32_t *looked = NULL;
    if (code) {
        ap_mpi_failed(error, "MPI_Comm_size", code);
        return NULL;
    }
    mpi_wire *w = new_wire(processes, rank_of, ranks, error);
    if (!w) return NULL;
    w->of = comm;
    w->yields = is_crowded(comm);
#ifndef OPEN_MPI /* it gives the processor away by itself, and is a little faster at that */
    w->crowded = w->yields;
#endif
    if (!vicinity) code = find_near(w, processes, &looked);
    near_ones n = {0};
    if (!code) {
        n = look_near(w, processes, vicinity ? vicinity->near : looked, vicinity ? vicinity->of : NULL);
        code = share(w, &n, vicinity ? vicinity->most : UINT64_MAX, &alone, &room);
    }
    free(looked);
    /* what is far is compared, too: who compares has a communicator for that */
    if (!code && room && !(alone && vicinity)) code = connect_far(w);
    if (vicinity) *vicinity->taken = w->shared ? ap_shared_bytes((uint32_t)n.members) : 0;
    if (!code && room) return &w->base;
    if (code)
        ap_mpi_failed(error, "MPI could not connect", code);
    else
        ap_fail(error, AP_UNSUPPORTED, "communicators have taken as much memory as they may");
    close_wire(&w->base);
    return NULL;
}

void ap_mpi_touch(ap_wire *wire, ap_pace *pace) {
    mpi_wire *w = (mpi_wire *)wire;
    if (w->shared) ap_shared_touch(w->shared, pace);
}

MPI_Comm ap_mpi_comm(int number) {
#ifdef MPI_ABI_VERSION
    return PMPI_Comm_fromint(number);
#else
    return PMPI_Comm_f2c((MPI_Fint)number);
#endif
}

ap_wire *ap_mpi_open_number(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error) {
    return ap_mpi_open(ap_mpi_comm(comm), rank_of, ranks, NULL, error);
}

const char *ap_mpi_library(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (!text[0]) PMPI_Get_library_version(text, &length);
    return text;
}
