/* Threads of a processor as those of a block. */
#pragma once
#include <sched.h>
#include <time.h>

#include <atomic>

#include "world.h"

namespace {

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
