/* The main program of one exported plan: memory, calls, input data and their check, a table of times.
 *
 * formats/device/write.py appends it to what it writes for the plan:
 *   T, Rule                   the type of elements and the operator; their names TYPE_NAME, OPERATOR_NAME
 *   RANKS, STREAMS, LAUNCHES  ranks; sequences of statements of a rank; launches per call (1, unless the host makes each step)
 *   BUFFER_WEIGHT, BUS        nbytes = BUFFER_WEIGHT * unit * bytes of an element; bus bandwidth / algorithmic bandwidth
 *   IN_PLACE, AVERAGE         flags; an average is a sum, divided at the end
 *   MOST_CONTRIBUTIONS        to a block;  MOST_PACKED: bytes up to which packets are tried
 *   LAYOUTS                   by variant (signals, packets), where data lie (struct Layout)
 *   INPUTS, OUTPUTS, COPIES   by rank the units of its buffers; copies by copy engines (each_copy)
 *   HELD, WANTED              rows of the data that ranks begin and end with, as ranges of CONTRIBUTIONS (struct DataRow)
 *   run_stream                the statements of a stream (written.h);  TITLE, PLAIN_NAME: texts for the report
 *   struct Layout             denominator, parts, part: the `parts` cuts of a unit, at part[i] / denominator of it;
 *                             classes, of_class: sizes of scratch slots, (whole units, numerator of the rest) each;
 *                             slots: [rank][class], their number; boxes: [rank], slots for packets; atoms: of the
 *                             longest message by packets (0: there are none); sliced: whether lanes may share the
 *                             work; receives_all: see boxes.h
 *   struct DataRow            rank, block; begin, length: in units of the rank's buffer; first, contributions: where
 *                             in CONTRIBUTIONS the numbers of the combined contributions begin, and their count
 * Input data are small whole numbers: every type holds every result exactly, in any order of combination.
 *
 * Threading: one thread of the host; driver_threads.h or driver_gpu.h starts the blocks. Ownership: their class `Devices`
 *   allocates and frees all memory.
 */
#pragma once
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>
#include <new>
#include <vector>

#include "boxes.h"
#include "written.h"

/* Runs thread block `block` of a rank, one lane of one stream, in all rounds. Returns 1 if the call was stopped. */
ON_DEVICE int run_block(const Call &call, i64 rank, u32 block) {
    Work work = {call, rank, /* member */ 0, /* first_signal */ (i64)block * RANKS, /* round */ 0, {0, 1}, /* failed */ 0,
                 /* turn */ 0, /* in_launch */ false, {}};
    for (; call.rounds > work.round; ++work.round) { /* "work.round <" nvcc reads as a template, std::round */
        work.share = {work.round * call.lanes + block % call.lanes, call.rounds * call.lanes};
        if (run_stream(work, block / call.lanes) || work.sync()) return 1;
    }
    return 0;
}

/* Scrambles bits (a multiply-xorshift hash); these constants and those below are arbitrary, odd and large. */
ON_DEVICE u64 scramble_bits(u64 from) {
    from = (from ^ from >> 29) * 0xBF58476D1CE4E5B9u;
    return from ^ from >> 32;
}

/* Element `at` of a contribution to a block: small, so that no result overflows or is rounded. Of a sum 0 to 7 (31 of these are
 * below 256, and so exact in bfloat16; of more contributions 0 and 1); of a product 1, or in 3 % of the elements 2. */
ON_DEVICE T input_element(i64 block, i64 contribution, i64 at) {
    const u64 place = ((u64)block * 0x9E3779B97F4A7C15u) ^ ((u64)at * 0x165667B19E3779F9u);
    const u64 draw = scramble_bits(place ^ ((u64)contribution * 0xC2B2AE3D27D4EB4Fu)) % 1000;
    i64 value = (i64)draw % (MOST_CONTRIBUTIONS < 32 ? 8 : 2);
    if ((int)Rule::NUMBER == PROD) value = draw < 30 ? 2 : 1;
    T element;
    narrow((typename Of<T>::wide)value, &element);
    return element;
}

/* The right value of element `at` of a row: the combination of its contributions (those in the list `contributions`,
 * that of the plan, from row.first on). `divided`: of an average, after its division; else before it. */
ON_DEVICE T expected_value(const DataRow &row, const i64 *contributions, i64 at, bool divided) {
    typedef typename Of<T>::wide W; /* in which values are combined */
    typedef typename Of<T>::adds U; /* in which they are added and multiplied: unsigned for integers (numbers.h) */
    W sum = widen(input_element(row.block, contributions[row.first], at));
    for (i64 k = 1; k < row.contributions; ++k)
        sum = Rule::template combine_pair<W, U>(sum, widen(input_element(row.block, contributions[row.first + k], at)));
    T value;
    narrow(sum, &value);
    if (AVERAGE && divided && row.contributions > 1) narrow(divide_sum(widen(value), row.contributions), &value);
    return value;
}

