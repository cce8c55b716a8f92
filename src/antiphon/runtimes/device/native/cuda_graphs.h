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
    Launch what{};
    int type = 0;
    u32 blocks = 0, threads = 0;
    u32 number = 0; /* of the first rank, among those that were given */

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
    bool stopped = false; /* on streams of a program */
};

/* The run of a rank with copies of all that other calls change. */
bool keep(Captured &one, const Plan &plan, Run *run) {
    const size_t cuts = plan.size.cuts.size(), sized = cuts + plan.size.shift.size();
    const i64 *own = (const i64 *)one.like(plan.sized, sized * sizeof(i64), cuda(MemcpyDeviceToDevice));
    run->peers = (const Peer *)one.like(run->peers, run->ranks * sizeof(Peer), cuda(MemcpyDeviceToDevice));
    run->line.cuts = own, run->shift = own + cuts, run->counter = one.counter;
    return own && run->peers;
}

/* A call on a stream, which may be one that a program captures: kernels alone. */
void ask_call(const Captured &one, cuda(Stream_t) stream) {
    asked(cuda(SetDevice)(one.device->number));
    for (Rank *rank : one.ranks)
        if (u64 *box = rank->peers[rank->rank].box) {
            const u64 *counter = one.counter;
            void *arguments[] = {&box, &counter};
            asked(cuda(LaunchKernel)((const void *)antiphon_empty, dim3(8), dim3(256), arguments, 0, stream));
        }
    u64 *counter = one.counter;
    void *launch[] = {const_cast<Launch *>(&one.what)}, *next[] = {&counter};
    if (one.blocks) asked(cuda(LaunchCooperativeKernel)(KERNELS[one.type], dim3(one.blocks), dim3(one.threads), launch, 0, stream));
    asked(cuda(LaunchKernel)((const void *)antiphon_next, dim3(1), dim3(1), next, 0, stream));
}

/* What went wrong since the last time. */
int wrong_now() {
    const cuda(Error_t) code = failed_here;
    failed_here = cuda(Success);
    return code != cuda(Success) && (why = cuda(GetErrorString)(code));
}

int capture(Captured &one) {
    cuda(Error_t) code;
    cuda(Stream_t) stream = one.device->stream;
    cuda(Graph_t) graph;
    if (FAILS(cuda(StreamBeginCapture)(stream, cuda(StreamCaptureModeThreadLocal)))) return 1;
    ask_call(one, stream);
    asked(cuda(StreamEndCapture)(stream, &graph));
    if (wrong_now()) return 1;
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
        one.device = some.first, one.number = some.second[0], one.type = type;
        if (FAILS(cuda(SetDevice)(one.device->number)) || !(one.counter = (u64 *)one.room(sizeof(u64)))) return nullptr;
        std::vector<Run> runs;
        std::vector<u32> first;
        for (u32 i : some.second) {
            Rank &rank = *(Rank *)ranks[i];
            Plan &plan = *(Plan *)plans[i];
            if (prepare(rank, plan, 0, unit, type, op, lanes, rounds, buffers, lengths)) return nullptr;
            one.ranks.push_back(&rank), runs.push_back(rank.run), first.push_back(one.blocks);
            if (!keep(one, plan, &runs.back())) return nullptr;
            one.blocks += (u32)plan.table.head.blocks * lanes, one.threads = rank.threads;
        }
        one.what = {(const Run *)one.like(runs.data(), runs.size() * sizeof(Run), cuda(MemcpyHostToDevice)),
                    (const u32 *)one.like(first.data(), first.size() * sizeof(u32), cuda(MemcpyHostToDevice)),
                    (u32)runs.size()};
        if (!one.what.runs || !one.what.first || capture(one)) return nullptr;
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

int ad_graph_count(void *graph, u64 call) {
    cuda(Error_t) code;
    ((Graph *)graph)->stopped = false;
    for (auto &one : ((Graph *)graph)->all) {
        *one->device->stop_here = 0;
        for (Rank *rank : one->ranks) rank->failed = false, rank->boxes.stopped();
        if (FAILS(cuda(SetDevice)(one->device->number)) ||
            FAILS(cuda(Memcpy)(one->counter, &call, sizeof call, cuda(MemcpyHostToDevice))))
            return 1;
        one->next = ~(u64)0;
    }
    return 0;
}

/* Kernels look at this number while they wait; nothing is asked of the devices, which may be busy with them. */
void ad_graph_stop(void *graph) {
    ((Graph *)graph)->stopped = true;
    for (auto &one : ((Graph *)graph)->all) __atomic_store_n(one->device->stop_here, 1, __ATOMIC_RELEASE);
}

int ad_graph_ask(void *graph, void *const *streams) {
    for (auto &one : ((Graph *)graph)->all) ask_call(*one, (cuda(Stream_t))streams[one->number]);
    return wrong_now();
}

int ad_graph_counted(void *graph, u64 *call) {
    cuda(Error_t) code;
    bool first = true, alike = true;
    for (auto &one : ((Graph *)graph)->all) {
        u64 found = 0;
        if (FAILS(cuda(SetDevice)(one->device->number)) ||
            FAILS(cuda(Memcpy)(&found, one->counter, sizeof found, cuda(MemcpyDeviceToHost))))
            return 1;
        alike &= first || found == *call;
        for (Rank *rank : one->ranks) rank->boxes.stopped();
        *call = first ? found : furthest(*call, found), first = false;
    }
    if (((Graph *)graph)->stopped) return why = "these calls were stopped", 2;
    return alike ? 0 : (why = "not all ranks have made the same calls", 1);
}

void *ad_stream_new(void *rank) {
    cuda(Error_t) code;
    cuda(Stream_t) stream;
    if (FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) || FAILS(cuda(StreamCreateWithFlags)(&stream, cuda(StreamNonBlocking))))
        return nullptr;
    return stream;
}

int ad_stream_end(void *rank, void *stream) {
    cuda(Error_t) code;
    return FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) || FAILS(cuda(StreamSynchronize)((cuda(Stream_t))stream));
}

void ad_stream_free(void *, void *stream) { (void)cuda(StreamDestroy)((cuda(Stream_t))stream); }

int ad_stream_keep(void *rank, void *stream) {
    cuda(Error_t) code;
    return FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) ||
           FAILS(cuda(StreamBeginCapture)((cuda(Stream_t))stream, cuda(StreamCaptureModeThreadLocal)));
}

void *ad_stream_kept(void *rank, void *stream) {
    cuda(Error_t) code;
    cuda(Graph_t) graph;
    cuda(GraphExec_t) made = nullptr;
    if (FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) || FAILS(cuda(StreamEndCapture)((cuda(Stream_t))stream, &graph)))
        return nullptr;
    const bool failed = FAILS(cuda(GraphInstantiateWithFlags)(&made, graph, 0));
    (void)cuda(GraphDestroy)(graph);
    return failed ? nullptr : made;
}

int ad_kept_ask(void *rank, void *kept, void *stream) {
    cuda(Error_t) code;
    return FAILS(cuda(SetDevice)(((Rank *)rank)->device->number)) ||
           FAILS(cuda(GraphLaunch)((cuda(GraphExec_t))kept, (cuda(Stream_t))stream));
}

void ad_kept_free(void *kept) { (void)cuda(GraphExecDestroy)((cuda(GraphExec_t))kept); }

void ad_graph_free(void *graph) { delete (Graph *)graph; }
