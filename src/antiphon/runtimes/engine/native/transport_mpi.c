/* The transport over MPI: messages by MPI on its own communicator (mpi_messages.c), and between processes of a host through
 * shared memory. It calls the PMPI functions, because this library itself defines some of MPI's names (preload_calls.c).
 *
 * If calls are compared (`base.call` is set, ap_wire_call), a process that waits for long sends the others a note, a message of
 * which the engine does not know: which call it is in. So processes that are in different calls find that out (mpi_messages.c).
 *
 * Threading: a wire is used by one thread at a time, so there are no locks.
 * Ownership: a wire owns its communicator and its shared memory; after a failure both are left to the end of the process, as
 *   MPI may still write there.
 */
#include <sched.h> /* sched_getaffinity and cpu_set_t, GNU extensions */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "mpi_types.h"

/* After polls of shared memory without progress: with more processes than processors, MAX_POLLS polls, then a sleep of NAP
 * microseconds, and longer each time, up to MAX_NAP, with POLLS_PER_NAP polls between two sleeps. Else the processor is yielded
 * after SPINS polls. */
enum { MAX_POLLS = 2, NAP = 100, MAX_NAP = 500, POLLS_PER_NAP = 8, SPINS = 1000 };

/* Whether messages to a rank go through shared memory. */
static int shares_memory_with(const mpi_wire *w, uint32_t peer) { return w->shared && w->member[peer] >= 0; }

static int send_message(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                        ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    if (shares_memory_with(w, peer))
        return ap_shared_send(w->shared, (uint32_t)w->member[peer], channel, data, bytes, number, error);
    return ap_mpi_start(w, /* sends */ 1, peer, channel, (void *)(uintptr_t)data, bytes, number, error);
}

static int receive_message(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                           ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    if (shares_memory_with(w, peer))
        return ap_shared_receive(w->shared, (uint32_t)w->member[peer], channel, data, bytes, number, error);
    return ap_mpi_start(w, /* sends */ 0, peer, channel, data, bytes, number, error);
}

static void begin_call(ap_wire *self) {
    mpi_wire *w = (mpi_wire *)self;
    w->has_notified = 0; /* the others know nothing of this call yet */
    if (w->shared) ap_shared_begin(w->shared, self);
}

static int check_unreceived(ap_wire *self, ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    return w->shared ? ap_shared_check_unreceived(w->shared, error) : AP_OK;
}

static int report_timeout(mpi_wire *w, double timeout, ap_error *error) {
    w->base.broken = 1;
    return ap_fail(error, AP_TIMEOUT, "nothing came or went for %g seconds, the timeout of the call; %d messages are under way",
                   timeout, w->active + (w->shared ? ap_shared_active(w->shared) : 0));
}

/* `completed` without shared memory. If calls are compared, it waits AP_QUIET seconds at a time, and checks the others in
 * between. */
static int complete_remote(mpi_wire *w, int block, double timeout, uint32_t *numbers, int capacity, int *count, ap_error *error) {
    double end = 0, interval = w->base.call && !(timeout > 0 && timeout < AP_QUIET) ? AP_QUIET : timeout;
    for (;;) {
        int code = ap_mpi_progress_remote(w, block, interval, numbers, capacity, count, error);
        if (code || *count || !block || !w->active) return code;
        if (end == 0) end = ap_now() + timeout - interval; /* one interval is over */
        if (timeout > 0 && ap_now() >= end) return report_timeout(w, timeout, error);
        code = ap_mpi_check_others(w, error);
        if (code) return code;
    }
}

/* Called between two polls without progress. MPI makes progress only while it is called, and other processes may depend on
 * that. So sleeps are short, MPI is called several times between two of them, and a process with messages by MPI does not
 * sleep. Before a process may sleep, MPI is called after every 64th poll or, where each poll ends with a yield, every 4th.
 * `turn`: polls without progress so far. Returns an error code of MPI. */
static int pause_between_polls(mpi_wire *w, unsigned turn) {
    const int may_sleep = w->yields && turn >= MAX_POLLS && !w->active;
    const int sleeps = may_sleep && (turn - MAX_POLLS) % POLLS_PER_NAP == 0;
    int arrived, code = MPI_SUCCESS;
    /* only so that MPI makes progress; `comm` is MPI_COMM_NULL if all messages go through shared memory */
    if (may_sleep || turn % (w->yields ? 4 : 64) == 3)
        code = PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, w->comm == MPI_COMM_NULL ? w->caller_comm : w->comm, &arrived,
                           MPI_STATUS_IGNORE);
    if (sleeps) {
        const unsigned naps = (turn - MAX_POLLS) / POLLS_PER_NAP; /* so far */
        ap_shared_sleep(w->shared, naps < MAX_NAP / NAP ? NAP * (int)(naps + 1) : MAX_NAP);
    } else if (w->yields || turn > SPINS) {
        sched_yield();
    }
    return code;
}

