/* A bell by which a thread sleeps until another one rings (a futex). Part of threads.cc.
 *
 * Threading: one thread waits, any may ring. Ownership: no memory.
 */
#pragma once
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "world.h"

namespace {

/* A ring before the wait is not lost. No system call is made unless the thread sleeps. */
class alignas(64) Bell {
    enum : u32 { STILL, RUNG, ASLEEP };
    std::atomic<u32> state{STILL};

    long call_futex(int operation, u32 value, const timespec *until) {
        return syscall(SYS_futex, &state, operation | FUTEX_PRIVATE_FLAG, value, until, nullptr, FUTEX_BITSET_MATCH_ANY);
    }

  public:
    void ring() {
        if (state.exchange(RUNG, std::memory_order_acq_rel) == ASLEEP) call_futex(FUTEX_WAKE, 1, nullptr);
    }
    /* Waits until it rings (it may have rung before), or until this time of CLOCK_MONOTONIC (NULL: no limit); returns whether it rang. */
    bool rings_by(const timespec *until) {
        u32 was = STILL;
        bool done = !state.compare_exchange_strong(was, ASLEEP, std::memory_order_acq_rel);
        while (!done && state.load(std::memory_order_acquire) == ASLEEP)
            done = call_futex(FUTEX_WAIT_BITSET, ASLEEP, until) && errno == ETIMEDOUT;
        return state.exchange(STILL, std::memory_order_acq_rel) == RUNG;
    }
};

}  // namespace
