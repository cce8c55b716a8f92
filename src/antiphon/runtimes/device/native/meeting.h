/* A barrier for processor threads that stand for the threads of one block (threads.cc, exported plans).
 *
 * Threading: all threads of a block call `sync_block`; the last one to arrive releases the others (`count`: release, acquire).
 * Ownership: the caller's `Meeting` outlives its threads, each of which refers to it by a thread-local pointer.
 */
#pragma once
#include <sched.h>
#include <time.h>

#include <atomic>

#include "world.h"

namespace {

/* The state of a barrier. `count`: barriers completed. Whether a thread failed: `failed` in this one, `outcome` in the last. */
struct Meeting {
    std::atomic<u32> arrived{0}, count{0};
    std::atomic<int> failed{0}, outcome{0};
};

/* Which thread of which block this is. */
struct ThreadPlace {
    u32 thread = 0, threads = 1;
    Meeting *meeting = nullptr;
};
thread_local ThreadPlace self;

}  // namespace

u32 my_thread() { return self.thread; }
u32 my_threads() { return self.threads; }

/* Called between polls: yields the processor, and sometimes sleeps, as there may be more threads than processors. */
void back_off() {
    static thread_local u32 tries = 0;
    if (++tries % 32) sched_yield();
    else {
        const timespec nap = {0, 50000}; /* 50 us */
        nanosleep(&nap, nullptr);
    }
}

int sync_block(int failed) {
    if (self.threads == 1) return failed;
    Meeting &m = *self.meeting;
    const u32 count = m.count.load(std::memory_order_relaxed);
    if (failed) m.failed.store(1, std::memory_order_relaxed);
    if (m.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == self.threads) {
        m.outcome.store(m.failed.exchange(0, std::memory_order_relaxed), std::memory_order_relaxed);
        m.arrived.store(0, std::memory_order_relaxed);
        m.count.store(count + 1, std::memory_order_release);
    } else
        while (m.count.load(std::memory_order_acquire) == count) back_off();
    return m.outcome.load(std::memory_order_relaxed);
}
