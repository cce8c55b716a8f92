/* Learns which candidate is fastest for calls of one kind and size: a bandit with change detection, alike at all processes.
 *
 * The problem. Calls of one kind and size are repeated, and each can be made by any of a few candidates ("arms"): plans, a plan in
 * more or fewer slices, the library. We want nearly the total time of the best one. Nobody knows which it is, noise hides it, and
 * it may change when a neighbour begins or ends to use the same links. All processes must take the same candidate in each call,
 * or they wait for each other for ever. But they cannot talk about it before each call.
 *
 * Agreement. What is done next is a function of the number of calls and of numbers that all processes have alike. Each
 * process keeps its times. When a phase ends, each offers its medians in an allreduce of 88 bytes (8 arms and 3 more
 * numbers) within the next call, and all decide by the maxima. A digest of all candidates so far is exchanged, too: if
 * it differs, the caller stops. So it does not matter how much clocks, noise or delays differ between processes.
 *
 *     SEARCH    consists of rounds. In a round each arm in turn makes a block: some calls in a row. The first call of a block warms
 *               up memory and connections; the median of the others counts, so one outlier does not. Only the first call follows
 *               a barrier, because links recover in a pause: small calls that each follow a pause take half as long as in a job.
 *               After round r those arms drop out that take more than SLACK[r] times the best ("successive elimination"). In the
 *               first round, blocks have two calls, the shorter of which counts, and only arms that take 75 % longer drop out. In
 *               later rounds they have four calls, and arms that are 20 %, 8 %, 4 % slower drop out. So a bad arm costs two calls.
 *               Nearly equal arms cost little, as either is good. The program that has served stays if it is among the last, so
 *               that calls do not change for nothing.
 *     SETTLED   the best arm serves all calls. Every so often (`interval`) the median of the last WINDOW calls is exchanged. If it
 *               leaves its range twice running, upwards or downwards, conditions have changed: a new SEARCH. If that elects the
 *               same program again, in any slices, the alarm was false, and the range becomes wider. The interval is such
 *               that exchanging costs at most 1 % of the calls' time or 1 us per call, whichever is more.
 *     PROBE     a neighbour's end may not show in the calls of the settled arm. So rarely another arm gets two calls. If the
 *               second one is faster, a SEARCH among the two (a duel) confirms that. Probes are paid for by credit, counted in
 *               settled calls. Every settled call earns 3 % of a call, later 1 %, and a probe costs what it takes longer. Next
 *               comes the arm that has waited longest, where waiting counts more the faster the arm once was. So the total regret
 *               is bounded: that of each search by its rounds, and a fixed share of the rest.
 *     CONTEXTS  What a search has measured is remembered. If the settled arm then takes as long as it did in an earlier search that
 *               another arm won, conditions have probably come back: that arm is taken without a search. Should it not take as
 *               long as it did then, a search begins.
 *
 * Slices are counted in quarters of the planned number (AP_PLANNED_SLICES). They are searched as Blink's MIAD does (section 4.2.1).
 * Beside the best program there are two arms of it: MORE has twice as many slices, FEWER half as many. If MORE wins, its number
 * is the program's, and MORE is twice that (multiplicative increase). If not, MORE is four times as many for one probe, as a worse
 * step may lie before a better one. After that, MORE is twice as many less a quarter of the program's number, and each
 * further probe in vain takes such a quarter off MORE (additive decrease). From the first increase on, FEWER is the
 * program's number less a quarter. Example: with 8 slices, MORE is 16, and in vain 32 once, then 14, 12, 10, and 16
 * again. FEWER is 4, or 6 after an increase.
 *
 * Example. Arms: plan 10 ms, library 30, plan in more slices 9, in fewer 12. The library drops out after the first round (8
 * calls), fewer slices after the second one (12 calls), the plan as it was after the third (8 calls). Settled; later a probe
 * shows that still more slices are slower. When a neighbour takes half of a link, the median becomes 17 ms: two windows later
 * a search begins.
 */
#include "learn.h"

#include <stdlib.h>
#include <string.h>

#include "plan.h"

enum { FIRST_BLOCK = 2, BLOCK = 4, PROBE_BLOCK = 2, WINDOW = 8, ROUNDS = 4, /* calls; rounds of a search */
       LIBRARY = 0 }; /* the program that is no plan, so it has no slices */
