/* The table of rules that the tuner plugin (nccl_tuner.c) and the library for LD_PRELOAD (nccl_choose.c) read: which algorithm,
 * protocol, channels and chunk size NCCL takes for a call.
 *
 *     antiphon-nccl-tuner 1
 *     # collective from to algorithm protocol channels ranks nodes [chunk]
 *     allreduce 65536 - ring auto 0 8 1
 *     allgather 0 1048575 pat simple 4 * * 131072
 *
 * `antiphon export TABLE --to nccl-tuner` writes it (docs/stock.md). The first line that fits a call decides. A table
 * with any error is not used at all; the caller reports the error and its line.
 *
 * Threading: no state; every function works on its arguments. Ownership: read_text returns memory of malloc.
 */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TABLE "ANTIPHON_NCCL_TUNER" /* the variable that names the file of the table */
#define HEAD "antiphon-nccl-tuner 1"
#define FORM "expected 8 words: collective from to algorithm protocol channels ranks nodes; a ninth is the chunk in bytes"

enum { MIN_WORDS = 8, MAX_WORDS = 9, ANY = -1 }; /* ANY: `*` or `auto`; also what find_name returns for an unknown name */
/* MAX_BYTES: of a table. MAX_CHANNELS: NCCL's own limit from 2.25 on. MAX_CHUNK: bytes, beyond any buffer in use. */
enum { MAX_RULES = 4096, MAX_BYTES = 1 << 20, MAX_CHANNELS = 64, MAX_CHUNK = 1 << 30, MAX_RANKS = 1 << 30 };

/* Numbers as NCCL passes them to a tuner plugin, up to AP_COLLECTIVES and AP_ALGORITHMS (exclusive). Only nccl_choose.c can
 * choose the others, up to AP_CALLS and AP_CHOICES. */
enum ap_nccl_collective {
    AP_BROADCAST, AP_REDUCE, AP_ALLGATHER, AP_REDUCESCATTER, AP_ALLREDUCE, AP_COLLECTIVES,
    AP_ALLTOALL = AP_COLLECTIVES, AP_GATHER, AP_SCATTER, AP_CALLS
};
enum ap_nccl_algorithm {
    AP_TREE, AP_RING, AP_COLLNET_DIRECT, AP_COLLNET_CHAIN, AP_NVLS, AP_NVLS_TREE, AP_PAT, AP_ALGORITHMS,
    AP_AUTO = AP_ALGORITHMS, AP_SYMMETRIC, AP_COPIES, AP_CHOICES
};
enum ap_nccl_protocol { AP_LL, AP_LL128, AP_SIMPLE, AP_PROTOCOLS };

typedef struct {
    int collective, algorithm, protocol; /* protocol: ANY: NCCL's own choice */
    int channels, line;                  /* channels: 0: NCCL's own choice; line: of the table, from 1 */
    size_t from, to; /* bytes of a call, both inclusive */
    size_t chunk;    /* bytes; 0: NCCL's own choice */
    long ranks, nodes; /* of the communicators that the rule is for, or ANY */
} rule;

static const char *const collectives[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce",
                                          "alltoall",  "gather", "scatter"};
static const char *const algorithms[] = {"tree",      "ring", "collnet-direct", "collnet-chain", "nvls",
                                         "nvls-tree", "pat",  "auto",           "symmetric",     "copies"};
static const char *const protocols[] = {"ll", "ll128", "simple"};

/* The position of a word in a list of names; ANY: it is not there. */
static int find_name(const char *word, const char *const *names, int count) {
    for (int i = 0; i < count; i++)
        if (!strcmp(word, names[i])) return i;
    return ANY;
}

/* Parse a whole number up to `max_value`, of decimal digits only; false if it is none. */
static int read_number(const char *word, unsigned long long max_value, unsigned long long *value) {
    enum { MAX_DIGITS = 19 }; /* so many always fit 64 bits */
    size_t length = strlen(word);
    if (!length || length > MAX_DIGITS || strspn(word, "0123456789") != length) return 0;
    *value = strtoull(word, NULL, 10);
    return *value <= max_value;
}

