/* Packets for small messages: 8 bytes, 4 of data below and a flag above, stored and loaded atomically. The flag is the number
 * of the call, so a reader of a packet sees by itself whether the data has arrived: no signal and no fence is needed.
 *
 * Packets lie in the box of the receiving rank, each message in a slot of its own. An atom begins with a packet of its own,
 * so that slices are whole packets.
 *
 * Threading: each packet has one writer and one reader; a load or store of 8 bytes is atomic.
 * Ownership: boxes are the host's (boxes.h).
 */
#pragma once
#include "move.h"
#include "signals.h"

enum { BOX = 1 << 15 }; /* packets in half a box */

/* The flag of a call: its number, but never 0, which empty boxes hold. */
ON_BOTH u32 flag_of(u64 call) { return (u32)call ? (u32)call : 1u << 31; }
/* Where in a box the packets of a call begin. */
ON_BOTH i64 half_of(u64 call) { return (i64)(call % 2) * BOX; }
/* Whether half a box is emptied before this call: each half once in 2^20 calls, long before flags repeat. */
ON_BOTH bool empties(u64 call) { return call % (1 << 20) < 2; }

/* The data that a thread handles at once: 4 bytes, or one element if that is longer. */
template <typename T> struct Handful {
    enum { ELEMENTS = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1, WORDS = sizeof(T) < 4 ? 1 : (int)sizeof(T) / 4 };
    union {
        T value[ELEMENTS];
        u32 word[WORDS]; /* one per packet */
    };

    /* Waits for its packets; false if the call was stopped. */
    ON_MEMBER bool receive(const u64 *box, u32 flag, const u32 *stop) {
        u32 spins = 0;
        for (int i = 0; i < WORDS; ++i) {
            u64 packet;
            while ((u32)((packet = load_relaxed(box + i)) >> 32) != flag)
                if (!waits_on(&spins, stop)) return false;
            word[i] = (u32)packet;
        }
        return true;
    }
    ON_MEMBER void send(u64 *box, u32 flag) const {
        for (int i = 0; i < WORDS; ++i) store_relaxed(box + i, (u64)flag << 32 | word[i]);
    }
};

/* An upper bound on the packets of a message of `bytes` in that many atoms: 4 bytes each, but one per atom may have fewer. */
ON_BOTH i64 packets_of(i64 bytes, i64 atoms) { return bytes / 4 + atoms; }

/* Combines two values. `op`: the number of the operator; U: the type in which they are added (both numbers.h). */
template <typename T> ON_DEVICE typename Of<T>::wide combine_pair_by(int op, typename Of<T>::wide x, typename Of<T>::wide y) {
    typedef typename Of<T>::wide W;
    typedef typename Of<T>::adds U;
    switch (op) {
    case PROD: return Prod::template combine_pair<W, U>(x, y);
    case MAX: return Max::template combine_pair<W, U>(x, y);
    case MIN: return Min::template combine_pair<W, U>(x, y);
    default: return Sum::template combine_pair<W, U>(x, y);
    }
}

/* As `combine` of move.h, but any place may be packets: then `places.box(k)` is where they begin; else it is NULL and
 * `places.at(k)` has the data. Results come first. `turn`: the thread that handles the first packet, next in turn after each
 * atom, as slices may have fewer packets than there are threads. Returns whether the call was stopped. */
template <typename T, typename Places>
OUT_OF_LINE int combine_packets(int op, const Line &line, Span span, Share share, u32 flag, const u32 *stop, u32 *turn,
                                const Places &places) {
    typedef Handful<T> Hand;
    const u32 threads = my_threads(), me = my_thread();
    const i64 results = places.results(), total = places.all();
    i64 begin = 0, part = span.part; /* part: the number of the cut at which the atom begins, from 0 again in the next unit */
    for (i64 atom = 0; atom < span.number && line.unit; ++atom) { /* unit 0: no data */
        const i64 length = line.cuts[part + 1] - line.cuts[part];
        const i64 low = slice_begin(length, share.slice, share.slices, Wide<T>::EACH);
        const i64 high = slice_begin(length, share.slice + 1, share.slices, Wide<T>::EACH);
        /* number of the first packet of this slice of the atom, from the slot's beginning, as `packets_of` counts */
        const i64 first_packet = begin * (i64)sizeof(T) / 4 + atom + low * (i64)sizeof(T) / 4;
        const i64 handfuls = (high - low + Hand::ELEMENTS - 1) / Hand::ELEMENTS;
        for (i64 i = (me + threads - *turn) % threads; i < handfuls; i += threads) {
            const i64 from = begin + low + i * Hand::ELEMENTS, remaining = begin + high - from;
            const int count = remaining < Hand::ELEMENTS ? (int)remaining : (int)Hand::ELEMENTS;
            typename Of<T>::wide sum[Hand::ELEMENTS] = {};
            Hand next;
            for (int k = 0; k < Hand::WORDS; ++k) next.word[k] = 0; /* the last handful may have fewer elements */
            for (i64 k = results; k < total; ++k) {
                if (const u64 *packets = places.box(k)) {
                    if (!next.receive(packets + first_packet + i * Hand::WORDS, flag, stop)) return 1;
                } else
                    for (int e = 0; e < count; ++e) next.value[e] = places.at(k)[from + e];
                for (int e = 0; e < count; ++e)
                    sum[e] = k == results ? widen(next.value[e]) : combine_pair_by<T>(op, sum[e], widen(next.value[e]));
            }
            for (int e = 0; e < count; ++e) narrow(sum[e], &next.value[e]);
            for (i64 k = 0; k < results; ++k) {
                if (u64 *packets = places.box(k))
                    next.send(packets + first_packet + i * Hand::WORDS, flag);
                else
                    for (int e = 0; e < count; ++e) places.at(k)[from + e] = next.value[e];
            }
        }
        *turn = (u32)((*turn + handfuls) % threads);
        begin += length;
        part = part + 1 == line.parts ? 0 : part + 1;
    }
    return 0;
}
