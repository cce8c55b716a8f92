/* Calls captured as graphs of CUDA and HIP: one for each device. Part of cuda.cu. */
#pragma once

namespace {

/* Of a device: what its kernel reads, which nobody else changes, and the number of the next call. */
struct Captured {
    Device *device;
    std::vector<Rank *> ranks;
    std::vector<void *> memory;
    u64 *counter = nullptr;
    u64 next = ~(u64)0;
    cuda(GraphExec_t) made = nullptr;

    ~Captured() {
        (void)cuda(SetDevice)(device->number);
        if (made) (void)cuda(GraphExecDestroy)(made);
        for (void *one : memory) (void)cuda(Free)(one);
    }

    void *room(size_t bytes) {
        cuda(Error_t) code;
        void *found = nullptr;
        if (FAILS(cuda(Malloc)(&found, bytes + 16))) return nullptr;
        memory.push_back(found);
        return found;
    }
    void *like(const void *values, size_t bytes, cuda(MemcpyKind) kind) {
        cuda(Error_t) code;
        void *found = room(bytes);
        return found && FAILS(cuda(Memcpy)(found, values, bytes, kind)) ? nullptr : found;
    }
};

struct Graph {
    std::vector<std::unique_ptr<Captured>> all;
};

/* The run of a rank with copies of all that other calls change. */
bool keep(Captured &one, const Plan &plan, Run *run) {
    const size_t cuts = plan.size.cuts.size(), sized = cuts + plan.size.shift.size();
    const i64 *own = (const i64 *)one.like(plan.sized, sized * sizeof(i64), cuda(MemcpyDeviceToDevice));
    run->peers = (const Peer *)one.like(run->peers, run->ranks * sizeof(Peer), cuda(MemcpyDeviceToDevice));
    run->line.cuts = own, run->shift = own + cuts, run->counter = one.counter;
    return own && run->peers;
}

int capture(Captured &one, const Launch &what, int type, u32 blocks, u32 threads) {
    cuda(Error_t) code;
    cuda(Stream_t) stream = one.device->stream;
    cuda(Graph_t) graph;
    if (FAILS(cuda(StreamBeginCapture)(stream, cuda(StreamCaptureModeThreadLocal)))) return 1;
    for (Rank *rank : one.ranks)
        if (u64 *box = rank->peers[rank->rank].box) {
            const u64 *counter = one.counter;
            void *arguments[] = {&box, &counter};
            asked(cuda(LaunchKernel)((const void *)antiphon_empty, dim3(8), dim3(256), arguments, 0, stream));
        }
    void *launch[] = {const_cast<Launch *>(&what)}, *next[] = {&one.counter};
    if (blocks) asked(cuda(LaunchCooperativeKernel)(KERNELS[type], dim3(blocks), dim3(threads), launch, 0, stream));
    asked(cuda(LaunchKernel)((const void *)antiphon_next, dim3(1), dim3(1), next, 0, stream));
    asked(cuda(StreamEndCapture)(stream, &graph));
    code = failed_here, failed_here = cuda(Success);
    if (code != cuda(Success)) return why = cuda(GetErrorString)(code), 1;
    if (FAILS(cuda(GraphInstantiateWithFlags)(&one.made, graph, 0))) return 1;
    return FAILS(cuda(GraphDestroy)(graph));
}

}  // namespace

void *ad_graph_new(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes, u32 rounds,
                   char *const *buffers, const i64 *lengths) {
    cuda(Error_t) code;
    std::unique_ptr<Graph> graph(new Graph);
    std::map<Device *, std::vector<u32>> of;
    for (u32 i = 0; i < count; ++i) of[((Rank *)ranks[i])->device].push_back(i);
    for (const auto &some : of) {
        graph->all.emplace_back(new Captured);
        Captured &one = *graph->all.back();
        one.device = some.first;
        if (FAILS(cuda(SetDevice)(one.device->number)) || !(one.counter = (u64 *)one.room(sizeof(u64)))) return nullptr;
        std::vector<Run> runs;
        std::vector<u32> first;
        u32 blocks = 0, threads = 0;
        for (u32 i : some.second) {
            Rank &rank = *(Rank *)ranks[i];
            Plan &plan = *(Plan *)plans[i];
            if (prepare(rank, plan, 0, unit, type, op, lanes, rounds, buffers, lengths)) return nullptr;
            one.ranks.push_back(&rank), runs.push_back(rank.run), first.push_back(blocks);
            if (!keep(one, plan, &runs.back())) return nullptr;
            blocks += (u32)plan.table.head.blocks * lanes, threads = rank.threads;
        }
        const Launch what = {(const Run *)one.like(runs.data(), runs.size() * sizeof(Run), cuda(MemcpyHostToDevice)),
                             (const u32 *)one.like(first.data(), first.size() * sizeof(u32), cuda(MemcpyHostToDevice)),
                             (u32)runs.size()};
        if (!what.runs || !what.first || capture(one, what, type, blocks, threads)) return nullptr;
    }
    return graph.release();
}

/* Where calls were made in between, the counter is set anew. */
int ad_graph_begin(void *graph, u64 call) {
    cuda(Error_t) code;
    for (auto &one : ((Graph *)graph)->all) {
        cuda(Stream_t) stream = one->device->stream;
        *one->device->stop_here = 0;
        for (Rank *rank : one->ranks) rank->failed = false, rank->boxes.stopped();
        if (FAILS(cuda(SetDevice)(one->device->number))) return 1;
        if (one->next != call && FAILS(cuda(MemcpyAsync)(one->counter, &call, sizeof call, cuda(MemcpyHostToDevice), stream))) return 1;
        if (FAILS(cuda(GraphLaunch)(one->made, stream))) return 1;
        one->next = (call + 1) % ((u64)1 << (64 - CALL_BITS));
    }
    return 0;
}

void ad_graph_free(void *graph) { delete (Graph *)graph; }
