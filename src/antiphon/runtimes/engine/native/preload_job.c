/* What all processes of the job share: the state of the preloaded library, the settings from environment variables, and waiting
 * for all processes.
 *
 * Role: the bottom of the preload_* files; calls none of them.
 * Threading: ap_preload is written in MPI_Init and MPI_Finalize by the thread that calls them, and read by all threads in
 *   between; the members that change in between are atomic, or guarded as said where they are declared.
 * Ownership: the state is never freed; its tables belong to it.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plan.h"
#include "preload.h"

ap_state ap_preload;

const char *const ap_kind_names[AP_PAGE_KINDS] = {"broadcast",     "reduce",    "scatter",  "gather",   "allgather",
                                                  "reducescatter", "allreduce", "alltoall", "alltoallv"};

/* ---- settings ---- */

/* First calls of a communicator that the MPI library serves: connecting it for plans costs as much as some calls. */
enum { DEFAULT_NEW_CALLS = 8 };
enum { DEFAULT_MIN_BYTES = 2000 }; /* of calls by unmeasured plans (ap_settings.min_bytes) */

/* Sets `problem`, unless it is set already: only the first problem is reported. */
void ap_complain(char problem[AP_TEXT], const char *format, ...) {
    va_list arguments;
    if (problem[0]) return;
    va_start(arguments, format);
    vsnprintf(problem, AP_TEXT, format, arguments);
    va_end(arguments);
}

/* Parses a size: "2KB", "64KiB", "1e6", as everywhere in Antiphon. False: it is none. */
static int read_size(const char *text, uint64_t *bytes) {
    static const char prefixes[] = "kmgtp";
    char *end;
    double value = strtod(text, &end);
    if (end == text || !(value >= 0)) return 0;
    while (*end == ' ') end++;
    const char *prefix = *end ? strchr(prefixes, *end | 0x20) : NULL; /* | 0x20: in lower case */
    if (prefix) {
        int binary = end[1] == 'i';
        for (const char *p = prefixes; p <= prefix; p++) value *= binary ? 1024 : 1000;
        end += 1 + binary;
    }
    if (*end == 'B' || *end == 'b') end++;
    if (*end || value > 1e18) return 0;
    *bytes = (uint64_t)value;
    return 1;
}

/* For tests: the seconds of calls by the plan and by the library, from ANTIPHON_TRIED="plan:library,plan:library,...":
 * process i takes pair i, or the last one if there are fewer. False where it is not set, or no such text. */
int ap_trial_override(int process, double seconds[2]) {
    const char *at = getenv("ANTIPHON_TRIED");
    for (int i = 0; at && *at; i++) {
        double pair[2];
        for (int k = 0; k < 2; k++) {
            char *end;
            pair[k] = strtod(at, &end);
            const int ends_well = k == 0 ? *end == ':' : *end == ',' || !*end;
            if (end == at || !(pair[k] >= 0) || !ends_well) return 0;
            at = end + (*end != 0);
        }
        if (i <= process) seconds[0] = pair[0], seconds[1] = pair[1];
        if (!*at) return at[-1] != ','; /* no pair follows a comma */
    }
    return 0;
}

/* A pseudo-random number from 0 to 1, the same for the same arguments. */
static double draw_number(uint64_t seed, uint64_t a, uint64_t b) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u ^ a * 0xBF58476D1CE4E5B9u ^ (b + 1) * 0x94D049BB133111EBu;
    x = (x ^ x >> 31) * 0xD6E8FEB86659FD93u, x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return (double)(x >> 11) / (double)(1ull << 53); /* the highest 53 bits */
}

/* For tests: replaces the time of a call by a candidate, if ANTIPHON_TRIED says so ("drawn:SEED", or pairs as
 * above). */
void ap_learn_override(uint64_t call, ap_candidate candidate, double *seconds) {
    const char *text = getenv("ANTIPHON_TRIED");
    double pair[2];
    if (text && !strncmp(text, "drawn:", 6)) {
        const uint64_t seed = strtoull(text + 6, NULL, 10), draw = call * (uint64_t)ap_preload.size + (uint64_t)ap_preload.rank;
        /* per candidate 1 to 2 ms, drawn anew every 300 calls; up to a fifth of noise; 2 of 100 calls take 20 times as long */
        const double usual = 1e-3 * (1 + draw_number(seed, call / 300, (uint64_t)(candidate.program * 128 + candidate.slices)));
        *seconds = usual * (1 + 0.2 * draw_number(seed, draw, 1)) * (draw_number(seed, draw, 2) < 0.02 ? 20 : 1);
    } else if (ap_trial_override(ap_preload.rank, pair)) {
        *seconds = candidate.program ? pair[0] : pair[1];
        /* the pair is of the plan as planned and of the library; all other candidates take twice as long as the plan */
        if (candidate.program > 1 || candidate.slices != AP_PLANNED_SLICES) *seconds = 2 * *seconds;
    }
}

/* For recording calls: the candidate (program, slices) whose turn it is, from ANTIPHON_TRIED="turns:1x4,2x4,0x4". False
 * where it is not set. */
int ap_learn_turn(uint64_t call, ap_candidate *candidate) {
    const char *text = getenv("ANTIPHON_TRIED");
    ap_candidate turn[AP_MAX_CHOICES];
    uint64_t count = 0;
    int used = 0;
    if (!text || strncmp(text, "turns:", 6)) return 0;
    /* each turn begins after a colon (at 5, behind "turns") or a comma */
    for (text += 5; *text && count < AP_MAX_CHOICES; text += 1 + used, count++)
        if (sscanf(text + 1, "%" SCNd32 "x%" SCNd32 "%n", &turn[count].program, &turn[count].slices, &used) != 2) return 0;
    *candidate = turn[call % count];
    return 1;
}

