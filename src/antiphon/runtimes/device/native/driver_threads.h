/* All ranks on threads of a processor: for proof, not for speed.
 *
 * Threading: a call starts a thread for each thread of each block, and joins them. Ownership: Devices owns all memory.
 */
#pragma once
#include <thread>

#include "meeting.h"

enum { THREADS = 1, MOST_THREADS = 1024 };
const char *const DEVICE_NOTE = "; no measure of speed";

static void begin_devices() {}
static const char *device_name() { return "threads of a processor"; }

static i64 most_threads() {
    const i64 capacity = MOST_THREADS / (RANKS * STREAMS);
    return capacity < 1 ? 1 : capacity;
}

static i64 most_lanes(i64 threads) {
    const i64 capacity = MOST_THREADS / (RANKS * STREAMS * threads);
    return capacity > 4 ? 4 : capacity < 1 ? 1 : capacity;
}

class Devices {
    std::vector<Call> calls; /* for each variant */
    const std::vector<Size> &sizes;
    Boxes boxes;
    std::vector<std::vector<T>> memory;
    std::vector<std::vector<u64>> words;
    std::vector<Memory> of;
    u32 stop = 0;

    T *allocate(i64 elements) {
        memory.emplace_back((size_t)elements + 16);
        return memory.back().data();
    }

  public:
    Devices(const std::vector<Size> &sizes, const std::vector<Call> &like) : calls(like), sizes(sizes) {
        const auto none = [&](i64 count) { return words.emplace_back((size_t)count), words.back().data(); };
        const i64 unit = sizes[0].unit;
        for (i64 rank = 0; rank < RANKS; ++rank) {
            T *const input = allocate(unit * INPUTS[rank]), *const output = allocate(unit * OUTPUTS[rank]);
            T *const scratch = allocate(most_scratch(sizes, rank));
            u64 *const signals = none(most_blocks(like) * RANKS);
            of.push_back({input, output, scratch, signals, sizes.size() > 1 ? none(2 * BOX) : nullptr});
        }
        for (size_t method = 0; method < sizes.size(); ++method) {
            Call &call = calls[method];
            call.of = of.data(), call.stop = &stop, call.line.cuts = sizes[method].cuts.data(),
            call.strides = sizes[method].strides.data();
        }
    }

    void fill() {
        for (i64 rank = 0; rank < RANKS; ++rank) {
            memset((void *)of[rank].output, 0x55, (size_t)(sizes[0].unit * OUTPUTS[rank]) * sizeof(T));
            memset((void *)of[rank].scratch, 0x33, (size_t)most_scratch(sizes, rank) * sizeof(T));
            each_row(HELD, HELD_ROWS, CONTRIBUTIONS, rank, IN_PLACE ? of[rank].output : of[rank].input, sizes[0].unit, 0, 1, true);
        }
    }

    u64 wrong() const {
        u64 sum = 0;
        for (i64 rank = 0; rank < RANKS; ++rank)
            sum += each_row(WANTED, WANTED_ROWS, CONTRIBUTIONS, rank, of[rank].output, sizes[0].unit, 0, 1, false);
        return sum;
    }

    /* A call of all ranks, to its end. */
    void begin(u64 number, i64 threads, u32 method) {
        for (calls[method].step = 0; calls[method].step < LAUNCHES; ++calls[method].step) launch(number, threads, method);
    }

    void launch(u64 number, i64 threads, u32 method) {
        Call &call = calls[method];
        call.number = number,
        call.opens = boxes.opens(number, method > 0, sizes[method].layout->hears && sizes[method].unit > 0);
        for (i64 rank = 0; rank < RANKS && sizes.size() > 1 && empties(number); ++rank)
            for (i64 i = 0; i < BOX; ++i) of[rank].box[half_of(number) + i] = 0;
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
        each_copy(of, sizes[0], call.step, [](i64, i64, T *to, T *from, size_t bytes) { memcpy((void *)to, from, bytes); });
        for (const double end = now() + PATIENCE; running.load() && now() < end;) back_off();
        if (running.load()) __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        for (std::thread &thread : all) thread.join();
    }

    /* Whether a call had to be stopped. */
    bool finish() const { return stop != 0; }
};