/* FADING_CALLS: settled calls after which FIRST_CREDIT has halved. TRUSTED_CALLS: calls by an arm that was taken from a context;
 * if conditions change within them, that context was wrong, and a search begins. */
enum { MAX_INTERVAL = 1024, FADING_CALLS = 500, MAX_CONTEXTS = 4, TRUSTED_CALLS = 64 };
/* Numbers that are exchanged after the arms' medians: seconds of an exchange, the digest, and minus the digest. The maxima of the
 * last two are opposite only if all processes have the same digest. */
enum { EXCHANGE = AP_MAX_ARMS, DIGEST, INVERSE };
static const double SLACK[ROUNDS] = {1.75, 1.20, 1.08, 1.04}; /* by round: slower arms than this, over the best, leave */
static const double EQUAL = 1.02;       /* arms within 2 % need no further rounds */
static const double PROBE_GAIN = 0.95;  /* a probe must take less than this share of the settled time */
/* Credit for probes, in settled calls. Each settled call earns LASTING_CREDIT, at first FIRST_CREDIT more; a probe costs at least
 * MIN_COST. MAX_FIRST: the first time of an arm's probes counts as at most this number of settled calls. */
static const double FIRST_CREDIT = 0.02, LASTING_CREDIT = 0.01, MIN_COST = 0.1, MAX_FIRST = 1.5;
/* A search leaves out arms whose best time ever is so many times the settled arm's: after conditions got worse;
 * otherwise. (If they got worse, the settled arm's time is the longer one of now, so the limit is nearer to it.) */
static const double HOPELESS_IF_WORSE = 1.25, HOPELESS = 2.5;
static const double ALIKE = 0.1; /* conditions are those of a context if a call takes as long, within this share */
/* Share by which the median may leave the usual time. */
static const double MIN_MARGIN = 0.08, MAX_MARGIN = 1.0;
static const double WIDER = 1.5; /* after a false alarm the share becomes so many times as large */

enum { SEARCH, SETTLED, PROBE };

typedef struct {
    ap_arm stats;
    int active, blocks;   /* whether it is still in the running search; number of medians in `block` */
    double block[ROUNDS]; /* median seconds of each block of the running search */
    uint64_t tried;       /* number of the call at which it was measured last */
} arm;

/* What was measured from call `since` on, under conditions that may come back: the arms, the program that won (`chosen`), and
 * `increased` of the learner. */
typedef struct {
    arm arm[AP_MAX_ARMS];
    int chosen, increased;
    uint64_t since;
} context;

struct ap_learner {
    /* one arm per program, in the slices that are best so far; then the arms MORE and FEWER of the program that served last, unless
     * that was the library (more_of, fewer_of) */
    arm arm[AP_MAX_ARMS];
    int programs, chosen, searches_slices, increased; /* increased: MORE has won before */
    /* why: of the running search, or the last one; current: the arm that is searched or probed; challenger: of a duel, or -1;
     * offset: calls in this block or window */
    int phase, why, current, challenger, round, offset;
    int outside, searches, choices; /* outside: latest windows in a row beyond the margin; choices: length of `choice` */
    context contexts[MAX_CONTEXTS]; /* a ring: number n is at n % MAX_CONTEXTS */
    int context_count, context; /* contexts so far; the index of the present one */
    /* calls so far; their number when the search began, when it ended, at the next exchange; calls between exchanges */
    uint64_t call, search_call, settled_call, next_check, interval;
    double usual;          /* seconds of a settled call; 0: the next exchange sets it */
    double margin, credit; /* share that `usual` may change; for probes, in settled calls */
    double exchange, own_exchange; /* seconds of an exchange: agreed, and at this process */
    uint32_t digest;
    double local[AP_MAX_ARMS]; /* this process's latest median of each arm, as it is exchanged */
    double times[WINDOW];      /* seconds of the calls of the running block, or a ring of the latest settled calls */
    ap_choice choice[AP_MAX_CHOICES];
};

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower median of at most WINDOW values. */
static double median_of(const double *values, int count) {
    double sorted[WINDOW];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    return sorted[(count - 1) / 2];
}

/* The programs, and two arms: more and fewer slices of one of them. */
static int more_of(const ap_learner *l) { return l->programs; }
static int fewer_of(const ap_learner *l) { return l->programs + 1; }
static int arms_of(const ap_learner *l) { return l->programs + 2; }

