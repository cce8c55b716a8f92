/* Copy, combine and divide data, slice by slice; the caller supplies the addresses.
 *
 * Threading: by all threads of a block, each on elements of its own. Ownership: no memory.
 */
#pragma once
#include "numbers.h"

/* Where in a unit of weight atoms begin, in elements, and the unit itself behind them. */
struct Line {
    const i64 *cuts;
    i64 parts, unit;

    /* An element, counted from the beginning of the line. */
    ON_BOTH i64 at(i64 whole, i64 part) const { return whole * unit + cuts[part]; }
};

/* `number` atoms from a cut on. */
struct Span {
    i64 part, number;
};

/* The part of every atom that a lane has in a round. */
struct Share {
    u32 slice, slices;
};

/* A slice of `length` elements: in steps of 16 bytes, so that it can be moved so. */
ON_DEVICE i64 sliced(i64 length, u32 slice, u32 slices, i64 step) {
    return slice == slices ? length : length / step * (i64)slice / (i64)slices * step;
}

/* Calls `work(from, to)` for this share of the atoms of a span, counted from its beginning. */
template <typename Work> ON_DEVICE void each_slice(const Line &line, Span span, Share share, i64 step, Work work) {
    if (!line.unit) return; /* however many atoms there are */
    if (share.slices == 1) {
        const i64 end = span.part + span.number;
        work((i64)0, line.at(end / line.parts, end % line.parts) - line.cuts[span.part]);
        return;
    }
    i64 at = 0, part = span.part;
    for (i64 atom = 0; atom < span.number; ++atom) {
        const i64 length = line.cuts[part + 1] - line.cuts[part];
        const i64 from = sliced(length, share.slice, share.slices, step);
        const i64 to = sliced(length, share.slice + 1, share.slices, step);
        if (to > from) work(at + from, at + to);
        at += length;
        part = part + 1 == line.parts ? 0 : part + 1;
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

/* Operands combined from the left; each result gets it. Nothing is reordered. `places`: how many there are of both, and
 * where each begins. */
template <typename T, typename Rule, typename Places>
OUT_OF_LINE void combine(const Line &line, Span span, Share share, const Places &places) {
    typedef typename Of<T>::wide W;
    typedef typename Of<T>::adds U;
    typedef Wide<T> Tile;
    const u32 me = my_thread(), threads = my_threads();
    const i64 count = places.results(), operands = places.operands();
    each_slice(line, span, share, Tile::EACH, [&](i64 from, i64 to) {
        /* All addresses equally far from a multiple of 16 bytes: then all but the ends goes so. */
        const uintptr_t odd = (uintptr_t)(places.result(0) + from) & 15;
        bool alike = odd % sizeof(T) == 0;
        for (i64 k = 1; k < count; ++k) alike &= ((uintptr_t)(places.result(k) + from) & 15) == odd;
        for (i64 k = 0; k < operands; ++k) alike &= ((uintptr_t)(places.operand(k) + from) & 15) == odd;
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
            next.read(places.operand(0) + at);
            for (int i = 0; i < Tile::TILE; ++i) sum[i] = widened(next.value[i]);
            for (i64 k = 1; k < operands; ++k) {
                next.read(places.operand(k) + at);
                for (int i = 0; i < Tile::TILE; ++i) sum[i] = Rule::template combine_pair<W, U>(sum[i], widened(next.value[i]));
            }
            for (int i = 0; i < Tile::TILE; ++i) narrowed(sum[i], &next.value[i]);
            for (i64 k = 0; k < count; ++k) next.write(places.result(k) + at);
        }
        for (i64 i = me; i < head + (to - tail); i += threads) {
            const i64 at = i < head ? from + i : tail + i - head;
            W sum = widened(places.operand(0)[at]);
            for (i64 k = 1; k < operands; ++k) sum = Rule::template combine_pair<W, U>(sum, widened(places.operand(k)[at]));
            T result;
            narrowed(sum, &result);
            for (i64 k = 0; k < count; ++k) places.result(k)[at] = result;
        }
    });
}

/* The same by a number of numbers.h; of one operand it is a copy. */
template <typename T, typename Places>
ON_DEVICE void combine_by(int op, const Line &line, Span span, Share share, const Places &places) {
    switch (places.operands() == 1 ? (int)SUM : op) {
    case PROD: combine<T, Prod>(line, span, share, places); break;
    case MAX: combine<T, Max>(line, span, share, places); break;
    case MIN: combine<T, Min>(line, span, share, places); break;
    default: combine<T, Sum>(line, span, share, places);
    }
}

/* Along a cycle of `count` places each gets what is at the next: every element by one thread, with nothing beside. Threads
 * begin elsewhere in each cycle (`turn`), so that all have something to do where places are short. */
template <typename T, typename At>
ON_DEVICE void permute(const Line &line, Span span, Share share, i64 count, u32 turn, const At &place) {
    const u32 threads = my_threads(), me = (my_thread() + turn) % threads;
    each_slice(line, span, share, Wide<T>::EACH, [&](i64 from, i64 to) {
        for (i64 i = from + me; i < to; i += threads) {
            const T first = place(0)[i];
            for (i64 k = 0; k + 1 < count; ++k) place(k)[i] = place(k + 1)[i];
            place(count - 1)[i] = first;
        }
    });
}

/* Sums as averages of `count`. */
template <typename T> ON_DEVICE void divide(const Line &line, Span span, Share share, T *values, i64 count) {
    each_slice(line, span, share, Wide<T>::EACH, [&](i64 from, i64 to) {
        for (i64 i = from + my_thread(); i < to; i += my_threads()) narrowed(shared_by(widened(values[i]), count), values + i);
    });
}
