/* The primitives that the functions of one exported plan are written with (formats/device): a block of a rank, in a round
 * of a call.
 *
 * Defined before it is included: RANKS, MOST_PLACES, AVERAGE, and T and Rule, the type and the operator.
 *
 * Threading: as kernel.h: all threads of a block together. Ownership: a Call refers to memory of the host's driver (driver.h).
 */
#pragma once
#include "packets.h"
#include "signals.h"

/* The memory of a rank as all see it; its signals by stream, lane and sender, and its box. */
struct Memory {
    T *input, *output, *scratch;
    u64 *signals, *box;
};

/* One call of all ranks. `strides`: the length of a slot of each class. `variant`: 0 signals, 1 packets (packets.h), of
 * which a slot has `slot`; `opens`: whether others must be waited for until they have begun. `step`: which of LAUNCHES. */
struct Call {
    const Memory *of;
    const u32 *stop;
    Line line;
    const i64 *strides;
    u64 number;
    u32 lanes, rounds, variant, opens;
    i64 slot, step = 0;
};

/* A number of a rank, in a circle. */
ON_DEVICE i64 wrap(i64 rank) { return (rank % RANKS + RANKS) % RANKS; }

/* A fixed number of places, which the compiler knows. */
template <int RESULTS, int OPERANDS> struct Fixed {
    T *to[RESULTS];
    const T *from[OPERANDS];

    ON_MEMBER i64 results() const { return RESULTS; }
    ON_MEMBER i64 operands() const { return OPERANDS; }
    ON_MEMBER T *result(i64 k) const { return to[k]; }
    ON_MEMBER const T *operand(i64 k) const { return from[k]; }
};

/* A place: data, or packets of a box; the other is NULL. */
struct Spot {
    T *data;
    u64 *box;
};

/* Any of them: first all results. */
struct Spots {
    const Spot *spot;
    i64 to, total;

    ON_MEMBER i64 results() const { return to; }
    ON_MEMBER i64 all() const { return total; }
    ON_MEMBER T *at(i64 k) const { return spot[k].data; }
    ON_MEMBER u64 *box(i64 k) const { return spot[k].box; }
};

/* Many, named one by one: first all results. */
struct Listed {
    Spot place[MOST_PLACES];
    i64 to, all;

    ON_MEMBER i64 results() const { return to; }
    ON_MEMBER i64 operands() const { return all - to; }
    ON_MEMBER T *result(i64 k) const { return place[k].data; }
    ON_MEMBER const T *operand(i64 k) const { return place[to + k].data; }
};

/* What a statement does is a function of its own: a plan has many, and compilers take their time. */
struct Work {
    const Call &call;
    i64 me, member; /* the rank, and its number among the ranks that share its function */
    i64 place;      /* of the signals of this block */
    u32 pass; /* of the rounds of a call */
    Share share;
    int failed;
    u32 turn; /* which thread begins with the next packets */
    bool on;  /* whether statements are of the launch under way */
    Listed listed;

    /* What follows is of this launch. Whether that one comes later, and so all that follows. */
    ON_MEMBER bool step(i64 number) {
        on = number == call.step;
        return number > call.step;
    }
    ON_MEMBER T *input(i64 rank) const { return call.of[rank].input; }
    ON_MEMBER T *output(i64 rank) const { return call.of[rank].output; }
    ON_MEMBER T *scratch(i64 rank) const { return call.of[rank].scratch; }

    /* Each peer has a thread that signals it and waits for it. */
    ON_ITS_OWN void signal(i64 peer, i64 number) const {
        if ((u32)peer % my_threads() == my_thread())
            store(call.of[peer].signals + place + me, signal_of(call.number, pass, number));
    }
    ON_ITS_OWN void wait(i64 peer, i64 number) {
        if ((u32)peer % my_threads() == my_thread())
            failed |= !has_come(call.of[me].signals + place + peer, signal_of(call.number, pass, number), call.stop);
    }
    /* The beginning of calls by packets. */
    ON_MEMBER bool opens() const { return call.opens && !pass; }
    ON_ITS_OWN void wait_begun(i64 peer, i64 number) {
        if (opens()) wait(peer, number);
    }
    /* Whether the call was stopped. What threads of the block have written, all of them see behind it. */
    ON_MEMBER bool sync() { return sync_block(failed); }

    ON_ITS_OWN void copy(T *to, const T *from, Span span) const {
        copy_span<T>(call.line, span, share, to, from);
    }
    template <int RESULTS, int OPERANDS> ON_MEMBER void fold(const Fixed<RESULTS, OPERANDS> &places, Span span) const {
        combine<T, Rule>(call.line, span, share, places);
    }
    template <int RESULTS, int OPERANDS> ON_MEMBER void spread(const Fixed<RESULTS, OPERANDS> &places, Span span) const {
        combine<T, Sum>(call.line, span, share, places);
    }

    ON_MEMBER Spot at(T *place) const { return {place, nullptr}; }
    ON_ITS_OWN Spot box(i64 rank, i64 slot) const {
        return {nullptr, call.of[rank].box + half_of(call.number) + slot * call.slot};
    }
    /* Where any place may be packets: data that is combined, or copied where there is one operand. */
    ON_ITS_OWN void relay_all(const Spots &places, Span span) {
        if (!failed)
            failed = pass_on<T>(Rule::NUMBER, call.line, span, share, flag_of(call.number), call.stop, &turn, places);
    }
    template <int RESULTS, int OPERANDS> ON_ITS_OWN void relay(const Spot (&places)[RESULTS + OPERANDS], Span span) {
        relay_all({places, RESULTS, RESULTS + OPERANDS}, span);
    }
    ON_ITS_OWN void relay_listed(Span span) {
        relay_all({listed.place, listed.to, listed.all}, span);
        listed.to = listed.all = 0;
    }

    ON_MEMBER void to(Spot place) {
        listed.place[listed.all++] = place;
        listed.to = listed.all;
    }
    ON_MEMBER void from(Spot place) { listed.place[listed.all++] = place; }
    ON_MEMBER void to(T *place) { to(at(place)); }
    ON_MEMBER void from(T *place) { from(at(place)); }
    template <typename By> ON_ITS_OWN void combine_listed(Span span) {
        combine<T, By>(call.line, span, share, listed);
        listed.to = listed.all = 0;
    }

    ON_ITS_OWN void permute_listed(Span span) {
        ::permute<T>(call.line, span, share, listed.all, 0, [&](i64 k) { return listed.place[k].data; });
        listed.to = listed.all = 0;
    }

    ON_ITS_OWN void divide(T *values, Span span, i64 count) const {
        if (AVERAGE) ::divide<T>(call.line, span, share, values, count);
    }
};