/* Enters the median time of an arm's latest `samples` calls. */
static void enter_time(ap_learner *l, int a, double seconds, uint64_t samples) {
    ap_arm *stats = &l->arm[a].stats;
    stats->low = stats->samples && stats->low < seconds ? stats->low : seconds;
    stats->high = stats->high > seconds ? stats->high : seconds;
    stats->seconds = seconds, stats->samples += samples;
    l->arm[a].tried = l->call;
}

/* ---- arms of more and fewer slices ---- */

/* Sets arm `a` to a program in so many slices, with nothing measured. */
static void set_slices(ap_learner *l, int a, int program, int slices, int usable) {
    const int in_range = slices >= AP_MIN_SLICES && slices <= AP_MAX_SLICES;
    l->arm[a] = (arm){.stats = {.candidate = {program, slices}, .usable = usable && in_range}};
}

/* The step of an additive decrease: a quarter of the program's slices. */
static int step_of(int slices) { return slices / 4 > 1 ? slices / 4 : 1; }

enum { MORE_WON = 1, NONE_WON = 0, FEWER_WON = -1 }; /* only FEWER_WON makes a difference to place_slices */

/* Makes the arms MORE and FEWER of the program. `won`: which of them has just won; after FEWER, adopt_slices sets MORE. */
static void place_slices(ap_learner *l, int program, int won) {
    const int slices = l->arm[program].stats.candidate.slices, usable = l->searches_slices && program != LIBRARY;
    set_slices(l, more_of(l), program, 2 * slices, usable && won != FEWER_WON);
    set_slices(l, fewer_of(l), program, l->increased ? slices - step_of(slices) : slices / 2, usable);
}

/* ---- searching ---- */

/* The first arm of the search from `from` on, in the direction of the round; -1: none. */
static int next_active(const ap_learner *l, int from) {
    const int step = l->round % 2 ? -1 : 1; /* back and forth, so that a drift of the times favours no arm */
    int a = from;
    while (a >= 0 && a < arms_of(l) && !l->arm[a].active) a += step;
    return a < arms_of(l) ? a : -1;
}

/* Calls of the running block. */
static int block_of(const ap_learner *l) { return l->phase == PROBE ? PROBE_BLOCK : l->round ? BLOCK : FIRST_BLOCK; }

/* Calls at the beginning of a block that do not count. In a first round both count, so that the shorter one is the median. */
static int warm_up_of(const ap_learner *l) { return l->phase == PROBE || l->round; }

/* Begins the round with its first arm. */
static void begin_round(ap_learner *l) {
    l->current = next_active(l, l->round % 2 ? arms_of(l) - 1 : 0);
    l->offset = 0;
}

/* Begins a search. `challenger`: a duel of this arm and the chosen one; -1: all arms. A duel has no first round, which only drops
 * arms that are much slower: the challenger's probe has just been faster. */
static void begin_search(ap_learner *l, int why, int challenger) {
    const double limit = (why == AP_TOOK_LONGER ? HOPELESS_IF_WORSE : HOPELESS) * l->arm[l->chosen].stats.seconds;
    const int sliced_program = l->arm[more_of(l)].stats.candidate.program; /* whose slices MORE and FEWER vary */
    /* conditions have changed, so what was measured of more and fewer slices no longer holds */
    if (why == AP_TOOK_LONGER || why == AP_TOOK_LESS) l->increased = 0, place_slices(l, sliced_program, NONE_WON);
    for (int a = 0; a < arms_of(l); a++) {
        arm *entry = &l->arm[a];
        const int hopeless = a != l->chosen && entry->stats.samples && l->arm[l->chosen].stats.samples && entry->stats.low > limit;
        entry->active = entry->stats.usable && (challenger < 0 ? !hopeless : a == challenger || a == l->chosen);
        entry->blocks = 0;
    }
    if (challenger < 0) l->search_call = l->call;
    l->phase = SEARCH, l->why = why, l->challenger = challenger, l->round = challenger < 0 ? 0 : 1, l->searches += challenger < 0;
    begin_round(l);
}

/* MORE was no faster. After twice the program's number comes four times, for one probe; then a step less than twice, and a step less
 * each time. When it has come down to the program's number, it starts again at twice that. Four times comes only while the program
 * serves the calls: while the library does, MORE is of the program before, and comes down at once. The times of the
 * former number stay, as an estimate by which the next probe is priced. */
