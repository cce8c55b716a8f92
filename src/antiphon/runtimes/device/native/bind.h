/* Bind a rank's table (table.h) to a message size: compute where atoms begin, and check the caller's buffers before anything
 * runs. Host only. threads.cc and cuda.cu call read_table once per plan, size_of and check_buffers for calls. Problems are
 * returned as texts, in which "it" means the table.
 *
 * Threading: as its plan. Ownership: a Table refers to the words of its plan, which keeps them.
 */
#pragma once
#include <stdio.h>
#include <string.h>

#include <vector>

#include "boxes.h"
#include "kernel.h"

/* A table that has been checked. `parts`: the cuts of a unit; `slots`: per class, its number of slots. */
struct Table {
    Head head;
    const i64 *parts, *slots;
    const Class *classes;
    const i64 *regions;
    const Block *blocks;
    const Step *steps;
    const Argument *arguments;

    const Region &region(i64 number) const { return *(const Region *)(regions + number * (3 + head.classes)); }
    /* Per class the slots before a region, as table.h defines it. */
    const i64 *before(i64 number) const { return regions + number * (3 + head.classes) + 3; }
};

const size_t WIDTHS[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 2, 2}; /* bytes of an element */
/* Limits that keep sums within 64 bits: the length of a slot and a point of the line, in units; atoms of a place; elements. */
const i64 MOST_WEIGHT = (i64)1 << 40, MOST_PLACE = (i64)1 << 50, MOST_ATOMS = (i64)1 << 60, MOST_ELEMENTS = (i64)1 << 59;

/* The elements of a unit before a cut: floor(unit * part / denominator). */
static inline i64 share_of(i64 unit, i64 part, i64 denominator) { return (i64)((__int128)unit * part / denominator); }

/* Checks a table; returns the problem, or NULL. The check makes sure that all indices are in range, not that the plan is
 * right. */
static const char *read_table(const i64 *words, i64 count, Table *table) {
    enum { HEAD = sizeof(Head) / sizeof(i64), MAX_NUMBERS = 1 << 28, MAX_RANKS = 1 << 20 }; /* 2 GiB of numbers */
    if (count < HEAD) return "it is cut off";
    Head &h = table->head;
    memcpy(&h, words, sizeof(Head));
    if (memcmp(&h.magic, "ANTIDEVT", 8) || h.version != MAGIC_WORD_VERSION) return "it is no table of this version";
    const i64 sizes[] = {h.parts, h.classes, h.regions, h.blocks, h.steps, h.arguments};
    for (i64 size : sizes)
        if (size < 0 || size > MAX_NUMBERS) return "a table of it is too long";
    /* two regions at least, for input and output; packets need a class of slots (`atoms`: 0 without packets) */
    if (h.ranks < 1 || h.ranks > MAX_RANKS || h.rank < 0 || h.rank >= h.ranks || h.parts < 1 || h.regions < 2 ||
        h.denominator < 1 || h.packets < 0 || h.packets > MAX_NUMBERS || h.atoms < 0 || h.atoms > MAX_NUMBERS ||
        (h.atoms && !h.classes))
        return "its head is damaged";
    if ((__int128)h.regions * (3 + h.classes) > MAX_NUMBERS) return "a table of it is too long";
    /* then the sections (table.h): a Class and a Block have 2 numbers, a Region 3 and 1 per class, a Step 4, an Argument 5 */
    const i64 *at = words + HEAD;
    table->parts = at, at += h.parts;
    table->classes = (const Class *)at, at += 2 * h.classes;
    table->slots = at, at += h.classes;
    table->regions = at, at += h.regions * (3 + h.classes);
    table->blocks = (const Block *)at, at += 2 * h.blocks;
    table->steps = (const Step *)at, at += 4 * h.steps;
    table->arguments = (const Argument *)at, at += 5 * h.arguments;
    if (at - words != count) return "its length is not what its head says";
    for (i64 i = 0; i < h.parts; ++i)
        if (table->parts[i] < (i ? table->parts[i - 1] + 1 : 0) || table->parts[i] >= h.denominator || (!i && table->parts[i]))
            return "its cuts do not ascend";
    for (i64 i = 0; i < h.classes; ++i)
        if (table->classes[i].whole < 0 || table->classes[i].whole > MOST_WEIGHT || table->classes[i].part < 0 ||
            table->classes[i].part > h.denominator || table->slots[i] < 0 || table->slots[i] > MAX_NUMBERS)
            return "a class of slots is damaged";
    for (i64 i = 0; i < h.regions; ++i) /* only tables with atoms have regions of packets: PACKETS follows the buffers */
        if (table->region(i).buffer < 0 || table->region(i).buffer >= BUFFERS + (h.atoms > 0) || table->region(i).part < 0 ||
            table->region(i).part >= h.parts || table->region(i).whole < -MOST_PLACE || table->region(i).whole > MOST_PLACE)
            return "a region is nowhere";
    const auto in_range = [](i64 first, i64 length, i64 all) {
        return first >= 0 && length >= 0 && first <= all && length <= all - first;
    };
    for (i64 i = 0; i < h.blocks; ++i)
        if (!in_range(table->blocks[i].first, table->blocks[i].count, h.steps)) return "a block has steps that are not there";
    for (i64 i = 0; i < h.steps; ++i) {
        const Step &s = table->steps[i];
        if (s.kind < 0 || s.kind >= KINDS || !in_range(s.first, s.count, h.arguments))
            return "a step has arguments that are not there";
        /* `more` of a fold: its results, after which an operand must follow; of a division, the divisor */
        const bool folds = s.kind == FOLD || s.kind == SWITCH || s.kind == SPREAD;
        if ((folds && (s.more < 1 || s.more >= s.count)) || (s.kind == DIVIDE && (s.more < 1 || s.count != 1)) ||
            (s.kind == PUT && s.count % 2) || (s.kind == PERMUTE && s.count < 2) ||
            (h.atoms && (s.kind == SWITCH || s.kind == SPREAD || s.kind == PERMUTE)))
            return "a step has not the arguments of its kind";
    }
    for (i64 i = 0; i < h.arguments; ++i) {
        const Argument &a = table->arguments[i];
        if (a.rank < 0 || a.rank >= h.ranks || a.region < 0 || a.region >= h.regions || a.part < 0 || a.part >= h.parts ||
            a.number < 0 || a.number > MOST_ATOMS || a.whole < -MOST_PLACE || a.whole > MOST_PLACE)
            return "an argument is nowhere";
    }
    for (i64 i = 0; i < h.steps; ++i) {
        const Step &s = table->steps[i];
        const Argument *a = table->arguments + s.first;
        for (i64 k = 0; k < s.count && (s.kind == SIGNAL || s.kind == WAIT); ++k)
            if (a[k].number >= 1 << ROUND_BITS) return "two ranks have more signals than can be told apart";
        for (i64 k = 0; k < s.count && s.kind == PUT; k += 2)
            if (table->region(a[k + 1].region).buffer != PACKETS &&
                (a[k].part != a[k + 1].part || a[k].number != a[k + 1].number))
                return "a place is put to one of another length";
        if (s.kind == DIVIDE && table->region(a[0].region).buffer == PACKETS) return "what lies in packets is divided";
    }
    return NULL;
}