static int complete_messages(ap_wire *self, int block, double timeout, uint32_t *numbers, int capacity, int *count,
                             ap_error *error) {
    mpi_wire *w = (mpi_wire *)self;
    double end = 0, quiet = 0; /* when the call times out; when the others are checked next */
    *count = 0;
    if (!w->shared || !ap_shared_busy(w->shared)) return complete_remote(w, block, timeout, numbers, capacity, count, error);
    for (unsigned turn = 0;; turn++) {
        int moved, remote_count = 0, code = ap_shared_progress(w->shared, numbers, capacity, count, &moved, error);
        if (!code && w->active && *count < capacity)
            code = ap_mpi_progress_remote(w, /* block */ 0, /* timeout */ 0, numbers + *count, capacity - *count, &remote_count,
                                          error);
        *count += remote_count;
        if (code || *count || !block) return code;
        if (moved) turn = 0, end = 0; /* the timeout is that of a time without progress */
        /* reading the clock takes about as long as a poll: rarely, unless polls are rare themselves */
        if ((timeout > 0 || self->call) && (turn % 64 == 63 || (w->yields && turn > MAX_POLLS))) {
            double time = ap_now();
            if (end == 0) end = time + timeout, quiet = time + AP_QUIET;
            if (timeout > 0 && time > end) return report_timeout(w, timeout, error);
            if (self->call && time > quiet) code = ap_mpi_check_others(w, error);
            if (code) return code;
            if (time > quiet) quiet = time + AP_QUIET;
        }
        code = pause_between_polls(w, turn);
        if (code) return ap_mpi_failed(error, "MPI_Iprobe", code);
    }
}

/* Processes of this job on this host; 0: not counted yet. */
static int processes_here;

/* A number for this computer, the same in all its containers; two computers may have the same by chance. MPI itself can only
 * report processes that share memory, which may be fewer. */
static int hash_computer(void) {
    char text[256] = "";
    uint32_t sum = 2166136261u; /* FNV-1a */
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!file || !fgets(text, sizeof text, file)) gethostname(text, sizeof text - 1);
    if (file) fclose(file);
    for (const char *at = text; *at; at++) sum = (sum ^ (unsigned char)*at) * 16777619u;
    return (int)(sum & 0x7fffffff);
}

/* Collective: the number of processes of `comm` on this computer. Returns an error code of MPI, like all functions below that
 * return an int without `error`, except those whose comment has the word Whether or False. */
static int count_here(MPI_Comm comm, int *count) {
    MPI_Comm host;
    int code = PMPI_Comm_split(comm, hash_computer(), 0, &host);
    if (code) return code;
    code = PMPI_Comm_size(host, count);
    return code ? code : PMPI_Comm_free(&host);
}

/* Collective over all processes of the job. */
int ap_mpi_look_around(MPI_Comm world) { return count_here(world, &processes_here); }

/* Whether the job has more processes on this host than processors that they may use. If their number is not known, those of
 * `comm` are counted. A process that is bound to one processor takes the others to be bound to other ones. */
static int is_crowded(MPI_Comm comm) {
    int processes = processes_here;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const char *launcher_count = getenv("MPI_LOCALNRANKS"); /* set by MPICH's launcher */
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) > 1) processors = CPU_COUNT(&set);
    if (!processes && launcher_count) processes = atoi(launcher_count);
    if (processes < 1 && count_here(comm, &processes)) return 0; /* collective: at all processes it is unknown, or at none */
    return processors > 0 && processes > processors;
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
        if (w->active) PMPI_Waitall(w->active, w->request, MPI_STATUSES_IGNORE); /* notes, of which the engine does not know */
        PMPI_Comm_free(&w->comm);
    }
    /* after a failure messages may stay under way: the communicator and their memory are leaked */
    if (!self->broken) {
        for (int i = 0; i < w->active; i++) free(w->flight[i].packet);
        free(w->request), free(w->flight), free(w->index);
    }
    for (packet *p = w->spare, *next; p; p = next) next = p->next, free(p);
    if (w->shared) ap_shared_close(w->shared);
    free(w->process_of), free(w->member);
    free(w);
}

/* A wire that knows the process of each rank, without a connection yet; NULL: out of memory. `rank_of`: as for ap_mpi_open, per
 * process its rank; NULL: the same number. */
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
    w->base = (ap_wire){.send = send_message, .receive = receive_message, .completed = complete_messages, .close = close_wire,
                        .begin = begin_call, .unreceived = check_unreceived, .ranks = ranks};
    w->process_of = process_of, w->comm = MPI_COMM_NULL;
    return w;
}

