/* Measure a call of MPI as a program would make it: by a plan, through the code of the preloaded library, or by the MPI library.
 * The worker processes of `tune --on mpi` (runtimes/measure) call it; they have no LD_PRELOAD.
 *
 * Threading: one thread, and all processes of the communicator together.
 * Ownership: an ap_measure owns a copy of the caller's communicator and the rows of every program measured; programs are the
 *   caller's.
 */
#include <stdlib.h>

#include "preload.h"
#include "transport.h"
#include "transport_mpi.h"

/* A program to measure, as the only page of a table: ap_serve finds it (`rows`) as it finds a user's. */
typedef struct measured_plan {
    struct measured_plan *next;
    ap_program *program;
    ap_page page;
    ap_rows rows; /* of its group (preload.h): one row, this page and program */
} measured_plan;

struct ap_measure {
    MPI_Comm comm;
    ap_group *group;  /* of `comm`, which frees it as its attribute */
    int32_t *rank_of; /* per process of `comm`, its rank of the machine */
    uint32_t ranks;   /* of the machine */
    measured_plan *plans;
};

void ap_measure_close(ap_measure *m) {
    if (!m) return;
    if (m->group) m->group->rows = (ap_rows){.count = 0}; /* a copy of the `rows` of a plan, which are freed below */
    if (m->comm != MPI_COMM_NULL) PMPI_Comm_free(&m->comm);
    for (measured_plan *p = m->plans, *next; p; p = next) next = p->next, ap_rows_free(&p->rows), free(p);
    free(m->rank_of), free(m);
}

/* Collective. `comm`: a communicator by its number in Fortran; `rank_of`: its processes as ranks of a machine of
 * `ranks`. */
ap_measure *ap_measure_open(int comm, const int32_t *rank_of, uint32_t ranks, ap_error *error) {
    ap_measure *m = calloc(1, sizeof *m);
    MPI_Comm caller_comm = ap_mpi_comm(comm);
    int processes = 0, ok = m && ap_init_for_measuring() && !PMPI_Comm_size(caller_comm, &processes);
    if (m) m->comm = MPI_COMM_NULL, m->ranks = ranks;
    if (ok) ok = !PMPI_Comm_dup(caller_comm, &m->comm);
    if (ok) m->group = ap_group_of(m->comm);
    if (ok) m->rank_of = malloc((size_t)processes * sizeof *m->rank_of);
    ok = ok && m->group && m->rank_of;
    for (int i = 0; ok && i < processes; i++) m->rank_of[i] = rank_of[i];
    if (ok) return m;
    ap_measure_close(m);
    ap_fail(error, AP_TRANSPORT, "MPI could not prepare a communicator to measure on");
    return NULL;
}

/* The entry of a program, made at its first call; NULL: out of memory. Its chooser (choose.h) has a single range, all sizes. */
static measured_plan *plan_of(ap_measure *m, ap_program *program, const ap_call *call) {
    for (measured_plan *p = m->plans; p; p = p->next)
        if (p->program == program) return p;
    measured_plan *p = calloc(1, sizeof *p);
    const ap_range range = {.kind = (uint32_t)call->kind, .root = call->root, .stop = UINT64_MAX};
    if (!p) return NULL;
    p->program = program;
    /* `measured`: ap_serve takes the plan at every size, without asking whether it is predicted to win */
    p->page = (ap_page){.kind = range.kind, .root = call->root, .stop = UINT64_MAX, .measured = 1, .label = ""};
    ap_rows *rows = &p->rows;
    *rows = (ap_rows){.me = (uint32_t)m->rank_of[m->group->rank], .ranks = m->ranks,
                      .rank_of = malloc((size_t)m->group->size * sizeof *rows->rank_of), .row = calloc(1, sizeof *rows->row),
                      .chooser = ap_chooser_open(&range, 1, (uint32_t)m->group->size)};
    if (!rows->rank_of || !rows->row || !rows->chooser) {
        ap_rows_free(rows), free(p);
        return NULL;
    }
    for (int i = 0; i < m->group->size; i++) rows->rank_of[i] = m->rank_of[i];
    rows->count = 1;
    *rows->row = (ap_row){.page = &p->page, .program = program, .range = range};
    p->next = m->plans, m->plans = p;
    return p;
}

