/* Calls of the GPU kernel by their tables, without Python: are they right, and how long do they take?
 *
 *     gpu_calls check FILE                     each call by one kernel, as a graph, by steps and by copies, bit by bit; and by
 *                                              switches where the GPUs have them
 *     gpu_calls time FILE LIBRARY NBYTES ...   graphs of 20 calls, in the fastest lanes, rounds and form of the table,
 *                                              beside the collective of NCCL ("-": none) in a graph of 20 calls
 *
 * FILE, which bench/gpu_kit.py writes: ranks, number of calls; of each call eight numbers (`Case`), then of each rank
 * its table, input and output, each behind its length in bytes. All numbers are of 64 bits. To be timed, `lanes` is 0 unless
 * the table runs in so many alone, and there are no inputs and outputs. Ranks go round the GPUs;
 * compiled as plain C++ they are threads. `time` prints a line of JSON for each size. Exit code: 1 where a value is wrong.
 */
#if defined(__CUDACC__) || defined(__HIPCC__)
#include "cuda.cu"
#define ON_GPUS
#else
#include "threads.cc"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace {

const double PATIENCE = 20; /* seconds for a call */
enum { GRAPH_CALLS = 20, CHECKED_BLOCKS = 8, LARGE = 1 << 24, CHECKED_ELEMENTS = 1 << 20 };
enum { ALLGATHER = 4, REDUCESCATTER, ALLREDUCE }; /* kinds, as in a program file */

struct Case {
    i64 kind, unit, type, op, in_place, lanes, rounds, width;
    std::vector<std::vector<i64>> tables;
    std::vector<std::vector<char>> inputs, outputs;
};

void require(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "gpu_calls: %s: %s\n", what, ad_why());
    exit(3);
}

i64 read_number(FILE *file) {
    i64 number = 0;
    require(fread(&number, sizeof number, 1, file) == 1, "the file is too short");
    return number;
}

template <typename T> std::vector<T> read_values(FILE *file) {
    std::vector<T> values((size_t)read_number(file) / sizeof(T));
    require(fread(values.data(), sizeof(T), values.size(), file) == values.size(), "the file is too short");
    return values;
}

std::vector<Case> read_cases(const char *path, u32 *ranks) {
    FILE *file = fopen(path, "rb");
    require(file != nullptr, path);
    *ranks = (u32)read_number(file);
    std::vector<Case> cases((size_t)read_number(file));
    for (Case &call_case : cases) {
        for (i64 *field : {&call_case.kind, &call_case.unit, &call_case.type, &call_case.op, &call_case.in_place,
                           &call_case.lanes, &call_case.rounds, &call_case.width})
            *field = read_number(file);
        for (u32 rank = 0; rank < *ranks; ++rank) {
            call_case.tables.push_back(read_values<i64>(file));
            call_case.inputs.push_back(read_values<char>(file)), call_case.outputs.push_back(read_values<char>(file));
        }
    }
    fclose(file);
    return cases;
}

u32 blocks_to_time(u32 ranks) {
#ifdef ON_GPUS
    int gpus = 0, processors = 0;
    require(cuda(GetDeviceCount)(&gpus) == cuda(Success) && gpus, "there is no GPU");
    (void)cuda(DeviceGetAttribute)(&processors, cuda(DevAttrMultiProcessorCount), 0);
    const u32 each = (ranks + (u32)gpus - 1) / (u32)gpus; /* ranks of a GPU: half of it computes, as in a job */
    return (u32)processors / 2 > each ? (u32)processors / 2 / each : 1;
#else
    return ranks ? 4 : 1;
#endif
}

/* All ranks, with their signals and boxes. Memory is freed with the process. */
struct Ranks {
    u32 count, blocks;
    u64 number = 1; /* of the next call */
    std::vector<void *> all, streams;

    Ranks(u32 count, u32 blocks, u32 threads) : count(count), blocks(blocks) {
        for (u32 rank = 0; rank < count; ++rank) {
            all.push_back(ad_rank_new(rank, count, blocks, threads));
            require(all.back() != nullptr, "a rank");
            streams.push_back(ad_stream_new(all.back()));
        }
        for (u32 rank = 0; rank < count; ++rank) {
            u64 *const signals = (u64 *)ad_memory_new(all[rank], (size_t)blocks * count * sizeof(u64));
            u64 *const box = (u64 *)ad_memory_new(all[rank], ad_box_bytes());
            require(signals && box, "memory for signals");
            for (void *other : all) ad_rank_signals(other, rank, signals), ad_rank_box(other, rank, box);
        }
    }
    void finish() {
        for (u32 rank = 0; rank < count; ++rank) require(!ad_stream_end(all[rank], streams[rank]), "a stream");
    }
};