/* A communicator of the same processes. MPI_Comm_dup would also copy the user's attributes, by calling the user's functions. */
static int duplicate_comm(MPI_Comm comm, MPI_Comm *duplicate) {
    MPI_Group group;
    int code = PMPI_Comm_group(comm, &group);
    if (code) return code;
    code = PMPI_Comm_create(comm, group, duplicate);
    PMPI_Group_free(&group);
    return code;
}

/* A communicator of the processes that share memory: those of this host; with ANTIPHON_SHARED=N groups of N of them, with 0
 * none (MPI_COMM_NULL). */
static int split_sharing(MPI_Comm comm, MPI_Comm *sharing) {
    MPI_Comm host;
    const char *setting = getenv("ANTIPHON_SHARED");
    int me = 0, group_size = setting && *setting ? atoi(setting) : 1;
    *sharing = MPI_COMM_NULL;
    int code = PMPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    if (code) return code;
    PMPI_Comm_rank(host, &me);
    /* ANTIPHON_SHARED=1: one group of all */
    code = PMPI_Comm_split(host, group_size < 1 ? MPI_UNDEFINED : group_size == 1 ? 0 : me / group_size, me, sharing);
    PMPI_Comm_free(&host);
    return code;
}

/* Collective: memory_of[i] is the first process that process i shares memory with, perhaps itself; -1: sharing is
 * off. */
int ap_mpi_find_memory(MPI_Comm world, int32_t *memory_of) {
    MPI_Comm sharing;
    int32_t first = -1;
    int code = split_sharing(world, &sharing);
    if (code) return code;
    if (sharing != MPI_COMM_NULL) {
        int me = 0;
        PMPI_Comm_rank(world, &me);
        first = me; /* a number that identifies this group of processes */
        code = PMPI_Bcast(&first, 1, MPI_INT32_T, 0, sharing);
        PMPI_Comm_free(&sharing);
    }
    return code ? code : PMPI_Allgather(&first, 1, MPI_INT32_T, memory_of, 1, MPI_INT32_T, world);
}

/* Allocates *memory_of and fills it in as that of ap_vicinity, for callers that do not know it. */
static int find_memory(mpi_wire *w, int processes, int32_t **memory_of) {
    *memory_of = malloc((processes ? (size_t)processes : 1) * sizeof **memory_of);
    return *memory_of ? ap_mpi_find_memory(w->caller_comm, *memory_of) : MPI_ERR_NO_MEM;
}

/* What each process sends to the others before memory is shared. */
typedef struct {
    ap_shared_name name; /* of the memory, if this process made it */
    int32_t fits; /* whether it may take the memory that it needs */
} offer;

/* The processes that share memory with this one (members): the first of them, their number, and which one this process is. */
typedef struct {
    int me, processes; /* this process, and the number of all, in the communicator */
    int first, members, own_member;
    const int32_t *memory_of; /* memory_of and index_of: as in ap_vicinity */
    const int *index_of;
} neighbours;

/* Whether a process shares memory with this one. */
static int shares_memory(const neighbours *n, int process) {
    int at = n->index_of ? n->index_of[process] : process, own = n->index_of ? n->index_of[n->me] : n->me;
    return at != MPI_UNDEFINED && own != MPI_UNDEFINED && n->memory_of[at] >= 0 && n->memory_of[at] == n->memory_of[own];
}

static neighbours find_neighbours(const mpi_wire *w, int processes, const int32_t *memory_of, const int *index_of) {
    neighbours n = {.processes = processes, .first = -1, .memory_of = memory_of, .index_of = index_of};
    PMPI_Comm_rank(w->caller_comm, &n.me);
    for (int i = 0; i < processes; i++) {
        if (!shares_memory(&n, i)) continue;
        if (n.first < 0) n.first = i;
        if (i == n.me) n.own_member = n.members;
        n.members++;
    }
    return n;
}

/* Fills in, per rank of the program, its member number in shared memory. *all: whether all processes share the memory. False: out
 * of memory. */
static int number_members(mpi_wire *w, const neighbours *n, int *all) {
    *all = 1;
    w->member = malloc((w->base.ranks ? w->base.ranks : 1) * sizeof *w->member);
    if (!w->member) return 0;
    int *member_of = malloc((size_t)n->processes * sizeof *member_of), count = 0;
    for (int i = 0; member_of && i < n->processes; i++) member_of[i] = shares_memory(n, i) ? count++ : -1;
    for (uint32_t r = 0; member_of && r < w->base.ranks; r++)
        w->member[r] = w->process_of[r] < 0 ? -1 : member_of[w->process_of[r]];
    for (int i = 0; member_of && i < n->processes; i++) *all &= member_of[i] >= 0;
    free(member_of);
    return member_of != NULL;
}

/* Shares memory with the processes of this host, if all processes of the communicator can: a first exchange says where the
 * memory is, a second whether all have mapped it. *all_shared: all processes share one memory, so messages need no MPI. *fits:
 * false if it is more than a process may take. */
