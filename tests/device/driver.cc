/* Calls of the kernel in a row, ranks as threads or as processes that share memory, each going on as it can.
 *
 *     driver FILE threads|processes|steps|copies BLOCKS THREADS CALLS SEED FIRST
 *
 * FILE: what calls there are, written by tests/device_cases.py. Each call is one of them, drawn by SEED; no rank waits for
 * another between calls; by steps and by copies (by_steps.h) one thread makes them for all. Exit code 1 where a result is wrong in a single bit, 2 where a call did not end. With -DSHAKEN
 * threads are held up, by SEED, wherever they load or store a signal, or synchronize.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "world.h"

#ifdef SHAKEN
static u64 shaking;
static std::atomic<u64> shaken_threads{0};

static void shake() {
    static thread_local u64 drawn = 0;
    if (!drawn) drawn = (shaking + 1) * 0x9E3779B97F4A7C15u + shaken_threads.fetch_add(1) * 0xBF58476D1CE4E5B9u + 1;
    drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
    if (drawn % 4 == 0) back_off();
    if (drawn % 64 == 1) usleep((useconds_t)(drawn >> 32) % 200);
}

ON_DEVICE u64 shaken_load(const u64 *at) {
    shake();
    return load(at);
}
ON_DEVICE void shaken_store(u64 *at, u64 value) {
    shake();
    store(at, value);
    shake();
}
ON_DEVICE u64 shaken_load_relaxed(const u64 *at) {
    shake();
    return load_relaxed(at);
}
ON_DEVICE void shaken_store_relaxed(u64 *at, u64 value) {
    shake();
    store_relaxed(at, value);
}
static int shaken_sync_block(int failed) {
    shake();
    const int any_failed = sync_block(failed);
    shake();
    return any_failed;
}
#define load shaken_load
#define store shaken_store
#define sync_block shaken_sync_block
#define load_relaxed shaken_load_relaxed
#define store_relaxed shaken_store_relaxed
#include "kernel.h"
#undef load
#undef store
#undef sync_block
#undef load_relaxed
#undef store_relaxed
#endif

#include "threads.cc"

namespace {

const double PATIENCE = 60;

/* A call: what all ranks do, are given and must end with. */
struct Given {
    i64 unit, type, op, in_place, lanes, rounds, width;
    struct OfRank {
        std::vector<i64> table;
        std::vector<char> input, output;
    };
    std::vector<OfRank> of;
};

struct Cases {
    i64 ranks = 0;
    std::vector<Given> calls;
};

i64 word(FILE *file) {
    i64 found;
    if (fread(&found, sizeof found, 1, file) != 1) abort();
    return found;
}

std::vector<char> bytes(FILE *file) {
    std::vector<char> found((size_t)word(file));
    if (found.size() && fread(found.data(), 1, found.size(), file) != found.size()) abort();
    return found;
}

Cases read_cases(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) abort();
    Cases cases;
    cases.ranks = word(file);
    for (i64 left = word(file); left > 0; --left) {
        Given one;
        for (i64 *field : {&one.unit, &one.type, &one.op, &one.in_place, &one.lanes, &one.rounds, &one.width})
            *field = word(file);
        for (i64 rank = 0; rank < cases.ranks; ++rank) {
            const std::vector<char> table = bytes(file);
            Given::OfRank of;
            of.table.assign((const i64 *)table.data(), (const i64 *)(table.data() + table.size()));
            of.input = bytes(file), of.output = bytes(file);
            one.of.push_back(of);
        }
        cases.calls.push_back(one);
    }
    fclose(file);
    return cases;
}

struct Job {
    const Cases &cases;
    u32 blocks, threads;
    u64 calls, seed, first;
    size_t each; /* bytes of a buffer */

    size_t signals() const { return (blocks * (size_t)cases.ranks * sizeof(u64) + 4095) / 4096 * 4096; }
    size_t of_rank() const { return signals() + ad_box_bytes() + BUFFERS * each; }
    char *buffer(char *memory, i64 rank, int number) const {
        return memory + (size_t)rank * of_rank() + signals() + ad_box_bytes() + (size_t)number * each;
    }
};