/* A case on the device, with buffers for `unit` elements per weight. */
struct Loaded {
    Ranks &ranks;
    const Case &call_case;
    i64 unit;
    std::vector<void *> plans;
    std::vector<char *> buffers;
    std::vector<i64> lengths;
    std::vector<void *> joined; /* inputs, outputs: what the first rank has of memory with a multicast address */
    bool packets, is_joined[BUFFERS] = {};
    const char *without_switches = nullptr; /* why there is no such memory, though `by_switches` asks for it */

    Loaded(Ranks &ranks, const Case &call_case, i64 unit, bool by_switches = false)
        : ranks(ranks), call_case(call_case), unit(unit) {
        for (u32 rank = 0; rank < ranks.count; ++rank) {
            plans.push_back(ad_plan_new(ranks.all[rank], call_case.tables[rank].data(), (i64)call_case.tables[rank].size()));
            require(plans.back() != nullptr, "a table");
            const Head &head = ((Plan *)plans.back())->table.head;
            packets = head.atoms > 0;
            const i64 scratch = ad_plan_scratch(plans.back(), unit);
            for (i64 length : {call_case.in_place ? 0 : head.input * unit, head.output * unit, scratch}) {
                lengths.push_back(length);
                buffers.push_back((char *)ad_memory_new(ranks.all[rank], (size_t)(length * call_case.width)));
                require(buffers.back() != nullptr, "memory for buffers");
            }
        }
        for (u32 place : {INPUT, OUTPUT})
            if (by_switches && !without_switches && !(call_case.in_place && place == INPUT)) join(place);
    }
    void join(u32 place) {
        size_t most = 0;
        for (u32 rank = 0; rank < ranks.count; ++rank)
            most = std::max(most, (size_t)(lengths[BUFFERS * rank + place] * call_case.width));
        std::vector<void *> memory(ranks.count);
        if (ad_joint_new(ranks.count, ranks.all.data(), most, memory.data())) {
            without_switches = ad_why();
            return;
        }
        joined.push_back(memory[0]);
        for (u32 rank = 0; rank < ranks.count; ++rank) {
            char *&buffer = buffers[BUFFERS * rank + place];
            ad_memory_free(ranks.all[rank], buffer);
            buffer = (char *)memory[rank], is_joined[place] = true;
        }
    }
    ~Loaded() {
        for (void *plan : plans) ad_plan_free(plan);
        for (size_t i = 0; i < buffers.size(); ++i)
            if (!is_joined[i % BUFFERS]) ad_memory_free(ranks.all[i / BUFFERS], buffers[i]);
        for (void *memory : joined) ad_joint_free(ranks.all[0], memory);
    }
    const Head &head() const { return ((Plan *)plans[0])->table.head; }
    bool has_switches() const {
        const Table &table = ((Plan *)plans[0])->table;
        return std::any_of(table.steps, table.steps + table.head.steps,
                           [](const Step &step) { return step.kind == SWITCH || step.kind == SPREAD; });
    }
    bool fits() const {
        for (void *plan : plans)
            if (ad_plan_box(plan, unit, (int)call_case.type) > (i64)ad_box_bytes() / 2) return false;
        return true;
    }
    void *graph(u32 lanes, u32 rounds) const {
        return ad_graph_new(ranks.count, ranks.all.data(), plans.data(), unit, (int)call_case.type, (int)call_case.op,
                            lanes, rounds, buffers.data(), lengths.data());
    }
};

/* ---- check ---- */

enum { BY_KERNEL, BY_GRAPH, BY_HOST, WAYS_COUNT = BY_HOST + 2 };
const char *const WAY_NAMES[] = {"kernel", "graph", "steps", "copies"};

bool is_done(int way, Loaded &loaded) {
    Ranks &ranks = loaded.ranks;
    const Case &call_case = loaded.call_case;
    std::vector<int> failed(ranks.count);
    if (way >= BY_HOST)
        return !ad_by_host(ranks.count, ranks.all.data(), loaded.plans.data(), ranks.number, loaded.unit, (int)call_case.type,
                           (int)call_case.op, (u32)call_case.lanes, way == BY_HOST ? BY_STEPS : BY_COPIES, loaded.buffers.data(),
                           loaded.lengths.data(), PATIENCE);
    void *graph = way == BY_GRAPH ? loaded.graph((u32)call_case.lanes, (u32)call_case.rounds) : nullptr;
    if (way == BY_GRAPH && !graph) return false;
    const int code = graph ? ad_graph_begin(graph, ranks.number)
                           : ad_start(ranks.count, ranks.all.data(), loaded.plans.data(), ranks.number, loaded.unit,
                                      (int)call_case.type, (int)call_case.op, (u32)call_case.lanes, (u32)call_case.rounds,
                                      loaded.buffers.data(), loaded.lengths.data());
    ++ranks.number;
    const bool done = !code && !ad_wait(ranks.count, ranks.all.data(), PATIENCE, failed.data());
    if (graph) ad_graph_free(graph);
    return done;
}

