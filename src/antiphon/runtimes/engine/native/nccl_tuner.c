/* A tuner plugin for NCCL: which algorithm, protocol and channels, by the table that ANTIPHON_NCCL_TUNER names.
 *
 * The table is what `antiphon export TABLE --to nccl-tuner` writes (docs/stock.md):
 *
 *     antiphon-nccl-tuner 1
 *     # collective from to algorithm protocol channels ranks nodes
 *     allreduce 65536 - ring auto 0 8 1
 *
 * The first line that fits a call decides. Where none does, or NCCL cannot do here what it says, nothing is written:
 * neither costs nor channels, so that NCCL does what it would without us. (A plugin that begins by writing 1 to the
 * channels takes all but one of them from every such call.) A table in which anything is wrong is not used at all; NCCL
 * is told what and in which line, and the program goes on.
 *
 * Threading: NCCL makes a context for each communicator and uses it from one thread at a time.
 * Ownership: a context is from malloc in init_tuner and freed in destroy_tuner; it keeps the rules, not the text of the table.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nccl_tuner.h"

#define NAME "antiphon"
#define TABLE "ANTIPHON_NCCL_TUNER"
#define HEAD "antiphon-nccl-tuner 1"

enum { WORDS = 8, MOST_RULES = 4096, MOST_BYTES = 1 << 20, MOST_CHANNELS = 64, ANY = -1 };

typedef struct {
    int collective, algorithm, protocol, channels;
    size_t from, to; /* both belong to it */
    long ranks, nodes;
} rule;

typedef struct {
    size_t ranks, nodes, count;
    rule rules[]; /* those for as many ranks and nodes */
} tuner;

static const char *const collectives[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
static const char *const algorithms[] = {"tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat"};
static const char *const protocols[] = {"ll", "ll128", "simple"};

/* ---- the table ---- */

static int locate_choice(const char *word, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(word, names[i])) return i;
    return ANY;
}

/* A whole number up to `max_value` in decimal digits alone; 0 where it is none. */
static int read_number(const char *word, unsigned long long max_value, unsigned long long *value) {
    size_t length = strlen(word);
    if (!length || length > 19 || strspn(word, "0123456789") != length) return 0;
    *value = strtoull(word, NULL, 10);
    return *value <= max_value;
}

/* One line, which is cut into words here; what is wrong with it, else NULL. */
static const char *read_rule(char *line, rule *out) {
    char *words[WORDS + 1], *rest = NULL;
    int count = 0;
    for (char *word = strtok_r(line, " \t", &rest); word && count <= WORDS; word = strtok_r(NULL, " \t", &rest))
        words[count++] = word;
    if (count != WORDS) return "expected 8 words: collective from to algorithm protocol channels ranks nodes";
    unsigned long long from, to = SIZE_MAX, channels, ranks = 0, nodes = 0;
    int any_ranks = !strcmp(words[6], "*"), any_nodes = !strcmp(words[7], "*");
    if ((out->collective = locate_choice(words[0], collectives, AP_COLLECTIVES)) == ANY) return "no such collective";
    if (!read_number(words[1], SIZE_MAX, &from)) return "from: expected a number of bytes";
    if (strcmp(words[2], "-") && !read_number(words[2], SIZE_MAX, &to)) return "to: expected a number of bytes, or -";
    if (to < from) return "the range of sizes is empty";
    if ((out->algorithm = locate_choice(words[3], algorithms, AP_ALGORITHMS)) == ANY) return "no such algorithm";
    out->protocol = locate_choice(words[4], protocols, AP_PROTOCOLS);
    if (out->protocol == ANY && strcmp(words[4], "auto")) return "no such protocol";
    if (!read_number(words[5], MOST_CHANNELS, &channels)) return "channels: expected 0 (NCCL's choice) to 64";
    if (!any_ranks && (!read_number(words[6], 1 << 30, &ranks) || !ranks)) return "ranks: expected a number from 1, or *";
    if (!any_nodes && (!read_number(words[7], 1 << 30, &nodes) || !nodes)) return "nodes: expected a number from 1, or *";
    out->from = from, out->to = to, out->channels = (int)channels;
    out->ranks = any_ranks ? ANY : (long)ranks, out->nodes = any_nodes ? ANY : (long)nodes;
    return NULL;
}

/* The whole file with a zero behind it; NULL, and why, where it cannot be had. A pipe is not waited for. */
static char *read_file(const char *path, const char **problem) {
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    size_t size = 0;
    ssize_t got = 1;
    *problem = NULL;
    if (file < 0 || fstat(file, &about)) *problem = strerror(errno);
    else if (!S_ISREG(about.st_mode)) *problem = "is no file";
    else if (about.st_size > MOST_BYTES) *problem = "has more than 1 MiB";
    else if (!(text = malloc(MOST_BYTES + 1))) *problem = strerror(errno);
    while (text && got > 0 && size < MOST_BYTES)
        if ((got = read(file, text + size, MOST_BYTES - size)) > 0) size += (size_t)got;
    if (text && got < 0) *problem = strerror(errno);
    else if (text && memchr(text, 0, size)) *problem = "is no text";
    if (file >= 0) close(file);
    if (*problem) {
        free(text);
        return NULL;
    }
    text[size] = 0;
    return text;
}

