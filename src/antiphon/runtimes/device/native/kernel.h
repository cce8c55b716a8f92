/* The work of a thread block: the steps of its stream, one after another, on its share of every atom (an atom is data that no
 * point of the plan divides, table.h). Here "block" always means thread block.
 *
 * A stream, a list of steps, is executed by `lanes` blocks in parallel, each in `rounds` rounds. Every pair of lane and
 * round has its own slice of every atom and its own signals, so slices never wait for each other. A rank that is ahead
 * goes on with the next round, so a long message is on several links at once. move.h copies and combines data,
 * packets.h does so through packets; signals.h waits for signals (has_come), world.h stores them (store) and has the
 * barrier of a block (sync_block).
 *
 * Threading: all threads of a block run `run_block` together and meet between dependent steps; between blocks and ranks only
 *   signals and packets order memory (world.h).
 * Ownership: everything that a Run refers to is the host's and outlives the call.
 */
#pragma once
#include "joint.h"
#include "packets.h"
#include "signals.h"
#include "table.h"

/* Addresses of another rank, mapped at this one: its buffers, its signals (by stream, lane and sender), its box for packets. */
struct Peer {
    char *buffer[BUFFERS];
    u64 *signals;
    u64 *box;
};

/* A call, the same for all blocks of a rank. `steps` to `regions`, `classes`: the rank's table (table.h). */
struct Run {
    const Step *steps;
    const Argument *arguments;
    const Block *blocks;
    const i64 *regions;
    /* per region, what to add to a point of the line, in elements, to get an index into the buffer; of packets, where
     * the slot begins */
    const i64 *shift;
    const Peer *peers; /* by rank */
    const u32 *stop;   /* the stop flag */
    Line line;         /* the cuts of a unit, in elements (move.h) */
    u64 call;          /* its number */
    i64 classes;       /* sizes of slots of scratch */
    u32 rank, ranks, lanes, rounds;
    int type, op;         /* by number (numbers.h) */
    u32 packets;          /* whether messages go by packets */
    u32 opens;            /* whether the call must first wait until the other ranks have begun it */
    const u64 *counter;   /* where the device counts the number of a call that it repeats (a graph); NULL: use `call` */
    char *joint[BUFFERS]; /* per buffer, its multicast address if it is joint memory (device.h); else NULL */
};

/* The number of a call (see Run::counter), and the flag of its packets; flag 0: it has none. */
struct Now {
    u64 call;
    u32 flag;
};

ON_DEVICE Now now_of(const Run &run) {
    const u64 call = run.counter ? *run.counter : run.call;
    return {call, run.packets ? flag_of(call) : 0};
}

/* A region has 3 + `classes` numbers (table.h), its buffer first. */
ON_DEVICE i64 region_buffer(const Run &run, i64 region) { return run.regions[region * (3 + run.classes)]; }

/* The address of an argument: a place in the memory of some rank. */
template <typename T> ON_DEVICE T *address(const Run &run, const Argument &a) {
    T *const buffer = (T *)run.peers[a.rank].buffer[region_buffer(run, a.region)];
    return buffer + run.shift[a.region] + run.line.at(a.whole, a.part);
}

/* The same, not inlined, for rare use. */
template <typename T> ON_ITS_OWN T *distant_address(const Run &run, const Argument &a) { return address<T>(run, a); }

/* The results and operands of a fold: consecutive arguments, `count` results first. A thread caches the addresses of the first
 * CACHED ones (seldom are there more), so that the table is read once per step and not for each tile: the elements that a
 * thread handles at once. */
template <typename T> struct InTable {
    enum { CACHED = 16 };
    const Run &run;
    const Argument *arguments;
    i64 count, all;
    T *cached[CACHED];

    ON_MEMBER InTable(const Run &run, const Argument *arguments, i64 count, i64 all)
        : run(run), arguments(arguments), count(count), all(all) {
        for (i64 k = 0; k < all && k < CACHED; ++k) cached[k] = address<T>(run, arguments[k]);
    }
    ON_MEMBER T *place(i64 k) const { return k < CACHED ? cached[k] : distant_address<T>(run, arguments[k]); }
    ON_MEMBER i64 results() const { return count; }
    ON_MEMBER i64 operands() const { return all - count; }
    ON_MEMBER T *result(i64 k) const { return place(k); }
    ON_MEMBER const T *operand(i64 k) const { return place(count + k); }
};