/* A table at a size. `width`: bytes of an element. `cuts`: the elements of a unit before each cut, then `unit`.
 * `shift`: per region what to add to a point of the line, in elements, to get an index into the buffer; of packets,
 * where the slot begins. */
struct Size {
    i64 unit, width;
    std::vector<i64> cuts, shift;
};

/* Elements of a slot of class `number`: its length, rounded up. */
static i64 stride_of(const Table &t, i64 unit, i64 number) {
    const Class &c = t.classes[number];
    const __int128 total = (__int128)c.whole * unit + ((__int128)unit * c.part + t.head.denominator - 1) / t.head.denominator;
    return total < MOST_ELEMENTS ? (i64)total : MOST_ELEMENTS;
}

/* The number of packets in a slot; slots of packets are all of the last class. */
static i64 slot_packets(const Table &t, i64 unit, i64 width) {
    return packets_of(stride_of(t, unit, t.head.classes - 1) * width, t.head.atoms);
}

/* An upper bound on the bytes of packets that this rank receives in a call. */
static i64 box_of(const Table &t, i64 unit, i64 width) {
    if (!t.head.atoms) return 0;
    const __int128 total = (__int128)t.head.packets * slot_packets(t, unit, width) * (i64)sizeof(u64);
    return total < MOST_ELEMENTS ? (i64)total : MOST_ELEMENTS;
}

/* Binds a table to a size. The shift of scratch: the elements of the slots before it, less the point of the line at which its
 * data begin. Sums may wrap around: lies_within refuses what lies outside of a buffer. */