/* Whether a case is right in one of the ways. */
bool is_right(int way, Loaded &loaded, size_t number) {
    const Case &call_case = loaded.call_case;
    for (u32 rank = 0; rank < loaded.ranks.count; ++rank) {
        char *const *own = &loaded.buffers[BUFFERS * rank];
        const std::vector<char> before((size_t)(loaded.lengths[BUFFERS * rank + OUTPUT] * call_case.width), 0x55);
        require(!ad_bring(loaded.ranks.all[rank], own[OUTPUT], before.data(), before.size()) &&
                    !ad_bring(loaded.ranks.all[rank], own[call_case.in_place ? OUTPUT : INPUT], call_case.inputs[rank].data(),
                              call_case.inputs[rank].size()),
                "a copy to the device");
    }
    if (!is_done(way, loaded))
        return printf("case %zu by %s does not end: %s\n", number, WAY_NAMES[way], ad_why()), false;
    for (u32 rank = 0; rank < loaded.ranks.count; ++rank) {
        std::vector<char> after(call_case.outputs[rank].size());
        require(!ad_fetch(loaded.ranks.all[rank], after.data(), loaded.buffers[BUFFERS * rank + OUTPUT], after.size()),
                "a copy from the device");
        if (after != call_case.outputs[rank])
            return printf("case %zu by %s is wrong at rank %u\n", number, WAY_NAMES[way], rank), false;
    }
    return true;
}

int check(const char *path) {
    u32 count = 0;
    const std::vector<Case> cases = read_cases(path, &count);
    Ranks ranks(count, CHECKED_BLOCKS,
#ifdef ON_GPUS
                256
#else
                1
#endif
    );
    size_t right = 0, wrong = 0, unfit = 0;
    std::string without_switches;
    for (size_t number = 0; number < cases.size(); ++number) {
        Loaded loaded(ranks, cases[number], cases[number].unit);
        if (!loaded.fits()) {
            ++unfit;
            continue;
        }
        for (int way = 0; way < (loaded.packets ? (int)BY_HOST : (int)WAYS_COUNT); ++way)
            is_right(way, loaded, number) ? ++right : ++wrong;
        if (!loaded.has_switches()) continue;
        Loaded by_switches(ranks, cases[number], cases[number].unit, true);
        if (by_switches.without_switches)
            without_switches = by_switches.without_switches;
        else
            is_right(BY_KERNEL, by_switches, number) ? ++right : ++wrong;
    }
    if (!without_switches.empty()) printf("switches: not run: %s\n", without_switches.c_str());
    printf("%s: %zu calls right, %zu wrong, %zu cases too large for packets\n", ad_rank_device(ranks.all[0]), right, wrong, unfit);
    return wrong || !right;
}

/* ---- time ---- */

float value_at(i64 rank, i64 i) { return (float)(i % 7 + rank); }

/* What stands at a place of a rank's output at the end of a sum, where inputs are as `value_at` says. */
float expected_at(i64 kind, i64 ranks, i64 rank, i64 i, i64 input) {
    if (kind == ALLGATHER) return value_at(i / input, i % input);
    const i64 place = kind == REDUCESCATTER ? rank * (input / ranks) + i : i;
    return (float)(ranks * (place % 7) + ranks * (ranks - 1) / 2);
}

void fill(Loaded &loaded) {
    for (u32 rank = 0; rank < loaded.ranks.count; ++rank) {
        std::vector<float> values((size_t)loaded.lengths[BUFFERS * rank + INPUT]);
        for (size_t i = 0; i < values.size(); ++i) values[i] = value_at(rank, (i64)i);
        require(!ad_bring(loaded.ranks.all[rank], loaded.buffers[BUFFERS * rank + INPUT], values.data(), 4 * values.size()),
                "a copy to the device");
    }
}

