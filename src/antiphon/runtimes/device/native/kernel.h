/* What a block does: the steps of its stream, one after another, on its share of every atom.
 *
 * A stream is done by `lanes` blocks side by side, each in `rounds` rounds: a lane and a round have a slice of every atom of
 * their own, with signals of their own, so that slices never wait for each other. A rank that is ahead in one round
 * goes on with the next: that is how long messages come to be on several links at once.
 */
#pragma once
#include "numbers.h"
#include "table.h"

/* The buffers of a rank as this one sees them, and its signals: by stream, lane and sender. */
struct Peer {
    char *buffer[BUFFERS];
    u64 *signals;
};

/* A call, the same for all blocks of a rank. `cuts`: where in a unit atoms begin, in elements, and the unit itself behind
 * them. `shift`: of each region what is to be added to places on the line. */
struct Run {
    const Step *steps;
    const Argument *arguments;
    const Block *blocks;
    const i64 *regions;
    const i64 *cuts;
    const i64 *shift;
    const Peer *peers;
    const u32 *stop;
    u64 call;
    i64 unit, parts, classes;
    u32 rank, ranks, lanes, rounds;
    int type, op;
};

/* Signals of a call, a round in it and the number within ascend, in a circle: what stands there from half a circle ago, 2^35
 * calls, would pass for what is to come. */
ON_DEVICE u64 signal_of(const Run &run, u32 round, i64 number) {
    return (run.call << CALL_BITS) + ((u64)round << ROUND_BITS) + (u64)number;
}

ON_DEVICE i64 element(const Run &run, i64 whole, i64 part) { return whole * run.unit + run.cuts[part]; }

ON_DEVICE i64 region_buffer(const Run &run, i64 region) { return run.regions[region * (3 + run.classes)]; }

/* The first element of a place, in the memory of the rank that it is at. */
template <typename T> ON_DEVICE T *address(const Run &run, const Argument &a) {
    return (T *)run.peers[a.rank].buffer[region_buffer(run, a.region)] + run.shift[a.region] + element(run, a.whole, a.part);
}

/* A slice of `length` elements: in steps of 16 bytes, so that it can be moved so. */
ON_DEVICE i64 sliced(i64 length, u32 slice, u32 slices, i64 step) {
    return slice == slices ? length : length / step * (i64)slice / (i64)slices * step;
}

/* Calls `work(from, to)` for this block's slices of the atoms from a place on, counted from there. */
template <typename Work> ON_DEVICE void each_slice(const Run &run, const Argument &a, u32 slice, u32 slices, i64 step, Work work) {
    if (slices == 1) {
        const i64 end = a.part + a.number;
        work((i64)0, element(run, a.whole + end / run.parts, end % run.parts) - element(run, a.whole, a.part));
        return;
    }
    i64 at = 0, part = a.part;
    for (i64 atom = 0; atom < a.number; ++atom) {
        const i64 length = run.cuts[part + 1] - run.cuts[part];
        const i64 from = sliced(length, slice, slices, step), to = sliced(length, slice + 1, slices, step);
        if (to > from) work(at + from, at + to);
        at += length;
        part = part + 1 == run.parts ? 0 : part + 1;
    }
}

struct __attribute__((aligned(16), may_alias)) Sixteen {
    u64 half[2];
};

enum { AT_ONCE = 4 }; /* of 16 bytes, by one thread: that many loads are on their way together */

/* What a thread has in its hands. */
template <typename T> struct alignas(16) Wide {
    enum { EACH = 16 / sizeof(T), TILE = AT_ONCE * 16 / sizeof(T) };
    T value[TILE];

    ON_MEMBER void read(const T *from) {
        for (int i = 0; i < AT_ONCE; ++i) ((Sixteen *)value)[i] = ((const Sixteen *)from)[i];
    }
    ON_MEMBER void write(T *to) const {
        for (int i = 0; i < AT_ONCE; ++i) ((Sixteen *)to)[i] = ((const Sixteen *)value)[i];
    }
};