/* The type of MPI for one of the engine's; MPI_DATATYPE_NULL: none. */
static MPI_Datatype mpi_type(int type) {
    const MPI_Datatype none = MPI_DATATYPE_NULL; /* the types in the order of api.h */
    const MPI_Datatype types[AP_TYPES] = {MPI_INT8_T, MPI_UINT8_T, MPI_INT32_T, MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T, none,
                                          MPI_FLOAT, MPI_DOUBLE, none, none, none, MPI_INT16_T, MPI_UINT16_T};
    return type >= 0 && type < AP_TYPES ? types[type] : none;
}

static MPI_Op mpi_op(int op) { return op == AP_PROD ? MPI_PROD : op == AP_MAX ? MPI_MAX : op == AP_MIN ? MPI_MIN : MPI_SUM; }

/* Makes the call by the MPI library; returns its error code. */
static int call_library(const ap_call *c) {
    const int n = (int)c->send_count, m = (int)c->recv_count;
    switch (c->kind) {
    case AP_BROADCAST: return PMPI_Bcast(c->recv, m, c->recv_type, c->root, c->comm);
    case AP_REDUCE: return PMPI_Reduce(c->send, c->recv, m, c->recv_type, c->op, c->root, c->comm);
    case AP_ALLREDUCE: return PMPI_Allreduce(c->send, c->recv, m, c->recv_type, c->op, c->comm);
    case AP_REDUCESCATTER: return PMPI_Reduce_scatter_block(c->send, c->recv, m, c->recv_type, c->op, c->comm);
    case AP_ALLGATHER: return PMPI_Allgather(c->send, n, c->send_type, c->recv, m, c->recv_type, c->comm);
    case AP_ALLTOALL: return PMPI_Alltoall(c->send, n, c->send_type, c->recv, m, c->recv_type, c->comm);
    case AP_GATHER: return PMPI_Gather(c->send, n, c->send_type, c->recv, m, c->recv_type, c->root, c->comm);
    case AP_SCATTER: return PMPI_Scatter(c->send, n, c->send_type, c->recv, m, c->recv_type, c->root, c->comm);
    default: return MPI_ERR_ARG;
    }
}

/* Makes the call by the plan; *code is what it returns. False if it would be left to the library. */
static int call_plan(const ap_call *c, int *code) {
    double *stopwatch; /* unused: ap_serve sets it where it leaves the call to the library and wants its time */
    return ap_serve(c, &stopwatch, code);
}

/* Collective: *seconds of a call by this program (NULL: by the MPI library): after a barrier before each call, the mean
 * over calls and processes of the time within the call, as benchmarks of MPI report it. So both the time that a root
 * saves by not waiting and the time that others wait count. */
int ap_measure_calls(ap_measure *m, ap_program *program, const ap_timed_call *timed, uint32_t calls, double *seconds,
                     ap_error *error) {
    const MPI_Datatype type = mpi_type(timed->type);
    /* A broadcast has one buffer, `recv`, so its `send` is MPI_IN_PLACE at every rank. */
    const ap_call call = {.kind = timed->kind, .root = timed->root, .comm = m->comm,
                          .send = timed->kind == AP_BROADCAST ? MPI_IN_PLACE : timed->send, .recv = timed->recv,
                          .send_count = timed->count, .recv_count = timed->count, .send_type = type, .recv_type = type,
                          .op = mpi_op(timed->op)};
    double spent = 0; /* seconds of this process within calls */
    int code = MPI_SUCCESS;
    if (type == MPI_DATATYPE_NULL) return ap_fail(error, AP_UNSUPPORTED, "MPI has no such data type");
    if (program) {
        const measured_plan *p = plan_of(m, program, &call);
        if (!p) return ap_fail(error, AP_MEMORY, "out of memory");
        m->group->rows = p->rows, m->group->reason = AP_SERVED;
    }
    /* Calls that do not count, while caches and other processes settle: a quarter as many, at little cost. */
    const uint32_t warmup = calls / 4;
    for (uint32_t i = 0; i < calls + warmup && !code; i++) {
        PMPI_Barrier(m->comm);
        const double began = PMPI_Wtime();
        if (!program)
            code = call_library(&call);
        else if (!call_plan(&call, &code))
            return ap_fail(error, AP_UNSUPPORTED, "the call does not go by the plan");
        if (i >= warmup) spent += PMPI_Wtime() - began;
    }
    if (!code) code = PMPI_Allreduce(&spent, seconds, 1, MPI_DOUBLE, MPI_SUM, m->comm);
    if (code) return ap_fail(error, AP_TRANSPORT, "MPI could not carry out a call");
    *seconds /= (double)calls * m->group->size;
    return AP_OK;
}
