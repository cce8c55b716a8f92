/* When the packet boxes of ranks may be reused by a later call (packets.h). Host only.
 *
 * Threading: as its rank. Ownership: no memory.
 */
#pragma once
#include "packets.h"
#include "signals.h"

/* Boxes of packets, call after call. A box has two halves, for calls of odd and even numbers. Who puts packets must know that
 * the receiver is through with the call before the last one: if at the end of the last call all had heard from all, then all
 * have begun that, and this is known. Else receivers must say that they have begun this call (they always do), and be waited
 * for. Flags come again after 2^32 calls: long before that half a box is emptied, before two calls in a row, by their number
 * alone; nobody puts packets there until he is told that the call has begun. */
class Boxes {
    u64 synchronized_call = 0; /* the next call, if at the end of the one before all had heard from all */
    bool is_synchronized = false;

  public:
    /* Whether this call must wait for others to begin. `packets`: whether it goes by them; `hears`: whether at its end all have
     * heard from all, where there is anything to move. */
    bool opens(u64 call, bool packets, bool hears) {
        const bool waits = !is_synchronized || synchronized_call != call || empties(call);
        is_synchronized = packets && hears;
        synchronized_call = (call + 1) % ((u64)1 << (64 - CALL_BITS));
        return waits;
    }
    void stopped() { is_synchronized = false; }
};
