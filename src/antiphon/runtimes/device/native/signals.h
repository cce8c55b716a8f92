/* Signals between ranks: 64-bit counters whose value encodes call, round and number, so that no signal is ever reset.
 *
 * Threading: each signal has one writer; any thread of the receiving block may wait for it (acquire load, world.h).
 * Ownership: the words are part of the receiving rank's memory, which the host allocates.
 */
#pragma once
#include "world.h"

enum { ROUND_BITS = 16, CALL_BITS = 28 }; /* where the round and the call begin in a signal, above its number */

/* Signals ascend by call, round and number, and wrap around: so a signal of 2^35 calls ago would be taken for a later one. */
ON_BOTH u64 signal_of(u64 call, u32 round, i64 number) {
    return (call << CALL_BITS) + ((u64)round << ROUND_BITS) + (u64)number;
}

/* Called after a fruitless poll: whether to poll again. `spins`: polls of this wait so far. */
ON_DEVICE bool waits_on(u32 *spins, const u32 *stop) {
    if (++*spins % STOP_INTERVAL == 0 && load_stop_flag(stop)) return false;
    back_off();
    return true;
}

/* Waits for a signal, by one thread; false if the call was stopped. */
ON_DEVICE bool has_come(const u64 *at, u64 awaited, const u32 *stop) {
    u32 spins = 0;
    while ((i64)(load(at) - awaited) < 0)
        if (!waits_on(&spins, stop)) return false;
    return true;
}
