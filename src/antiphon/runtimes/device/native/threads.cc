/* The kernel on threads of a processor: blocks of threads for every rank, which wait for calls. device.h says what the
 * exported functions (ad_...) do. bind.h has Table, Size (a table at a size) and BufferCheck; kernel.h Run (the
 * arguments of a rank's call), Peer (addresses of another rank) and run_block; meeting.h the barrier of a block.
 *
 * Threading: the caller's thread begins calls and waits for them; each rank has its own threads, which sleep by a Bell and count
 *   down `busy` (acquire and release) when they are done. `failure` is per thread.
 * Ownership: a Rank owns its threads, which its destructor joins; a Plan its words; `maps` memory shared with other processes.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "bind.h"
#include "device.h"
#include "kernel.h"
#include "meeting.h"
#include "threads_bell.h"

namespace {

enum { MOST_THREADS = 4096 }; /* of a rank, in all its blocks */
const double MOST_SECONDS = 1e9; /* of a time limit, so that it fits the clock */

thread_local const char *failure = "";

/* Calls `work` with a null pointer to a data type, by its number (numbers.h), so that it can be compiled for each type. */
template <typename Work> auto typed(int type, Work work) {
    switch (type) {
    case INT8: return work((int8_t *)nullptr);
    case UINT8: return work((uint8_t *)nullptr);
    case INT16: return work((int16_t *)nullptr);
    case UINT16: return work((uint16_t *)nullptr);
    case INT32: return work((int32_t *)nullptr);
    case UINT32: return work((u32 *)nullptr);
    case INT64: return work((i64 *)nullptr);
    case UINT64: return work((u64 *)nullptr);
    case FLOAT16: return work((half16 *)nullptr);
    case BFLOAT16: return work((brain16 *)nullptr);
    case FLOAT64: return work((double *)nullptr);
    default: return work((float *)nullptr); /* FLOAT32; callers refuse float8 */
    }
}

template <typename T> using Value = typename std::remove_pointer<T>::type;

/* Runs a thread block of a call (kernel.h); returns whether the call was stopped. */
int run_typed(const Run &run, u32 block) {
    return typed(run.type, [&](auto *type) { return run_block<Value<decltype(type)>>(run, block); });
}

struct Plan {
    std::vector<i64> words;
    Table table;
    std::shared_ptr<Size> size; /* of the last call; recorded calls (threads_graphs.h) keep theirs */
    BufferCheck check;
};

/* In a queue: happens when the tasks enqueued before it are done (by_steps.h). */
struct Event {
    std::atomic<bool> happened{false};
};

/* Tasks that a thread executes one after another, in place of a stream of a GPU. While it records, tasks are collected in
 * `recorded` and not executed. */
class Queue {
    std::mutex lock;
    std::condition_variable work_added, became_idle;
    std::deque<std::function<void()>> tasks;
    bool over = false, idle = true, recording = false;
    std::vector<std::function<void()>> recorded;
    std::thread worker{[this] { serve(); }}; /* after the members that it uses at once */

    void serve() {
        std::unique_lock<std::mutex> hold(lock);
        for (;;) {
            work_added.wait(hold, [&] { return over || !tasks.empty(); });
            if (tasks.empty()) return;
            const std::function<void()> work = std::move(tasks.front());
            tasks.pop_front();
            hold.unlock(), work(), hold.lock();
            idle = tasks.empty();
            if (idle) became_idle.notify_all();
        }
    }

  public:
    std::vector<char> stage; /* memory for copies (by_steps.h: stage_of) */
    const u32 *const stop; /* the stop flag of the rank: once it is set, tasks are skipped */

    explicit Queue(const u32 *stop) : stop(stop) {}
    ~Queue() {
        {
            const std::lock_guard<std::mutex> hold(lock);
            over = true;
        }
        work_added.notify_all();
        worker.join();
    }
    /* From now on tasks are recorded, until take_recorded. */
    void record() {
        const std::lock_guard<std::mutex> hold(lock);
        recording = true, recorded.clear();
    }
    std::vector<std::function<void()>> take_recorded() {
        const std::lock_guard<std::mutex> hold(lock);
        return recording = false, std::move(recorded);
    }
    void enqueue(std::function<void()> work) {
        const std::lock_guard<std::mutex> hold(lock);
        if (recording) return recorded.push_back(std::move(work));
        tasks.push_back(std::move(work)), idle = false;
        work_added.notify_one();
    }
    /* Waits until all tasks are done. */
    void wait_until_idle() {
        std::unique_lock<std::mutex> hold(lock);
        became_idle.wait(hold, [&] { return idle; });
    }
    /* Waits until all tasks are done, or until `end` (seconds of now()); returns whether they are. */
    bool is_idle_by(double end) {
        std::unique_lock<std::mutex> hold(lock);
        const std::chrono::duration<double> since(end);
        const auto until = std::chrono::duration_cast<std::chrono::steady_clock::duration>(since);
        return became_idle.wait_until(hold, std::chrono::steady_clock::time_point(until), [&] { return idle; });
    }
};