/* Everything that a rank does. `memory`: what is shared, as this rank sees it. Gives how many calls went wrong, or -1. */
int run_rank(const Job &job, u32 me, char *memory) {
    const u32 ranks = (u32)job.cases.ranks;
    void *rank = ad_rank_new(me, ranks, job.blocks, job.threads);
    if (!rank) fprintf(stderr, "rank %u: %s\n", me, ad_why()), abort();
    for (u32 peer = 0; peer < ranks; ++peer) {
        u64 *const signals = (u64 *)(memory + peer * job.of_rank());
        ad_rank_signals(rank, peer, signals), ad_rank_box(rank, peer, signals + job.signals() / sizeof(u64));
    }
    std::vector<std::vector<void *>> plans;
    for (const Given &one : job.cases.calls) {
        plans.emplace_back();
        for (const Given::OfRank &of : one.of) {
            plans.back().push_back(ad_plan_new(rank, of.table.data(), (i64)of.table.size()));
            if (!plans.back().back()) fprintf(stderr, "table: %s\n", ad_why()), abort();
        }
    }
    int wrong = 0;
    u64 drawn = job.seed * 2 + 1;
    for (u64 call = 0; call < job.calls && wrong >= 0; ++call) {
        drawn = drawn * 6364136223846793005u + 1442695040888963407u;
        const size_t number = (size_t)(drawn >> 33) % job.cases.calls.size();
        const Given &one = job.cases.calls[number];
        std::vector<char *> buffers;
        std::vector<i64> lengths;
        for (u32 r = 0; r < ranks; ++r) {
            const i64 scratch = ad_plan_scratch(plans[number][r], one.unit);
            const i64 sizes[] = {one.in_place ? 0 : (i64)one.of[r].input.size() / one.width,
                                 (i64)one.of[r].output.size() / one.width, scratch};
            for (int k = 0; k < BUFFERS; ++k) {
                if ((size_t)(sizes[k] * one.width) > job.each) abort();
                buffers.push_back(job.buffer(memory, r, k)), lengths.push_back(sizes[k]);
            }
        }
        const Given::OfRank &mine = one.of[me];
        char *const *own = &buffers[BUFFERS * me];
        memset(own[OUTPUT], (int)(call % 251) + 1, (size_t)(lengths[BUFFERS * me + OUTPUT] * one.width));
        memset(own[SCRATCH], (int)(call % 241) + 7, (size_t)(lengths[BUFFERS * me + SCRATCH] * one.width));
        memcpy(own[one.in_place ? OUTPUT : INPUT], mine.input.data(), mine.input.size());
        int failed;
        const int code = ad_start(1, &rank, &plans[number][me], (job.first + call) % ((u64)1 << (64 - CALL_BITS)), one.unit,
                                  (int)one.type, (int)one.op, (u32)one.lanes, (u32)one.rounds, buffers.data(), lengths.data());
        if (code) fprintf(stderr, "call %llu cannot start: %s\n", (unsigned long long)call, ad_why()), abort();
        if (ad_wait(1, &rank, PATIENCE, &failed)) {
            fprintf(stderr, "rank %u: call %llu (%zu) does not end\n", me, (unsigned long long)call, number);
            wrong = -1;
        } else if (memcmp(own[OUTPUT], mine.output.data(), mine.output.size())) {
            fprintf(stderr, "rank %u: call %llu (%zu) is wrong\n", me, (unsigned long long)call, number);
            ++wrong;
        }
    }
    for (const auto &some : plans)
        for (void *plan : some) ad_plan_free(plan);
    ad_rank_free(rank);
    return wrong;
}

char *seen_at(int shared, size_t length) {
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
    if (memory == MAP_FAILED) abort();
    return (char *)memory;
}

int in_threads(const Job &job, char *memory) {
    std::atomic<int> wrong{0}, stuck{0};
    std::vector<std::thread> all;
    for (u32 me = 0; me < (u32)job.cases.ranks; ++me)
        all.emplace_back([&, me] {
            const int found = run_rank(job, me, memory);
            found < 0 ? stuck.fetch_add(1) : wrong.fetch_add(found);
        });
    for (std::thread &one : all) one.join();
    return stuck ? 2 : wrong ? 1 : 0;
}

