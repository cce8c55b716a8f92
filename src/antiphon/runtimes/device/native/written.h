/* The statements of an exported plan: formats/device writes functions that call the members of `Work` on behalf of a thread
 * block of a rank, in a round of a call (with more rounds, a block does its data in slices, one after another). ON_MEMBER
 * and ON_ITS_OWN mark functions of the device, inlined or not (world.h).
 *
 * Defined before it is included: RANKS, MOST_PLACES (locations that a statement lists), AVERAGE, and the element type T and
 * operator Rule. move.h explains Line, Span and Share.
 *
 * Threading: all threads of a block together, as in kernel.h. Ownership: a Call refers to memory of the host (driver.h).
 */
#pragma once
#include "packets.h"
#include "signals.h"

/* The memory of a rank, at addresses valid on all; its signals by stream, lane and sender, and its box of packets. */
struct Memory {
    T *input, *output, *scratch;
    u64 *signals, *box;
};

/* One call of all ranks. `stop`: the stop flag, which ends waits. `strides[c]`: elements of a scratch slot of size
 * class c. `variant`: 0 signals, 1 packets (packets.h); `slot_packets`: packets of a slot. `opens`: whether to
 * wait until the others have begun the call. `launch`: number of the current launch of kernels; a call has LAUNCHES of
 * them (driver.h). */
struct Call {
    const Memory *memory_of; /* by rank */
    const u32 *stop;
    Line line;
    const i64 *strides;
    u64 number;
    u32 lanes, rounds, variant, opens;
    i64 slot_packets, launch = 0;
};

/* A rank counted in a circle: RANKS is 0, -1 the last one. */
ON_DEVICE i64 wrap(i64 rank) { return (rank % RANKS + RANKS) % RANKS; }

/* Results and operands of a statement, whose numbers the compiler knows. */
template <int RESULTS, int OPERANDS> struct Fixed {
    T *to[RESULTS];
    const T *from[OPERANDS];

    ON_MEMBER i64 results() const { return RESULTS; }
    ON_MEMBER i64 operands() const { return OPERANDS; }
    ON_MEMBER T *result(i64 k) const { return to[k]; }
    ON_MEMBER const T *operand(i64 k) const { return from[k]; }
};

/* Where an operand or result lies: data, or packets of a box; the other is NULL. */
struct Location {
    T *data;
    u64 *box;
};

/* Locations of a statement: `result_count` results, then operands. */
struct Locations {
    const Location *location;
    i64 result_count, total;

    ON_MEMBER i64 results() const { return result_count; }
    ON_MEMBER i64 all() const { return total; }
    ON_MEMBER T *at(i64 k) const { return location[k].data; }
    ON_MEMBER u64 *box(i64 k) const { return location[k].box; }
};

/* The same for a statement with many. Calls of Work::to and Work::from list them one by one before it: first all results. */
struct LocationList {
    Location location[MOST_PLACES];
    i64 result_count, total;

    ON_MEMBER i64 results() const { return result_count; }
    ON_MEMBER i64 operands() const { return total - result_count; }
    ON_MEMBER T *result(i64 k) const { return location[k].data; }
    ON_MEMBER const T *operand(i64 k) const { return location[result_count + k].data; }
};

/* A thread block in a round of a call. Statements are not inlined, as a plan has many and would compile slowly. */
struct Work {
    const Call &call;
    i64 me, member; /* the rank, and its number among the ranks that share its function (the code is written once for them) */
    i64 first_signal; /* where the signals of this block begin in `Memory::signals` */
    u32 round;
    Share share;
    int failed;
    u32 turn; /* which thread begins with the next packets */
    bool in_launch; /* whether the next statements belong to the current launch */
    LocationList listed;

    /* The statements from here on belong to launch `number`; launches ascend. Returns whether that is later than the current
     * one, which then has no more statements: the caller returns. */
    ON_MEMBER bool step(i64 number) {
        in_launch = number == call.launch;
        return number > call.launch;
    }
    ON_MEMBER T *input(i64 rank) const { return call.memory_of[rank].input; }
    ON_MEMBER T *output(i64 rank) const { return call.memory_of[rank].output; }
    ON_MEMBER T *scratch(i64 rank) const { return call.memory_of[rank].scratch; }