/* Parse one line, which is overwritten. Return the error, or NULL. `collective_count`, `algorithm_count`: the caller supports
 * that many of the first collectives and algorithms. */
static const char *read_rule(char *line, int collective_count, int algorithm_count, rule *out) {
    char *words[MAX_WORDS + 1], *rest = NULL; /* + 1: so that a word too many shows */
    int count = 0;
    for (char *word = strtok_r(line, " \t", &rest); word && count <= MAX_WORDS; word = strtok_r(NULL, " \t", &rest))
        words[count++] = word;
    if (count != MIN_WORDS && count != MAX_WORDS) return FORM;
    unsigned long long from, to = SIZE_MAX, channels, ranks = 0, nodes = 0, chunk = 0;
    int any_ranks = !strcmp(words[6], "*"), any_nodes = !strcmp(words[7], "*");
    if ((out->collective = find_name(words[0], collectives, collective_count)) == ANY) return "no such collective";
    if (!read_number(words[1], SIZE_MAX, &from)) return "from: expected a number of bytes";
    if (strcmp(words[2], "-") && !read_number(words[2], SIZE_MAX, &to)) return "to: expected a number of bytes, or -";
    if (to < from) return "the range of sizes is empty";
    if ((out->algorithm = find_name(words[3], algorithms, algorithm_count)) == ANY) return "no such algorithm";
    out->protocol = find_name(words[4], protocols, AP_PROTOCOLS);
    if (out->protocol == ANY && strcmp(words[4], "auto")) return "no such protocol";
    if (!read_number(words[5], MAX_CHANNELS, &channels)) return "channels: expected 0 (NCCL's choice) to 64";
    if (!any_ranks && (!read_number(words[6], MAX_RANKS, &ranks) || !ranks))
        return "ranks: expected a number from 1, or *";
    if (!any_nodes && (!read_number(words[7], MAX_RANKS, &nodes) || !nodes))
        return "nodes: expected a number from 1, or *";
    if (count == MAX_WORDS && !read_number(words[8], MAX_CHUNK, &chunk)) return FORM;
    out->from = from, out->to = to, out->channels = (int)channels, out->chunk = chunk;
    out->ranks = any_ranks ? ANY : (long)ranks, out->nodes = any_nodes ? ANY : (long)nodes;
    return NULL;
}

/* Return the whole file with a zero behind it; NULL and *problem if it cannot be read. Only regular files are read. */
static char *read_text(const char *path, const char **problem) {
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = NULL;
    size_t size = 0;
    ssize_t count_read = 1;
    *problem = NULL;
    if (file < 0 || fstat(file, &about)) *problem = strerror(errno);
    else if (!S_ISREG(about.st_mode)) *problem = "is no file";
    else if (about.st_size > MAX_BYTES) *problem = "has more than 1 MiB";
    else if (!(text = malloc(MAX_BYTES + 1))) *problem = strerror(errno);
    while (text && count_read > 0 && size < MAX_BYTES)
        if ((count_read = read(file, text + size, MAX_BYTES - size)) > 0) size += (size_t)count_read;
    if (text && count_read < 0) *problem = strerror(errno);
    else if (text && memchr(text, 0, size)) *problem = "is no text";
    if (file >= 0) close(file);
    if (*problem) {
        free(text);
        return NULL;
    }
    text[size] = 0;
    return text;
}

/* Parse the text, which is overwritten, into `rules` (room for MAX_RULES). Return an error, with its *line, or NULL. */
static const char *read_rules(char *text, int collective_count, int algorithm_count, rule *rules, size_t *count, int *line) {
    *line = 0, *count = 0;
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
        if (*count == MAX_RULES) return "more than 4096 rules";
        const char *problem = read_rule(at, collective_count, algorithm_count, &rules[*count]);
        if (problem) return problem;
        rules[(*count)++].line = *line;
    }
    return NULL;
}

/* Whether a rule applies to communicators of that many ranks and nodes. */
static int is_for(const rule *r, size_t ranks, size_t nodes) {
    return (r->ranks == ANY || (size_t)r->ranks == ranks) && (r->nodes == ANY || (size_t)r->nodes == nodes);
}
