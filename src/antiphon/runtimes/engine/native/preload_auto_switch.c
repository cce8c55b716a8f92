/* How all processes switch to plans that come while the job runs (ANTIPHON_TABLE=auto), at the same call.
 *
 * Calls of a communicator are numbered, alike at all its processes. Before some calls each process begins a query: a
 * nonblocking allreduce (maximum) of a few words, such as whether process 0 has a table and its digest. All begin it at the
 * same call, so its order among the program's own calls is the same everywhere, and it proceeds during these. It is completed
 * at the next call in which all processes wait for all others anyhow, so this costs no extra waiting, and all get the same
 * result.
 *
 * When process 0 has a table, each process reads it in a background thread, prepares plans for calls like those so far, and
 * prefaults their memory. Once a query shows that all are ready, the next call is the first that runs by a plan.
 *
 * Threading: one call at a time on a communicator. Queries under way are in one list with a lock, for MPI_Finalize. The
 *   background thread works on a copy of the communicator's state and calls nothing of MPI.
 * Ownership: an ap_query belongs to its communicator. What the background thread prepares belongs to the copy until
 *   ap_group_adopt moves it to the communicator.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"
#include "prefault.h"
#include "transport.h"

/* Values of the word AP_PREPARED, from the best to the worst: a query yields the maximum over all processes.
 * UNPREPARED: something failed, so plans are made when calls need them. NO_BYTES: this process could not read the
 * table. */
enum { AP_PREPARED_ALL, AP_UNPREPARED, AP_PREPARING, AP_NO_BYTES };

/* ---- preparing plans beside the calls ---- */

struct preparation {
    ap_background *background; /* NULL: it could not begin */
    int state;                 /* a value of AP_PREPARED, once the background thread has ended */
    ap_group group; /* a copy of the communicator's, with its own rows and plans */
    ap_recent_call recent[AP_MAX_RECENT]; /* plans for these calls are prepared */
    int recents;
    uint64_t agreed[AP_QUERY_WORDS]; /* size and digest of the table */
    unsigned char *table_bytes;      /* its bytes; NULL: from the file */
};

/* Installs a book, or frees it if its size and digest are not those of process 0's (`agreed`, the words of a query). */
static void install_if_agreed(unsigned char *book, uint64_t size, const uint64_t *agreed) {
    uint64_t words[4];
    ap_book_digest(book, size, words);
    if (size == agreed[AP_SIZE] && !memcmp(words, agreed + AP_DIGEST, sizeof words))
        ap_auto_install_table(book, size);
    else
        free(book);
}

/* Installs the book of the cached answer. */
static void load_cached(const uint64_t *agreed, ap_pace *pace) {
    uint64_t bytes = 0, size = 0;
    ap_plan_summary summary;
    unsigned char *answer = ap_auto_cache_path[0] ? ap_read_trusted(ap_auto_cache_path, &bytes) : NULL;
    unsigned char *book = answer ? ap_auto_read_answer(answer, bytes, &size, &summary) : NULL;
    free(answer);
    ap_pause(pace);
    if (book) install_if_agreed(book, size, agreed);
}

/* The work of the background thread. */
static void prepare_plans(void *argument, ap_pace *pace) {
    preparation *p = argument;
    if (!ap_auto_has_table() && p->table_bytes)
        install_if_agreed(p->table_bytes, p->agreed[AP_SIZE], p->agreed), p->table_bytes = NULL;
    else if (!ap_auto_has_table())
        load_cached(p->agreed, pace);
    p->state = AP_NO_BYTES;
    ap_pause(pace);
    if (ap_auto_has_table())
        p->state = ap_group_prepare(&p->group, p->recent, p->recents, pace) ? AP_PREPARED_ALL : AP_UNPREPARED;
}

/* Stops the preparation, if there is one, and frees it. */
static void end_preparation(ap_query *q) {
    preparation *p = q->preparation;
    if (!p) return;
    ap_background_end(p->background);
    ap_group_clear(&p->group);
    free(p->table_bytes), free(p);
    q->preparation = NULL;
}

