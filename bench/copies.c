/* What an allgather within one host costs at least: nothing but copies and barriers, three ways.
 *
 *     copies PROCESSES BYTES TURNS      each process has so many bytes
 *
 * Writes for each way its name, median and least seconds of a turn. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../src/antiphon/runtimes/engine/native/copy.h"

enum { MOST = 64 };

typedef struct {
    _Atomic unsigned arrived, round;
    void *from[MOST];
    pid_t process[MOST];
} meeting;

static meeting *all;
static int count, me;
static size_t bytes;
static char *from, *to, *shared;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void barrier(void) {
    unsigned round = all->round;
    if ((int)atomic_fetch_add(&all->arrived, 1) == count - 1) {
        all->arrived = 0;
        atomic_fetch_add(&all->round, 1);
    }
    while (all->round == round) sched_yield();
}

static void others_memory(void) {
    barrier();
    for (int i = 1; i < count; i++) {
        int peer = (me + i) % count;
        struct iovec here = {to + (size_t)peer * bytes, bytes}, there = {all->from[peer], bytes};
        if (process_vm_readv(all->process[peer], &here, 1, &there, 1, 0) != (ssize_t)bytes) _exit(1);
    }
    barrier();
}

static void by(void (*copy)(void *, const void *, size_t)) {
    copy(shared + (size_t)me * bytes, from, bytes);
    barrier();
    for (int i = 1; i < count; i++) {
        int peer = (me + i) % count;
        copy(to + (size_t)peer * bytes, shared + (size_t)peer * bytes, bytes);
    }
    barrier();
}

static void ours(void *t, const void *f, size_t n) { ap_copy(t, f, n); }
static void library(void *t, const void *f, size_t n) { memcpy(t, f, n); }
static void by_ours(void) { by(ours); }
static void by_library(void) { by(library); }

static int by_size(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

int main(int words, char **word) {
    if (words != 4) return 2;
    count = atoi(word[1]), bytes = (size_t)atol(word[2]);
    int turns = atoi(word[3]);
    if (count < 2 || count > MOST || turns < 1) return 2;
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, (size_t)count * bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || shared == MAP_FAILED) return 1;
    for (me = count - 1; me > 0; me--)
        if (!fork()) break;
    from = calloc(1, bytes), to = calloc((size_t)count, bytes);
    double *spent = malloc((size_t)turns * sizeof *spent);
    if (!from || !to || !spent) return 1;
    memset(from, me, bytes), memset(to, 1, (size_t)count * bytes);
    all->from[me] = from, all->process[me] = getpid();
    struct {
        const char *name;
        void (*run)(void);
    } ways[] = {{"reads", others_memory}, {"shared", by_ours}, {"shared-memcpy", by_library}};
    for (int way = 0; way < 3; way++) {
        for (int i = 0; i < turns; i++) {
            barrier();
            double begin = now();
            ways[way].run();
            spent[i] = now() - begin;
        }
        qsort(spent, (size_t)turns, sizeof *spent, by_size);
        if (!me) printf("%s %.9g %.9g\n", ways[way].name, spent[turns / 2], spent[0]), fflush(stdout);
    }
    if (!me)
        while (wait(NULL) > 0) continue;
    return 0;
}
