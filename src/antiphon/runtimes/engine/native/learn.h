/* Choosing a candidate for calls of one collective and size while the job runs (learn.c explains how). An arm is what is known
 * of a candidate: the word of multi-armed bandits.
 *
 * Every process of a group has its own ap_learner, and calls, for each call in the same order:
 *
 *     if (ap_learner_report(l, own))                  numbers have to be exchanged before this call, at all processes alike
 *         ap_learner_update(l, maximum over all processes of own)
 *     time = ap_learner_begin(l, &candidate, &aligns)     aligns: a barrier should precede the call, so that it is timed fairly
 *     make the call by the candidate; *time = seconds that it took at this process
 *
 * Threading: one thread at a time. Ownership: ap_learner_close frees it; *time is valid until the next call.
 */
#pragma once

#include <stdint.h>

/* program 0: the library's own collective, 1: the plan of the table, above: other plans. slices: quarters of the planned number. */
typedef struct {
    int32_t program, slices;
} ap_candidate;

enum { AP_MIN_SLICES = 1, AP_MAX_SLICES = 64 }; /* from a quarter of the planned number to 16 times it */

/* Arms: one per program, and two of the chosen program in more and in fewer slices. Numbers: those that processes exchange: a
 * time per arm, the seconds of an exchange, and a digest of all candidates so far, as it is and negated: both maxima are then
 * opposite only if it is equal at all processes. */
enum { AP_MAX_PROGRAMS = 6, AP_MAX_ARMS = AP_MAX_PROGRAMS + 2, AP_LEARNER_NUMBERS = AP_MAX_ARMS + 3, AP_MAX_CHOICES = 16 };

/* Why a candidate was chosen. */
enum {
    AP_BY_SEARCH,      /* it won the first search */
    AP_TOOK_LONGER,    /* calls took longer than usual, and it won the search that followed */
    AP_TOOK_LESS,      /* likewise, less than usual */
    AP_PROBE_WON,      /* a probe (two calls by it) was faster, and it won a search among it and the one chosen before */
    AP_LEARNED_BEFORE, /* by an earlier job (ap_learner_recall) */
    AP_OTHER_SIZE_NOW, /* it won the search after ap_learner_restart */
    AP_REFUSED_BY_ONE, /* it won the search after ap_learner_refuse */
    AP_AS_BEFORE       /* calls took as long as in an earlier search that it won; without a new search */
};

typedef struct {
    uint64_t call; /* from which it was used */
    ap_candidate candidate;
    int32_t why, searches; /* why: AP_BY_SEARCH, ...; searches among all candidates so far */
    double seconds;        /* of a call */
} ap_choice;

/* What is known of a candidate. Seconds: the latest median, the least and the greatest one; 0: never measured. */
typedef struct {
    ap_candidate candidate;
    int32_t usable, chosen; /* it can run at all processes; it serves the calls at present */
    uint64_t samples;       /* calls measured */
    double seconds, low, high;
} ap_arm;

typedef struct ap_learner ap_learner;

/* `programs`: their number, with the library's. `first`: the program that serves such calls without learning. `library`:
 * whether program 0 can be chosen; `searches_slices`: whether other numbers of slices are candidates. NULL: out of memory. */
ap_learner *ap_learner_open(uint32_t programs, uint32_t first, int library, int searches_slices);
void ap_learner_close(ap_learner *l);
/* What an earlier job learned; the one `chosen` is used at once. Before the first call. */
void ap_learner_recall(ap_learner *l, const ap_arm *known);
/* `own`: numbers of this process; false: no exchange is needed before this call. */
int ap_learner_report(ap_learner *l, double own[AP_LEARNER_NUMBERS]);
/* `agreed`: the maximum of each number. False: the processes have taken different candidates. */
int ap_learner_update(ap_learner *l, const double agreed[AP_LEARNER_NUMBERS]);
/* Seconds that an exchange took at this process; the next exchange takes them into account. */
void ap_learner_exchanged(ap_learner *l, double seconds);
/* Chooses the candidate of the next call; returns where its time has to be stored. */
double *ap_learner_begin(ap_learner *l, ap_candidate *candidate, int *aligns);
/* Whether the call that has begun belongs to a search. */
int ap_learner_is_searching(const ap_learner *l);
/* The candidate of the last call cannot run at some process: it is not chosen again, unless it is the only one. At all
 * processes alike. */
void ap_learner_refuse(ap_learner *l);
/* Calls are of another size from now on: earlier times do not count. */
void ap_learner_restart(ap_learner *l);
/* Copies all arms; returns their number. */
uint32_t ap_learner_arms(const ap_learner *l, ap_arm arms[AP_MAX_ARMS]);
/* Copies the outcomes of searches: the first one and the latest ones, in order; returns their number. */
uint32_t ap_learner_choices(const ap_learner *l, ap_choice choices[AP_MAX_CHOICES]);