/* Calls `work(rank, from, values)` for the beginning and the end of all outputs, with room for their values. */
template <typename Work> void each_checked(const Loaded &loaded, Work work) {
    for (u32 rank = 0; rank < loaded.ranks.count; ++rank) {
        const i64 length = loaded.lengths[BUFFERS * rank + OUTPUT], checked = std::min(length, (i64)CHECKED_ELEMENTS);
        std::vector<float> values((size_t)checked, -1);
        for (i64 from : {(i64)0, length - checked}) work(rank, from, values);
    }
}

/* So that what an earlier call left there is not taken for a result. */
void spoil_outputs(const Loaded &loaded) {
    each_checked(loaded, [&](u32 rank, i64 from, std::vector<float> &values) {
        char *const at = loaded.buffers[BUFFERS * rank + OUTPUT] + 4 * from;
        require(!ad_bring(loaded.ranks.all[rank], at, values.data(), 4 * values.size()), "a copy to the device");
    });
}

bool are_outputs_right(const Loaded &loaded) {
    bool right = true;
    each_checked(loaded, [&](u32 rank, i64 from, std::vector<float> &values) {
        const char *const at = loaded.buffers[BUFFERS * rank + OUTPUT] + 4 * from;
        require(!ad_fetch(loaded.ranks.all[rank], values.data(), at, 4 * values.size()), "a copy from the device");
        for (size_t i = 0; i < values.size(); ++i)
            right = right && values[i] == expected_at(loaded.call_case.kind, loaded.ranks.count, rank, from + (i64)i,
                                                      loaded.lengths[BUFFERS * rank + INPUT]);
    });
    return right;
}

/* Seconds of a call. `enqueue`: enqueues GRAPH_CALLS of them. First once, to warm up. */
template <typename Enqueue, typename Finish> double seconds_of(i64 nbytes, Enqueue enqueue, Finish finish) {
    const int repeats = nbytes > LARGE ? 1 : 10;
    enqueue(), finish();
    timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (int i = 0; i < repeats; ++i) enqueue();
    finish();
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return ((double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec)) / (repeats * GRAPH_CALLS);
}

/* What `enqueue_call` enqueues on these streams GRAPH_CALLS times, as a recording of each stream. */
template <typename EnqueueCall> std::vector<void *> recorded(const Ranks &ranks, void *const *streams, EnqueueCall enqueue_call) {
    std::vector<void *> recordings;
    for (u32 rank = 0; rank < ranks.count; ++rank) require(!ad_stream_record(ranks.all[rank], streams[rank]), "a graph");
    for (int call = 0; call < GRAPH_CALLS; ++call) enqueue_call();
    for (u32 rank = 0; rank < ranks.count; ++rank) {
        recordings.push_back(ad_stream_recorded(ranks.all[rank], streams[rank]));
        require(recordings.back() != nullptr, "a graph");
    }
    return recordings;
}

void enqueue_all(const Ranks &ranks, const std::vector<void *> &recordings, void *const *streams) {
    for (u32 rank = 0; rank < ranks.count; ++rank)
        require(!ad_recording_enqueue(ranks.all[rank], recordings[rank], streams[rank]), "a graph");
}

double seconds_of_ours(Loaded &loaded, u32 lanes, u32 rounds, i64 nbytes) {
    Ranks &ranks = loaded.ranks;
    void *const graph = loaded.graph(lanes, rounds);
    require(graph && !ad_graph_count(graph, ranks.number), "a graph");
    void *const *streams = ranks.streams.data();
    const std::vector<void *> recordings = recorded(ranks, streams, [&] { require(!ad_graph_enqueue(graph, streams), "a call"); });
    const double seconds = seconds_of(
        nbytes, [&] { enqueue_all(ranks, recordings, streams); }, [&] { ranks.finish(); });
    require(!ad_graph_counted(graph, &ranks.number), "calls were not counted");
    for (void *recording : recordings) ad_recording_free(recording);
    return ad_graph_free(graph), seconds;
}