/* The same if any of them may be packets: `box` is where the packets of place k begin, NULL if its data lie at `at`. */
template <typename T> struct InBoxes {
    const Run &run;
    i64 half;           /* where this call's half of a box begins */
    const Argument *to; /* the results: `count` arguments */
    i64 count;
    const Argument *from; /* the operands */
    i64 operand_count;

    ON_MEMBER const Argument &place(i64 k) const { return k < count ? to[k] : from[k - count]; }
    ON_MEMBER i64 results() const { return count; }
    ON_MEMBER i64 all() const { return count + operand_count; }
    ON_MEMBER u64 *box(i64 k) const {
        const Argument &a = place(k);
        return region_buffer(run, a.region) == PACKETS ? run.peers[a.rank].box + half + run.shift[a.region] : nullptr;
    }
    ON_MEMBER T *at(i64 k) const { return address<T>(run, place(k)); }
};

/* Executes a put or fold of a call by packets. Returns whether the call was stopped. */
template <typename T> ON_DEVICE int carry_packets(const Run &run, const Now &now, const Step &step, Share share) {
    const Argument *a = run.arguments + step.first;
    const i64 half = half_of(now.call);
    u32 turn = 0; /* the thread that handles the next first packet (combine_packets) */
    const int op = step.kind == FOLD ? run.op : (int)SUM;
    /* the places of a put or fold have equal spans (a cut and a number of atoms: Argument in table.h), so the first will do */
    const i64 each = step.kind == PUT ? 2 : step.count; /* arguments: from and to; or all results and operands */
    for (i64 k = 0; k < step.count; k += each) {
        const i64 results = step.kind == PUT ? 1 : step.more; /* of a fold `more` is the number of results (table.h) */
        const InBoxes<T> places = step.kind == PUT ? InBoxes<T>{run, half, a + k + 1, 1, a + k, 1}
                                                   : InBoxes<T>{run, half, a, results, a + results, step.count - results};
        if (combine_packets<T>(op, run.line, {a[k].part, a[k].number}, share, now.flag, run.stop, &turn, places)) return 1;
    }
    return 0;
}

#ifdef BY_SWITCHES
/* Executes a step by switches that multicast or reduce; false if they cannot do it. They write a result at every rank
 * (`a` is the first result, `from` the first operand), from the data of all ranks, or of this one alone (`own`).
 * Buffers must be joint memory: there a place has the same offset from a rank's own address of a buffer as from its
 * multicast address. */
template <typename T, typename Rule>
ON_DEVICE bool by_switches(const Run &run, const Step &step, Share share, const InTable<T> &places) {
    const Argument *a = run.arguments + step.first, &from = a[step.more];
    const i64 to_buffer = region_buffer(run, a->region), from_buffer = region_buffer(run, from.region);
    const bool own = step.kind == SPREAD;
    char *const to = run.joint[to_buffer], *const all = run.joint[from_buffer];
    if (!to || (!own && (!all || !Switches<T, Rule>::supported)) || step.more != (i64)run.ranks) return false;
    if (!own && step.count != 2 * (i64)run.ranks) return false; /* results and operands at all ranks */
    T *const into = (T *)(to + ((char *)address<T>(run, *a) - run.peers[a->rank].buffer[to_buffer]));
    const T *const source = address<T>(run, from);
    const T *const read = own ? source : (const T *)(all + ((const char *)source - run.peers[from.rank].buffer[from_buffer]));
    combine_jointly<T, Rule>(run.line, {a->part, a->number}, share, read, own, into, [&](i64 at) {
        /* an element at the ends of a slice, which the switch's instructions do not cover: sum it by loads */
        typename Of<T>::wide sum = widen(places.operand(0)[at]);
        for (i64 k = 1; k < places.operands(); ++k)
            sum = Rule::template combine_pair<typename Of<T>::wide, typename Of<T>::adds>(sum, widen(places.operand(k)[at]));
        T result;
        narrow(sum, &result);
        for (i64 k = 0; k < places.results(); ++k) places.result(k)[at] = result;
    });
    return true;
}

