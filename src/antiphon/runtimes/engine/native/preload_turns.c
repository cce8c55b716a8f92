/* Plans that come while the job runs (ANTIPHON_TABLE=auto): how all processes take them at the same call.
 *
 * Calls of a communicator are numbered, alike at all its processes. At some of them each begins, before the call itself, a
 * nonblocking maximum over a few numbers on the communicator: what process 0 of the job says (there is a table, of which
 * digest), and whether this process lacks it. It is begun at the same call everywhere, so it comes in the same order
 * among the program's own calls, and it goes on under these. Its outcome counts from the next call on in which all
 * wait for all anyhow: there each completes it, which takes nothing that the call would not wait for, and all know the
 * same. Where nobody lacks the table, this call is the first that goes by it; no call before it waits for anything. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "preload.h"
#include "sha256.h"
#include "transport.h"
#include "transport_mpi.h"

enum { SHARE = 64, LATE = 64, MOST_TRIES = 4, USUAL_WAIT = 4, MOST_WAIT = 15 }; /* calls; rounds; seconds */
static const uint64_t MUCH = 1 << 16; /* bytes: as good as waiting, also where only some wait for others */

ap_told ap_auto_told;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below, and of the one table */
static ap_turns *under_way;
static char kept[AP_PATH];
static int status; /* at process 0 */
static uint64_t known[AP_SAID];

/* ---- the one table of this job ---- */

static void digest_of(const unsigned char *bytes, uint64_t size, uint64_t words[4]) {
    char text[65], part[17] = "";
    ap_sha256(bytes, (size_t)size, text);
    for (int i = 0; i < 4; i++) {
        memcpy(part, text + 16 * i, 16);
        words[i] = strtoull(part, NULL, 16);
    }
}

/* Takes the bytes, which are from malloc, as the table; locked. */
static int load(unsigned char *bytes, uint64_t size) {
    ap_state *p = &ap_preload;
    ap_table t = {.bytes = bytes, .size = size, .of_world = 1};
    ap_error error = {0, ""};
    t.book = ap_book_open(bytes, size, &error);
    if (t.book && p->report) t.use = calloc(t.book->pages + 1ul, sizeof *t.use);
    if (t.book && t.book->ranks == (uint32_t)p->size && (t.use || !p->report) && !ap_spread_over_hosts(&t)) {
        p->table[0] = t;
        p->tables = 1;
        return 1;
    }
    ap_book_close(t.book);
    free(t.use), free(bytes);
    return 0;
}

/* From the file where it is kept, if that holds what process 0 has; locked. */
static void load_kept(const uint64_t *all) {
    uint64_t bytes = 0, size = 0, words[4];
    ap_told told;
    unsigned char *whole = kept[0] ? ap_read_ours(kept, &bytes) : NULL;
    unsigned char *book = whole ? ap_auto_answer(whole, bytes, &size, &told) : NULL;
    free(whole);
    if (!book) return;
    digest_of(book, size, words);
    if (size == all[AP_SIZE] && !memcmp(words, all + AP_DIGEST, sizeof words))
        load(book, size);
    else
        free(book);
}

/* What process 0 knows; locked. */
static void look(void) {
    unsigned char *answer = NULL, *book = NULL;
    uint64_t bytes = 0, size = 0;
    if (status != AP_PLANNING) return;
    ap_told told = {.how = "nothing"};
    status = ap_apart_look(&answer, &bytes, told.notes, sizeof told.notes);
    if (status == AP_PLANNING) return;
    if (status == AP_READY) {
        book = ap_auto_answer(answer, bytes, &size, &told);
        if (book) {
            known[AP_SIZE] = size;
            digest_of(book, size, known + AP_DIGEST);
        }
        if (!book || !load(book, size)) {
            status = AP_NEVER;
            snprintf(told.notes, sizeof told.notes, "what was planned is damaged, or not for these processes");
            snprintf(told.how, sizeof told.how, "nothing");
        }
    }
    free(answer);
    known[AP_STATUS] = (uint64_t)status;
    ap_auto_told = told;
}

static void say(ap_turns *t) {
    pthread_mutex_lock(&lock);
    memset(t->said, 0, sizeof t->said);
    if (!ap_preload.rank) {
        look();
        memcpy(t->said, known, sizeof known);
    }
    t->said[AP_LACKS] = !ap_preload.tables;
    pthread_mutex_unlock(&lock);
}

/* ---- on a communicator ---- */

static void remember(ap_turns *t) {
    pthread_mutex_lock(&lock);
    t->next_one = under_way, t->of_last = &under_way;
    if (under_way) under_way->of_last = &t->next_one;
    under_way = t;
    pthread_mutex_unlock(&lock);
}

