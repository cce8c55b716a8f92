/* Calls captured as graphs of CUDA and HIP, one graph per device (device.h: ad_graph_*, ad_stream_*). Part of cuda.cu,
 * whose FAILS(call) stores the error in the local variable `code`, whose `prepare` sets the arguments of a rank's call
 * (Rank::run), and whose copy_now copies and waits; note_error and first_error are those of cuda_queues.h. Kernels
 * (cuda_kernels.h): antiphon_empty clears half of a box before flags repeat (packets.h), antiphon_next counts the call.
 *
 * Threading: one thread calls these functions, but for ad_graph_stop, which any thread may call.
 * Ownership: a Captured owns its instance and the device memory that its kernels read; streams are the program's.
 */
#pragma once

namespace {

/* The graph of one device, with copies of all data that its kernel reads, as later calls change the originals. */
struct Captured {
    Device *device;
    std::vector<Rank *> ranks;
    std::vector<void *> memory; /* allocations in device memory */
    u64 *counter = nullptr;     /* in device memory: the number of the next call */
    u64 next_call = ~(u64)0;    /* the counter's value as the host knows it; ~0: unknown */
    cuda(GraphExec_t) instance = nullptr;
    Launch launch{};
    int type = 0;
    u32 blocks = 0, threads = 0;
    u32 first_rank = 0; /* index of its first rank in the arguments of ad_graph_new */

    ~Captured() {
        (void)cuda(SetDevice)(device->number);
        if (instance) (void)cuda(GraphExecDestroy)(instance);
        for (void *block : memory) (void)cuda(Free)(block);
    }

    void *allocate(size_t bytes) {
        cuda(Error_t) code;
        void *block = nullptr;
        if (FAILS(cuda(Malloc)(&block, bytes + 16))) return nullptr; /* 16 more: of 0 bytes, Malloc would return NULL */
        memory.push_back(block);
        return block;
    }
    /* A copy of `values` in device memory; nullptr: failed. */
    void *copy_of(const void *values, size_t bytes) {
        void *block = allocate(bytes);
        return block && copy_now(*device, block, values, bytes) ? nullptr : block;
    }
};

struct Graph {
    std::vector<std::unique_ptr<Captured>> all;
    bool stopped = false; /* by ad_graph_stop */
};

/* Makes a rank's run refer to copies of all data that other calls change; false: failed. */
bool copy_run_data(Captured &captured, const Plan &plan, Run *run) {
    const size_t cuts = plan.size.cuts.size(), numbers = cuts + plan.size.shift.size(); /* of plan.sized: cuts, then shifts */
    const i64 *own = (const i64 *)captured.copy_of(plan.sized, numbers * sizeof(i64));
    run->peers = (const Peer *)captured.copy_of(run->peers, run->ranks * sizeof(Peer));
    run->line.cuts = own, run->shift = own + cuts, run->counter = captured.counter;
    return own && run->peers;
}

/* Enqueues a call on a stream. Only kernels, as a program may be capturing the stream. */
void enqueue_call(const Captured &captured, cuda(Stream_t) stream) {
    note_error(cuda(SetDevice)(captured.device->number));
    for (Rank *rank : captured.ranks)
        if (u64 *box = rank->peers[rank->rank].box) {
            const u64 *counter = captured.counter;
            void *arguments[] = {&box, &counter};
            /* 8 blocks of threads suffice: it only clears half a box, and that in 2 of 2^20 calls (`empties`) */
            note_error(cuda(LaunchKernel)((const void *)antiphon_empty, dim3(8), dim3(256), arguments, 0, stream));
        }
    u64 *counter = captured.counter;
    void *launch[] = {const_cast<Launch *>(&captured.launch)}, *next[] = {&counter};
    if (captured.blocks)
        note_error(cuda(LaunchCooperativeKernel)(KERNELS[captured.type].call, dim3(captured.blocks), dim3(captured.threads),
                                                 launch, 0, stream));
    note_error(cuda(LaunchKernel)((const void *)antiphon_next, dim3(1), dim3(1), next, 0, stream));
}

/* Returns and clears the first error since the last call, as 0 or 1 and `failure`. */
int take_error() {
    const cuda(Error_t) code = first_error;
    first_error = cuda(Success);
    return code != cuda(Success) && (failure = cuda(GetErrorString)(code));
}

int capture(Captured &captured) {
    cuda(Error_t) code;
    cuda(Stream_t) stream = captured.device->stream;
    cuda(Graph_t) graph;
    if (FAILS(cuda(StreamBeginCapture)(stream, cuda(StreamCaptureModeThreadLocal)))) return 1;
    enqueue_call(captured, stream);
    note_error(cuda(StreamEndCapture)(stream, &graph));
    if (take_error()) return 1;
    if (FAILS(cuda(GraphInstantiateWithFlags)(&captured.instance, graph, 0))) return 1;
    return FAILS(cuda(GraphDestroy)(graph));
}

}  // namespace

