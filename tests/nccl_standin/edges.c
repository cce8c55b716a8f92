/* Programs that know NCCL alone, of kinds that are rare: edges RANK RANKS FILE WHAT. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda_runtime_api.h"
#include "nccl_names.h"

enum { MOST = 8, COUNT = 3000 };
struct ncclConfig {
    size_t size;
    unsigned magic, version;
    int blocking;
};
static int me, ranks;

static void check(int code, const char *what) {
    if (!code) return;
    fprintf(stderr, "rank %d: %s gives %d\n", me, what, code);
    _Exit(3);
}
#define CHECK(CALL) check((int)(CALL), #CALL)

static void meet(const char *path, ncclUniqueId *id) {
    char part[512];
    snprintf(part, sizeof part, "%s.part", path);
    if (!me) {
        CHECK(ncclGetUniqueId(id));
        FILE *f = fopen(part, "w");
        CHECK(!f || fwrite(id, sizeof *id, 1, f) != 1 || fclose(f) || rename(part, path));
        return;
    }
    FILE *f;
    while (!(f = fopen(path, "r"))) usleep(1000);
    CHECK(fread(id, sizeof *id, 1, f) != 1);
    fclose(f);
}

static void fill(float *at, int rank) {
    for (int i = 0; i < COUNT; i++) at[i] = (float)(rank + i % 7);
}

static void judge(const float *at, int all, const char *what) {
    for (int i = 0; i < COUNT; i++) {
        float should = (float)(all * (all - 1) / 2 + all * (i % 7));
        if (at[i] != should) fprintf(stderr, "rank %d, %s: %g, not %g\n", me, what, at[i], should), _Exit(4);
    }
}

/* One thread for all ranks: collectives, and messages in a ring beside them in the same group. */
static void together(void) {
    ncclComm_t comm[MOST];
    cudaStream_t stream[MOST];
    static float from[MOST][COUNT], to[MOST][COUNT], ring[MOST][COUNT];
    CHECK(ncclCommInitAll(comm, ranks, NULL));
    for (int r = 0; r < ranks; r++) {
        CHECK(cudaSetDevice(r));
        CHECK(cudaStreamCreateWithFlags(&stream[r], cudaStreamNonBlocking));
        fill(from[r], r);
    }
    for (int turn = 0; turn < 40; turn++) {
        memset(to, 0, sizeof to);
        CHECK(ncclGroupStart());
        for (int r = 0; r < ranks; r++) {
            if (turn % 2) CHECK(ncclSend(from[r], COUNT, ncclFloat32, (r + 1) % ranks, comm[r], stream[r]));
            CHECK(ncclAllReduce(from[r], to[r], COUNT, ncclFloat32, ncclSum, comm[r], stream[r]));
            if (turn % 2) CHECK(ncclRecv(ring[r], COUNT, ncclFloat32, (r + ranks - 1) % ranks, comm[r], stream[r]));
        }
        CHECK(ncclGroupEnd());
        for (int r = 0; r < ranks; r++) {
            CHECK(cudaStreamSynchronize(stream[r]));
            judge(to[r], ranks, "one thread for all");
            if (turn % 2) CHECK(memcmp(ring[r], from[(r + ranks - 1) % ranks], sizeof ring[r]));
        }
    }
    int device;
    CHECK(cudaGetDevice(&device));
    CHECK(device != ranks - 1); /* the one that was current before all these calls */
    for (int r = 0; r < ranks; r++) CHECK(ncclCommDestroy(comm[r]));
}

static void *abort_it(void *comm) {
    usleep(200000);
    CHECK(ncclCommAbort(comm));
    return NULL;
}