static void forget(ap_turns *t) {
    pthread_mutex_lock(&lock);
    if (t->of_last) {
        *t->of_last = t->next_one;
        if (t->next_one) t->next_one->of_last = t->of_last;
    }
    t->of_last = NULL, t->next_one = NULL;
    pthread_mutex_unlock(&lock);
}

static int complete(ap_turns *t) {
    int code = t->asking ? PMPI_Wait(&t->request, MPI_STATUS_IGNORE) : MPI_SUCCESS;
    if (t->asking) forget(t);
    t->asking = 0;
    return code;
}

static int ask(ap_group *g) {
    ap_turns *t = &g->turns;
    say(t);
    t->asking = 1, t->asked = t->calls;
    remember(t);
    return PMPI_Iallreduce(t->said, t->all, AP_SAID, MPI_UINT64_T, MPI_MAX, g->comm, &t->request);
}

/* Somebody does not find the file: process 0 hands on the bytes. */
static int hand_on(ap_group *g) {
    ap_turns *t = &g->turns;
    int leads = !ap_preload.rank;
    if (!leads && !(t->coming = malloc(t->all[AP_SIZE] ? (size_t)t->all[AP_SIZE] : 1))) return MPI_ERR_NO_MEM;
    t->asking = 1, t->asked = t->calls;
    t->handing = 1;
    remember(t);
    return PMPI_Ibcast(leads ? ap_preload.table[0].bytes : t->coming, (int)t->all[AP_SIZE], MPI_BYTE, t->leader, g->comm,
                       &t->request);
}

/* What came is taken where it is lacked; the next to be asked says so. */
static void take(ap_turns *t) {
    uint64_t words[4];
    digest_of(t->coming, t->all[AP_SIZE], words);
    pthread_mutex_lock(&lock);
    if (!ap_preload.tables && !memcmp(words, t->all + AP_DIGEST, sizeof words))
        load(t->coming, t->all[AP_SIZE]);
    else
        free(t->coming);
    pthread_mutex_unlock(&lock);
    t->coming = NULL;
}

static int together(int kind, uint64_t bytes) {
    return kind == AP_ALLREDUCE || kind == AP_ALLGATHER || kind == AP_REDUCESCATTER || kind == AP_ALLTOALL || bytes >= MUCH;
}

static void stop(ap_group *g) {
    ap_auto_forget(g);
    g->reason = AP_NOT_PLANNED;
}

/* The outcome is known: true if this call goes by the table. */
static int decide(ap_group *g, int *code) {
    ap_turns *t = &g->turns;
    t->next = t->calls + t->calls / SHARE;
    if (t->all[AP_STATUS] == AP_READY) t->next = t->calls; /* at once */
    if (t->handing) {
        t->handing = 0;
        if (t->coming) take(t);
    } else if (t->all[AP_STATUS] == AP_NEVER || t->tries > MOST_TRIES) {
        stop(g);
    } else if (t->all[AP_STATUS] == AP_READY && !t->all[AP_LACKS]) {
        return 1;
    } else if (t->all[AP_STATUS] == AP_READY && t->tries++ == 1 && t->all[AP_SIZE] < INT32_MAX) {
        *code = hand_on(g);
    } else if (t->all[AP_STATUS] == AP_READY) {
        pthread_mutex_lock(&lock);
        if (!ap_preload.tables) load_kept(t->all);
        int lacks = !ap_preload.tables, somebody = 1;
        pthread_mutex_unlock(&lock);
        /* all are here: once, and a round of short messages is sooner than another call */
        *code = PMPI_Allreduce(&lacks, &somebody, 1, MPI_INT, MPI_MAX, g->comm);
        return !*code && !somebody;
    }
    return 0;
}

int ap_auto_turn(ap_group *g, int kind, uint64_t bytes, ap_error *error) {
    ap_turns *t = &g->turns;
    int code = MPI_SUCCESS, go = 0;
    t->calls++;
    if (!ap_preload.rank && t->calls == 1) ap_apart_lower();
    if (t->asking && (together(kind, bytes) || t->calls > t->asked + LATE)) {
        if (!(code = complete(t))) go = decide(g, &code);
    }
    if (go) {
        if (!ap_preload.rank && !ap_auto_told.since) ap_auto_told.since = t->calls;
        if (!ap_group_begin(g)) ap_fail(error, AP_MEMORY, "out of memory");
        return 1;
    }
    if (!code && g->reason == AP_WAITING && !t->asking && t->calls >= t->next) code = ask(g);
    if (code) ap_fail(error, AP_TRANSPORT, "MPI failed while plans were asked for");
    return code != MPI_SUCCESS;
}

