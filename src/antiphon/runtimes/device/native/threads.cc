/* The kernel on threads of a processor: blocks of threads for every rank, which wait for calls. */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bind.h"
#include "device.h"
#include "kernel.h"

namespace {

enum { MOST_THREADS = 4096 };

/* Where the threads of a block meet. */
struct Meeting {
    std::atomic<u32> here{0}, turn{0};
    std::atomic<int> failed{0}, told{0};
};

struct Place {
    u32 thread = 0, threads = 1;
    Meeting *meeting = nullptr;
};
thread_local Place self;
thread_local const char *why = "";

}  // namespace

u32 my_thread() { return self.thread; }
u32 my_threads() { return self.threads; }

/* There are more threads than processors: whoever waits for long lets the others run. */
void rest() {
    static thread_local u32 tries = 0;
    if (++tries % 32) sched_yield();
    else {
        const timespec nap = {0, 50000};
        nanosleep(&nap, nullptr);
    }
}

int meet(int failed) {
    if (self.threads == 1) return failed;
    Meeting &m = *self.meeting;
    const u32 turn = m.turn.load(std::memory_order_relaxed);
    if (failed) m.failed.store(1, std::memory_order_relaxed);
    if (m.here.fetch_add(1, std::memory_order_acq_rel) + 1 == self.threads) {
        m.told.store(m.failed.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
        m.here.store(0, std::memory_order_relaxed);
        m.turn.store(turn + 1, std::memory_order_release);
    } else
        while (m.turn.load(std::memory_order_acquire) == turn) rest();
    return m.told.load(std::memory_order_relaxed);
}

namespace {

int run_typed(const Run &run, u32 block) {
    switch (run.type) {
    case INT8: return run_block<int8_t>(run, block);
    case UINT8: return run_block<uint8_t>(run, block);
    case INT16: return run_block<int16_t>(run, block);
    case UINT16: return run_block<uint16_t>(run, block);
    case INT32: return run_block<int32_t>(run, block);
    case UINT32: return run_block<u32>(run, block);
    case INT64: return run_block<i64>(run, block);
    case UINT64: return run_block<u64>(run, block);
    case FLOAT16: return run_block<half16>(run, block);
    case BFLOAT16: return run_block<brain16>(run, block);
    case FLOAT64: return run_block<double>(run, block);
    default: return run_block<float>(run, block);
    }
}

struct Plan {
    std::vector<i64> words;
    Table table;
    std::shared_ptr<Size> size; /* of the last call */
};

/* A rank with its threads, which are started once. */
struct Rank {
    u32 rank, ranks, blocks, threads;
    std::vector<Peer> peers;
    std::vector<std::thread> pool;
    std::vector<Meeting> meetings;
    std::mutex lock;
    std::condition_variable wake, done;
    u64 turn = 0;
    u32 busy = 0, used = 0;
    bool over = false;
    std::atomic<u32> failed{0};
    alignas(64) u32 stop = 0;
    Run run{};

    Rank(u32 rank, u32 ranks, u32 blocks, u32 threads)
        : rank(rank), ranks(ranks), blocks(blocks), threads(threads), peers(ranks), meetings(blocks) {
        try {
            for (u32 i = 0; i < blocks * threads; ++i) pool.emplace_back([this, i] { serve(i); });
        } catch (...) {
            end();
            throw;
        }
    }

    ~Rank() { end(); }

    void end() {
        {
            const std::lock_guard<std::mutex> hold(lock);
            over = true;
        }
        wake.notify_all();
        for (std::thread &one : pool) one.join();
    }

    void serve(u32 number) {
        const u32 block = number / threads;
        self.thread = number % threads, self.threads = threads, self.meeting = &meetings[block];
        for (u64 seen = 0;;) {
            {
                std::unique_lock<std::mutex> hold(lock);
                wake.wait(hold, [&] { return over || (turn != seen && block < used); });
                if (over) return;
                seen = turn;
            }
            if (run_typed(run, block)) failed.store(1, std::memory_order_relaxed);
            const std::lock_guard<std::mutex> hold(lock);
            if (!--busy) done.notify_all();
        }
    }
};

}  // namespace

const char *ad_why() { return why; }

void *ad_rank_new(u32 rank, u32 ranks, u32 blocks, u32 threads) {
    if (!blocks || !threads || (u64)blocks * threads > MOST_THREADS) return why = "a rank has from 1 to 4096 threads", nullptr;
    try {
        return new Rank(rank, ranks, blocks, threads);
    } catch (...) {
        why = "no more threads can be started";
        return nullptr;
    }
}

void ad_rank_free(void *rank) { delete (Rank *)rank; }

void *ad_memory_new(void *, size_t bytes) { return calloc(1, bytes + !bytes); }
void ad_memory_free(void *, void *memory) { free(memory); }
int ad_fetch(void *, void *to, const void *memory, size_t bytes) { return memcpy(to, memory, bytes), 0; }
int ad_bring(void *, void *memory, const void *from, size_t bytes) { return memcpy(memory, from, bytes), 0; }

int ad_copy(void *, void *to, const void *from, size_t bytes) { return memcpy(to, from, bytes), 0; }

void ad_rank_signals(void *rank, u32 peer, u64 *signals) { ((Rank *)rank)->peers[peer].signals = signals; }

void *ad_plan_new(void *, const i64 *words, i64 count) {
    Plan *plan = new Plan;
    plan->words.assign(words, words + count);
    why = read_table(plan->words.data(), count, &plan->table);
    if (!why) return plan;
    delete plan;
    return nullptr;
}

void ad_plan_free(void *plan) { delete (Plan *)plan; }

i64 ad_plan_scratch(void *plan, i64 unit) { return scratch_of(((Plan *)plan)->table, unit); }

int ad_start(void *rank_, void *plan_, u64 call, i64 unit, int type, int op, u32 lanes, u32 rounds, char *const *buffers,
             const i64 *lengths) {
    Rank &rank = *(Rank *)rank_;
    Plan &plan = *(Plan *)plan_;
    const Table &table = plan.table;
    if (!plan.size || plan.size->unit != unit) plan.size = std::make_shared<Size>(size_of(table, unit));
    why = refused(table, *plan.size, lengths, rank.blocks, lanes, rounds);
    if (why) return 1;
    for (u32 i = 0; i < rank.ranks; ++i)
        for (int k = 0; k < BUFFERS; ++k) rank.peers[i].buffer[k] = buffers[3 * i + (u32)k];
    const std::lock_guard<std::mutex> hold(rank.lock);
    rank.run = {table.steps, table.arguments, table.blocks, table.regions, plan.size->cuts.data(), plan.size->shift.data(),
                rank.peers.data(), &rank.stop, call, unit, table.head.parts, table.head.classes, rank.rank, rank.ranks, lanes,
                rounds, type, op};
    __atomic_store_n(&rank.stop, 0, __ATOMIC_RELAXED);
    rank.used = (u32)table.head.blocks * lanes;
    rank.busy = rank.used * rank.threads;
    rank.failed.store(0, std::memory_order_relaxed);
    if (rank.busy) rank.turn++;
    rank.wake.notify_all();
    return 0;
}

int ad_wait(void *rank_, double seconds) {
    Rank &rank = *(Rank *)rank_;
    std::unique_lock<std::mutex> hold(rank.lock);
    const auto free = [&] { return !rank.busy; };
    if (seconds <= 0)
        rank.done.wait(hold, free);
    else if (!rank.done.wait_for(hold, std::chrono::duration<double>(seconds), free)) {
        __atomic_store_n(&rank.stop, 1, __ATOMIC_RELAXED);
        rank.done.wait(hold, free);
    }
    why = "its time was up";
    return rank.failed.load(std::memory_order_relaxed) ? 1 : 0;
}