void *ad_graph_new(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes, u32 rounds,
                   char *const *buffers, const i64 *lengths) {
    cuda(Error_t) code;
    std::unique_ptr<Graph> graph(new Graph);
    std::map<Device *, std::vector<u32>> ranks_of; /* by device the indices of its ranks in `ranks` */
    for (u32 i = 0; i < count; ++i) ranks_of[((Rank *)ranks[i])->device].push_back(i);
    for (const auto &group : ranks_of) {
        graph->all.emplace_back(new Captured);
        Captured &captured = *graph->all.back();
        captured.device = group.first, captured.first_rank = group.second[0], captured.type = type;
        if (FAILS(cuda(SetDevice)(captured.device->number)) || !(captured.counter = (u64 *)captured.allocate(sizeof(u64))))
            return nullptr;
        std::vector<Run> runs;
        std::vector<u32> first;
        for (u32 i : group.second) {
            Rank &rank = *(Rank *)ranks[i];
            Plan &plan = *(Plan *)plans[i];
            if ((failure = unreached(plan))) return nullptr;
            if (prepare(rank, plan, /* call: counted */ 0, unit, type, op, lanes, rounds, buffers, lengths)) return nullptr;
            captured.ranks.push_back(&rank), runs.push_back(rank.run), first.push_back(captured.blocks);
            if (!copy_run_data(captured, plan, &runs.back())) return nullptr;
            captured.blocks += (u32)plan.table.head.blocks * lanes, captured.threads = rank.threads;
        }
        captured.launch = {(const Run *)captured.copy_of(runs.data(), runs.size() * sizeof(Run)),
                    (const u32 *)captured.copy_of(first.data(), first.size() * sizeof(u32)),
                    (u32)runs.size()};
        if (!captured.launch.runs || !captured.launch.first || capture(captured)) return nullptr;
    }
    return graph.release();
}

/* Sets the counter if other calls were made since the last one of this graph. */
int ad_graph_begin(void *graph, u64 call) {
    cuda(Error_t) code;
    for (auto &captured : ((Graph *)graph)->all) {
        cuda(Stream_t) stream = captured->device->stream;
        *captured->device->stop_on_host = 0;
        for (Rank *rank : captured->ranks) rank->failed = false, rank->boxes.force_next_wait();
        if (FAILS(cuda(SetDevice)(captured->device->number))) return 1;
        if (captured->next_call != call &&
            FAILS(cuda(MemcpyAsync)(captured->counter, &call, sizeof call, cuda(MemcpyHostToDevice), stream)))
            return 1;
        if (FAILS(cuda(GraphLaunch)(captured->instance, stream))) return 1;
        captured->next_call = (call + 1) % ((u64)1 << (64 - CALL_BITS));
    }
    return 0;
}

/* Sets all counters, before the program enqueues calls. */
int ad_graph_count(void *graph, u64 call) {
    ((Graph *)graph)->stopped = false;
    for (auto &captured : ((Graph *)graph)->all) {
        *captured->device->stop_on_host = 0;
        for (Rank *rank : captured->ranks) rank->failed = false, rank->boxes.force_next_wait();
        if (copy_now(*captured->device, captured->counter, &call, sizeof call)) return 1;
        captured->next_call = ~(u64)0;
    }
    return 0;
}

/* Kernels read the stop flag while they wait. Nothing is enqueued on the devices, as it would wait for those kernels. */
void ad_graph_stop(void *graph) {
    ((Graph *)graph)->stopped = true;
    for (auto &captured : ((Graph *)graph)->all) __atomic_store_n(captured->device->stop_on_host, 1, __ATOMIC_RELEASE);
}

int ad_graph_enqueue(void *graph, void *const *streams) {
    for (auto &captured : ((Graph *)graph)->all) enqueue_call(*captured, (cuda(Stream_t))streams[captured->first_rank]);
    return take_error();
}

/* Reads the counters, after those calls; 2: they were stopped. */
int ad_graph_counted(void *graph, u64 *call) {
    bool first = true, alike = true;
    for (auto &captured : ((Graph *)graph)->all) {
        u64 next_call = 0;
        if (copy_now(*captured->device, &next_call, captured->counter, sizeof next_call)) return 1;
        alike &= first || next_call == *call;
        for (Rank *rank : captured->ranks) rank->boxes.force_next_wait();
        *call = first ? next_call : latest_call(*call, next_call), first = false;
    }
    if (((Graph *)graph)->stopped) return failure = "these calls were stopped", 2;
    return alike ? 0 : (failure = "not all ranks have made the same calls", 1);
}

void *ad_stream_new(void *rank) {
    cuda(Error_t) code;
    cuda(Stream_t) stream;
    if (FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) ||
        FAILS(cuda(StreamCreateWithFlags)(&stream, cuda(StreamNonBlocking))))
        return nullptr;
    return stream;
}

int ad_stream_end(void *rank, void *stream) {
    cuda(Error_t) code;
    return FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) || FAILS(cuda(StreamSynchronize)((cuda(Stream_t))stream));
}

void ad_stream_free(void *, void *stream) { (void)cuda(StreamDestroy)((cuda(Stream_t))stream); }

int ad_stream_record(void *rank, void *stream) {
    cuda(Error_t) code;
    return FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) ||
           FAILS(cuda(StreamBeginCapture)((cuda(Stream_t))stream, cuda(StreamCaptureModeThreadLocal)));
}

void *ad_stream_recorded(void *rank, void *stream) {
    cuda(Error_t) code;
    cuda(Graph_t) graph;
    cuda(GraphExec_t) instance = nullptr;
    if (FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) || FAILS(cuda(StreamEndCapture)((cuda(Stream_t))stream, &graph)))
        return nullptr;
    const bool failed = FAILS(cuda(GraphInstantiateWithFlags)(&instance, graph, 0));
    (void)cuda(GraphDestroy)(graph);
    return failed ? nullptr : instance;
}

int ad_recording_enqueue(void *rank, void *recording, void *stream) {
    cuda(Error_t) code;
    return FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) ||
           FAILS(cuda(GraphLaunch)((cuda(GraphExec_t))recording, (cuda(Stream_t))stream));
}

void ad_recording_free(void *recording) { (void)cuda(GraphExecDestroy)((cuda(GraphExec_t))recording); }

void ad_graph_free(void *graph) { delete (Graph *)graph; }
