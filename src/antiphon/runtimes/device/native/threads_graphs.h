/* Calls that are kept as they stand, to be made again. Part of threads.cc. */
#pragma once

namespace {

/* What CUDA calls a graph: a call of all ranks of this process as it stands, to be made again. */
struct Graph {
    struct OfRank {
        Rank *rank;
        Run run;
        std::vector<Peer> peers;
        std::shared_ptr<Size> size;
        u32 used;
        u64 counter;
    };
    std::vector<OfRank> all;
    std::vector<void *> ranks; /* the same */
    std::atomic<bool> stopped{false};
};

/* By the thread of a stream: to its end. */
void make(Graph::OfRank &one) {
    Rank &rank = *one.rank;
    void *const alone = &rank;
    rank.run = one.run, rank.boxes.stopped();
    make_ready(rank, one.counter, one.used);
    begin(&alone, 1);
    rank.is_done_by(nullptr);
    one.counter = (one.counter + 1) % ((u64)1 << (64 - CALL_BITS));
}

}  // namespace

void *ad_graph_new(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes, u32 rounds,
                   char *const *buffers, const i64 *lengths) {
    std::unique_ptr<Graph> graph(new Graph);
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        Plan &plan = *(Plan *)plans[i];
        if (prepare(rank, plan, 0, unit, type, op, lanes, rounds, buffers, lengths)) return nullptr;
        graph->all.push_back({&rank, rank.run, rank.peers, plan.size, (u32)plan.table.head.blocks * lanes, 0});
        graph->ranks.push_back(&rank);
    }
    for (Graph::OfRank &one : graph->all) one.run.peers = one.peers.data(), one.run.counter = &one.counter;
    return graph.release();
}

int ad_graph_begin(void *graph_, u64 call) {
    Graph &graph = *(Graph *)graph_;
    for (Graph::OfRank &one : graph.all) {
        one.counter = call;
        one.rank->run = one.run;
        one.rank->boxes.stopped();
        go_on(*one.rank);
        make_ready(*one.rank, call, one.used);
    }
    begin(graph.ranks.data(), (u32)graph.ranks.size());
    return 0;
}

int ad_graph_count(void *graph_, u64 call) {
    Graph &graph = *(Graph *)graph_;
    graph.stopped.store(false);
    for (Graph::OfRank &one : graph.all) one.counter = call, go_on(*one.rank);
    return 0;
}

void ad_graph_stop(void *graph_) {
    Graph &graph = *(Graph *)graph_;
    graph.stopped.store(true);
    for (Graph::OfRank &one : graph.all) __atomic_store_n(&one.rank->stop, 1, __ATOMIC_RELAXED);
}

int ad_graph_ask(void *graph, void *const *streams) {
    size_t number = 0;
    for (Graph::OfRank &one : ((Graph *)graph)->all) ((Queue *)streams[number++])->ask([&one] { make(one); });
    return 0;
}

int ad_graph_counted(void *graph_, u64 *call) {
    Graph &graph = *(Graph *)graph_;
    bool alike = true;
    *call = graph.all[0].counter;
    for (const Graph::OfRank &one : graph.all) {
        alike &= one.counter == *call && !one.rank->failed.load();
        *call = furthest(*call, one.counter);
    }
    if (graph.stopped.load()) return why = "these calls were stopped", 2;
    return alike ? 0 : (why = "not all ranks have made the same calls", 1);
}

void *ad_stream_new(void *rank) { return new Queue(&((Rank *)rank)->stop); }
int ad_stream_end(void *, void *stream) { return ((Queue *)stream)->end(), 0; }
void ad_stream_free(void *, void *stream) { delete (Queue *)stream; }
int ad_stream_keep(void *, void *stream) { return ((Queue *)stream)->keep(), 0; }
void *ad_stream_kept(void *, void *stream) { return new std::vector<std::function<void()>>(((Queue *)stream)->what_was_kept()); }
int ad_kept_ask(void *, void *kept, void *stream) {
    for (const std::function<void()> &work : *(std::vector<std::function<void()>> *)kept) ((Queue *)stream)->ask(work);
    return 0;
}
void ad_kept_free(void *kept) { delete (std::vector<std::function<void()>> *)kept; }

void ad_graph_free(void *graph) { delete (Graph *)graph; }
