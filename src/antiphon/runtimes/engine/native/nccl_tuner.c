/* A tuner plugin for NCCL: which algorithm, protocol, channels and chunk size, by the table that ANTIPHON_NCCL_TUNER names
 * (nccl_rules.h).
 *
 * If no rule fits, or NCCL does not support the rule here, nothing is written: neither costs nor channels, so NCCL chooses as
 * without the plugin. (A plugin that always sets the channels to 1 first would leave such calls one channel.) A table with any
 * error is not used at all; the error and its line appear in NCCL's log, and the program goes on.
 *
 * Threading: NCCL makes a context for each communicator and uses it from one thread at a time.
 * Ownership: a context is from malloc in init_tuner and freed in destroy_tuner; it keeps the rules, not the text of the table.
 */
#include "nccl_tuner.h"

#define NAME "antiphon"

typedef struct {
    size_t count;
    rule rules[]; /* those for this communicator's ranks and nodes */
} tuner;

/* The first rule for a call; NULL: none. */
static const rule *find_rule(const tuner *t, int collective, size_t nbytes) {
    for (size_t i = 0; t && i < t->count; i++)
        if (t->rules[i].collective == collective && t->rules[i].from <= nbytes && nbytes <= t->rules[i].to) return &t->rules[i];
    return NULL;
}

/* Stands in for NCCL's log. */
static void log_nothing(int level, unsigned long subsystems, const char *file, int line, const char *form, ...) {
    (void)level, (void)subsystems, (void)file, (void)line, (void)form;
}

/* Makes the context of a communicator, with the rules for its ranks and nodes. Functions return what NCCL expects: ncclSuccess
 * unless memory runs out. `chunks`: whether NCCL asks for chunk sizes; if not, rules with one are left out, as their gain was
 * measured with it. */
static ncclResult_t make_tuner(size_t ranks, size_t nodes, ap_nccl_log log, void **context, int chunks) {
    tuner *t = calloc(1, sizeof *t + MAX_RULES * sizeof *t->rules);
    const char *path = getenv(TABLE), *problem = NULL;
    int line = 0;
    *context = t;
    if (!t) return ncclSystemError;
    if (!log) log = log_nothing;
    if (!path || !*path) {
        log(AP_LOG_INFO, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": $" TABLE " names no table; NCCL chooses by itself");
        return ncclSuccess;
    }
    char *text = read_text(path, &problem);
    size_t all = 0;
    if (text) problem = read_rules(text, AP_COLLECTIVES, AP_ALGORITHMS, t->rules, &all, &line);
    free(text);
    if (problem) {
        log(AP_LOG_WARN, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": %s, line %d: %s; NCCL chooses by itself", path, line,
            problem);
        return ncclSuccess;
    }
    size_t left_out = 0;
    for (size_t i = 0; i < all; i++) {
        if (!is_for(&t->rules[i], ranks, nodes)) continue;
        if (t->rules[i].chunk && !chunks)
            left_out++;
        else
            t->rules[t->count++] = t->rules[i];
    }
    log(AP_LOG_INFO, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": %zu rules of %s for %zu ranks on %zu nodes", t->count, path,
        ranks, nodes);
    if (left_out)
        log(AP_LOG_INFO, AP_LOG_TUNING, __FILE__, __LINE__, NAME ": %zu rules left out: chunk sizes need NCCL 2.30", left_out);
    return ncclSuccess;
}

static ncclResult_t init_tuner(size_t ranks, size_t nodes, ap_nccl_log log, void **context) {
    return make_tuner(ranks, nodes, log, context, 0);
}

static ncclResult_t init_5(void **context, uint64_t communicator, size_t ranks, size_t nodes, ap_nccl_log log, void *domains,
                           void *constants) {
    (void)communicator, (void)domains, (void)constants;
    return make_tuner(ranks, nodes, log, context, 0);
}

static ncclResult_t init_6(void **context, uint64_t communicator, size_t ranks, size_t nodes, ap_nccl_log log, void *domains,
                           void *constants) {
    (void)communicator, (void)domains, (void)constants;
    return make_tuner(ranks, nodes, log, context, 1);
}