void ap_auto_forget(ap_group *g) {
    complete(&g->turns);
    free(g->turns.coming);
    g->turns.coming = NULL;
}

/* ---- beginning and end ---- */

/* Whether the processes of this host leave no processor to who plans: while they wait they are busy, most of them. */
static int is_full(const char *facts) {
    long processors = sysconf(_SC_NPROCESSORS_ONLN), here = 0;
    size_t boot = strcspn(facts, " ");
    for (int i = 0; i < ap_preload.size; i++) here += !strncmp(facts, facts + (size_t)i * AP_FACTS, boot + 1);
    return here >= processors;
}

/* Process 0: plans may come before the program starts, in as many seconds as there are for that. */
static void wait_at_start(const char *facts) {
    const char *told = getenv("ANTIPHON_AUTO_WAIT");
    const struct timespec pause = {0, 1000000};
    double seconds = told && *told ? strtod(told, NULL) : is_full(facts) ? USUAL_WAIT : 0;
    unsigned char *answer = NULL;
    uint64_t bytes = 0;
    ap_told found = {.how = "nothing"};
    for (double end = ap_now() + (seconds < MOST_WAIT ? seconds : MOST_WAIT); ap_now() < end; nanosleep(&pause, NULL)) {
        status = ap_apart_look(&answer, &bytes, found.notes, sizeof found.notes);
        if (status != AP_PLANNING) break;
    }
    if (status == AP_READY) {
        ap_table t = {.of_world = 1};
        t.bytes = ap_auto_answer(answer, bytes, &t.size, &found);
        found.since = t.bytes != NULL;
        if (t.bytes)
            ap_preload.table[0] = t;
        else
            status = AP_NEVER;
    }
    free(answer);
    if (status == AP_PLANNING) return;
    ap_apart_end();
    known[AP_STATUS] = (uint64_t)status;
    ap_auto_told = found;
}

/* Process 0: the table that is kept for this question, or a beginning. */
static void find(const char *facts) {
    ap_state *p = &ap_preload;
    uint64_t bytes = 0, size = 0;
    char *question = ap_auto_question(facts, p->size, kept);
    unsigned char *whole = question && kept[0] ? ap_read_ours(kept, &bytes) : NULL;
    unsigned char *book = whole ? ap_auto_answer(whole, bytes, &size, &ap_auto_told) : NULL;
    snprintf(ap_auto_told.how, sizeof ap_auto_told.how, "%s", book ? "kept" : "nothing");
    if (book) {
        p->table[0] = (ap_table){.bytes = book, .size = size, .of_world = 1};
        ap_auto_told.since = 1;
    } else {
        memset(&ap_auto_told, 0, sizeof ap_auto_told);
        snprintf(ap_auto_told.how, sizeof ap_auto_told.how, "nothing");
        snprintf(ap_auto_told.notes, sizeof ap_auto_told.notes, "planning had not ended");
        if (!question || !ap_apart_begin(question, kept)) status = AP_PLANNING; /* a look at it says why */
        wait_at_start(facts);
    }
    free(whole), free(question);
}

int ap_auto_begin(void) {
    ap_state *p = &ap_preload;
    char mine[AP_FACTS] = "", *all = NULL;
    struct { uint64_t size; char kept[AP_PATH]; } found = {0, ""};
    ap_auto_facts(mine);
    if (!p->rank) all = malloc((size_t)p->size * AP_FACTS);
    int good = p->rank || all, everybody = 0;
    if (PMPI_Allreduce(&good, &everybody, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) || !everybody ||
        PMPI_Gather(mine, AP_FACTS, MPI_BYTE, all, AP_FACTS, MPI_BYTE, 0, MPI_COMM_WORLD)) {
        free(all);
        return 0;
    }
    if (!p->rank) {
        find(all);
        found.size = p->table[0].size;
        memcpy(found.kept, kept, sizeof found.kept);
    }
    free(all);
    if (ap_meet()) return 0; /* asleep: whoever plans has the processors */
    if (PMPI_Bcast(&found, (int)sizeof found, MPI_BYTE, 0, MPI_COMM_WORLD)) return 0;
    memcpy(kept, found.kept, sizeof kept);
    if (found.size) {
        p->table[0].size = found.size, p->table[0].of_world = 1, p->tables = 1;
    } else {
        p->automatic = 1;
    }
    return 1;
}

void ap_auto_end(void) {
    int mine = ap_preload.tables != 0, all = 0;
    while (under_way) {
        ap_turns *t = under_way;
        complete(t);
        free(t->coming);
        t->coming = NULL;
    }
    if (!ap_preload.automatic) return;
    if (!ap_preload.rank) ap_apart_end();
    /* what only some have is in nobody's report */
    if (PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) || !all) ap_preload.tables = 0;
}