/* A rank with its threads, which are started once. For each call the caller wakes thread 0 of the first rank. Thread i of a
 * rank wakes threads 2i + 1 and 2i + 2 of it, and rank i of a call wakes ranks 2i + 1 and 2i + 2 (`next`): so the caller
 * returns soon, however many there are. */
struct Rank {
    u32 rank, ranks, blocks, threads;
    std::vector<Peer> peers;
    std::vector<Meeting> meetings;       /* by thread block */
    std::vector<Bell> bells;             /* by thread */
    Bell done;                           /* rung by the last thread of a call */
    std::atomic<u32> busy{0}, failed{0}; /* threads that are not done yet; whether the call was stopped */
    u32 used = 0;                        /* threads of this call */
    Rank *next[2] = {nullptr, nullptr};
    bool over = false;
    alignas(64) u32 stop = 0; /* the stop flag, on a cache line of its own as waiting threads poll it */
    Run run{};
    Boxes boxes;
    std::map<u32, Queue> queues;
    std::vector<std::thread> pool;

    Rank(u32 rank, u32 ranks, u32 blocks, u32 threads)
        : rank(rank), ranks(ranks), blocks(blocks), threads(threads), peers(ranks), meetings(blocks), bells(blocks * threads) {
        try {
            for (u32 i = 0; i < blocks * threads; ++i) pool.emplace_back([this, i] { serve(i); });
        } catch (...) { /* no destructor runs for a constructor that throws */
            end();
            throw;
        }
    }

    ~Rank() { end(); }

    /* Ends all threads. */
    void end() {
        over = true;
        for (Bell &bell : bells) bell.ring();
        for (std::thread &thread : pool) thread.join();
    }

    /* What thread `number` does: waits for calls until `over`. Thread 0 also begins if it has no block, to wake others. */
    void serve(u32 number) {
        self.thread = number % threads, self.threads = threads, self.meeting = &meetings[number / threads];
        for (;;) {
            bells[number].rings_by(nullptr); /* sleeps until it rings, however long */
            if (over) return;
            if (!number) wake_next();
            for (const u32 other : {2 * number + 1, 2 * number + 2})
                if (other < used) bells[other].ring();
            if (number < used && run_typed(run, number / threads)) failed.store(1, std::memory_order_relaxed);
            if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) done.ring();
        }
    }

    /* Wakes the ranks that this one has to wake. */
    void wake_next() {
        for (Rank *other : next)
            if (other) other->bells[0].ring();
    }

    /* Waits until the call is done, or until this time of CLOCK_MONOTONIC (NULL: no limit); returns whether it is done. */
    bool is_done_by(const timespec *until) {
        while (busy.load(std::memory_order_acquire)) /* `done` may still have rung for an earlier call */
            if (!done.rings_by(until) && until) return !busy.load(std::memory_order_acquire);
        return true;
    }
};

/* Memory that processes share: a file without a name, which others open as that of this process. */
struct Token {
    pid_t process;
    int file;
    size_t bytes;
};
static_assert(sizeof(Token) <= TOKEN, "a token holds it");
std::mutex mapping; /* the lock of `maps` */
std::map<void *, Token> maps; /* by address: what is mapped there */

/* Maps a file, which belongs to `maps` from now on; NULL: this failed. */
void *mapped(int file, size_t bytes) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return close(file), failure = "no memory can be shared", nullptr;
    const std::lock_guard<std::mutex> hold(mapping);
    maps[memory] = {getpid(), file, bytes};
    return memory;
}

bool is_mapped(void *memory) {
    const std::lock_guard<std::mutex> hold(mapping);
    return maps.count(memory) != 0;
}

}  // namespace

#include "threads_joints.h"

const char *ad_why() { return failure; }