/* `operands` places combined from the left, `results` places that get it; all as long as the first. Nothing is reordered. */
template <typename T, typename Rule>
OUT_OF_LINE void combine(const Run &run, const Argument *results, i64 count, const Argument *operands, i64 many, u32 slice,
                       u32 slices) {
    typedef typename Of<T>::wide W;
    typedef typename Of<T>::adds U;
    typedef Wide<T> Tile;
    const u32 me = my_thread(), threads = my_threads();
    each_slice(run, results[0], slice, slices, Tile::EACH, [&](i64 from, i64 to) {
        /* All addresses equally far from a multiple of 16 bytes: then all but the ends goes so. */
        const uintptr_t odd = (uintptr_t)(address<T>(run, results[0]) + from) & 15;
        bool alike = odd % sizeof(T) == 0;
        for (i64 k = 1; k < count; ++k) alike &= ((uintptr_t)(address<T>(run, results[k]) + from) & 15) == odd;
        for (i64 k = 0; k < many; ++k) alike &= ((uintptr_t)(address<T>(run, operands[k]) + from) & 15) == odd;
        i64 head = to - from, tiles = 0;
        if (alike && to - from >= 2 * (i64)Tile::TILE) {
            head = (i64)((16 - odd) & 15) / (i64)sizeof(T);
            tiles = (to - from - head) / Tile::TILE;
        }
        const i64 tail = from + head + tiles * Tile::TILE;
        for (i64 tile = me; tile < tiles; tile += threads) {
            const i64 at = from + head + tile * Tile::TILE;
            Tile next;
            W sum[Tile::TILE];
            next.read(address<T>(run, operands[0]) + at);
            for (int i = 0; i < Tile::TILE; ++i) sum[i] = widened(next.value[i]);
            for (i64 k = 1; k < many; ++k) {
                next.read(address<T>(run, operands[k]) + at);
                for (int i = 0; i < Tile::TILE; ++i) sum[i] = Rule::template both<W, U>(sum[i], widened(next.value[i]));
            }
            for (int i = 0; i < Tile::TILE; ++i) narrowed(sum[i], &next.value[i]);
            for (i64 k = 0; k < count; ++k) next.write(address<T>(run, results[k]) + at);
        }
        for (i64 i = me; i < head + (to - tail); i += threads) {
            const i64 at = i < head ? from + i : tail + i - head;
            W sum = widened(address<T>(run, operands[0])[at]);
            for (i64 k = 1; k < many; ++k) sum = Rule::template both<W, U>(sum, widened(address<T>(run, operands[k])[at]));
            T made;
            narrowed(sum, &made);
            for (i64 k = 0; k < count; ++k) address<T>(run, results[k])[at] = made;
        }
    });
}

template <typename T> ON_DEVICE void divide(const Run &run, const Argument &a, i64 count, u32 slice, u32 slices) {
    each_slice(run, a, slice, slices, Wide<T>::EACH, [&](i64 from, i64 to) {
        T *values = address<T>(run, a);
        for (i64 i = from + my_thread(); i < to; i += my_threads()) narrowed(shared_by(widened(values[i]), count), values + i);
    });
}

template <typename T>
ON_DEVICE void combine_by(const Run &run, const Argument *results, i64 count, const Argument *operands, i64 many, u32 slice,
                          u32 slices) {
    switch (many == 1 ? (int)SUM : run.op) { /* of one operand it is a copy */
    case PROD: combine<T, Prod>(run, results, count, operands, many, slice, slices); break;
    case MAX: combine<T, Max>(run, results, count, operands, many, slice, slices); break;
    case MIN: combine<T, Min>(run, results, count, operands, many, slice, slices); break;
    default: combine<T, Sum>(run, results, count, operands, many, slice, slices);
    }
}

/* A step that touches data. */
template <typename T> ON_DEVICE void carry_out(const Run &run, const Step &step, u32 slice, u32 slices) {
    const Argument *a = run.arguments + step.first;
    if (step.kind == PUT)
        for (i64 k = 0; k < step.count; k += 2) combine<T, Sum>(run, a + k + 1, 1, a + k, 1, slice, slices);
    else if (step.kind == DIVIDE) {
        if (run.op == AVG) divide<T>(run, a[0], step.more, slice, slices);
    } else
        combine_by<T>(run, a, step.more, a + step.more, step.count - step.more, slice, slices);
}

/* One thread for each signal: whether all have come, or the call was stopped. */
ON_DEVICE int await(const Run &run, const Step &step, const u64 *mine, u32 round) {
    for (i64 k = my_thread(); k < step.count; k += my_threads()) {
        const Argument &a = run.arguments[step.first + k];
        const u64 *at = mine + a.rank, wanted = signal_of(run, round, a.number);
        while ((i64)(load(at) - wanted) < 0) {
            if (glance(run.stop)) return 1;
            rest();
        }
    }
    return 0;
}

/* Behind a `meet`, if anything is to be told. A peer is told by the same thread each time, so that its numbers ascend even
 * where no `meet` lies between. */
ON_DEVICE void tell(const Run &run, const Step &step, i64 place, u32 round) {
    for (i64 k = 0; k < step.count; ++k) {
        const Argument &a = run.arguments[step.first + k];
        if ((u32)a.rank % my_threads() == my_thread())
            store(run.peers[a.rank].signals + place + run.rank, signal_of(run, round, a.number));
    }
}

/* All of a block of a rank. Gives whether it was stopped. */
template <typename T> ON_DEVICE int run_block(const Run &run, u32 number) {
    const u32 stream = number / run.lanes, lane = number % run.lanes;
    const i64 place = (i64)number * run.ranks;
    const u64 *mine = run.peers[run.rank].signals + place;
    const Block block = run.blocks[stream];
    int failed = 0;
    for (u32 round = 0; round < run.rounds; ++round) {
        const u32 slice = round * run.lanes + lane, slices = run.rounds * run.lanes;
        for (i64 i = block.first; i < block.first + block.count; ++i) {
            const Step step = run.steps[i];
            if (step.kind == SIGNAL)
                tell(run, step, place, round);
            else if (step.kind == WAIT)
                failed |= await(run, step, mine, round);
            else if (step.kind == SYNC) {
                if (meet(failed)) return 1;
            } else
                carry_out<T>(run, step, slice, slices);
        }
        if (meet(failed)) return 1; /* a round begins when all threads have done the one before */
    }
    return 0;
}
