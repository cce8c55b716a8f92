/* What a thread sleeps by until another one rings. Part of threads.cc. */
#pragma once
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "world.h"

namespace {

/* One thread waits, any may ring: what was rung before it waits is not lost. Nothing is asked of the system unless somebody
 * sleeps. */
class alignas(64) Bell {
    enum : u32 { STILL, RUNG, ASLEEP };
    std::atomic<u32> state{STILL};

    long ask(int what, u32 value, const timespec *until) {
        return syscall(SYS_futex, &state, what | FUTEX_PRIVATE_FLAG, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
    }

  public:
    void ring() {
        if (state.exchange(RUNG, std::memory_order_acq_rel) == ASLEEP) ask(FUTEX_WAKE, 1, nullptr);
    }
    /* Whether it rang before `until`, as CLOCK_MONOTONIC counts; NULL: it waits until it does. */
    bool rings_by(const timespec *until) {
        u32 was = STILL;
        bool late = !state.compare_exchange_strong(was, ASLEEP, std::memory_order_acq_rel);
        while (!late && state.load(std::memory_order_acquire) == ASLEEP)
            late = ask(FUTEX_WAIT_BITSET, ASLEEP, until) && errno == ETIMEDOUT;
        return state.exchange(STILL, std::memory_order_acq_rel) == RUNG;
    }
};

}  // namespace