void *ad_rank_new(u32 rank, u32 ranks, u32 blocks, u32 threads) {
    if (!blocks || !threads || (u64)blocks * threads > MOST_THREADS)
        return failure = "a rank has from 1 to 4096 threads", nullptr;
    try {
        return new Rank(rank, ranks, blocks, threads);
    } catch (...) {
        failure = "no more threads can be started";
        return nullptr;
    }
}

void ad_rank_free(void *rank) { delete (Rank *)rank; }

const char *ad_rank_device(void *) { return "threads of a processor"; }

void *ad_memory_new(void *, size_t bytes) { return calloc(1, bytes + !bytes); } /* of 0 bytes, calloc may return NULL */
void ad_memory_free(void *, void *memory) { is_mapped(memory) ? ad_memory_left(nullptr, memory) : free(memory); }

void *ad_memory_shared(void *, size_t bytes, void *token) {
    const int file = memfd_create("antiphon", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)(bytes + !bytes))) {
        if (file >= 0) close(file);
        return failure = "no memory can be shared", nullptr;
    }
    const Token own = {getpid(), file, bytes + !bytes};
    memset(token, 0, TOKEN), memcpy(token, &own, sizeof own);
    return mapped(file, own.bytes);
}

void *ad_memory_reached(void *, const void *token) {
    Token other;
    memcpy(&other, token, sizeof other);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)other.process, other.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return failure = "memory of another process cannot be reached", nullptr;
    return mapped(file, other.bytes);
}

void ad_memory_left(void *, void *memory) {
    const std::lock_guard<std::mutex> hold(mapping);
    const auto entry = maps.find(memory);
    if (entry == maps.end()) return;
    munmap(memory, entry->second.bytes), close(entry->second.file);
    maps.erase(entry);
}

int ad_fetch(void *, void *to, const void *memory, size_t bytes) { return memcpy(to, memory, bytes), 0; }
int ad_bring(void *, void *memory, const void *from, size_t bytes) { return memcpy(memory, from, bytes), 0; }

/* All memory here is that of the processor: any copy is the device's own. */
int ad_copy(void *, void *to, const void *from, size_t bytes) { return memcpy(to, from, bytes), 0; }

void ad_rank_signals(void *rank, u32 peer, u64 *signals) { ((Rank *)rank)->peers[peer].signals = signals; }

size_t ad_box_bytes() { return 2 * BOX * sizeof(u64); }
void ad_rank_box(void *rank, u32 peer, u64 *box) { ((Rank *)rank)->peers[peer].box = box; }

void *ad_plan_new(void *, const i64 *words, i64 count) {
    Plan *plan = new Plan;
    plan->words.assign(words, words + count);
    failure = read_table(plan->words.data(), count, &plan->table);
    if (!failure) return plan;
    delete plan;
    return nullptr;
}

void ad_plan_free(void *plan) { delete (Plan *)plan; }

i64 ad_plan_scratch(void *plan, i64 unit) { return scratch_of(((Plan *)plan)->table, unit); }
i64 ad_plan_box(void *plan, i64 unit, int type) { return box_of(((Plan *)plan)->table, unit, (i64)WIDTHS[type]); }

