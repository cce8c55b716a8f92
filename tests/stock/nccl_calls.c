/* A program of one rank that uses NCCL: calls RANKS RANK HOW, and on stdin a line for each call: collective, count, type.
 * HOW: plain, group, config, scalable, nonblocking, or split: the halves of a communicator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_names.h"

int main(int count, char **given) {
    if (count != 4) return 2;
    int ranks = atoi(given[1]), rank = atoi(given[2]), type;
    const char *how = given[3];
    ncclUniqueId id = {{0}};
    ncclConfig_t config = {.size = sizeof config, .magic = 0xcafebeef, .version = 23100, .blocking = strcmp(how, "nonblocking") != 0};
    ncclComm_t comm = NULL, whole = NULL;
    ncclResult_t result;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(how, "group")) {
        ncclGroupStart(), ncclGroupStart();
        result = ncclCommInitRank(&comm, ranks, id, rank);
        if (ncclGroupEnd() != ncclSuccess || ncclGroupEnd() != ncclSuccess) return 3;
    } else if (!strcmp(how, "config") || !strcmp(how, "nonblocking"))
        result = ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
    else if (!strcmp(how, "scalable")) result = ncclCommInitRankScalable(&comm, ranks, rank, 1, &id, &config);
    else result = ncclCommInitRank(&comm, ranks, id, rank);
    if (!strcmp(how, "split")) {
        whole = comm;
        result = ncclCommSplit(whole, rank < ranks / 2, rank, &comm, NULL);
    }
    if (result != ncclSuccess || !comm) return 4;
    char name[32];
    size_t n;
    while (scanf("%31s %zu %d", name, &n, &type) == 3) {
        ncclDataType_t t = (ncclDataType_t)type;
        if (!strcmp(name, "allreduce")) result = ncclAllReduce(0, 0, n, t, ncclSum, comm, 0);
        else if (!strcmp(name, "reducescatter")) result = ncclReduceScatter(0, 0, n, t, ncclSum, comm, 0);
        else if (!strcmp(name, "broadcast")) result = ncclBroadcast(0, 0, n, t, 0, comm, 0);
        else if (!strcmp(name, "reduce")) result = ncclReduce(0, 0, n, t, ncclSum, 0, comm, 0);
        else if (!strcmp(name, "allgather")) result = ncclAllGather(0, 0, n, t, comm, 0);
        else if (!strcmp(name, "alltoall")) result = ncclAlltoAll(0, 0, n, t, comm, 0);
        else if (!strcmp(name, "gather")) result = ncclGather(0, 0, n, t, 0, comm, 0);
        else result = ncclScatter(0, 0, n, t, 0, comm, 0);
        if (result != ncclSuccess) return 5;
    }
    ncclCommDestroy(comm);
    if (whole) ncclCommDestroy(whole);
    return 0;
}
