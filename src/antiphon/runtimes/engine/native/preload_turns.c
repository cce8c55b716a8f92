/* Plans that come while the job runs (ANTIPHON_TABLE=auto): how all processes take them at the same call.
 *
 * Calls of a communicator are numbered, alike at all its processes. At some of them each begins, before the call itself, a
 * nonblocking maximum over a few numbers on the communicator: what process 0 of the job says (there is a table, of which
 * digest), and whether this process lacks it. It is begun at the same call everywhere, so it comes in the same order
 * among the program's own calls, and it goes on under these. Its outcome counts from the next call on in which all
 * wait for all anyhow: there each completes it, which takes nothing that the call would not wait for, and all know the
 * same. When process 0 has a table each begins, beside the calls, to read it, to make plans for calls like those that there
 * were, and to touch the memory of these. Where all have done so, this call is the first that goes by it; no call before it
 * waits for anything, and it finds all as later ones will. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "preload.h"
#include "transport.h"

enum { SHARE = 64, LATE = 64, MOST_TRIES = 4 }; /* calls; calls; rounds */
static const uint64_t MUCH = 1 << 16; /* bytes: as good as waiting, also where only some wait for others */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ap_turns *under_way;

static void say(ap_turns *t) {
    memset(t->said, 0, sizeof t->said);
    if (!ap_preload.rank) ap_auto_know(t->said);
    t->said[AP_LACKS] = ap_early_how(t);
}

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
        ap_early_begin(g); /* at all, also where it was not lacked: all make the same ready */
    } else if (t->all[AP_STATUS] == AP_NEVER || t->tries > MOST_TRIES) {
        stop(g);
    } else if (t->all[AP_STATUS] == AP_READY && !t->begun) {
        /* other communicators have brought the table: new ones go by it at once, if they are to */
        if (!ap_preload.set.after && t->all[AP_LACKS] == AP_COLD) return 1;
        t->begun = 1;
        ap_early_begin(g);
    } else if (t->all[AP_STATUS] == AP_READY && t->all[AP_LACKS] == AP_LACKING) {
        if (t->tries++ || t->all[AP_SIZE] >= INT32_MAX)
            t->tries = MOST_TRIES + 1;
        else
            *code = hand_on(g);
    } else if (t->all[AP_STATUS] == AP_READY && t->all[AP_LACKS] != AP_AT_IT) {
        return 1;
    }
    return 0;
}

/* The call that is the first by plans. */
static int go(ap_group *g) {
    ap_turns *t = &g->turns;
    int good = 1;
    if (!ap_preload.rank && !ap_auto_told.since) ap_auto_told.since = t->calls;
    if (t->all[AP_LACKS] == AP_WARM)
        ap_group_take(g, ap_early_group(t));
    else
        good = ap_group_begin(g);
    ap_early_end(t);
    return good;
}

/* Its like are made ready; the last that came stands first. */
static void note(ap_turns *t, const ap_noted *call) {
    int at = 0;
    while (at < t->notes && (t->noted[at].kind != call->kind || t->noted[at].root != call->root ||
                             t->noted[at].type != call->type || t->noted[at].unit != call->unit))
        at++;
    if (at == t->notes && t->notes < AP_MOST_NOTED) t->notes++;
    if (at == AP_MOST_NOTED) at--;
    memmove(t->noted + 1, t->noted, (size_t)at * sizeof *t->noted);
    t->noted[0] = *call;
}

int ap_auto_turn(ap_group *g, const ap_noted *call, int plannable, ap_error *error) {
    ap_turns *t = &g->turns;
    int code = MPI_SUCCESS, now = 0;
    t->calls++;
    if (plannable) note(t, call);
    if (!ap_preload.rank && t->calls == 1) ap_apart_lower();
    if (t->asking && (together(call->kind, call->bytes) || t->calls > t->asked + LATE)) {
        if (!(code = complete(t))) now = decide(g, &code);
    }
    if (now) {
        if (!go(g)) ap_fail(error, AP_MEMORY, "out of memory");
        return 1;
    }
    if (!code && g->reason == AP_WAITING && !t->asking && t->calls >= t->next) code = ask(g);
    if (code) ap_fail(error, AP_TRANSPORT, "MPI failed while plans were asked for");
    return code != MPI_SUCCESS;
}

void ap_auto_forget(ap_group *g) {
    if (!ap_preload.over) complete(&g->turns);
    ap_early_end(&g->turns);
    free(g->turns.coming);
    g->turns.coming = NULL;
}

void ap_turns_end(void) {
    while (under_way) {
        ap_turns *t = under_way;
        complete(t);
        free(t->coming);
        t->coming = NULL;
    }
}
