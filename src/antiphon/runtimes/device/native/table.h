/* The table of a rank, as lower/device/table.py writes it: arrays of 64-bit integers, one after another.
 *
 *     Head, parts, classes (whole, part), slots of each class, regions, blocks, steps, arguments
 *
 * A place is a region plus a point of the line: whole units, and a cut within a unit. See docs/device.md.
 *
 * Threading: read-only once on the device. Ownership: types only; a Plan owns the words.
 */
#pragma once
#include "world.h"

enum { MAGIC_WORD_VERSION = 2, SIGNAL = 0, WAIT, PUT, FOLD, SYNC, SWITCH, SPREAD, DIVIDE, PERMUTE, KINDS };
/* Packets lie in the boxes of ranks, which are no buffer of a call (packets.h). */
enum { INPUT = 0, OUTPUT, SCRATCH, BUFFERS, PACKETS = BUFFERS };

struct Head {
    i64 magic, version, ranks, rank, in_place, denominator, input, output; /* weights of the buffers */
    i64 parts, classes, regions, blocks, steps, arguments;
    i64 packets, atoms, hears; /* slots of packets; atoms of the longest message; whether at its end all have heard from all */
};

struct Class {
    i64 whole, part;
};

/* Then as many numbers as there are classes: slots of each that come before. Of packets it is the last class, of which all
 * slots are. */
struct Region {
    i64 buffer, whole, part;
};

struct Block {
    i64 first, count;
};

/* Of a permutation the arguments are one cycle of places as long: each gets what is at the next. `more`: of a fold, a switch
 * and a spread how many of its arguments are results, before the operands; of a division by what; of a wait and a sync that
 * they are left out where it is known that all have begun. */
struct Step {
    i64 kind, first, count, more;
};

/* `number`: of atoms from there on; of a signal and a wait which one it is. */
struct Argument {
    i64 rank, region, whole, part, number;
};