static ncclResult_t destroy_tuner(void *context) {
    free(context);
    return ncclSuccess;
}

/* NCCL does not check the choice of a plugin of version 2. So an algorithm that NCCL does not support for this call (`collnet`,
 * `nvls`: whether it does) must not be chosen, and rules must name the protocol. `together`: number of calls in one group. */
static ncclResult_t choose_by_name(void *context, int collective, size_t nbytes, int collnet, int nvls, int together,
                                   int *algorithm, int *protocol, int *channels) {
    (void)together;
    const rule *r = find_rule(context, collective, nbytes);
    /* NCCL takes the latest version that it knows: one that takes version 2 is older than PAT (NCCL 2.23). */
    if (!r || r->protocol == ANY || r->algorithm == AP_PAT) return ncclSuccess;
    if ((r->algorithm == AP_NVLS || r->algorithm == AP_NVLS_TREE) && !nvls) return ncclSuccess;
    if ((r->algorithm == AP_COLLNET_DIRECT || r->algorithm == AP_COLLNET_CHAIN) && !collnet) return ncclSuccess;
    *algorithm = r->algorithm, *protocol = r->protocol;
    if (r->channels) *channels = r->channels;
    return ncclSuccess;
}

/* Choose by setting a cost to 0. `costs`: a table [algorithm][protocol] of NCCL's estimates, negative: unsupported.
 * NCCL declares it as float **, but passes the address of contiguous rows. If the rule names no protocol, the one with
 * the least estimate is chosen. */
static ncclResult_t choose_by_cost(void *context, int collective, size_t nbytes, float **costs, int algorithm_count,
                                   int protocol_count, int *channels) {
    const rule *r = find_rule(context, collective, nbytes);
    if (!r || !costs || r->algorithm >= algorithm_count) return ncclSuccess;
    float *row = (float *)costs + (size_t)r->algorithm * (size_t)protocol_count, *best = NULL;
    for (int p = 0; p < protocol_count && p < AP_PROTOCOLS; p++) {
        if (row[p] < 0 || (r->protocol != ANY && r->protocol != p)) continue;
        if (!best || row[p] < *best) best = &row[p];
    }
    if (!best) return ncclSuccess;
    *best = 0;
    if (r->channels) *channels = r->channels;
    return ncclSuccess;
}

static ncclResult_t choose_3(void *context, int collective, size_t nbytes, int together, float **costs, int algorithm_count,
                             int protocol_count, int *channels) {
    (void)together;
    return choose_by_cost(context, collective, nbytes, costs, algorithm_count, protocol_count, channels);
}

static ncclResult_t choose_4(void *context, int collective, size_t nbytes, int together, float **costs, int algorithm_count,
                             int protocol_count, int registered, int *channels) {
    (void)together, (void)registered;
    return choose_by_cost(context, collective, nbytes, costs, algorithm_count, protocol_count, channels);
}

/* NCCL calls this after it has chosen an algorithm: the chunk of a rule that it did not follow does not apply. It limits chunks
 * to the size of its buffers (NCCL_BUFFSIZE). */
static ncclResult_t choose_chunk(void *context, int collective, size_t nbytes, int algorithm, int protocol, int channels,
                                 size_t *bytes) {
    (void)channels;
    const rule *r = find_rule(context, collective, nbytes);
    if (r && r->chunk && r->algorithm == algorithm && (r->protocol == ANY || r->protocol == protocol)) *bytes = r->chunk;
    return ncclSuccess;
}

#define AP_EXPORT __attribute__((visibility("default")))

AP_EXPORT const ap_nccl_tuner_2 ncclTunerPlugin_v2 = {NAME, init_tuner, choose_by_name, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_3 ncclTunerPlugin_v3 = {NAME, init_tuner, choose_3, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_4 ncclTunerPlugin_v4 = {NAME, init_tuner, choose_4, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_5 ncclTunerPlugin_v5 = {NAME, init_5, choose_4, destroy_tuner};
AP_EXPORT const ap_nccl_tuner_6 ncclTunerPlugin_v6 = {NAME, init_6, choose_4, destroy_tuner, choose_chunk};