static void change_more_slices(ap_learner *l) {
    ap_candidate *more = &l->arm[more_of(l)].stats.candidate;
    const int slices = l->arm[more->program].stats.candidate.slices, doubled = 2 * slices;
    if (more->slices == doubled && 2 * doubled <= AP_MAX_SLICES && more->program == l->chosen) {
        more->slices = 2 * doubled;
        return;
    }
    const int nearer = (more->slices > doubled ? doubled : more->slices) - step_of(slices);
    more->slices = nearer > slices ? nearer : doubled <= AP_MAX_SLICES ? doubled : slices + 1;
}

/* A probe of this arm, or a duel, did not pay off. Its best time may have been luck: move it a quarter towards the latest, and by
 * at most a quarter of itself. */
static void note_failed_probe(ap_learner *l, int a) {
    ap_arm *stats = &l->arm[a].stats;
    stats->low += (stats->seconds < 2 * stats->low ? stats->seconds - stats->low : stats->low) / 4;
    if (a == more_of(l)) change_more_slices(l);
}

/* ---- conditions that come back ---- */

/* A context begins with each search among all arms, and changes with the duels that follow. */
static void remember(ap_learner *l) {
    if (l->challenger < 0 && l->why != AP_AS_BEFORE) l->context = l->context_count++ % MAX_CONTEXTS;
    context *now = &l->contexts[l->context];
    memcpy(now->arm, l->arm, sizeof now->arm);
    now->chosen = l->chosen, now->increased = l->increased;
    if (l->why != AP_AS_BEFORE) now->since = l->search_call;
}

/* The latest context in which calls by the chosen arm took as long, if another one was the best; -1: none. */
static int find_context(const ap_learner *l, double seconds) {
    const ap_candidate now = l->arm[l->chosen].stats.candidate;
    for (int i = l->context_count - 1; i >= 0 && i >= l->context_count - MAX_CONTEXTS; i--) {
        const context *c = &l->contexts[i % MAX_CONTEXTS];
        if (!c->arm[c->chosen].stats.usable) continue;
        for (int a = 0; a < arms_of(l); a++) {
            const ap_arm *stats = &c->arm[a].stats;
            const int measured = stats->samples && c->arm[a].tried >= c->since, same = !memcmp(&stats->candidate, &now, sizeof now);
            const int alike = seconds < stats->seconds * (1 + ALIKE) && seconds > stats->seconds / (1 + ALIKE);
            if (measured && same && alike && a != c->chosen) return i % MAX_CONTEXTS;
        }
    }
    return -1;
}

/* MORE or FEWER (arm `a`) has won: its slices and times are now those of the program. */
static void adopt_slices(ap_learner *l, int a, int program) {
    const arm before = l->arm[program];
    l->arm[program] = l->arm[a];
    l->increased |= a == more_of(l);
    place_slices(l, program, a == more_of(l) ? MORE_WON : FEWER_WON);
    /* after FEWER, the number before is MORE, with its times; but an additive decrease does not go back */
    if (a == fewer_of(l) && !l->increased && before.stats.usable) l->arm[more_of(l)] = before;
}

/* Records a choice. Of too many, the first one is kept, and the oldest of the others is dropped. */
static void record_choice(ap_learner *l, ap_choice choice) {
    if (l->choices == AP_MAX_CHOICES) {
        memmove(l->choice + 1, l->choice + 2, (AP_MAX_CHOICES - 2) * sizeof *l->choice);
        l->choices--;
    }
    l->choice[l->choices++] = choice;
}

/* Ends a search: arm `a` serves the calls from now on. */
static void settle(ap_learner *l, int a) {
    const int program = l->arm[a].stats.candidate.program;
    const int changes = a != l->chosen || !l->choices;
    const double seconds = l->arm[a].stats.seconds;
    if (l->challenger >= 0 && l->challenger != a) note_failed_probe(l, l->challenger);
    if (l->why == AP_TOOK_LONGER || l->why == AP_TOOK_LESS) /* the same program again: it was a false alarm */
        l->margin = program != l->chosen ? MIN_MARGIN : WIDER * l->margin;
    if (l->margin > MAX_MARGIN) l->margin = MAX_MARGIN;
    if (a >= l->programs) {
        adopt_slices(l, a, program);
    } else if (program != LIBRARY && l->arm[more_of(l)].stats.candidate.program != program) {
        l->increased = 0;
        place_slices(l, program, NONE_WON);
    }
    l->chosen = program, l->phase = SETTLED, l->offset = 0, l->usual = 0, l->outside = 0;
    if (l->challenger < 0) l->settled_call = l->call, l->credit = 0;
    l->next_check = l->call + WINDOW;
    remember(l);
    if (!changes && l->why == AP_PROBE_WON) return; /* a duel that the chosen arm has won is no news */
    record_choice(l, (ap_choice){.call = l->call, .candidate = l->arm[program].stats.candidate, .why = l->why,
                                 .searches = l->searches, .seconds = seconds});
}