ON_DEVICE bool differs(const T *first, const T *second) {
    for (size_t i = 0; i < sizeof(T); ++i)
        if (((const unsigned char *)first)[i] != ((const unsigned char *)second)[i]) return true;
    return false;
}

/* Fills those of the rows `from`, `from + step`, ... that are of this rank; or returns the number of their wrong
 * elements. Blocks of threads divide the rows by `from` and `step`; the threads of a block divide the elements of a
 * row. */
ON_DEVICE u64 fill_or_check(const DataRow *rows, i64 count, const i64 *contributions, i64 rank, T *buffer, i64 unit, u32 from,
                           u32 step, bool fills) {
    u64 wrong = 0;
    for (i64 i = from; i < count; i += step) {
        const DataRow &row = rows[i];
        if (row.rank != rank) continue;
        for (i64 at = my_thread(); at < row.length * unit; at += my_threads()) {
            const T right = expected_value(row, contributions, at, !fills);
            T *place = buffer + row.begin * unit + at;
            if (fills)
                *place = right;
            else
                wrong += differs(place, &right);
        }
    }
    return wrong;
}

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A layout at one size, with `unit` elements per weight 1 of a block. `cuts`: elements before each cut of a unit (table.h);
 * `strides`: elements of a scratch slot, by class (Layout). */
struct Size {
    const Layout *layout;
    i64 unit;
    std::vector<i64> cuts, strides;
    i64 slot_packets; /* of a slot for a message of at most Layout.atoms atoms; such slots are of the last class */
};

static Size size_of(i64 unit, const Layout &layout) {
    Size size = {&layout, unit, {}, {}, 0};
    const i64 denominator = layout.denominator;
    for (i64 i = 0; i < layout.parts; ++i) size.cuts.push_back((i64)((__int128)unit * layout.part[i] / denominator));
    size.cuts.push_back(unit);
    /* of_class: by class, the whole units of a slot and the rest in 1 / denominator of a unit, which is rounded up */
    for (i64 i = 0; i < layout.classes; ++i)
        size.strides.push_back(layout.of_class[2 * i] * unit +
                               (i64)(((__int128)unit * layout.of_class[2 * i + 1] + denominator - 1) / denominator));
    if (layout.atoms) size.slot_packets = packets_of(size.strides.back() * (i64)sizeof(T), layout.atoms);
    return size;
}

/* Elements of a rank's scratch. */
static i64 scratch_of(const Size &size, i64 rank) {
    i64 sum = 0;
    for (size_t i = 0; i < size.strides.size(); ++i)
        sum += size.layout->slots[rank * size.layout->classes + (i64)i] * size.strides[i];
    return sum;
}

/* The greatest of all variants: elements of scratch, and thread blocks. */
static i64 max_scratch(const std::vector<Size> &sizes, i64 rank) {
    i64 largest = 0;
    for (const Size &size : sizes) largest = std::max(largest, scratch_of(size, rank));
    return largest;
}
static i64 max_blocks(const std::vector<Call> &calls) {
    i64 largest = 0;
    for (const Call &call : calls) largest = std::max(largest, STREAMS * (i64)call.lanes);
    return largest;
}

/* Whether packets have room in the boxes. `boxes`: by rank, slots for incoming packets. BOX: packets in half a box,
 * which is what a call uses (packets.h). */
static bool fits(const Size &size) {
    for (i64 rank = 0; rank < RANKS; ++rank)
        if (size.layout->boxes[rank] * size.slot_packets > BOX) return false;
    return true;
}

/* Calls `copy(rank, peer, to, from, bytes)` for each copy that copy engines make beside a launch. A row of COPIES: launch,
 * rank; place of the result, place of the operand (buffer, rank, units, cut, origin, slots of each class); span: the
 * cut of a unit where the data begin, and the number of cuts to their end, which may lie in a later unit. In scratch,
 * units and cut count from cut `origin`, where the data of the slot begin, and these slots precede it. */