namespace {

const Size &size_at(const Plan &plan) { return *plan.size; }

const char *unreached(const Plan &) { return nullptr; } /* threads reach all memory */

/* Sets the arguments of a rank's next call (rank.run; kernel.h). `unit`: elements per weight 1 of a block. Returns 0, or 1 and
 * `failure`. */
int prepare(Rank &rank, Plan &plan, u64 call, i64 unit, int type, int op, u32 lanes, u32 rounds, char *const *buffers,
            const i64 *lengths) {
    const Table &table = plan.table;
    if ((failure = check_unit(table, rank.rank, rank.ranks, unit))) return 1;
    if (!plan.size || plan.size->unit != unit || plan.size->width != (i64)WIDTHS[type])
        plan.size = std::make_shared<Size>(size_of(table, unit, (i64)WIDTHS[type]));
    failure = plan.check.check_buffers(table, *plan.size, lengths, rank.blocks, lanes, rounds);
    if (!failure && table.head.by_packets() && !rank.peers[0].box) failure = "ranks have no boxes for packets";
    if (failure) return 1;
    for (u32 i = 0; i < rank.ranks; ++i)
        for (int k = 0; k < BUFFERS; ++k) rank.peers[i].buffer[k] = buffers[BUFFERS * i + (u32)k];
    rank.run = {table.steps, table.arguments, table.blocks, table.regions, plan.size->shift.data(), rank.peers.data(), &rank.stop,
                /* line */ {plan.size->cuts.data(), table.head.parts, unit}, call, table.head.classes, rank.rank, rank.ranks,
                lanes, rounds, type, op, /* packets */ table.head.by_packets(), /* opens */ 1, /* counter */ nullptr,
                /* joint */ {}};
    /* the multicast address of buffer k, if all ranks' are at the same place of joint memory (joints.h); else NULL */
    for (int k = 0; k < BUFFERS; ++k) rank.run.joint[k] = joints.address(buffers + k, rank.ranks);
    return 0;
}

/* Clears the stop flag: an earlier call may have been stopped. */
void go_on(Rank &rank) { __atomic_store_n(&rank.stop, 0, __ATOMIC_RELAXED); }

/* Readies a rank for a call with this many thread blocks; clears half of its box if flags would repeat soon (packets.h). */
void make_ready(Rank &rank, u64 call, u32 blocks) {
    if (u64 *box = rank.peers[rank.rank].box; box && empties(call))
        for (int i = 0; i < BOX; ++i) store_relaxed(box + half_of(call) + i, 0);
    rank.used = blocks * rank.threads;
    rank.busy.store(rank.used ? rank.used : 1, std::memory_order_relaxed); /* the first one wakes others, at least */
    rank.failed.store(0, std::memory_order_relaxed);
}

/* Begins a call of these ranks, which are ready. */
void begin(void *const *ranks, u32 count) {
    for (u32 i = 0; i < count; ++i)
        for (u32 k = 0; k < 2; ++k)
            ((Rank *)ranks[i])->next[k] = 2 * i + 1 + k < count ? (Rank *)ranks[2 * i + 1 + k] : nullptr;
    if (count) ((Rank *)ranks[0])->bells[0].ring();
}

}  // namespace

/* Begins a call of these ranks. Returns 0, or the number, from 1, of a rank that cannot; then none is under way. */
int ad_start(u32 count, void *const *ranks, void *const *plans, u64 call, i64 unit, int type, int op, u32 lanes, u32 rounds,
             char *const *buffers, const i64 *lengths) {
    for (u32 i = 0; i < count; ++i)
        if (prepare(*(Rank *)ranks[i], *(Plan *)plans[i], call, unit, type, op, lanes, rounds, buffers, lengths))
            return (int)i + 1;
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        const Head &head = ((Plan *)plans[i])->table.head;
        /* opens: it first waits until all ranks have begun it, unless its packets make that needless (boxes.h) */
        rank.run.opens = rank.boxes.opens(call, head.by_packets(), head.receives_all && unit > 0);
        go_on(rank);
        make_ready(rank, call, (u32)head.blocks * lanes);
    }
    begin(ranks, count);
    return 0;
}

/* Waits until the calls of these ranks are done; after `seconds` (0: no limit) stops them. failed[i]: whether that of
 * ranks[i] was stopped. Returns whether any was; `failure` then says why. */
int ad_wait(u32 count, void *const *ranks, double seconds, int *failed) {
    timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    /* `end`: now and `seconds`, carried over to whole seconds */
    const double limit = seconds < MOST_SECONDS ? seconds : MOST_SECONDS;
    const i64 nanoseconds = end.tv_nsec + (i64)((limit - (double)(i64)limit) * 1e9);
    end.tv_sec += (time_t)limit + nanoseconds / 1000000000, end.tv_nsec = nanoseconds % 1000000000;
    int any = 0;
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        if (!rank.is_done_by(seconds > 0 ? &end : nullptr)) {
            /* stop this rank and the later ones, which have not been waited for */
            for (u32 k = i; k < count; ++k) __atomic_store_n(&((Rank *)ranks[k])->stop, 1, __ATOMIC_RELAXED);
            rank.is_done_by(nullptr);
        }
        failed[i] = rank.failed.load(std::memory_order_relaxed) != 0;
        if (failed[i]) rank.boxes.force_next_wait(), any = 1;
    }
    failure = "its time was up";
    return any;
}

#include "threads_queues.h"

#include "by_steps.h"
#include "threads_graphs.h"

namespace {

/* library.h needs these three. A library for this memory is called as those for GPUs are; the tests have one. */
int device_number_of(const Rank &rank) { return (int)rank.rank; }
void *stream_of(Rank &) { return nullptr; }
int end_streams(void *const *, u32) { return 0; }

}  // namespace

#include "library.h"
