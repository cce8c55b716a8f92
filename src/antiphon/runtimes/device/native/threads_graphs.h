/* Recorded calls, which streams of a program repeat (device.h: ad_graph_*, ad_stream_*), with processor threads in
 * place of GPUs. Part of threads.cc, which has Queue (a stream: tasks that a thread executes in order), prepare (sets
 * the arguments of a rank's call, Rank::run), make_ready (sets its counters), go_on (clears its stop flag) and begin
 * (wakes the ranks' threads).
 *
 * Threading: one thread calls these functions, but for ad_graph_stop, which any thread may call; the thread of a stream
 * executes what is enqueued there.
 * Ownership: a Graph owns copies of its runs and peers and refers to ranks and plans. ad_*_free frees what ad_*_new returned.
 */
#pragma once

namespace {

/* What CUDA calls a graph: a call of all ranks of this process with its arguments, to be repeated. */
struct Graph {
    struct RankCall {
        Rank *rank;
        Run run;
        std::vector<Peer> peers;
        std::shared_ptr<Size> size;
        u32 used;    /* thread blocks that the call takes */
        u64 counter; /* number of the next call */
    };
    std::vector<RankCall> all;
    std::vector<void *> ranks; /* those of `all`, as `begin` takes them */
    std::atomic<bool> stopped{false};
};

/* In the thread of a stream: executes the call of one rank and returns at its end. */
void execute_call(Graph::RankCall &rank_call) {
    Rank &rank = *rank_call.rank;
    void *const only_rank = &rank;
    rank.run = rank_call.run, rank.boxes.force_next_wait(); /* this call waits, too: `prepare` sets `opens` to 1 */
    make_ready(rank, rank_call.counter, rank_call.used);
    begin(&only_rank, 1);
    rank.is_done_by(nullptr);
    rank_call.counter = (rank_call.counter + 1) % ((u64)1 << (64 - CALL_BITS));
}

}  // namespace

void *ad_graph_new(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes, u32 rounds,
                   char *const *buffers, const i64 *lengths) {
    std::unique_ptr<Graph> graph(new Graph);
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        Plan &plan = *(Plan *)plans[i];
        if (prepare(rank, plan, /* call: counted */ 0, unit, type, op, lanes, rounds, buffers, lengths)) return nullptr;
        graph->all.push_back({&rank, rank.run, rank.peers, plan.size, (u32)plan.table.head.blocks * lanes, /* counter */ 0});
        graph->ranks.push_back(&rank);
    }
    /* only now, as `all` has its final place; other calls change the ranks' own peers */
    for (Graph::RankCall &rank_call : graph->all)
        rank_call.run.peers = rank_call.peers.data(), rank_call.run.counter = &rank_call.counter;
    return graph.release();
}

int ad_graph_begin(void *graph_, u64 call) {
    Graph &graph = *(Graph *)graph_;
    for (Graph::RankCall &rank_call : graph.all) {
        rank_call.counter = call;
        rank_call.rank->run = rank_call.run;
        rank_call.rank->boxes.force_next_wait();
        go_on(*rank_call.rank);
        make_ready(*rank_call.rank, call, rank_call.used);
    }
    begin(graph.ranks.data(), (u32)graph.ranks.size());
    return 0;
}

int ad_graph_count(void *graph_, u64 call) {
    Graph &graph = *(Graph *)graph_;
    graph.stopped.store(false);
    for (Graph::RankCall &rank_call : graph.all) rank_call.counter = call, go_on(*rank_call.rank);
    return 0;
}

void ad_graph_stop(void *graph_) {
    Graph &graph = *(Graph *)graph_;
    graph.stopped.store(true);
    for (Graph::RankCall &rank_call : graph.all) __atomic_store_n(&rank_call.rank->stop, 1, __ATOMIC_RELAXED);
}

int ad_graph_enqueue(void *graph, void *const *streams) {
    size_t number = 0;
    for (Graph::RankCall &rank_call : ((Graph *)graph)->all)
        ((Queue *)streams[number++])->enqueue([&rank_call] { execute_call(rank_call); });
    return 0;
}

int ad_graph_counted(void *graph_, u64 *call) {
    Graph &graph = *(Graph *)graph_;
    bool alike = true;
    *call = graph.all[0].counter;
    for (const Graph::RankCall &rank_call : graph.all) {
        alike &= rank_call.counter == *call && !rank_call.rank->failed.load();
        *call = latest_call(*call, rank_call.counter);
    }
    if (graph.stopped.load()) return failure = "these calls were stopped", 2;
    return alike ? 0 : (failure = "not all ranks have made the same calls", 1);
}

void *ad_stream_new(void *rank) { return new Queue(&((Rank *)rank)->stop); }
int ad_stream_end(void *, void *stream) { return ((Queue *)stream)->wait_until_idle(), 0; }
void ad_stream_free(void *, void *stream) { delete (Queue *)stream; }
int ad_stream_record(void *, void *stream) { return ((Queue *)stream)->record(), 0; }
void *ad_stream_recorded(void *, void *stream) {
    return new std::vector<std::function<void()>>(((Queue *)stream)->take_recorded());
}
int ad_recording_enqueue(void *, void *recording, void *stream) {
    for (const std::function<void()> &work : *(std::vector<std::function<void()>> *)recording) ((Queue *)stream)->enqueue(work);
    return 0;
}
void ad_recording_free(void *recording) { delete (std::vector<std::function<void()>> *)recording; }

void ad_graph_free(void *graph) { delete (Graph *)graph; }
