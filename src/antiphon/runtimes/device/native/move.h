/* Copy, combine and divide data on the device, slice by slice; kernel.h calls these for the steps of a plan, with addresses.
 * `T`: the type of the elements; a place: the address of a span in memory.
 *
 * Threading: by all threads of a block, each on elements of its own. Ownership: no memory.
 */
#pragma once
#include "numbers.h"

/* The line (table.h) at a size. `unit`: elements of a unit of weight; `parts`: atoms in it; `cuts`: the elements within
 * it at which atoms begin, and then `unit` itself. */
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

/* The share of a lane in a round: of every atom the slice with number `slice` of `slices` equal ones. */
struct Share {
    u32 slice, slices;
};

/* Where a slice of `length` elements begins: at a multiple of `step` elements (16 bytes), so that it can be moved in words of
 * that size. */
ON_DEVICE i64 slice_begin(i64 length, u32 slice, u32 slices, i64 step) {
    return slice == slices ? length : length / step * (i64)slice / (i64)slices * step;
}

/* Calls `work(from, to)` for this share of the atoms of a span, counted from its beginning. */
template <typename Work> ON_DEVICE void each_slice(const Line &line, Span span, Share share, i64 step, Work work) {
    if (!line.unit) return; /* no data, and there may be many atoms */
    const bool undivided = share.slices == 1; /* then all atoms are one run of memory */
    i64 at = 0, part = span.part;
    for (i64 atom = 0; atom < (undivided ? 1 : span.number); ++atom) {
        const i64 end = span.part + span.number;
        const i64 length = undivided ? line.at(end / line.parts, end % line.parts) - line.cuts[part]
                                     : line.cuts[part + 1] - line.cuts[part];
        const i64 from = slice_begin(length, share.slice, share.slices, step);
        const i64 to = slice_begin(length, share.slice + 1, share.slices, step);
        if (to > from) work(at + from, at + to);
        at += length;
        part = part + 1 == line.parts ? 0 : part + 1;
    }
}

/* A word of 16 bytes of memory, with elements of any type. */
struct __attribute__((aligned(16), may_alias)) Sixteen {
    u64 half[2];
};

/* Load and store 16 bytes by one access each: without the assembly nvcc splits many stores in two. */
ON_DEVICE Sixteen load_sixteen(const void *at) {
#ifdef __CUDACC__
    Sixteen value;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(value.half[0]), "=l"(value.half[1]) : "l"(at) : "memory");
    return value;
#else
    return *(const Sixteen *)at;
#endif
}
ON_DEVICE void store_sixteen(void *at, const Sixteen &value) {
#ifdef __CUDACC__
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(value.half[0]), "l"(value.half[1]) : "memory");
#else
    *(Sixteen *)at = value;
#endif
}

/* The elements that a thread handles at once: WORDS words of 16 bytes, whose loads are issued together. They lie `stride`
 * elements apart, with the words of the other threads between them, so that the threads of a warp access one run of memory at
 * a time. Only `remaining` elements from the first word on may be accessed. Types of one byte have fewer words: each element
 * that is combined takes a register. */
template <typename T> struct alignas(16) Wide {
    enum { EACH = 16 / sizeof(T), WORDS = sizeof(T) == 1 ? 2 : 4, TILE = WORDS * EACH };
    T value[TILE];

    ON_MEMBER void read(const T *from, i64 stride, i64 remaining) {
        for (int i = 0; i < WORDS; ++i)
            ((Sixteen *)value)[i] = i * stride < remaining ? load_sixteen(from + i * stride) : Sixteen{};
    }
    ON_MEMBER void write(T *to, i64 stride, i64 remaining) const {
        for (int i = 0; i < WORDS; ++i)
            if (i * stride < remaining) store_sixteen(to + i * stride, ((const Sixteen *)value)[i]);
    }
};

/* The numbers of elements of a slice that go one by one before and after its words of 16 bytes. */
struct Ends {
    i64 head, tail;
};

/* The ends of a slice that begins at address `first`. All its elements go one by one if the addresses of results and
 * operands differ modulo 16 (`alike`: they do not), or if it has no whole word. */
template <typename T> ON_DEVICE Ends ends_of(uintptr_t first, bool alike, i64 length) {
    const i64 head = (i64)((16 - (first & 15)) & 15) / (i64)sizeof(T);
    if (!alike || first % sizeof(T) || length < head + Wide<T>::EACH) return {length, 0};
    return {head, (length - head) % Wide<T>::EACH};
}

/* Calls `words(at, remaining)` for this thread's words of the slice from..to, then `element(at)` for its elements of the
 * ends. */