static Size size_of(const Table &t, i64 unit, i64 width) {
    const Head &h = t.head;
    Size size = {unit, width, {}, {}};
    for (i64 i = 0; i < h.parts; ++i) size.cuts.push_back(share_of(unit, t.parts[i], h.denominator));
    size.cuts.push_back(unit);
    std::vector<i64> strides;
    for (i64 i = 0; i < h.classes; ++i) strides.push_back(stride_of(t, unit, i));
    for (i64 i = 0; i < h.regions; ++i) {
        const Region &r = t.region(i);
        i64 shift = 0;
        if (r.buffer == PACKETS) shift = (i64)((u64)t.before(i)[h.classes - 1] * (u64)slot_packets(t, unit, width));
        if (r.buffer == SCRATCH) {
            for (i64 c = 0; c < h.classes; ++c) shift += (i64)((u64)t.before(i)[c] * (u64)strides[(size_t)c]);
            shift -= (i64)((u64)r.whole * (u64)unit) + size.cuts[(size_t)r.part];
        }
        size.shift.push_back(shift);
    }
    return size;
}

/* Elements of scratch. */
static i64 scratch_of(const Table &t, i64 unit) {
    __int128 sum = 0;
    for (i64 i = 0; i < t.head.classes; ++i) sum += (__int128)t.slots[i] * stride_of(t, unit, i);
    return sum < MOST_ELEMENTS ? (i64)sum : MOST_ELEMENTS;
}

/* Whether all places of the table lie within the buffers. `lengths`: elements, three per rank. */
static bool lies_within(const Table &t, const Size &size, const i64 *lengths) {
    const auto element = [&](i64 whole, i64 part) { return (__int128)whole * size.unit + size.cuts[(size_t)part]; };
    for (i64 i = 0; i < t.head.steps; ++i) {
        const Step &s = t.steps[i];
        if (s.kind == SIGNAL || s.kind == WAIT || s.kind == SYNC) continue;
        __int128 length = 0;
        i64 atoms = 0;
        for (i64 k = 0; k < s.count; ++k) {
            const Argument &a = t.arguments[s.first + k];
            if (k == 0 || (s.kind == PUT && k % 2 == 0)) { /* the first argument gives the length */
                const i64 end = a.part + a.number;
                length = element(a.whole + end / t.head.parts, end % t.head.parts) - element(a.whole, a.part);
                atoms = a.number;
            }
            if (t.region(a.region).buffer == PACKETS) {
                /* counted in packets, as `packets_of` does: 4 bytes each, and one more per atom; BOX is half a box */
                const i64 shift = size.shift[(size_t)a.region];
                if (shift < 0 || length < 0 || shift + length * size.width / 4 + atoms > BOX) return false;
                continue;
            }
            const __int128 from = element(a.whole, a.part) + size.shift[(size_t)a.region];
            if (length && (from < 0 || from + length > lengths[3 * a.rank + t.region(a.region).buffer])) return false;
        }
    }
    return true;
}

/* Why a rank cannot use this table with such a unit, or NULL. */
static inline const char *check_unit(const Table &t, u32 rank, u32 ranks, i64 unit) {
    if (t.head.rank != rank || t.head.ranks != ranks) return "its table is that of another rank, or of another number of ranks";
    return unit < 0 || unit > MOST_ELEMENTS ? "a unit has no such number of elements" : NULL;
}

/* Why a call cannot be made, or NULL. */
static const char *check_buffers(const Table &t, const Size &size, const i64 *lengths, u32 blocks, u32 lanes, u32 rounds) {
    if (lanes < 1 || (u64)t.head.blocks * lanes > blocks) return "its streams and lanes need more blocks than the rank has";
    if (rounds < 1 || rounds >= 1u << (CALL_BITS - ROUND_BITS)) return "a call has from 1 to 4095 rounds";
    return lies_within(t, size, lengths) ? NULL : t.head.atoms ? "a buffer or a box is too short" : "a buffer is too short";
}

/* Skips the check if a call equals the last one that passed, as the check takes time for every step of the table. */
class BufferCheck {
    std::vector<i64> last; /* options and lengths of the last call that passed */

  public:
    const char *check_buffers(const Table &t, const Size &size, const i64 *lengths, u32 blocks, u32 lanes, u32 rounds) {
        const i64 options[] = {size.unit, size.width, blocks, lanes, rounds};
        const size_t count = 3 * (size_t)t.head.ranks, prefix = sizeof options / sizeof *options;
        if (last.size() == count + prefix && !memcmp(last.data(), options, sizeof options) &&
            !memcmp(last.data() + prefix, lengths, count * sizeof(i64)))
            return NULL;
        const char *problem = ::check_buffers(t, size, lengths, blocks, lanes, rounds);
        last.clear();
        if (!problem) last.assign(options, options + prefix), last.insert(last.end(), lengths, lengths + count);
        return problem;
    }
};

/* The later of two call numbers, which wrap around: they must be less than half of their range apart. They have
 * 64 - CALL_BITS bits; shifted to the top of 64, their difference wraps around as they do. */
static inline u64 latest_call(u64 first, u64 second) {
    return (i64)((first << CALL_BITS) - (second << CALL_BITS)) < 0 ? second : first;
}