/* After a round: drops arms, and settles if one is left or the rest are equal. */
static void end_round(ap_learner *l) {
    int best = -1, active = 0;
    double estimate[AP_MAX_ARMS] = {0}, worst = 0;
    for (int a = 0; a < arms_of(l); a++) {
        if (!l->arm[a].active) continue;
        estimate[a] = median_of(l->arm[a].block, l->arm[a].blocks);
        if (best < 0 || estimate[a] < estimate[best]) best = a;
    }
    for (int a = 0; a < arms_of(l); a++) {
        if (!l->arm[a].active) continue;
        l->arm[a].active = estimate[a] <= SLACK[l->round] * estimate[best];
        active += l->arm[a].active;
        if (!l->round) l->arm[a].blocks = 0; /* the shorter of two calls, unlike a median, does not count in later rounds */
        if (l->arm[a].active && estimate[a] > worst) worst = estimate[a];
    }
    l->round++;
    if (active == 1 || l->round == ROUNDS || (l->round > 1 && worst <= EQUAL * estimate[best])) {
        /* What has served (after the first search) stays if it is as good: the few calls of a search, each after
         * another arm's, say less than those of a job. */
        for (int a = 0; a < arms_of(l) && l->choices; a++)
            if (l->arm[a].active && l->arm[a].stats.candidate.program == l->chosen &&
                (l->arm[best].stats.candidate.program != l->chosen || estimate[a] < estimate[best]))
                best = a;
        l->arm[best].stats.seconds = estimate[best];
        settle(l, best);
    } else {
        begin_round(l);
    }
}

/* ---- settled ---- */

/* Calls that a probe of an arm costs, by its best time, which one outlier does not change much. */
static double cost_of(const ap_learner *l, const arm *entry) {
    const double cost = entry->stats.samples ? PROBE_BLOCK * (entry->stats.low / l->usual - 1) : 0;
    return cost > MIN_COST ? cost : MIN_COST;
}

/* The arm to probe now; -1: none, or the credit does not pay for it yet. */
static int arm_to_probe(const ap_learner *l) {
    int choice = -1;
    double best = 0;
    for (int a = 0; a < arms_of(l); a++) {
        const arm *entry = &l->arm[a];
        if (a == l->chosen || !entry->stats.usable) continue;
        const double speedup = entry->stats.samples ? l->usual / entry->stats.low : 1, age = (double)(l->call - entry->tried);
        const double score = age * speedup * speedup * speedup * speedup; /* arms half as fast are probed 16 times as rarely */
        if (choice < 0 || score > best) choice = a, best = score;
    }
    return choice >= 0 && cost_of(l, &l->arm[choice]) <= l->credit ? choice : -1;
}

/* Takes the arm that was the best in this context. If its calls do not take as long as they did, a search begins later. */
static void return_to(ap_learner *l, int number) {
    const context *c = &l->contexts[number];
    const double seconds = c->arm[c->chosen].stats.seconds;
    memcpy(l->arm, c->arm, sizeof l->arm);
    l->increased = c->increased, l->why = AP_AS_BEFORE, l->challenger = -1, l->context = number;
    settle(l, c->chosen);
    l->usual = seconds;
}

