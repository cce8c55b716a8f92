/* What the functions of one plan are written with (formats/device): a block of a rank, in a round of a call.
 *
 * Before it: RANKS, MOST_PLACES, COUNT of an average, and T and Rule, the type and the operator.
 */
#pragma once
#include "move.h"
#include "signals.h"

/* The memory of a rank as all see it; its signals by stream, lane and sender. */
struct Memory {
    T *input, *output, *scratch;
    u64 *signals;
};

/* One call of all ranks. `strides`: how long a slot of each class is. */
struct Call {
    const Memory *of;
    const u32 *stop;
    Line line;
    const i64 *strides;
    u64 number;
    u32 lanes, rounds;
};

/* A number of a rank, in a circle. */
ON_DEVICE i64 wrap(i64 rank) { return (rank % RANKS + RANKS) % RANKS; }

/* Few places, which the compiler knows the number of. */
template <int RESULTS, int OPERANDS> struct Few {
    T *to[RESULTS];
    const T *from[OPERANDS];

    ON_MEMBER i64 results() const { return RESULTS; }
    ON_MEMBER i64 operands() const { return OPERANDS; }
    ON_MEMBER T *result(i64 k) const { return to[k]; }
    ON_MEMBER const T *operand(i64 k) const { return from[k]; }
};

/* Many, named one by one: first all results. */
struct Listed {
    T *place[MOST_PLACES];
    i64 to, all;

    ON_MEMBER i64 results() const { return to; }
    ON_MEMBER i64 operands() const { return all - to; }
    ON_MEMBER T *result(i64 k) const { return place[k]; }
    ON_MEMBER const T *operand(i64 k) const { return place[to + k]; }
};

/* What a statement does is a function of its own: a plan has many, and compilers take their time. */
struct Work {
    const Call &call;
    i64 me, which; /* the rank, and its place among those that do the same */
    i64 place;     /* of the signals of this block */
    u32 pass; /* of the rounds of a call */
    Share share;
    int failed;
    Listed listed;

    ON_MEMBER T *input(i64 rank) const { return call.of[rank].input; }
    ON_MEMBER T *output(i64 rank) const { return call.of[rank].output; }
    ON_MEMBER T *scratch(i64 rank) const { return call.of[rank].scratch; }

    /* Each peer has a thread that tells it and waits for it. */
    ON_ITS_OWN void signal(i64 peer, i64 number) const {
        if ((u32)peer % my_threads() == my_thread())
            store(call.of[peer].signals + place + me, signal_of(call.number, pass, number));
    }
    ON_ITS_OWN void wait(i64 peer, i64 number) {
        if ((u32)peer % my_threads() == my_thread())
            failed |= !has_come(call.of[me].signals + place + peer, signal_of(call.number, pass, number), call.stop);
    }
    /* Whether the call was stopped. What threads of the block have written, all of them see behind it. */
    ON_MEMBER bool sync() { return meet(failed); }

    ON_ITS_OWN void copy(T *to, const T *from, Span span) const {
        combine<T, Sum>(call.line, span, share, Few<1, 1>{{to}, {from}});
    }
    template <int RESULTS, int OPERANDS> ON_MEMBER void fold(const Few<RESULTS, OPERANDS> &places, Span span) const {
        combine<T, Rule>(call.line, span, share, places);
    }
    template <int RESULTS, int OPERANDS> ON_MEMBER void spread(const Few<RESULTS, OPERANDS> &places, Span span) const {
        combine<T, Sum>(call.line, span, share, places);
    }

    ON_MEMBER void to(T *place) {
        listed.place[listed.all++] = place;
        listed.to = listed.all;
    }
    ON_MEMBER void from(T *place) { listed.place[listed.all++] = place; }
    ON_ITS_OWN void fold_listed(Span span) {
        combine<T, Rule>(call.line, span, share, listed);
        listed.to = listed.all = 0;
    }
    ON_ITS_OWN void spread_listed(Span span) {
        combine<T, Sum>(call.line, span, share, listed);
        listed.to = listed.all = 0;
    }

    ON_ITS_OWN void permute_listed(Span span) {
        ::permute<T>(call.line, span, share, listed.all, 0, [&](i64 k) { return listed.place[k]; });
        listed.to = listed.all = 0;
    }

    ON_ITS_OWN void divide(T *values, Span span, i64 count) const {
        if (AVERAGE) ::divide<T>(call.line, span, share, values, count);
    }
};
