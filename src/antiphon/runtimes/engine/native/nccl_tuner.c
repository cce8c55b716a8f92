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

static int place(const char *word, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(word, names[i])) return i;
    return ANY;
}

/* A whole number up to `most` in decimal digits alone; 0 where it is none. */
static int number(const char *word, unsigned long long most, unsigned long long *value) {
    size_t length = strlen(word);
    if (!length || length > 19 || strspn(word, "0123456789") != length) return 0;
    *value = strtoull(word, NULL, 10);
    return *value <= most;
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
    if ((out->collective = place(words[0], collectives, AP_COLLECTIVES)) == ANY) return "no such collective";
    if (!number(words[1], SIZE_MAX, &from)) return "from: expected a number of bytes";
    if (strcmp(words[2], "-") && !number(words[2], SIZE_MAX, &to)) return "to: expected a number of bytes, or -";
    if (to < from) return "the range of sizes is empty";
    if ((out->algorithm = place(words[3], algorithms, AP_ALGORITHMS)) == ANY) return "no such algorithm";
    out->protocol = place(words[4], protocols, AP_PROTOCOLS);
    if (out->protocol == ANY && strcmp(words[4], "auto")) return "no such protocol";
    if (!number(words[5], MOST_CHANNELS, &channels)) return "channels: expected 0 (NCCL's choice) to 64";
    if (!any_ranks && (!number(words[6], 1 << 30, &ranks) || !ranks)) return "ranks: expected a number from 1, or *";
    if (!any_nodes && (!number(words[7], 1 << 30, &nodes) || !nodes)) return "nodes: expected a number from 1, or *";
    out->from = from, out->to = to, out->channels = (int)channels;
    out->ranks = any_ranks ? ANY : (long)ranks, out->nodes = any_nodes ? ANY : (long)nodes;
    return NULL;
}

/* The whole file with a zero behind it; NULL, and why, where it cannot be had. A pipe is not waited for. */
static char *read_file(const char *path, const char **why) {
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    size_t size = 0;
    ssize_t got = 1;
    *why = NULL;
    if (file < 0 || fstat(file, &about)) *why = strerror(errno);
    else if (!S_ISREG(about.st_mode)) *why = "is no file";
    else if (about.st_size > MOST_BYTES) *why = "has more than 1 MiB";
    else if (!(text = malloc(MOST_BYTES + 1))) *why = strerror(errno);
    while (text && got > 0 && size < MOST_BYTES)
        if ((got = read(file, text + size, MOST_BYTES - size)) > 0) size += (size_t)got;
    if (text && got < 0) *why = strerror(errno);
    else if (text && memchr(text, 0, size)) *why = "is no text";
    if (file >= 0) close(file);
    if (*why) {
        free(text);
        return NULL;
    }
    text[size] = 0;
    return text;
}

/* The rules of the table for so many ranks and nodes are put into `out`; what is wrong, and in which line, else NULL. */
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
        rule one;
        const char *why = read_rule(at, &one);
        if (why) return why;
        int ours = (one.ranks == ANY || (size_t)one.ranks == out->ranks) &&
                   (one.nodes == ANY || (size_t)one.nodes == out->nodes);
        if (ours) out->rules[out->count++] = one;
    }
    return NULL;
}

/* ---- calls of NCCL ---- */

static const rule *find(const tuner *t, int collective, size_t nbytes) {
    for (size_t i = 0; t && i < t->count; i++)
        if (t->rules[i].collective == collective && t->rules[i].from <= nbytes && nbytes <= t->rules[i].to)
            return &t->rules[i];
    return NULL;
}

static void silent(int level, unsigned long parts, const char *file, int line, const char *form, ...) {
    (void)level, (void)parts, (void)file, (void)line, (void)form;
}

static ncclResult_t begin(size_t ranks, size_t nodes, ap_nccl_log log, void **context) {
    tuner *t = calloc(1, sizeof *t + MOST_RULES * sizeof *t->rules);
    const char *path = getenv(TABLE), *why = NULL;
    int line = 0;
    *context = t;
    if (!t) return ncclSystemError;
    if (!log) log = silent;
    t->ranks = ranks, t->nodes = nodes;
    if (!path || !*path) {
        log(AP_LOG_INFO, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": $" TABLE " names no table; NCCL chooses by itself");
        return ncclSuccess;
    }
    char *text = read_file(path, &why);
    if (text) why = read_table(text, t, &line);
    free(text);
    if (why) {
        t->count = 0;
        log(AP_LOG_WARN, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": %s, line %d: %s; NCCL chooses by itself", path, line,
            why);
        return ncclSuccess;
    }
    log(AP_LOG_INFO, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": %zu rules of %s for %zu ranks on %zu nodes", t->count,
        path, ranks, nodes);
    return ncclSuccess;
}

static ncclResult_t begin_with_id(void **context, uint64_t communicator, size_t ranks, size_t nodes, ap_nccl_log log,
                                  void *domains, void *constants) {
    (void)communicator, (void)domains, (void)constants;
    return begin(ranks, nodes, log, context);
}

static ncclResult_t end(void *context) {
    free(context);
    return ncclSuccess;
}

/* Before version 3 NCCL does as it is told, whether it can or not; what it cannot, it is not told. A protocol of its own
 * choice it has only where it chooses the algorithm as well. */
static ncclResult_t choose_by_name(void *context, int collective, size_t nbytes, int collnet, int nvls, int together,
                                   int *algorithm, int *protocol, int *channels) {
    (void)together;
    const rule *r = find(context, collective, nbytes);
    if (!r || r->protocol == ANY || r->algorithm == AP_PAT) return ncclSuccess;
    if ((r->algorithm == AP_NVLS || r->algorithm == AP_NVLS_TREE) && !nvls) return ncclSuccess;
    if ((r->algorithm == AP_COLLNET_DIRECT || r->algorithm == AP_COLLNET_CHAIN) && !collnet) return ncclSuccess;
    *algorithm = r->algorithm, *protocol = r->protocol;
    if (r->channels) *channels = r->channels;
    return ncclSuccess;
}

/* What is chosen costs nothing. Of a rule without a protocol it is the one that NCCL holds to be best. */
static ncclResult_t choose_by_cost(void *context, int collective, size_t nbytes, float **costs, int algorithms_,
                                   int protocols_, int *channels) {
    const rule *r = find(context, collective, nbytes);
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

#define SEEN __attribute__((visibility("default")))

SEEN const ap_nccl_tuner_2 ncclTunerPlugin_v2 = {NAME, begin, choose_by_name, end};
SEEN const ap_nccl_tuner_3 ncclTunerPlugin_v3 = {NAME, begin, choose_3, end};
SEEN const ap_nccl_tuner_4 ncclTunerPlugin_v4 = {NAME, begin, choose_4, end};
SEEN const ap_nccl_tuner_5 ncclTunerPlugin_v5 = {NAME, begin_with_id, choose_4, end};
SEEN const ap_nccl_tuner_6 ncclTunerPlugin_v6 = {NAME, begin_with_id, choose_4, end, NULL};
