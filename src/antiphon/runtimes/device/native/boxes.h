/* When the packet boxes of ranks may be reused by a later call (packets.h). Host only.
 *
 * Threading: as its rank. Ownership: no memory.
 */
#pragma once
#include "packets.h"
#include "signals.h"

/* The use of a rank's box, call after call. A box has two halves, for calls of odd and even numbers, so call n writes
 * over the packets of call n - 2. A sender must know that the receiver has completed that one. It knows it if, at the
 * end of call n - 1, every rank had received from all others: then all had begun call n - 1, and so completed n - 2.
 * Otherwise it waits until the receivers have signalled that they have begun call n. Flags repeat after 2^32 calls;
 * long before, each half is emptied before a call of its parity (`empties`, packets.h), and that call waits, too. */
class Boxes {
    u64 synchronized_call = 0; /* the call that need not wait, if `is_synchronized` */
    bool is_synchronized = false;

  public:
    /* Whether this call must wait until all ranks have begun it. `packets`: whether it uses packets; `receives_all`: whether at
     * its end every rank has received from all others. */
    bool opens(u64 call, bool packets, bool receives_all) {
        const bool waits = !is_synchronized || synchronized_call != call || empties(call);
        is_synchronized = packets && receives_all;
        synchronized_call = (call + 1) % ((u64)1 << (64 - CALL_BITS)); /* numbers of calls repeat */
        return waits;
    }
    /* The next call must wait, as one was stopped, or calls were made that `opens` did not see. */
    void force_next_wait() { is_synchronized = false; }
};