/* Collective, at the same call at all processes: so all prepare for the same recent calls. */
static void begin_preparation(ap_group *g) {
    ap_query *q = &g->query;
    ap_error error = {0, ""};
    end_preparation(q);
    ap_group_connect(g, &error);
    if (g->reason != AP_WAITING) return;
    if (!(q->preparation = calloc(1, sizeof *q->preparation))) return;
    preparation *p = q->preparation;
    p->group = *g, p->recents = q->recents;
    p->table_bytes = q->table_bytes, q->table_bytes = NULL; /* now belongs to the preparation */
    memcpy(p->recent, q->recent, sizeof p->recent);
    memcpy(p->agreed, q->agreed, sizeof p->agreed);
    p->group.plans = NULL, p->group.rows = (ap_rows){.count = 0};
    if (!(p->background = ap_background_begin(prepare_plans, p))) p->state = ap_auto_has_table() ? AP_UNPREPARED : AP_NO_BYTES;
}

/* This process's word AP_PREPARED. */
static uint64_t preparation_state(const ap_query *q) {
    if (!q->preparation) return ap_auto_has_table() ? AP_UNPREPARED : AP_NO_BYTES;
    return q->preparation->background && !ap_background_done(q->preparation->background) ? AP_PREPARING
                                                                                         : (uint64_t)q->preparation->state;
}

/* ---- queries ---- */

/* A query follows after 1/INTERVAL_SHARE of the calls so far, and is completed after MAX_LATE calls at the latest. */
enum { INTERVAL_SHARE = 64, MAX_LATE = 64 };
/* Bytes from which any call counts as one in which all processes wait for all others: MPI libraries send such messages only
 * once their receive is posted. */
static const uint64_t MUCH_BYTES = 1 << 16;

static pthread_mutex_t query_lock = PTHREAD_MUTEX_INITIALIZER;
static ap_query *under_way;

/* Writes what this process contributes to a query. */
static void fill_words(ap_query *q) {
    memset(q->own, 0, sizeof q->own);
    if (!ap_preload.rank) ap_auto_status(q->own);
    q->own[AP_PREPARED] = preparation_state(q);
}

static void add_under_way(ap_query *q) {
    pthread_mutex_lock(&query_lock);
    q->next_query = under_way, q->link = &under_way;
    if (under_way) under_way->link = &q->next_query;
    under_way = q;
    pthread_mutex_unlock(&query_lock);
}

static void remove_under_way(ap_query *q) {
    pthread_mutex_lock(&query_lock);
    if (q->link) {
        *q->link = q->next_query;
        if (q->next_query) q->next_query->link = q->link;
    }
    q->link = NULL, q->next_query = NULL;
    pthread_mutex_unlock(&query_lock);
}

/* Waits for the request under way, if there is one. Returns an error code of MPI, as begin_query and send_table do. */
static int complete_query(ap_query *q) {
    int code = q->pending ? PMPI_Wait(&q->request, MPI_STATUS_IGNORE) : MPI_SUCCESS;
    if (q->pending) remove_under_way(q);
    q->pending = 0;
    return code;
}

/* Begins the exchange of words; `complete_query` ends it. */
static int begin_query(ap_group *g) {
    ap_query *q = &g->query;
    fill_words(q);
    q->pending = 1, q->asked_call = q->calls;
    add_under_way(q);
    return PMPI_Iallreduce(q->own, q->agreed, AP_QUERY_WORDS, MPI_UINT64_T, MPI_MAX, g->comm, &q->request);
}

/* A process could not read the cached file: process 0 broadcasts the table. */
static int send_table(ap_group *g) {
    ap_query *q = &g->query;
    int is_root = !ap_preload.rank;
    if (!is_root && !(q->table_bytes = malloc(q->agreed[AP_SIZE] ? (size_t)q->agreed[AP_SIZE] : 1))) return MPI_ERR_NO_MEM;
    q->pending = 1, q->asked_call = q->calls;
    q->sends_table = q->was_sent = 1;
    add_under_way(q);
    return PMPI_Ibcast(is_root ? ap_preload.table[0].bytes : q->table_bytes, (int)q->agreed[AP_SIZE], MPI_BYTE, q->leader,
                       g->comm, &q->request);
}

/* Whether all processes wait for all others in such a call. */
static int all_wait(int kind, uint64_t bytes) {
    return kind == AP_ALLREDUCE || kind == AP_ALLGATHER || kind == AP_REDUCESCATTER || kind == AP_ALLTOALL ||
           bytes >= MUCH_BYTES;
}

/* There will be no plans, or not all processes can read them: the communicator's calls stay with the library. */
static void give_up(ap_group *g) {
    ap_auto_release(g);
    g->reason = AP_NOT_PLANNED;
}