/* The median of the latest calls by the settled arm has been exchanged: goes on, or begins a search or a probe. */
static void end_check(ap_learner *l, double seconds) {
    if (!l->usual) l->usual = seconds;
    enter_time(l, l->chosen, seconds, WINDOW);
    const int longer = seconds > l->usual * (1 + l->margin), less = seconds < l->usual / (1 + l->margin);
    l->outside = longer || less ? l->outside + 1 : 0;
    if (l->outside == 2) { /* twice running: no outlier */
        const int back = l->why == AP_AS_BEFORE && l->call - l->settled_call < TRUSTED_CALLS ? -1 : find_context(l, seconds);
        if (back >= 0)
            return_to(l, back);
        else
            begin_search(l, longer ? AP_TOOK_LONGER : AP_TOOK_LESS, -1);
        return;
    }
    /* an exchange may cost 1 % of the time of the calls between two, or 1 us (1e-6 s) for each of these calls */
    const double by_share = 100 * l->exchange / seconds, by_time = 1e6 * l->exchange;
    const double calls = by_share < by_time ? by_share : by_time;
    l->interval = calls > MAX_INTERVAL ? MAX_INTERVAL : calls < WINDOW ? WINDOW : (uint64_t)calls;
    l->next_check = l->call + (l->outside ? WINDOW : l->interval);
    const int probed = l->outside ? -1 : arm_to_probe(l);
    if (probed >= 0) l->phase = PROBE, l->current = probed, l->offset = 0;
}

/* The time of a probe has been exchanged: begins a duel, or goes back to the settled arm. */
static void end_probe(ap_learner *l, double seconds) {
    ap_arm *stats = &l->arm[l->current].stats;
    enter_time(l, l->current, seconds, PROBE_BLOCK - 1);
    /* the arm's first probe: a single call may be an outlier */
    if (stats->samples < PROBE_BLOCK && stats->low > MAX_FIRST * l->usual) stats->low = MAX_FIRST * l->usual;
    if (seconds < PROBE_GAIN * l->usual) {
        begin_search(l, AP_PROBE_WON, l->current);
        return;
    }
    l->credit -= cost_of(l, &l->arm[l->current]);
    note_failed_probe(l, l->current);
    /* twice the interval, as the probe has cost an exchange, too; a short interval stands for cheap exchanges */
    l->phase = SETTLED, l->offset = 0, l->next_check = l->call + (l->interval > WINDOW ? 2 * l->interval : WINDOW);
}

/* ---- calls: learn.h says what each function is for ---- */

ap_learner *ap_learner_open(uint32_t programs, uint32_t first, int library, int searches_slices) {
    ap_learner *l = programs && programs <= AP_MAX_PROGRAMS && first < programs ? calloc(1, sizeof *l) : NULL;
    if (!l) return NULL;
    l->programs = (int)programs, l->chosen = (int)first, l->searches_slices = searches_slices, l->margin = MIN_MARGIN;
    for (int a = 0; a < l->programs; a++)
        l->arm[a].stats = (ap_arm){.candidate = {a, AP_PLANNED_SLICES}, .usable = a != LIBRARY || library};
    place_slices(l, l->chosen, NONE_WON);
    begin_search(l, AP_BY_SEARCH, -1);
    return l;
}

void ap_learner_close(ap_learner *l) { free(l); }

int ap_learner_is_searching(const ap_learner *l) { return l->phase == SEARCH; }

void ap_learner_recall(ap_learner *l, const ap_arm *stats) {
    const int program = stats->candidate.program;
    if (program < 0 || program >= l->programs || !(stats->seconds > 0)) return;
    ap_arm *to = &l->arm[program].stats;
    if (to->samples && !stats->chosen) return; /* of several records of a program, in other slices, the chosen counts */
    *to = *stats, to->usable = 1;
    if (!stats->chosen) return;
    place_slices(l, program, NONE_WON);
    l->why = AP_LEARNED_BEFORE, l->challenger = -1, l->searches = 0;
    settle(l, program);
}

double *ap_learner_begin(ap_learner *l, ap_candidate *candidate, int *aligns) {
    const int a = l->phase == SETTLED ? l->chosen : l->current;
    *candidate = l->arm[a].stats.candidate;
    *aligns = l->phase == SEARCH && !l->offset; /* whether a barrier should precede it: before the first call of a block */
    if (l->phase == SETTLED)
        l->credit += LASTING_CREDIT + FIRST_CREDIT / (1 + (double)(l->call - l->settled_call) / FADING_CALLS);
    /* 128: above AP_MAX_SLICES, so that candidates differ */
    l->call++, l->digest = l->digest * 31 + (uint32_t)(candidate->program * 128 + candidate->slices) + 1;
    return &l->times[l->offset++ % WINDOW]; /* where the caller stores its seconds */
}