/* Puts the rules of the table for out->ranks and out->nodes into `out`; what is wrong, and in which line, else NULL. */
static const char *read_table(char *text, tuner *out, int *line) {
    int rules = 0;
    *line = 0;
    for (char *at = text, *next; at; at = next) {
        next = strchr(at, '\n');
        if (next) *next++ = 0;
        ++*line;
        if (*line == 1) {
            if (strcmp(at, HEAD)) return "expected \"" HEAD "\"";
            continue;
        }
        at += strspn(at, " \t");
        if (!*at || *at == '#') continue;
        if (rules++ == MOST_RULES) return "more than 4096 rules";
        rule rule_read;
        const char *problem = read_rule(at, &rule_read);
        if (problem) return problem;
        int matches = (rule_read.ranks == ANY || (size_t)rule_read.ranks == out->ranks) &&
                      (rule_read.nodes == ANY || (size_t)rule_read.nodes == out->nodes);
        if (matches) out->rules[out->count++] = rule_read;
    }
    return NULL;
}

/* ---- calls of NCCL ---- */

static const rule *find_rule(const tuner *t, int collective, size_t nbytes) {
    for (size_t i = 0; t && i < t->count; i++)
        if (t->rules[i].collective == collective && t->rules[i].from <= nbytes && nbytes <= t->rules[i].to) return &t->rules[i];
    return NULL;
}

static void log_nothing(int level, unsigned long subsystems, const char *file, int line, const char *form, ...) {
    (void)level, (void)subsystems, (void)file, (void)line, (void)form;
}

static ncclResult_t init_tuner(size_t ranks, size_t nodes, ap_nccl_log log, void **context) {
    tuner *t = calloc(1, sizeof *t + MOST_RULES * sizeof *t->rules);
    const char *path = getenv(TABLE), *problem = NULL;
    int line = 0;
    *context = t;
    if (!t) return ncclSystemError;
    if (!log) log = log_nothing;
    t->ranks = ranks, t->nodes = nodes;
    if (!path || !*path) {
        log(AP_LOG_INFO, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": $" TABLE " names no table; NCCL chooses by itself");
        return ncclSuccess;
    }
    char *text = read_file(path, &problem);
    if (text) problem = read_table(text, t, &line);
    free(text);
    if (problem) {
        t->count = 0;
        log(AP_LOG_WARN, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": %s, line %d: %s; NCCL chooses by itself", path, line,
            problem);
        return ncclSuccess;
    }
    log(AP_LOG_INFO, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": %zu rules of %s for %zu ranks on %zu nodes", t->count, path,
        ranks, nodes);
    return ncclSuccess;
}

static ncclResult_t begin_with_id(void **context, uint64_t communicator, size_t ranks, size_t nodes, ap_nccl_log log,
                                  void *domains, void *constants) {
    (void)communicator, (void)domains, (void)constants;
    return init_tuner(ranks, nodes, log, context);
}

static ncclResult_t destroy_tuner(void *context) {
    free(context);
    return ncclSuccess;
}

/* Before version 3 NCCL obeys a choice, whether it can or not; so what it cannot do is not chosen. A protocol of its own
 * choice it has only where it chooses the algorithm as well. */
static ncclResult_t choose_by_name(void *context, int collective, size_t nbytes, int collnet, int nvls, int together,
                                   int *algorithm, int *protocol, int *channels) {
    (void)together;
    const rule *r = find_rule(context, collective, nbytes);
    if (!r || r->protocol == ANY || r->algorithm == AP_PAT) return ncclSuccess;
    if ((r->algorithm == AP_NVLS || r->algorithm == AP_NVLS_TREE) && !nvls) return ncclSuccess;
    if ((r->algorithm == AP_COLLNET_DIRECT || r->algorithm == AP_COLLNET_CHAIN) && !collnet) return ncclSuccess;
    *algorithm = r->algorithm, *protocol = r->protocol;
    if (r->channels) *channels = r->channels;
    return ncclSuccess;
}

/* What is chosen costs nothing. Of a rule without a protocol it is the one that NCCL holds to be best. */
static ncclResult_t choose_by_cost(void *context, int collective, size_t nbytes, float **costs, int algorithms_, int protocols_,
                                   int *channels) {
    const rule *r = find_rule(context, collective, nbytes);
    if (!r || !costs || r->algorithm >= algorithms_) return ncclSuccess;
    float *row = (float *)costs + (size_t)r->algorithm * (size_t)protocols_, *best = NULL;
    for (int p = 0; p < protocols_ && p < AP_PROTOCOLS; p++) {
        if (row[p] < 0 || (r->protocol != ANY && r->protocol != p)) continue;
        if (!best || row[p] < *best) best = &row[p];
    }
    if (!best) return ncclSuccess;
    *best = 0;
    if (r->channels) *channels = r->channels;
    return ncclSuccess;
}

static ncclResult_t choose_3(void *context, int collective, size_t nbytes, int together, float **costs, int algorithms_,
                             int protocols_, int *channels) {
    (void)together;
    return choose_by_cost(context, collective, nbytes, costs, algorithms_, protocols_, channels);
}

static ncclResult_t choose_4(void *context, int collective, size_t nbytes, int together, float **costs, int algorithms_,
                             int protocols_, int registered, int *channels) {
    (void)together, (void)registered;
    return choose_by_cost(context, collective, nbytes, costs, algorithms_, protocols_, channels);
}

#define AP_EXPORT __attribute__((visibility("default")))

AP_EXPORT const ap_nccl_tuner_2 ncclTunerPlugin_v2 = {NAME, init_tuner, choose_by_name, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_3 ncclTunerPlugin_v3 = {NAME, init_tuner, choose_3, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_4 ncclTunerPlugin_v4 = {NAME, init_tuner, choose_4, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_5 ncclTunerPlugin_v5 = {NAME, begin_with_id, choose_4, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_6 ncclTunerPlugin_v6 = {NAME, begin_with_id, choose_4, destroy_tuner, NULL};