/* Acts on a completed query; true if this call is the first by plans. */
static int act_on_query(ap_group *g, int *code) {
    ap_query *q = &g->query;
    q->next_call = q->calls + q->calls / INTERVAL_SHARE; /* when the next query follows */
    if (q->agreed[AP_STATUS] == AP_READY) q->next_call = q->calls; /* at once */
    if (q->sends_table) {
        q->sends_table = 0;
        begin_preparation(g); /* at all processes, also those that had the table: all must prepare the same */
    } else if (q->agreed[AP_STATUS] == AP_NEVER) {
        give_up(g);
    } else if (q->agreed[AP_STATUS] == AP_READY && !q->prepares) {
        /* All have the table, by another communicator. Use it at once, unprepared, if the library is to serve none of the first
         * calls of a communicator. */
        if (!ap_preload.set.new_calls && q->agreed[AP_PREPARED] == AP_UNPREPARED) return 1;
        q->prepares = 1;
        begin_preparation(g);
    } else if (q->agreed[AP_STATUS] == AP_READY && q->agreed[AP_PREPARED] == AP_NO_BYTES) {
        if (q->was_sent || q->agreed[AP_SIZE] >= INT32_MAX) /* the count of a broadcast is an int */
            give_up(g);
        else
            *code = send_table(g);
    } else if (q->agreed[AP_STATUS] == AP_READY && q->agreed[AP_PREPARED] != AP_PREPARING) {
        return 1;
    }
    return 0;
}

/* Called before the first call by plans; false: out of memory. */
static int switch_to_plans(ap_group *g) {
    ap_query *q = &g->query;
    int enough_memory = 1;
    if (!ap_preload.rank && !ap_auto_summary.since) ap_auto_summary.since = q->calls;
    if (q->agreed[AP_PREPARED] == AP_PREPARED_ALL)
        ap_group_adopt(g, &q->preparation->group);
    else
        enough_memory = ap_group_find_rows(g);
    end_preparation(q);
    return enough_memory;
}

/* Puts a call first in the list of recent ones, which has at most one entry for each kind, root, type and size. */
static void add_recent(ap_query *q, const ap_recent_call *call) {
    int at = 0;
    while (at < q->recents && (q->recent[at].kind != call->kind || q->recent[at].root != call->root ||
                               q->recent[at].type != call->type || q->recent[at].unit != call->unit))
        at++;
    if (at == q->recents && q->recents < AP_MAX_RECENT) q->recents++;
    if (at == AP_MAX_RECENT) at--;
    memmove(q->recent + 1, q->recent, (size_t)at * sizeof *q->recent);
    q->recent[0] = *call;
}

/* Called before each call of a communicator that waits for plans. Returns 1 if this is the first call by plans, or if
 * `error` is set; 0: the library serves it. `plannable`: a plan could serve it. */
int ap_auto_before_call(ap_group *g, const ap_recent_call *call, int plannable, ap_error *error) {
    ap_query *q = &g->query;
    int code = MPI_SUCCESS, switches = 0;
    q->calls++;
    if (plannable) add_recent(q, call);
    if (!ap_preload.rank && q->calls == 1) ap_planner_lower_priority();
    if (q->pending && (all_wait(call->kind, call->bytes) || q->calls > q->asked_call + MAX_LATE)) {
        if (!(code = complete_query(q))) switches = act_on_query(g, &code);
    }
    if (switches) {
        if (!switch_to_plans(g)) ap_fail(error, AP_MEMORY, "out of memory");
        return 1;
    }
    if (!code && g->reason == AP_WAITING && !q->pending && q->calls >= q->next_call) code = begin_query(g);
    if (code) ap_fail(error, AP_TRANSPORT, "MPI failed while plans were asked for");
    return code != MPI_SUCCESS;
}

/* Called when the communicator is freed, or gets no plans: ends its query and its preparation. */
void ap_auto_release(ap_group *g) {
    if (!ap_preload.finalized) complete_query(&g->query);
    end_preparation(&g->query);
    free(g->query.table_bytes);
    g->query.table_bytes = NULL;
}

/* All processes are in MPI_Finalize and have made the same calls, so each query was begun by all of its processes. */
static void complete_all_queries(void) {
    while (under_way) {
        ap_query *q = under_way;
        complete_query(q);
        free(q->table_bytes);
        q->table_bytes = NULL;
    }
}

/* Collective over the job, in MPI_Finalize. */
void ap_auto_end(void) {
    int has_table = ap_auto_close_table(), all = 0;
    complete_all_queries();
    if (!ap_preload.automatic) return;
    ap_auto_end_planner();
    /* no report if only some processes have the table */
    if (PMPI_Allreduce(&has_table, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) || !all) ap_preload.tables = 0;
}