/* Rank 0 calls what the others do not. */
static void aborted(ncclUniqueId id) {
    ncclComm_t comm;
    cudaStream_t stream;
    pthread_t thread;
    static float from[COUNT], to[COUNT];
    CHECK(ncclCommInitRank(&comm, ranks, id, me));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fill(from, me);
    CHECK(ncclAllReduce(from, to, COUNT, ncclFloat32, ncclSum, comm, stream));
    CHECK(cudaStreamSynchronize(stream));
    judge(to, ranks, "before it is aborted");
    if (!me) CHECK(ncclAllReduce(from, to, COUNT, ncclFloat32, ncclSum, comm, stream));
    CHECK(pthread_create(&thread, NULL, abort_it, comm));
    CHECK(cudaStreamSynchronize(stream)); /* at rank 0 that ends with the communicator */
    CHECK(pthread_join(thread, NULL));
}

/* Some ranks do not wait for a communicator that is made, but ask whether it is there. */
static void later(ncclUniqueId id) {
    ncclComm_t comm;
    cudaStream_t stream;
    struct ncclConfig config = {sizeof config, 0, 0, me % 2};
    ncclResult_t state = ncclSuccess;
    static float from[COUNT], to[COUNT];
    int code = ncclCommInitRankConfig(&comm, ranks, id, me, (ncclConfig_t *)&config);
    CHECK(code != (me % 2 ? ncclSuccess : ncclInProgress));
    do CHECK(ncclCommGetAsyncError(comm, &state)); while (state == ncclInProgress);
    CHECK(state);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fill(from, me);
    for (int turn = 0; turn < 5; turn++) {
        CHECK(ncclAllReduce(from, to, COUNT, ncclFloat32, ncclSum, comm, stream));
        CHECK(cudaStreamSynchronize(stream));
        judge(to, ranks, "made meanwhile");
    }
    CHECK(ncclCommDestroy(comm));
}

/* Some make two communicators in one group, others one after the other; messages wait for what comes later elsewhere. */
static void crossed(ncclUniqueId id) {
    ncclComm_t world, first, one, two;
    cudaStream_t stream;
    static float from[COUNT], to[COUNT], more[COUNT], came[COUNT];
    CHECK(ncclCommInitRank(&world, ranks, id, me));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(ncclCommSplit(world, 0, me, &first, NULL));
    if (me % 2) CHECK(ncclGroupStart());
    if (me % 2) CHECK(ncclCommSplit(first, 0, me, &one, NULL));
    CHECK(ncclCommSplit(world, 0, me, &two, NULL));
    if (me % 2) CHECK(ncclGroupEnd());
    if (me % 2 == 0) CHECK(ncclCommSplit(first, 0, me, &one, NULL));
    fill(from, me);
    for (int turn = 0; turn < 20; turn++) {
        if (me == 0) { /* the message goes, whatever the allreduce waits for */
            CHECK(ncclGroupStart());
            CHECK(ncclAllReduce(from, to, COUNT, ncclFloat32, ncclSum, one, stream));
            CHECK(ncclAllReduce(from, more, COUNT, ncclFloat32, ncclSum, two, stream));
            CHECK(ncclSend(from, COUNT, ncclFloat32, 1, world, stream));
            CHECK(ncclGroupEnd());
        } else {
            if (me == 1) {
                CHECK(ncclRecv(came, COUNT, ncclFloat32, 0, world, stream));
                CHECK(cudaStreamSynchronize(stream));
            }
            CHECK(ncclAllReduce(from, to, COUNT, ncclFloat32, ncclSum, one, stream));
            CHECK(ncclAllReduce(from, more, COUNT, ncclFloat32, ncclSum, two, stream));
        }
        CHECK(cudaStreamSynchronize(stream));
        judge(to, ranks, "one"), judge(more, ranks, "two");
    }
    CHECK(ncclCommDestroy(two));
    CHECK(ncclCommDestroy(one));
    CHECK(ncclCommDestroy(first));
    CHECK(ncclCommDestroy(world));
}

int main(int count, char **argument) {
    ncclUniqueId id;
    if (count != 5) return 2;
    me = atoi(argument[1]), ranks = atoi(argument[2]);
    const char *what = argument[4];
    if (!strcmp(what, "together")) return together(), 0;
    meet(argument[3], &id);
    if (!strcmp(what, "aborted")) aborted(id);
    if (!strcmp(what, "later")) later(id);
    if (!strcmp(what, "crossed")) crossed(id);
    return 0;
}