int ap_learner_report(ap_learner *l, double own[AP_LEARNER_NUMBERS]) {
    int due = 0;
    if (l->phase == SETTLED) {
        due = l->call >= l->next_check && l->offset >= WINDOW;
        if (due) l->local[l->chosen] = median_of(l->times, WINDOW);
        /* the window is a ring: keep its offset small */
        if (l->offset >= 2 * WINDOW) l->offset -= WINDOW;
    } else if (l->offset == block_of(l)) { /* the block is complete */
        l->local[l->current] = median_of(l->times + warm_up_of(l), l->offset - warm_up_of(l));
        const int next = l->phase == PROBE ? -1 : next_active(l, l->current + (l->round % 2 ? -1 : 1));
        due = next < 0;
        if (!due) l->current = next, l->offset = 0;
    }
    if (!due) return 0;
    memcpy(own, l->local, sizeof l->local);
    own[EXCHANGE] = l->own_exchange, own[DIGEST] = l->digest, own[INVERSE] = -(double)l->digest;
    return AP_LEARNER_NUMBERS;
}

int ap_learner_update(ap_learner *l, const double agreed[AP_LEARNER_NUMBERS]) {
    l->exchange = agreed[EXCHANGE];
    if (agreed[DIGEST] != -agreed[INVERSE]) return 0;
    if (l->phase == SETTLED) {
        end_check(l, agreed[l->chosen]);
    } else if (l->phase == PROBE) {
        end_probe(l, agreed[l->current]);
    } else {
        for (int a = 0; a < arms_of(l); a++) {
            if (!l->arm[a].active) continue;
            l->arm[a].block[l->arm[a].blocks++] = agreed[a];
            enter_time(l, a, agreed[a], (uint64_t)(block_of(l) - warm_up_of(l)));
        }
        end_round(l);
    }
    return 1;
}

/* Waiting for a late process is no cost of exchanging: takes the least time, which may grow slowly. */
void ap_learner_exchanged(ap_learner *l, double seconds) {
    const double longer = 1.1 * l->own_exchange;
    l->own_exchange = !(longer > 0) || seconds < longer ? seconds : longer;
}

void ap_learner_refuse(ap_learner *l) {
    const int refused = l->phase == SETTLED ? l->chosen : l->current;
    /* MORE or FEWER only if no other program is usable; the search then settles on its program */
    int other = 0;
    while (other < arms_of(l) && (other == refused || !l->arm[other].stats.usable)) other++;
    if (other == arms_of(l)) return; /* the only one */
    l->arm[refused].stats.usable = l->arm[refused].active = 0;
    for (int i = 0; i < MAX_CONTEXTS * AP_MAX_ARMS; i++) {
        ap_arm *stats = &l->contexts[i / AP_MAX_ARMS].arm[i % AP_MAX_ARMS].stats;
        if (!memcmp(&stats->candidate, &l->arm[refused].stats.candidate, sizeof stats->candidate)) stats->usable = 0;
    }
    if (l->phase == SEARCH && refused != l->chosen) {
        const int next = next_active(l, l->current);
        if (next >= 0) l->current = next;
        l->offset = next >= 0 ? 0 : block_of(l); /* no arm is left: a complete block, so that ap_learner_report ends the round */
    } else if (l->phase == PROBE) {
        l->phase = SETTLED, l->offset = 0, l->next_check = l->call + WINDOW;
    } else {
        l->chosen = other;
        begin_search(l, AP_REFUSED_BY_ONE, -1);
    }
}

void ap_learner_restart(ap_learner *l) {
    for (int a = 0; a < arms_of(l); a++) {
        ap_arm *stats = &l->arm[a].stats;
        *stats = (ap_arm){.candidate = stats->candidate, .usable = stats->usable};
    }
    l->context_count = 0;
    begin_search(l, AP_OTHER_SIZE_NOW, -1);
}

uint32_t ap_learner_arms(const ap_learner *l, ap_arm arms[AP_MAX_ARMS]) {
    for (int a = 0; a < arms_of(l); a++) arms[a] = l->arm[a].stats, arms[a].chosen = a == l->chosen;
    return (uint32_t)arms_of(l);
}

uint32_t ap_learner_choices(const ap_learner *l, ap_choice choices[AP_MAX_CHOICES]) {
    memcpy(choices, l->choice, (size_t)l->choices * sizeof *choices);
    return (uint32_t)l->choices;
}