void ap_read_settings(ap_settings *s, char problem[AP_TEXT]) {
    const char *min_bytes = getenv("ANTIPHON_LEAST"), *timeout = getenv("ANTIPHON_TIMEOUT"),
               *report = getenv("ANTIPHON_REPORT");
    const char *any_hosts = getenv("ANTIPHON_ANYWHERE"), *new_calls = getenv("ANTIPHON_AFTER");
    const char *device = getenv("ANTIPHON_DEVICE"), *dead = getenv("ANTIPHON_DEAD");
    char *end;
    *s = (ap_settings){.min_bytes = DEFAULT_MIN_BYTES, .new_calls = DEFAULT_NEW_CALLS};
    if (min_bytes && *min_bytes && !read_size(min_bytes, &s->min_bytes)) {
        ap_complain(problem, "ANTIPHON_LEAST=%.60s is no size; 2KB is taken", min_bytes);
        min_bytes = NULL; /* as if it were not set: see `compares` below */
    }
    if (new_calls && *new_calls) {
        unsigned long calls = strtoul(new_calls, &end, 10);
        if (*end || *new_calls == '-' || calls > UINT32_MAX)
            ap_complain(problem, "ANTIPHON_AFTER=%.60s is no number of calls; %d is taken", new_calls, DEFAULT_NEW_CALLS);
        else
            s->new_calls = (uint32_t)calls;
    }
    if (timeout && *timeout) {
        s->timeout = strtod(timeout, &end);
        if (*end || !(s->timeout >= 0)) {
            ap_complain(problem, "ANTIPHON_TIMEOUT=%.60s is no number of seconds; there is no limit", timeout);
            s->timeout = 0;
        }
    }
    const char *agrees = getenv("ANTIPHON_AGREE");
    s->agrees = agrees && *agrees && strcmp(agrees, "0");
    if (s->agrees && s->timeout <= 0)
        ap_complain(problem, "ANTIPHON_AGREE has no effect without ANTIPHON_TIMEOUT");
    /* who sets ANTIPHON_LEAST wants plans from there on without a trial; and a trial calls MPI, which has no timeout */
    s->compares = !(min_bytes && *min_bytes) && s->timeout <= 0;
    const char *override = getenv("ANTIPHON_TRIED");
    double seconds[2];
    const char *learns = getenv("ANTIPHON_LEARN"), *learned = getenv("ANTIPHON_LEARNED");
    const int shall_learn = learns && *learns && strcmp(learns, "0");
    s->learns = shall_learn && s->timeout <= 0;
    if (learned && s->learns) snprintf(s->learned_path, sizeof s->learned_path, "%s", learned);
    const char *watch = getenv("ANTIPHON_WATCH");
    if (watch) snprintf(s->watch_path, sizeof s->watch_path, "%s", watch);
    if (learned && *learned && !shall_learn) ap_complain(problem, "ANTIPHON_LEARNED has no effect without ANTIPHON_LEARN=1");
    if (shall_learn && !s->learns)
        ap_complain(problem, "ANTIPHON_LEARN has no effect with ANTIPHON_TIMEOUT: calls of MPI cannot time out");
    if (override && *override && strncmp(override, "drawn:", 6) && strncmp(override, "turns:", 6) && !ap_trial_override(0, seconds))
        ap_complain(problem, "ANTIPHON_TRIED=%.60s does not say what calls took, as 2:1 does; they are timed", override);
    s->report = report && *report && strcmp(report, "0");
    if (dead) snprintf(s->dead, sizeof s->dead, "%s", dead);
    s->any_hosts = any_hosts && *any_hosts && strcmp(any_hosts, "0");
    s->device = device && *device ? strcmp(device, "0") != 0 : -1;
    if (s->report && strcmp(report, "1")) snprintf(s->report_path, sizeof s->report_path, "%s", report);
}

/* ---- waiting for all processes ---- */

enum { WARN_SECONDS = 20, ABORT_SECONDS = 300 };

/* Collective over the job. Processes without this library never come: so this warns after WARN_SECONDS, and aborts the job
 * after ABORT_SECONDS, unless it is `certain` that all have it. Returns an error code of MPI. */
int ap_wait_for_world(int certain) {
    MPI_Request request;
    struct timespec start, t, pause = {0, 1000000}; /* pause: 1 ms */
    int done = 0, warned = 0, code = PMPI_Ibarrier(MPI_COMM_WORLD, &request);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int turn = 0; !code && !done; turn++) {
        code = PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (turn < 1000) { /* about a millisecond: those that are near come at once */
            sched_yield();
            continue;
        }
        nanosleep(&pause, NULL);
        if (certain) continue;
        clock_gettime(CLOCK_MONOTONIC, &t);
        if (!done && !warned && t.tv_sec - start.tv_sec >= WARN_SECONDS) {
            fprintf(stderr, "antiphon: process %d waits for others in MPI_Init: LD_PRELOAD must be set for all processes "
                    "(mpiexec -x LD_PRELOAD, or -genv)\n", ap_preload.rank);
            warned = 1;
        }
        if (!done && t.tv_sec - start.tv_sec >= ABORT_SECONDS) PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    return code;
}
