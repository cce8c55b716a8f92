/* The table of a rank, as lower/device/table.py writes it: arrays of 64-bit integers, one after another. Its Head has
 * the lengths of the arrays.
 *
 *     Head, parts, classes (whole, part), slots of each class, regions, blocks, steps, arguments
 *
 * All blocks of the collective lie end to end on a line, in units of weight. The line is cut at all points that the plan uses;
 * between two cuts lies an atom, which is moved as a whole. A place is a region (which maps the line to a buffer) plus a point
 * of the line: whole units, and the number of a cut within a unit. See docs/device.md.
 *
 * Threading: read-only once on the device. Ownership: types only; a Plan owns the words.
 */
#pragma once
#include "world.h"

enum { MAGIC_WORD_VERSION = 2 }; /* of Head.version */
/* Kinds of steps. SIGNAL, WAIT: to and from other ranks (signals.h). PUT: copies to or from another rank. FOLD:
 * combines data within a rank. SYNC: a barrier of the thread block, between two steps if one uses data of the other.
 * SWITCH: combines the data of all ranks, and writes the result at all; SPREAD: the same with the data of this rank
 * alone. DIVIDE: divides a sum, for an average. PERMUTE: moves data along a cycle of places. */
enum { SIGNAL, WAIT, PUT, FOLD, SYNC, SWITCH, SPREAD, DIVIDE, PERMUTE, KINDS };
/* Packets lie in the boxes of ranks, which are no buffer of a call (packets.h). */
enum { INPUT = 0, OUTPUT, SCRATCH, BUFFERS, PACKETS = BUFFERS };

struct Head {
    i64 magic, version, ranks, rank, in_place;
    i64 denominator;   /* cut k of a unit is at parts[k] / denominator of it */
    i64 input, output; /* lengths of these buffers in units */
    i64 parts, classes, regions, blocks, steps, arguments; /* lengths of the arrays */
    i64 packets, atoms; /* slots of packets; atoms of the longest message */
    i64 receives_all;   /* whether every rank has received from all others at the end of a call */

    bool by_packets() const { return atoms > 0; } /* whether messages go by packets; a table for signals has no `atoms` */
};

/* A size of slots of scratch: a length of the line, `whole` units and `part` / Head.denominator of a unit. */
struct Class {
    i64 whole, part;
};

/* Maps the line to a buffer. `whole`, `part`: of a slot of scratch its origin, the point of the line (units, number of
 * a cut) where its data begin; else 0, as in other buffers points count from the buffer's beginning. In the table a
 * number per class follows: the slots of that class that lie before this region's slot. Slots of packets are all of the
 * last class. */
struct Region {
    i64 buffer, whole, part;
};

/* The steps of a stream, which `lanes` thread blocks execute: `count` from number `first` on. */
struct Block {
    i64 first, count;
};

/* A step and its arguments, `count` from number `first` on. Those of a put are pairs: from, to. The arguments of a permutation
 * are places of equal length: each gets the data of the next one, the last those of the first.
 * `more`: for a fold, switch or spread, the number of results, which precede the operands; for a division, the divisor; for a
 * wait or sync, whether it can be skipped if all ranks are known to have begun. */
struct Step {
    i64 kind, first, count, more;
};

/* A place at a rank: from the point of the line after `whole` units, at cut `part` of the next unit, `number` atoms.
 * For a signal or wait: the other rank, and the `number` of the signal. */
struct Argument {
    i64 rank, region, whole, part, number;
};