static int share_memory(mpi_wire *w, const neighbours *n, uint64_t max_bytes, int *all_shared, int *fits) {
    enum { MAX_LOCAL = 256 }; /* offers on the stack; more are allocated */
    offer own = {.fits = n->members < 2 || ap_shared_bytes((uint32_t)n->members) <= max_bytes};
    offer local[MAX_LOCAL], *all = n->processes <= MAX_LOCAL ? local : malloc((size_t)n->processes * sizeof *all);
    ap_shared *shared = NULL;
    int code = MPI_SUCCESS, ok = all != NULL, all_ok = 0;
    if (n->members > 1 && n->me == n->first && own.fits) shared = ap_shared_make((uint32_t)n->members, &own.name);
    if (all) code = PMPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, w->caller_comm);
    for (int i = 0; ok && !code && i < n->processes; i++) *fits &= all[i].fits;
    if (ok && !code && *fits) { /* *fits is the same at all processes, so the second exchange is one of all or of none */
        if (n->members > 1 && n->me != n->first) shared = ap_shared_join(&all[n->first].name, (uint32_t)n->own_member);
        ok = number_members(w, n, all_shared) && (shared || n->members < 2);
        code = PMPI_Allreduce(&ok, &all_ok, 1, MPI_INT, MPI_MIN, w->caller_comm);
    }
    if (all != local) free(all);
    if (shared) ap_shared_complete(shared); /* closes its file: all have joined, or failed to */
    if (!code && all_ok) {
        w->shared = shared;
    } else {
        *all_shared = 0;
        if (shared) ap_shared_close(shared);
    }
    return code ? code : all ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

/* Prepares messages by MPI to processes that share no memory with this one. */
static int connect_far(mpi_wire *w) {
    int has_bound = 0, *tag_bound = NULL, code = duplicate_comm(w->caller_comm, &w->comm);
    if (!code) code = PMPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
    if (!code) code = PMPI_Comm_get_attr(w->comm, MPI_TAG_UB, &tag_bound, &has_bound);
    w->most_tag = has_bound ? *tag_bound : 32767; /* what MPI guarantees */
    return code ? code : ap_mpi_find_piece(w); /* the pieces in which long messages are sent, not those of a chunk */
}

/* Collective: connects the processes of a communicator. `rank_of`: per process its rank in the program (NULL: the same
 * number). `vicinity` (transport_mpi.h): which processes share memory, as the caller knows already; NULL: they find it
 * out here. NULL and an error: MPI failed, or a process may not take the memory it needs. */
ap_wire *ap_mpi_open(MPI_Comm comm, const int32_t *rank_of, uint32_t ranks, const ap_vicinity *vicinity, ap_error *error) {
    int processes = 0, all_shared = 0, fits = 1, code = PMPI_Comm_size(comm, &processes);
    int32_t *own_memory_of = NULL; /* where the caller has no vicinity */
    if (code) {
        ap_mpi_failed(error, "MPI_Comm_size", code);
        return NULL;
    }
    mpi_wire *w = new_wire(processes, rank_of, ranks, error);
    if (!w) return NULL;
    w->caller_comm = comm;
    w->yields = is_crowded(comm);
    /* crowded: mpi_messages.c then tests and yields in turn, where it otherwise waits within MPI */
#ifndef OPEN_MPI /* Open MPI yields the processor by itself, and is a little faster at that */
    w->crowded = w->yields;
#endif
    if (!vicinity) code = find_memory(w, processes, &own_memory_of);
    neighbours n = {0};
    if (!code) {
        n = find_neighbours(w, processes, vicinity ? vicinity->memory_of : own_memory_of, vicinity ? vicinity->index_of : NULL);
        code = share_memory(w, &n, vicinity ? vicinity->max_bytes : UINT64_MAX, &all_shared, &fits);
    }
    free(own_memory_of);
    /* Without a vicinity calls may be compared, which takes notes by MPI (mpi_messages.c). All conditions are the same at all
     * processes, as connect_far is collective. */
    if (!code && fits && !(all_shared && vicinity)) code = connect_far(w);
    if (vicinity) *vicinity->used = w->shared ? ap_shared_bytes((uint32_t)n.members) : 0;
    if (!code && fits) return &w->base;
    if (code)
        ap_mpi_failed(error, "MPI could not connect", code);
    else
        ap_fail(error, AP_UNSUPPORTED, "communicators have taken as much memory as they may");
    close_wire(&w->base);
    return NULL;
}

void ap_mpi_prefault(ap_wire *wire, ap_pace *pace) {
    mpi_wire *w = (mpi_wire *)wire;
    if (w->shared) ap_shared_prefault(w->shared, pace);
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