/* Seconds of the library's call on the same buffers. On GPUs in a graph; a library for threads enqueues nothing. */
double seconds_of_library(Library &library, Loaded &loaded, i64 nbytes) {
    Ranks &ranks = loaded.ranks;
    const bool gathers = loaded.call_case.kind == ALLGATHER;
    const size_t count = (size_t)loaded.lengths[gathers ? INPUT : OUTPUT];
    const auto call = [&] {
        int code = library.start();
        for (u32 rank = 0; rank < ranks.count && !code; ++rank)
            code = library.start_call((int)loaded.call_case.kind, rank, loaded.buffers[BUFFERS * rank + INPUT],
                                      loaded.buffers[BUFFERS * rank + OUTPUT], count, (int)loaded.call_case.type,
                                      (int)loaded.call_case.op, 0);
        if (code || library.end()) require(false, "the library's call");
    };
    std::vector<void *> streams;
    for (void *rank : ranks.all) streams.push_back(stream_of(*(Rank *)rank));
    if (!streams[0])
        return seconds_of(nbytes, [&] { for (int k = 0; k < GRAPH_CALLS; ++k) call(); }, [] {});
    call(), require(!end_streams(ranks.all.data(), ranks.count), "the library's call"); /* it connects in its first call */
    const std::vector<void *> recordings = recorded(ranks, streams.data(), call);
    const double seconds = seconds_of(
        nbytes, [&] { enqueue_all(ranks, recordings, streams.data()); },
        [&] { require(!end_streams(ranks.all.data(), ranks.count), "the library's call"); });
    for (void *recording : recordings) ad_recording_free(recording);
    return seconds;
}

int time_sizes(const char *path, const char *library_path, char **sizes, int size_count) {
    u32 count = 0;
    const std::vector<Case> cases = read_cases(path, &count);
    Ranks ranks(count, blocks_to_time(count),
#ifdef ON_GPUS
                512
#else
                1
#endif
    );
    Library *const library = strcmp(library_path, "-") ? (Library *)ad_library_new(count, ranks.all.data(), library_path) : nullptr;
    if (!library) fprintf(stderr, "no library beside: %s\n", strcmp(library_path, "-") ? ad_why() : "none was named");
    bool all_right = true;
    for (int i = 0; i < size_count; ++i) {
        const i64 nbytes = atoll(sizes[i]);
        double best = 0, beside = 0;
        bool right = true, library_right = true;
        std::string choices, choice;
        for (const Case &call_case : cases) {
            i64 weight = 1;
            {
                Table table;
                require(!read_table(call_case.tables[0].data(), (i64)call_case.tables[0].size(), &table), "a table");
                weight = std::max(table.head.input, table.head.output);
            }
            Loaded loaded(ranks, call_case, nbytes / (weight * call_case.width));
            if (!loaded.fits()) continue;
            fill(loaded);
            std::vector<u32> lanes;
            const u32 max_lanes = call_case.lanes ? (u32)call_case.lanes : std::max(1u, ranks.blocks / (u32)loaded.head().blocks);
            for (u32 few = 1; few < max_lanes; few *= 2)
                if (nbytes <= LARGE || few > max_lanes / 4) lanes.push_back(few);
            lanes.push_back(max_lanes);
            for (u32 lane_count : lanes)
                for (u32 rounds : {1u, 4u, 16u}) {
                    if (rounds > 1 && (call_case.lanes || loaded.packets || nbytes < 1 << 18)) continue;
                    spoil_outputs(loaded);
                    const double seconds = seconds_of_ours(loaded, lane_count, rounds, nbytes);
                    right = right && are_outputs_right(loaded);
                    char text[160];
                    snprintf(text, sizeof text, "{\"form\": \"%s\", \"lanes\": %u, \"rounds\": %u, \"seconds\": %.9f}",
                             loaded.packets ? "packets" : "signals", lane_count, rounds, seconds);
                    choices += (choices.empty() ? "" : ", ") + std::string(text);
                    if (!best || seconds < best) best = seconds, choice = text;
                }
            if (!library || beside) continue;
            spoil_outputs(loaded);
            beside = seconds_of_library(*library, loaded, nbytes);
            library_right = are_outputs_right(loaded);
        }
        printf("{\"nbytes\": %lld, \"blocks\": %u, \"right\": %s, \"best\": %s, \"library_seconds\": ", (long long)nbytes,
               ranks.blocks, right ? "true" : "false", choice.empty() ? "null" : choice.c_str());
        beside ? printf("%.9f", beside) : printf("null");
        printf(", \"library_right\": %s, \"choices\": [%s]}\n", library_right ? "true" : "false", choices.c_str());
        fflush(stdout);
        all_right = all_right && right && library_right && best;
    }
    return !all_right;
}

}  // namespace

int main(int count, char **arguments) {
    if (count == 3 && !strcmp(arguments[1], "check")) return check(arguments[2]);
    if (count > 4 && !strcmp(arguments[1], "time")) return time_sizes(arguments[2], arguments[3], arguments + 4, count - 4);
    fprintf(stderr, "gpu_calls check FILE, or gpu_calls time FILE LIBRARY NBYTES ...\n");
    return 2;
}