template <typename Copy> static void each_copy(const std::vector<Memory> &memory_of, const Size &size, i64 launch, Copy copy) {
    const Line line = {size.cuts.data(), size.layout->parts, size.unit};
    const auto address = [&](const i64 *place) {
        const Memory &rank = memory_of[(size_t)place[1]];
        T *at = place[0] == 0 ? rank.input : place[0] == 1 ? rank.output : rank.scratch; /* no packets: they need kernels */
        at += line.at(place[2], place[3]) - line.cuts[place[4]];
        for (size_t i = 0; i < size.strides.size(); ++i) at += place[5 + i] * size.strides[i];
        return at;
    };
    for (const auto &row : COPIES) { /* a place has 5 numbers and one for each class; a unit has line.parts cuts */
        const i64 *const to = row + 2, *const from = to + 5 + size.strides.size(), *const span = from + (from - to);
        const i64 end = span[0] + span[1], length = line.at(end / line.parts, end % line.parts) - line.cuts[span[0]];
        if (row[0] == launch && length)
            copy(row[1], to[1] == row[1] ? from[1] : to[1], address(to), address(from), (size_t)length * sizeof(T));
    }
}

const double CALL_TIMEOUT = 60; /* seconds after which calls are stopped */

#if defined(__CUDACC__) || defined(__HIPCC__)
#include "driver_gpu.h"
#else
#include "driver_threads.h"
#endif

/* ---- the same on threads and GPUs ---- */

/* `begin`, `end`: bytes of the first and last size; `warm`: calls before those that are timed; `lanes`, `rounds`: 0: chosen;
 * `packets`: 0 or 1 as the option -p, -1: chosen. */
struct Options {
    i64 begin, end, factor, calls, warm, lanes, rounds, threads, packets;
};

/* The bytes of a text such as 64, 64K or 64KB; -1: it is no number. */
static i64 bytes_of(const char *text) {
    char *unit;
    const double number = strtod(text, &unit);
    const char letter = (char)(*unit & ~32), *const prefixes = "KMG";
    const char *const prefix = letter ? strchr(prefixes, letter) : NULL; /* a blank leaves none */
    const char *const end = unit + (prefix != NULL);
    if (unit == text || !(number >= 0 && number <= DBL_MAX) || (*end && strcmp(end, "B"))) return -1;
    const double bytes = number * (prefix ? (double)((i64)1 << (10 * (prefix - prefixes + 1))) : 1);
    return bytes < 1e18 ? (i64)bytes : (i64)1e18; /* more than there is */
}

static void help(const char *name) {
    printf("usage: %s [-b BYTES] [-e BYTES] [-f FACTOR] [-n CALLS] [-w CALLS before] [-l LANES] [-r ROUNDS] [-t THREADS of a block]\n"
           "       [-p 0: with signals, 1: by packets where they have room; left out: what is found to be faster]\n", name);
    exit(2);
}

static Options read_options(int argc, char **argv) {
    /* from the least size of whole elements to 1 MiB, by factors of 4; 20 calls after 3 to warm up; lanes and rounds chosen */
    Options options = {BUFFER_WEIGHT * LAYOUTS[0].denominator * (i64)sizeof(T), 1 << 20, 4, 20, 3, 0, 0, THREADS, -1};
    static const char NAMES[] = "befnwlrtp";
    i64 *const field[] = {&options.begin, &options.end, &options.factor, &options.calls, &options.warm,
                          &options.lanes, &options.rounds, &options.threads, &options.packets};
    for (int i = 1; i < argc; i += 2) {
        const i64 value = i + 1 < argc ? bytes_of(argv[i + 1]) : -1;
        const char *const name = argv[i][0] == '-' && argv[i][1] && !argv[i][2] ? strchr(NAMES, argv[i][1]) : NULL;
        if (!name || value < 0) help(argv[0]);
        *field[name - NAMES] = value;
    }
    if (options.factor < 2) options.factor = 2;
    if (options.begin < BUFFER_WEIGHT * (i64)sizeof(T)) options.begin = BUFFER_WEIGHT * (i64)sizeof(T);
    if (options.threads < 1) options.threads = THREADS;
    if (options.threads > max_threads()) options.threads = max_threads();
    if (options.end < options.begin) options.end = options.begin;
    return options;
}

/* Unless set by options: a lane for each 128 KiB, as far as the device has room, and a round for each MiB of a lane. */
static void choose_lanes(const Options &options, i64 nbytes, const Layout &layout, Call *call) {
    const i64 LANE_BYTES = 1 << 17, ROUND_BYTES = 1 << 20, MOST_ROUNDS = 64;
    const i64 capacity = max_lanes(options.threads), lanes = options.lanes ? options.lanes : nbytes / LANE_BYTES;
    call->lanes = (u32)(!layout.sliced || lanes < 1 ? 1 : lanes > capacity ? capacity : lanes);
    const i64 rounds = options.rounds ? options.rounds : nbytes / call->lanes / ROUND_BYTES;
    call->rounds = (u32)(!layout.sliced || rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds);
}

