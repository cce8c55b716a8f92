/* Plans that come while the job runs (ANTIPHON_TABLE=auto): the question at its beginning, what process 0 knows of the
 * answer, and the end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "preload.h"
#include "touch.h"

enum { USUAL_WAIT = 4 }; /* seconds */

ap_told ap_auto_told;
char ap_auto_kept[AP_PATH];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static int status;
static uint64_t known[AP_SAID];

/* What came from who plans, while it is read. */
static struct {
    ap_beside *beside;
    int begun;
    unsigned char *answer;
    uint64_t bytes, size, digest[4];
    ap_told told;
    int good;
} reading;

/* ---- at process 0 ---- */

static void read_answer(void *given, ap_pace *pace) {
    (void)given;
    unsigned char *book = ap_auto_answer(reading.answer, reading.bytes, &reading.size, &reading.told);
    free(reading.answer);
    if (book) ap_book_digest(book, reading.size, reading.digest);
    ap_rest(pace);
    reading.good = book && ap_early_load(book, reading.size);
}

/* What came so far; locked. */
static void look(void) {
    if (status != AP_PLANNING) return;
    ap_told told = {.how = "nothing"};
    if (!reading.begun) {
        int found = ap_apart_look(&reading.answer, &reading.bytes, told.notes, sizeof told.notes);
        if (found == AP_PLANNING) return;
        if (found == AP_READY) {
            reading.told = told, reading.begun = 1;
            pthread_mutex_unlock(&lock); /* where there is no thread it is read at once */
            ap_beside *beside = ap_beside_begin(read_answer, NULL);
            pthread_mutex_lock(&lock);
            if ((reading.beside = beside)) return;
            free(reading.answer);
        }
        status = AP_NEVER;
    } else if (!reading.beside || !ap_beside_done(reading.beside)) {
        return;
    } else {
        told = reading.told;
        ap_beside_end(reading.beside), reading.beside = NULL;
        status = reading.good ? AP_READY : AP_NEVER;
        known[AP_SIZE] = reading.size;
        memcpy(known + AP_DIGEST, reading.digest, sizeof reading.digest);
        if (!reading.good) {
            snprintf(told.notes, sizeof told.notes, "what was planned is damaged, or not for these processes");
            snprintf(told.how, sizeof told.how, "nothing");
        }
    }
    known[AP_STATUS] = (uint64_t)status;
    ap_auto_told = told;
}

void ap_auto_know(uint64_t said[AP_SAID]) {
    pthread_mutex_lock(&lock);
    look();
    memcpy(said, known, sizeof known);
    pthread_mutex_unlock(&lock);
}

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
    double seconds = is_full(facts) ? USUAL_WAIT : 0;
    if (told && *told) {
        char *end;
        double asked = strtod(told, &end);
        if (end == told || (*end && strcmp(end, "s")) || !(asked >= 0))
            ap_complain(ap_preload.why, "ANTIPHON_AUTO_WAIT=%.60s is no number of seconds; %g is taken", told, seconds);
        else
            seconds = asked;
    }
    unsigned char *answer = NULL;
    uint64_t bytes = 0;
    ap_told found = {.how = "nothing"};
    for (double end = ap_now() + seconds; ap_now() < end; nanosleep(&pause, NULL)) {
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
    char *question = ap_auto_question(facts, p->size, ap_auto_kept);
    unsigned char *whole = question && ap_auto_kept[0] ? ap_read_ours(ap_auto_kept, &bytes) : NULL;
    unsigned char *book = whole ? ap_auto_answer(whole, bytes, &size, &ap_auto_told) : NULL;
    snprintf(ap_auto_told.how, sizeof ap_auto_told.how, "%s", book ? "kept" : "nothing");
    if (book) {
        p->table[0] = (ap_table){.bytes = book, .size = size, .of_world = 1};
        ap_auto_told.since = 1;
    } else {
        memset(&ap_auto_told, 0, sizeof ap_auto_told);
        snprintf(ap_auto_told.how, sizeof ap_auto_told.how, "nothing");
        snprintf(ap_auto_told.notes, sizeof ap_auto_told.notes, "planning had not ended");
        if (!question || !ap_apart_begin(question, ap_auto_kept)) status = AP_PLANNING; /* a look at it says why */
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
        memcpy(found.kept, ap_auto_kept, sizeof found.kept);
    }
    free(all);
    if (ap_meet(1)) return 0; /* asleep: whoever plans has the processors */
    if (PMPI_Bcast(&found, (int)sizeof found, MPI_BYTE, 0, MPI_COMM_WORLD)) return 0;
    memcpy(ap_auto_kept, found.kept, sizeof ap_auto_kept);
    if (found.size) {
        p->table[0].size = found.size, p->table[0].of_world = 1, p->tables = 1;
    } else {
        p->automatic = 1;
    }
    return 1;
}

void ap_auto_end(void) {
    int mine = ap_early_last(), all = 0;
    ap_turns_end();
    if (!ap_preload.automatic) return;
    if (reading.beside) ap_beside_end(reading.beside), reading.beside = NULL;
    if (!ap_preload.rank) ap_apart_end();
    /* what only some have is in nobody's report */
    if (PMPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD) || !all) ap_preload.tables = 0;
}