/* All ranks by one host. */
int by_host(const Job &job, char *memory, bool by_copies) {
    const u32 ranks = (u32)job.cases.ranks;
    std::vector<void *> all;
    for (u32 me = 0; me < ranks; ++me) all.push_back(ad_rank_new(me, ranks, job.blocks, job.threads));
    std::vector<std::vector<void *>> plans;
    for (const Given &one : job.cases.calls) {
        plans.emplace_back();
        for (u32 me = 0; me < ranks; ++me)
            plans.back().push_back(ad_plan_new(all[me], one.of[me].table.data(), (i64)one.of[me].table.size()));
    }
    int wrong = 0;
    u64 drawn = job.seed * 2 + 1;
    for (u64 call = 0; call < job.calls && !wrong; ++call) {
        drawn = drawn * 6364136223846793005u + 1442695040888963407u;
        const size_t number = (size_t)(drawn >> 33) % job.cases.calls.size();
        const Given &one = job.cases.calls[number];
        std::vector<char *> buffers;
        std::vector<i64> lengths;
        for (u32 r = 0; r < ranks; ++r) {
            const i64 sizes[] = {one.in_place ? 0 : (i64)one.of[r].input.size() / one.width,
                                 (i64)one.of[r].output.size() / one.width, ad_plan_scratch(plans[number][r], one.unit)};
            for (int k = 0; k < BUFFERS; ++k) {
                buffers.push_back(job.buffer(memory, r, k)), lengths.push_back(sizes[k]);
                memset(buffers.back(), (int)(call % 251) + 1, (size_t)(sizes[k] * one.width));
            }
            memcpy(buffers[BUFFERS * r + (one.in_place ? OUTPUT : INPUT)], one.of[r].input.data(), one.of[r].input.size());
        }
        const int code = ad_by_host(ranks, all.data(), plans[number].data(), 0, one.unit, (int)one.type, (int)one.op,
                                    (u32)one.lanes, by_copies, buffers.data(), lengths.data(), PATIENCE);
        if (code) fprintf(stderr, "call %llu (%zu): %s\n", (unsigned long long)call, number, ad_why()), wrong = 2;
        for (u32 r = 0; r < ranks && !code; ++r)
            wrong |= memcmp(buffers[BUFFERS * r + OUTPUT], one.of[r].output.data(), one.of[r].output.size()) != 0;
    }
    for (const auto &some : plans)
        for (void *plan : some) ad_plan_free(plan);
    for (void *rank : all) ad_rank_free(rank);
    return wrong;
}

/* Each has the memory at an address of its own. */
int in_processes(const Job &job, int shared, size_t length) {
    for (u32 me = 0; me < (u32)job.cases.ranks; ++me)
        if (!fork()) {
            for (u32 k = 0; k <= me; ++k) seen_at(shared, 4096 * (7 * me + 1));
            const int found = run_rank(job, me, seen_at(shared, length));
            _exit(found < 0 ? 2 : found ? 1 : 0);
        }
    int worst = 0;
    for (i64 left = job.cases.ranks; left > 0; --left) {
        int status = 0;
        wait(&status);
        const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
        if (code > worst) worst = code;
    }
    return worst;
}

}  // namespace

int main(int, char **argv) {
    const Cases cases = read_cases(argv[1]);
    Job job = {cases, (u32)atoi(argv[3]), (u32)atoi(argv[4]), strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10),
               strtoull(argv[7], NULL, 10), 4096};
    for (const Given &one : cases.calls)
        for (const Given::OfRank &of : one.of) {
            Table table;
            const char *why = read_table(of.table.data(), (i64)of.table.size(), &table);
            if (why) fprintf(stderr, "table: %s\n", why), abort();
            for (size_t size : {of.input.size(), of.output.size(), (size_t)(scratch_of(table, one.unit) * one.width)})
                if (size > job.each) job.each = (size + 4095) / 4096 * 4096;
        }
    const size_t length = job.of_rank() * (size_t)cases.ranks;
    const int shared = memfd_create("ranks", 0);
    if (shared < 0 || ftruncate(shared, (off_t)length)) abort();
    char *memory = seen_at(shared, length);
    for (i64 rank = 0; rank < cases.ranks; ++rank)
        for (size_t k = 0; k < job.blocks * (size_t)cases.ranks; ++k)
            ((u64 *)(memory + (size_t)rank * job.of_rank()))[k] = (job.first - 1) << CALL_BITS;
#ifdef SHAKEN
    shaking = job.seed;
#endif
    if (!strcmp(argv[2], "steps") || !strcmp(argv[2], "copies")) return by_host(job, memory, argv[2][0] == 'c');
    return strcmp(argv[2], "processes") ? in_threads(job, memory) : in_processes(job, shared, length);
}
