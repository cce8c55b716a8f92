/* Plans as rounds of NCCL's messages for a program of our own (runtimes/measure): nothing is preloaded, NCCL is opened by its
 * path, and buffers are this library's. Not 0, or NULL: it cannot be had, and ap_direct_why says why. */
#include "nccl_direct.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_preload.h"

struct ap_direct_comm {
    ncclComm_t comm;
    ap_queue queue;
};

struct ap_direct_run {
    ap_page page;
    ap_row row;
    ap_rounds *rounds;
    int32_t *place_of;
};

static ap_reals reals;
static const char *(*text_of)(ncclResult_t);
static char why[256];
_Thread_local int ap_inside;

const ap_reals *ap_real(void) { return &reals; }
const char *ap_direct_why(void) { return why; }

static int because(const char *what, const char *text) {
    snprintf(why, sizeof why, "%s: %s", what, text ? text : "it is refused");
    return 1;
}

static int told(const char *what, ncclResult_t code) { return code ? because(what, text_of ? text_of(code) : NULL) : 0; }
static int device(const char *what, int failed) { return failed ? because(what, ap_device_why()) : 0; }

int ap_direct_library(const char *path) {
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!file) return because("NCCL", dlerror());
#define FIND(NAME) *(void **)&reals.NAME = dlsym(file, "nccl" #NAME);
    AP_REALS(FIND)
    *(void **)&text_of = dlsym(file, "ncclGetErrorString");
    if (reals.GetUniqueId && reals.CommInitRank && reals.CommDestroy && reals.GroupStart && reals.GroupEnd && reals.Send && reals.Recv)
        return 0;
    return because(path, "it lacks messages (ncclSend, of NCCL 2.7 on)");
}

int ap_direct_id(void *id) { return told("ncclGetUniqueId", reals.GetUniqueId((ncclUniqueId *)id)); }

ap_direct_comm *ap_direct_open(int ranks, int rank, const void *id, int on) {
    ap_direct_comm *made = calloc(1, sizeof *made);
    ncclUniqueId given;
    memcpy(&given, id, sizeof given);
    if (made && !device("the GPU of this rank", ap_device_take(on)) && !device("a stream", ap_queue_new(&made->queue))) {
        if (!told("ncclCommInitRank", reals.CommInitRank(&made->comm, ranks, given, rank))) return made;
        ap_queue_end(made->queue);
    }
    free(made);
    return NULL;
}

void ap_direct_close(ap_direct_comm *comm) {
    (void)reals.CommDestroy(comm->comm);
    ap_queue_end(comm->queue);
    free(comm);
}

void *ap_direct_memory(uint64_t bytes) {
    void *memory = NULL;
    return device("memory of the GPU", ap_device_memory(&memory, bytes ? bytes : 1)) ? NULL : memory;
}

void ap_direct_free(void *memory) { ap_device_free(memory); }

int ap_direct_wait(ap_direct_comm *comm, double seconds) {
    struct timespec now, began;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int busy; (busy = ap_queue_busy(comm->queue)); sched_yield()) {
        if (busy < 0) return device("a call", 1);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (seconds > 0 && (double)(now.tv_sec - began.tv_sec) + 1e-9 * (double)(now.tv_nsec - began.tv_nsec) > seconds)
            return because("a call", "its time was up"), -1;
    }
    return 0;
}

int ap_direct_copy(ap_direct_comm *comm, void *to, const void *from, uint64_t bytes) {
    return device("a copy", ap_device_copy(to, from, bytes, comm->queue)) ? 1 : ap_direct_wait(comm, 0);
}

void ap_direct_end(ap_direct_run *run) {
    if (!run) return;
    ap_rounds_end(run->rounds);
    free(run->place_of), free(run);
}

ap_direct_run *ap_direct_prepare(ap_program *program, uint32_t rank, int in_place, uint64_t unit, uint64_t item,
                                 const int32_t *place_of, ap_error *error) {
    ap_direct_run *run = calloc(1, sizeof *run);
    ap_facts facts;
    ap_describe(program, &facts);
    if (run) run->place_of = malloc(facts.ranks * sizeof *place_of);
    if (!run || !run->place_of) {
        ap_direct_end(run);
        ap_fail(error, AP_MEMORY, "out of memory");
        return NULL;
    }
    memcpy(run->place_of, place_of, facts.ranks * sizeof *place_of);
    run->page.kind = facts.kind;
    run->row.page = &run->page, run->row.program = program;
    run->rounds = ap_rounds_new(&run->row, rank, in_place, unit, item, error);
    if (run->rounds) return run;
    ap_direct_end(run);
    return NULL;
}

uint64_t ap_direct_scratch(const ap_direct_run *run) { return run->rounds->scratch; }

int ap_direct_go(ap_direct_comm *comm, const ap_direct_run *run, void *in, void *out, void *scratch, int type, int op, double seconds) {
    const ap_rounds *d = run->rounds;
    const uint64_t stages = (d->plan->sizes[AP_SCRATCH] * d->item + 63) & ~(uint64_t)63;
    ap_running r = {.rounds = d, .memory = {in, out, scratch}, .stages = (unsigned char *)scratch + stages, .comm = comm->comm,
                    .place_of = run->place_of, .queue = comm->queue, .type = type, .op = op};
    int code = device("a fold", ap_running_begin(&r));
    while (!code && !ap_running_over(&r)) {
        if ((code = device("a message", ap_running_pack(&r)))) break;
        if ((code = told("ncclGroupStart", reals.GroupStart()))) break;
        code = told("a message", ap_running_messages(&r));
        const int ended = told("ncclGroupEnd", reals.GroupEnd());
        code = code || ended;
        if (!code) code = device("a fold", ap_running_fold(&r));
    }
    return code ? code : ap_direct_wait(comm, seconds);
}
