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
    };
    std::vector<OfRank> all;
    u64 counter = 0;
};

}  // namespace

void *ad_graph_new(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes, u32 rounds,
                   char *const *buffers, const i64 *lengths) {
    std::unique_ptr<Graph> graph(new Graph);
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        Plan &plan = *(Plan *)plans[i];
        if (prepare(rank, plan, 0, unit, type, op, lanes, rounds, buffers, lengths)) return nullptr;
        graph->all.push_back({&rank, rank.run, rank.peers, plan.size, (u32)plan.table.head.blocks * lanes});
    }
    for (Graph::OfRank &one : graph->all) one.run.peers = one.peers.data(), one.run.counter = &graph->counter;
    return graph.release();
}

int ad_graph_begin(void *graph_, u64 call) {
    Graph &graph = *(Graph *)graph_;
    graph.counter = call;
    for (Graph::OfRank &one : graph.all) {
        const std::lock_guard<std::mutex> hold(one.rank->lock);
        one.rank->run = one.run;
        one.rank->boxes.stopped();
        begin(*one.rank, call, one.used);
    }
    return 0;
}

void ad_graph_free(void *graph) { delete (Graph *)graph; }