    /* Each peer has a thread that signals it and waits for it. `number`: of the signal within the round, ascending. */
    ON_ITS_OWN void signal(i64 peer, i64 number) const {
        if ((u32)peer % my_threads() == my_thread())
            store(call.memory_of[peer].signals + first_signal + me, signal_of(call.number, round, number));
    }
    ON_ITS_OWN void wait(i64 peer, i64 number) {
        const u64 *const from_peer = call.memory_of[me].signals + first_signal + peer;
        if ((u32)peer % my_threads() == my_thread())
            failed |= !has_come(from_peer, signal_of(call.number, round, number), call.stop);
    }
    /* Whether this round must first wait until other ranks have begun: only the first one, of some calls by packets. */
    ON_MEMBER bool opens() const { return call.opens && !round; }
    ON_ITS_OWN void wait_begun(i64 peer, i64 number) {
        if (opens()) wait(peer, number);
    }
    /* A barrier of the block: later reads see what its threads wrote before. Returns whether the call was stopped. */
    ON_MEMBER bool sync() { return sync_block(failed); }

    ON_ITS_OWN void copy(T *to, const T *from, Span span) const {
        copy_span<T>(call.line, span, share, to, from);
    }
    template <int RESULTS, int OPERANDS> ON_MEMBER void fold(const Fixed<RESULTS, OPERANDS> &places, Span span) const {
        combine<T, Rule>(call.line, span, share, places);
    }
    /* Copies one operand to several results, whatever the operator: Sum of one operand is a copy. */
    template <int RESULTS, int OPERANDS> ON_MEMBER void spread(const Fixed<RESULTS, OPERANDS> &places, Span span) const {
        combine<T, Sum>(call.line, span, share, places);
    }

    ON_MEMBER Location at(T *place) const { return {place, nullptr}; }
    ON_ITS_OWN Location box(i64 rank, i64 slot) const {
        return {nullptr, call.memory_of[rank].box + half_of(call.number) + slot * call.slot_packets};
    }
    /* Combines operands, or copies one; any location may be packets. */
    ON_ITS_OWN void relay_all(const Locations &places, Span span) {
        if (!failed)
            failed = combine_packets<T>(Rule::NUMBER, call.line, span, share, flag_of(call.number), call.stop, &turn, places);
    }
    template <int RESULTS, int OPERANDS> ON_ITS_OWN void relay(const Location (&places)[RESULTS + OPERANDS], Span span) {
        relay_all({places, RESULTS, RESULTS + OPERANDS}, span);
    }
    ON_ITS_OWN void relay_listed(Span span) {
        relay_all({listed.location, listed.result_count, listed.total}, span);
        clear_list();
    }

    ON_MEMBER void clear_list() { listed.result_count = listed.total = 0; }
    ON_MEMBER void to(Location place) {
        listed.location[listed.total++] = place;
        listed.result_count = listed.total;
    }
    ON_MEMBER void from(Location place) { listed.location[listed.total++] = place; }
    ON_MEMBER void to(T *place) { to(at(place)); }
    ON_MEMBER void from(T *place) { from(at(place)); }
    template <typename By> ON_ITS_OWN void combine_listed(Span span) {
        combine<T, By>(call.line, span, share, listed);
        clear_list();
    }

    ON_ITS_OWN void permute_listed(Span span) {
        /* in place: each location gets the data of the next one, the last those of the first */
        ::permute<T>(call.line, span, share, listed.total, /* turn: thread 0 begins */ 0,
                     [&](i64 k) { return listed.location[k].data; });
        clear_list();
    }

    ON_ITS_OWN void divide(T *values, Span span, i64 count) const {
        if (AVERAGE) ::divide<T>(call.line, span, share, values, count);
    }
};
