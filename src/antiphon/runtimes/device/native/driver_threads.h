/* All ranks on threads of a processor: for proof, not for speed. */
#pragma once
#include <thread>

#include "meeting.h"

enum { THREADS = 1, MOST_THREADS = 1024 };
const char *const DEVICE_NOTE = "; no measure of speed";

static void begin_devices() {}
static const char *device_name() { return "threads of a processor"; }

static i64 most_lanes(i64 threads) {
    const i64 room = MOST_THREADS / (RANKS * STREAMS * threads);
    return room > 4 ? 4 : room < 1 ? 1 : room;
}

class Devices {
    Call call;
    const Size &size;
    std::vector<std::vector<T>> memory;
    std::vector<std::vector<u64>> signals;
    std::vector<Memory> of;
    u32 stop = 0;

    T *room(i64 elements) {
        memory.emplace_back((size_t)elements + 16);
        return memory.back().data();
    }

  public:
    Devices(const Size &size, const Call &like) : call(like), size(size) {
        for (i64 rank = 0; rank < RANKS; ++rank) {
            signals.emplace_back((size_t)(STREAMS * call.lanes * RANKS));
            of.push_back({room(size.unit * INPUTS[rank]), room(size.unit * OUTPUTS[rank]), room(scratch_of(size, rank)),
                          signals.back().data()});
        }
        call.of = of.data(), call.stop = &stop, call.line.cuts = size.cuts.data(), call.strides = size.strides.data();
    }

    void fill() {
        for (i64 rank = 0; rank < RANKS; ++rank) {
            memset((void *)of[rank].output, 0x55, (size_t)(size.unit * OUTPUTS[rank]) * sizeof(T));
            memset((void *)of[rank].scratch, 0x33, (size_t)scratch_of(size, rank) * sizeof(T));
            each_row(HELD, HELD_ROWS, NAMES, rank, IN_PLACE ? of[rank].output : of[rank].input, size.unit, 0, 1, true);
        }
    }

    u64 wrong() const {
        u64 sum = 0;
        for (i64 rank = 0; rank < RANKS; ++rank)
            sum += each_row(WANTED, WANTED_ROWS, NAMES, rank, of[rank].output, size.unit, 0, 1, false);
        return sum;
    }

    /* A call of all ranks, to its end. */
    void begin(u64 number, i64 threads) {
        call.number = number;
        const i64 blocks = STREAMS * call.lanes;
        std::vector<Meeting> meetings((size_t)(RANKS * blocks));
        std::atomic<i64> left{RANKS * blocks * threads};
        std::vector<std::thread> all;
        for (i64 i = 0; i < RANKS * blocks * threads; ++i)
            all.emplace_back([&, i] {
                const i64 block = i / threads;
                self.thread = (u32)(i % threads), self.threads = (u32)threads, self.meeting = &meetings[(size_t)block];
                run_block(call, block / blocks, (u32)(block % blocks));
                left.fetch_sub(1);
            });
        for (const double end = now() + PATIENCE; left.load() && now() < end;) rest();
        if (left.load()) __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
        for (std::thread &one : all) one.join();
    }

    /* Whether a call had to be stopped. */
    bool finish() const { return stop != 0; }
};