template <typename T> ON_DEVICE bool by_switches(const Run &run, const Step &step, Share share, const InTable<T> &places) {
    if (step.kind != SWITCH && step.kind != SPREAD) return false;
    switch (step.kind == SPREAD ? (int)SUM : run.op) {
    case PROD: return false;
    case MAX: return by_switches<T, Max>(run, step, share, places);
    case MIN: return by_switches<T, Min>(run, step, share, places);
    default: return by_switches<T, Sum>(run, step, share, places);
    }
}
#else
template <typename T> ON_DEVICE bool by_switches(const Run &, const Step &, Share, const InTable<T> &) { return false; }
#endif

/* Executes a step that moves or combines data. */
template <typename T> ON_DEVICE void carry_out(const Run &run, const Step &step, Share share) {
    const Argument *a = run.arguments + step.first;
    const auto span = [](const Argument &argument) { return Span{argument.part, argument.number}; };
    if (step.kind == PUT)
        for (i64 k = 0; k < step.count; k += 2)
            copy_span<T>(run.line, span(a[k + 1]), share, address<T>(run, a[k + 1]), address<T>(run, a[k]));
    else if (step.kind == DIVIDE) {
        /* `more` is the divisor */
        if (run.op == AVG) divide<T>(run.line, span(a[0]), share, address<T>(run, a[0]), step.more);
    } else if (step.kind == PERMUTE) {
        const InTable<T> places(run, a, 0, step.count);
        /* each PERMUTE step is a cycle of two places or more, an argument each: so the `turn` of cycles (move.h) differs by 32,
         * the threads of a warp, or more */
        permute<T>(run.line, span(a[0]), share, step.count, (u32)(step.first * 16), [&](i64 k) { return places.place(k); });
    } else {
        const InTable<T> places(run, a, step.more, step.count);
        if (!by_switches<T>(run, step, share, places)) combine_by<T>(run.op, run.line, span(a[0]), share, places);
    }
}

/* Waits for the signals of a step, one thread for each. Returns 1 if the call was stopped. */
ON_DEVICE int await_signals(const Run &run, u64 call, const Step &step, const u64 *signals, u32 round) {
    for (i64 k = my_thread(); k < step.count; k += my_threads()) {
        const Argument &a = run.arguments[step.first + k];
        if (!has_come(signals + a.rank, signal_of(call, round, a.number), run.stop)) return 1;
    }
    return 0;
}

/* Sends the signals of a step; a `sync_block` must precede. Each peer is always signalled by the same thread, so that
 * the numbers ascend even without a `sync_block` in between. `place`: where the signals of this block begin at each
 * rank. */
ON_DEVICE void send_signals(const Run &run, u64 call, const Step &step, i64 place, u32 round) {
    for (i64 k = 0; k < step.count; ++k) {
        const Argument &a = run.arguments[step.first + k];
        if ((u32)a.rank % my_threads() == my_thread())
            store(run.peers[a.rank].signals + place + run.rank, signal_of(call, round, a.number));
    }
}

/* All the work of the thread block with this number at its rank. Returns whether the call was stopped. */
template <typename T> ON_DEVICE int run_block(const Run &run, u32 number) {
    const u32 stream = number / run.lanes, lane = number % run.lanes;
    const i64 place = (i64)number * run.ranks;
    const u64 *signals = run.peers[run.rank].signals + place;
    const Block block = run.blocks[stream];
    const Now now = now_of(run);
    int failed = 0;
    for (u32 round = 0; round < run.rounds; ++round) {
        const Share share = {round * run.lanes + lane, run.rounds * run.lanes};
        for (i64 i = block.first; i < block.first + block.count; ++i) {
            const Step step = run.steps[i];
            /* a wait until other ranks have begun, and its sync: only in calls that need it, and once */
            if (run.packets && (step.kind == WAIT || step.kind == SYNC) && step.more && (round || !run.opens)) continue;
            if (step.kind == SIGNAL)
                send_signals(run, now.call, step, place, round);
            else if (step.kind == WAIT)
                failed |= await_signals(run, now.call, step, signals, round);
            else if (step.kind == SYNC) {
                if (sync_block(failed)) return 1;
            } else if (!run.packets || step.kind == DIVIDE) /* after a wait that failed, a sync comes before its data is used */
                carry_out<T>(run, step, share);
            else if (!failed) /* after a failure only meet the other threads of the block, at the next sync */
                failed = carry_packets<T>(run, now, step, share);
        }
        if (sync_block(failed)) return 1; /* a round begins when all threads have completed the last one */
    }
    return 0;
}
