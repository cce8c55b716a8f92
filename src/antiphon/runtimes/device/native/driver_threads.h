/* All ranks of an exported plan (driver.h, which lists its constants) on threads of a processor, to check results. They are no
 * measure of speed.
 *
 * From driver.h and written.h: Memory, a rank's buffers, signals and box; Call, the arguments of a call; Size, where
 * data lie in scratch; run_block, the work of a thread block; fill_or_check, for rows of data; each_copy, the copies of
 * a launch. meeting.h has `self`, by which a thread knows its number, and Meeting, the barrier of a block.
 *
 * Threading: a call starts a thread for each thread of each block, and joins them. Ownership: Devices owns all memory.
 */
#pragma once
#include <thread>

#include "meeting.h"

enum { THREADS = 1, MOST_THREADS = 1024 }; /* of a block by default; of all ranks together */
const char *const DEVICE_NOTE = "; no measure of speed";

static void begin_devices() {}
static const char *device_name() { return "threads of a processor"; }

static i64 max_threads() {
    const i64 capacity = MOST_THREADS / (RANKS * STREAMS);
    return capacity < 1 ? 1 : capacity;
}

static i64 max_lanes(i64 threads) {
    const i64 capacity = MOST_THREADS / (RANKS * STREAMS * threads);
    return capacity > 4 ? 4 /* enough to check that lanes work */ : capacity < 1 ? 1 : capacity;
}

class Devices {
    std::vector<Call> calls; /* for each variant */
    const std::vector<Size> &sizes; /* for each variant: 0 uses signals, 1 packets */
    Boxes mailboxes;
    std::vector<std::vector<T>> memory;   /* buffers of the ranks */
    std::vector<std::vector<u64>> words;  /* their signals and boxes */
    std::vector<Memory> memory_of;
    u32 stop = 0;

    T *allocate(i64 elements) {
        memory.emplace_back((size_t)elements + 16); /* 16 more, as on GPUs: a buffer of 0 elements has an address, too */
        return memory.back().data();
    }

  public:
    /* `templates`: per variant a call without addresses; `calls` are copies of these with addresses. */
    Devices(const std::vector<Size> &sizes, const std::vector<Call> &templates) : calls(templates), sizes(sizes) {
        const auto zeroed_words = [&](i64 count) { return words.emplace_back((size_t)count), words.back().data(); };
        const i64 unit = sizes[0].unit;
        for (i64 rank = 0; rank < RANKS; ++rank) {
            T *const input = allocate(unit * INPUTS[rank]), *const output = allocate(unit * OUTPUTS[rank]);
            T *const scratch = allocate(max_scratch(sizes, rank));
            u64 *const signals = zeroed_words(max_blocks(templates) * RANKS);
            memory_of.push_back({input, output, scratch, signals, sizes.size() > 1 ? zeroed_words(2 * BOX) : nullptr});
        }
        for (size_t variant = 0; variant < sizes.size(); ++variant) {
            Call &call = calls[variant];
            call.memory_of = memory_of.data(), call.stop = &stop, call.line.cuts = sizes[variant].cuts.data(),
            call.strides = sizes[variant].strides.data();
        }
    }

    /* Fills inputs, and all other memory with patterns that no result has. */
    void fill() {
        for (i64 rank = 0; rank < RANKS; ++rank) {
            memset((void *)memory_of[rank].output, 0x55, (size_t)(sizes[0].unit * OUTPUTS[rank]) * sizeof(T));
            memset((void *)memory_of[rank].scratch, 0x33, (size_t)max_scratch(sizes, rank) * sizeof(T));
            T *const buffer = IN_PLACE ? memory_of[rank].output : memory_of[rank].input;
            /* all rows, as there is one block: from 0 in steps of 1 */
            fill_or_check(HELD, HELD_ROWS, CONTRIBUTIONS, rank, buffer, sizes[0].unit, 0, 1, true);
        }
    }

    /* The number of wrong elements in the outputs. */
    u64 wrong() const {
        u64 sum = 0;
        for (i64 rank = 0; rank < RANKS; ++rank)
            sum += fill_or_check(WANTED, WANTED_ROWS, CONTRIBUTIONS, rank, memory_of[rank].output, sizes[0].unit, 0, 1, false);
        return sum;
    }

    /* Runs a call of all ranks to its end; on GPUs, `begin` only starts it. */
    void begin(u64 number, i64 threads, u32 variant) {
        i64 &current = calls[variant].launch;
        for (current = 0; current < LAUNCHES; ++current) launch(number, threads, variant);
    }

    /* Runs the current launch of a call (Call::launch) in threads of its own, the copies beside it in this thread. */
    void launch(u64 number, i64 threads, u32 variant) {
        Call &call = calls[variant];
        call.number = number;
        /* whether it first waits until all ranks have begun it (boxes.h) */
        call.opens = mailboxes.opens(number, variant > 0, sizes[variant].layout->receives_all && sizes[variant].unit > 0);
        /* plans with packets: before their flags repeat, a half of the boxes is emptied (boxes.h) */
        for (i64 rank = 0; rank < RANKS && sizes.size() > 1 && empties(number); ++rank)
            for (i64 i = 0; i < BOX; ++i) memory_of[rank].box[half_of(number) + i] = 0;
        const i64 blocks = STREAMS * call.lanes;
        std::vector<Meeting> meetings((size_t)(RANKS * blocks));
        std::atomic<i64> running{RANKS * blocks * threads};
        std::vector<std::thread> all;
        for (i64 i = 0; i < RANKS * blocks * threads; ++i)
            all.emplace_back([&, i] {
                const i64 block = i / threads;
                self.thread = (u32)(i % threads), self.threads = (u32)threads, self.meeting = &meetings[(size_t)block];
                run_block(call, block / blocks, (u32)(block % blocks));
                running.fetch_sub(1);
            });
        /* only plans without packets have copies by copy engines, so the sizes are those of variant 0 */
        each_copy(memory_of, sizes[0], call.launch,
                  [](i64, i64, T *to, T *from, size_t bytes) { memcpy((void *)to, from, bytes); });
        for (const double end = now() + CALL_TIMEOUT; running.load() && now() < end;) back_off();
        if (running.load()) __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        for (std::thread &thread : all) thread.join();
    }

    /* Whether a call had to be stopped. */
    bool finish() const { return stop != 0; }
};