template <typename T, typename Words, typename Element>
ON_DEVICE void each_word(i64 from, i64 to, Ends ends, Words words, Element element) {
    const u32 me = my_thread(), threads = my_threads();
    const i64 tail = to - ends.tail;
    for (i64 at = from + ends.head + (i64)me * Wide<T>::EACH; at < tail; at += (i64)threads * Wide<T>::TILE) words(at, tail - at);
    for (i64 i = me; i < ends.head + ends.tail; i += threads) element(i < ends.head ? from + i : tail + i - ends.head);
}

/* Copies a span. */
template <typename T> OUT_OF_LINE void copy_span(const Line &line, Span span, Share share, T *to, const T *from) {
    const i64 stride = (i64)my_threads() * Wide<T>::EACH; /* from a word of a thread to its next, with all threads' between */
    each_slice(line, span, share, Wide<T>::EACH, [&](i64 low, i64 high) {
        const uintptr_t first = (uintptr_t)(to + low);
        const Ends ends = ends_of<T>(first, ((first ^ (uintptr_t)(from + low)) & 15) == 0, high - low);
        each_word<T>(
            low, high, ends,
            [&](i64 at, i64 remaining) {
                Wide<T> words;
                words.read(from + at, stride, remaining);
                words.write(to + at, stride, remaining);
            },
            [&](i64 at) { to[at] = from[at]; });
    });
}

/* Combines operands from the left, without reordering, and writes the value to each result. `places`: the numbers of
 * results and operands, and their addresses. The sum is computed in type W; integers are added as unsigned U
 * (numbers.h). */
template <typename T, typename Rule, typename Places>
OUT_OF_LINE void combine(const Line &line, Span span, Share share, const Places &places) {
    typedef typename Of<T>::wide W;
    typedef typename Of<T>::adds U;
    typedef Wide<T> Tile;
    const i64 count = places.results(), operands = places.operands(), stride = (i64)my_threads() * Tile::EACH;
    each_slice(line, span, share, Tile::EACH, [&](i64 from, i64 to) {
        const uintptr_t first = (uintptr_t)(places.result(0) + from);
        uintptr_t differing = 0;
        for (i64 k = 1; k < count; ++k) differing |= (uintptr_t)(places.result(k) + from) ^ first;
        for (i64 k = 0; k < operands; ++k) differing |= (uintptr_t)(places.operand(k) + from) ^ first;
        each_word<T>(
            from, to, ends_of<T>(first, (differing & 15) == 0, to - from),
            [&](i64 at, i64 remaining) {
                Tile next;
                W sum[Tile::TILE];
                next.read(places.operand(0) + at, stride, remaining);
                for (int i = 0; i < Tile::TILE; ++i) sum[i] = widen(next.value[i]);
                for (i64 k = 1; k < operands; ++k) {
                    next.read(places.operand(k) + at, stride, remaining);
                    for (int i = 0; i < Tile::TILE; ++i) sum[i] = Rule::template combine_pair<W, U>(sum[i], widen(next.value[i]));
                }
                for (int i = 0; i < Tile::TILE; ++i) narrow(sum[i], &next.value[i]);
                for (i64 k = 0; k < count; ++k) next.write(places.result(k) + at, stride, remaining);
            },
            [&](i64 at) {
                W sum = widen(places.operand(0)[at]);
                for (i64 k = 1; k < operands; ++k) sum = Rule::template combine_pair<W, U>(sum, widen(places.operand(k)[at]));
                T result;
                narrow(sum, &result);
                for (i64 k = 0; k < count; ++k) places.result(k)[at] = result;
            });
    });
}

/* `combine` with the operator as a number of numbers.h; with one operand it copies. */
template <typename T, typename Places>
ON_DEVICE void combine_by(int op, const Line &line, Span span, Share share, const Places &places) {
    switch (places.operands() == 1 ? (int)SUM : op) {
    case PROD: combine<T, Prod>(line, span, share, places); break;
    case MAX: combine<T, Max>(line, span, share, places); break;
    case MIN: combine<T, Min>(line, span, share, places); break;
    default: combine<T, Sum>(line, span, share, places);
    }
}

/* Rotates data along a cycle of `count` places: each gets the data of the next one, element by element, without other
 * memory. `turn`: shifts which thread has the first element, differently for each cycle, so that all have work if
 * places are short. */
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

/* Divides sums by `count`. */
template <typename T> ON_DEVICE void divide(const Line &line, Span span, Share share, T *values, i64 count) {
    each_slice(line, span, share, Wide<T>::EACH, [&](i64 from, i64 to) {
        for (i64 i = from + my_thread(); i < to; i += my_threads()) narrow(divide_sum(widen(values[i]), count), values + i);
    });
}