/* The median seconds of five calls, after one to warm up. */
static double time_variant(Devices &devices, u32 variant, u64 *number, i64 threads) {
    enum { TRIES = 5 };
    std::vector<double> spent;
    for (int k = 0; k <= TRIES; ++k) {
        const double began = now();
        devices.begin(++*number, threads, variant);
        if (devices.finish()) break;
        if (k) spent.push_back(now() - began);
    }
    std::sort(spent.begin(), spent.end());
    return spent.empty() ? CALL_TIMEOUT : spent[spent.size() / 2];
}

/* Returns 0 (signals) or 1 (packets): as options say, else the faster one; packets only where they have room. */
static u32 choose_variant(const Options &options, i64 nbytes, const std::vector<Size> &sizes, Devices &devices, u64 *number) {
    if (sizes.size() < 2 || !options.packets || !fits(sizes[1])) return 0;
    if (options.packets > 0) return 1;
    if (nbytes > MOST_PACKED) return 0;
    const double plain = time_variant(devices, 0, number, options.threads);
    return time_variant(devices, 1, number, options.threads) < plain;
}

static int run(const Options &options) {
    begin_devices();
    printf("# %s\n# %lld ranks on %s, %s, %lld threads a block%s\n#\n", TITLE, (long long)RANKS, device_name(),
           IN_PLACE ? "in place" : "out of place", (long long)options.threads, DEVICE_NOTE);
    printf("# %10s %12s %8s %6s %5s %6s %8s %10s %8s %8s %8s\n", "size", "count", "type", "op", "lanes", "rounds", "way",
           "time", "algbw", "busbw", "#wrong");
    printf("# %10s %12s %8s %6s %5s %6s %8s %10s %8s %8s\n", "(B)", "(elements)", "", "", "", "", "", "(us)", "(GB/s)",
           "(GB/s)");
    u64 all_wrong = 0, number = 0;
    for (i64 bytes = options.begin; bytes <= options.end;
         bytes = bytes > options.end / options.factor ? options.end + 1 : bytes * options.factor) {
        const i64 unit = bytes / (BUFFER_WEIGHT * (i64)sizeof(T)), elements = unit * BUFFER_WEIGHT;
        const i64 nbytes = elements * (i64)sizeof(T);
        std::vector<Size> sizes;
        std::vector<Call> calls;
        for (const Layout &layout : LAYOUTS) {
            const u32 variant = (u32)sizes.size();
            sizes.push_back(size_of(unit, layout));
            /* Devices sets the addresses, which are NULL here, and of each call `number` and `opens` (whether it first
             * waits until all ranks have begun it) */
            calls.push_back({NULL, NULL, /* line */ {NULL, layout.parts, unit}, NULL, /* number */ 0, /* lanes */ 1,
                             /* rounds */ 1, variant, /* opens */ 1, sizes.back().slot_packets});
            choose_lanes(options, nbytes, layout, &calls.back());
            if (variant && !options.rounds) calls.back().rounds = 1; /* rounds serve long messages, packets short ones */
        }
        Devices devices(sizes, calls);
        const u32 variant = choose_variant(options, nbytes, sizes, devices, &number);
        const Call &call = calls[variant];
        devices.fill();
        devices.begin(++number, options.threads, variant);
        bool stopped = devices.finish();
        u64 wrong = stopped ? (u64)elements : devices.wrong();
        for (i64 k = 0; k < options.warm && !stopped; ++k) devices.begin(++number, options.threads, variant);
        stopped = stopped || devices.finish();
        const double began = now();
        for (i64 k = 0; k < options.calls && !stopped; ++k) devices.begin(++number, options.threads, variant);
        stopped = stopped || devices.finish();
        const double seconds = (now() - began) / (double)(options.calls ? options.calls : 1),
                     speed = (double)nbytes / seconds * 1e-9;
        if (!IN_PLACE && !stopped) wrong += devices.wrong(); /* in place, later calls begin with the results of earlier ones */
        all_wrong += wrong + stopped;
        printf("  %10lld %12lld %8s %6s %5u %6u %8s %10.2f %8.2f %8.2f %8llu\n", (long long)nbytes, (long long)elements,
               TYPE_NAME, OPERATOR_NAME, call.lanes, call.rounds, variant ? "packets" : PLAIN_NAME, seconds * 1e6, speed,
               speed * BUS, (unsigned long long)wrong);
        if (stopped) break;
    }
    printf("# %s\n", all_wrong ? "WRONG" : "all right");
    return all_wrong != 0;
}

int main(int argc, char **argv) {
    const Options options = read_options(argc, argv);
    try {
        return run(options);
    } catch (const std::bad_alloc &) {
        fprintf(stderr, "there is no memory for so many bytes\n");
        return 3;
    }
}
