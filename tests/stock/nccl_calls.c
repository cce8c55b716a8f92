/* A program of one rank that uses NCCL: calls RANKS RANK HOW, and on stdin a line for each call: collective, count, type.
 * HOW: plain, group, config, scalable, nonblocking; split: the halves of a communicator; both: each call by a communicator and
 * by its half; many: the last of 300 communicators of one group; grouped: all calls in one group; threads: all calls by each of
 * four threads, while the main one makes and ends communicators. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_names.h"

enum { MANY = 300, THREADS = 4, MOST_CALLS = 64 };

static struct {
    char name[32];
    size_t n;
    int type;
} calls[MOST_CALLS];
static int call_count;
static ncclComm_t comm, whole, many[MANY];

static ncclResult_t call(int number, ncclComm_t c) {
    const char *name = calls[number].name;
    size_t n = calls[number].n;
    ncclDataType_t t = (ncclDataType_t)calls[number].type;
    if (!strcmp(name, "allreduce")) return ncclAllReduce(0, 0, n, t, ncclSum, c, 0);
    if (!strcmp(name, "reducescatter")) return ncclReduceScatter(0, 0, n, t, ncclSum, c, 0);
    if (!strcmp(name, "broadcast")) return ncclBroadcast(0, 0, n, t, 0, c, 0);
    if (!strcmp(name, "reduce")) return ncclReduce(0, 0, n, t, ncclSum, 0, c, 0);
    if (!strcmp(name, "allgather")) return ncclAllGather(0, 0, n, t, c, 0);
    if (!strcmp(name, "alltoall")) return ncclAlltoAll(0, 0, n, t, c, 0);
    if (!strcmp(name, "gather")) return ncclGather(0, 0, n, t, 0, c, 0);
    return ncclScatter(0, 0, n, t, 0, c, 0);
}

static void *call_all(void *unused) {
    for (int i = 0; i < call_count; i++)
        if (call(i, comm) != ncclSuccess) exit(5);
    return unused;
}

int main(int count, char **given) {
    if (count != 4) return 2;
    int ranks = atoi(given[1]), rank = atoi(given[2]);
    const char *how = given[3];
    int has_many = !strcmp(how, "many"), has_both = !strcmp(how, "both"), is_grouped = !strcmp(how, "grouped");
    ncclUniqueId id = {{0}};
    ncclConfig_t config = {.size = sizeof config, .magic = 0xcafebeef, .version = 23100, .blocking = strcmp(how, "nonblocking") != 0};
    ncclResult_t result = ncclSuccess;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(how, "group") || has_many) {
        ncclGroupStart(), ncclGroupStart();
        for (int i = 0; i < (has_many ? MANY : 1) && result == ncclSuccess; i++)
            result = ncclCommInitRank(&many[i], ranks, id, rank);
        if (ncclGroupEnd() != ncclSuccess || ncclGroupEnd() != ncclSuccess) return 3;
        comm = many[has_many ? MANY - 1 : 0];
    } else if (!strcmp(how, "config") || !strcmp(how, "nonblocking"))
        result = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
    else if (!strcmp(how, "scalable")) result = ncclCommInitRankScalable(&comm, ranks, rank, 1, &id, &config);
    else result = ncclCommInitRank(&comm, ranks, id, rank);
    if (!strcmp(how, "split") || has_both) {
        whole = comm;
        result = ncclCommSplit(whole, rank < ranks / 2, rank, &comm, NULL);
    }
    if (result != ncclSuccess || !comm) return 4;
    while (call_count < MOST_CALLS && scanf("%31s %zu %d", calls[call_count].name, &calls[call_count].n, &calls[call_count].type) == 3)
        call_count++;
    if (!strcmp(how, "threads")) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, call_all, NULL);
        for (int i = 0; i < 50; i++) {
            ncclComm_t other;
            if (ncclCommSplit(comm, 0, rank, &other, NULL) != ncclSuccess || ncclCommDestroy(other) != ncclSuccess) return 6;
        }
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    } else {
        if (is_grouped && ncclGroupStart() != ncclSuccess) return 3;
        for (int i = 0; i < call_count; i++)
            if ((has_both && call(i, whole) != ncclSuccess) || call(i, comm) != ncclSuccess) return 5;
        if (is_grouped && ncclGroupEnd() != ncclSuccess) return 3;
    }
    for (int i = 0; has_many && i < MANY - 1; i++) ncclCommDestroy(many[i]);
    ncclCommDestroy(comm);
    if (whole) ncclCommDestroy(whole);
    return 0;
}
