/* All that can happen when ranks run their tables, call after call: every interleaving of small ones.
 *
 * A block is many threads, which run ahead of each other from SYNC to SYNC: what a step reads and writes may be done at any
 * time until the next SYNC, and signals are waited for only there. A store is seen by others at any time from then on,
 * until a signal with release that comes behind a SYNC: who has waited for that sees it. So an access is open from where it
 * begins to that signal, and two that are open at once, one of them a write, are a race unless one rank has ordered them
 * itself: by SYNC within a block, by the end of a call.
 *
 * A packet is stored and loaded as one, with a flag, and ordered with nothing: whoever reads it waits until its flag is that of
 * the call, so nothing that is done to packets is a race. One that is on its way arrives at once, unless another is on its way
 * to the same place: to arrive later can keep nobody but its reader, who may be late himself; what overtakes it then would
 * have been written over it before it was read.
 *
 * Input: numbers, written by tests/device_model.py. Output: "right STATES", or what is wrong, how, and after what.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <string>
#include <unordered_set>
#include <vector>

typedef int64_t i64;
typedef uint64_t u64;
typedef std::vector<int> Cells;

enum Kind { GATE, SIGNAL, WAIT, SYNC, DATA, END, START, FINISH };
const char *const NAMES[] = {"begins", "signals", "waits", "syncs", "data", "ends", "is called", "returns"};

/* What an access is at: nothing yet, begun, carried out by its thread, done for its block, done for all. */
enum Status : uint8_t { AHEAD, BEGUN, CARRIED, SETTLED, CLOSED };

struct Operation {
    int process, rank, call;
    std::vector<Cells> results, operands; /* all as long */
    bool host;
    Cells clashes;       /* operations that touch what this one writes, or write what it touches */
    bool alone = true;   /* all of them are ordered with it by its own block or its own rank */
    bool takes = false, posts = false; /* packets: of one element each */
};

struct Action {
    Kind kind;
    int what; /* a slot, an operation, a call */
    u64 value;
    bool ordered; /* with release, with acquire; of data, whether flags of packets are looked at */
    int thread;   /* which one tells */
    int call, step;
};

struct Process {
    int rank;
    bool host;
    std::vector<Action> actions;
};

struct State {
    std::vector<uint16_t> at;       /* of each process */
    std::vector<uint8_t> status;    /* of each operation */
    std::vector<uint8_t> hidden;    /* what it has written is not in memory yet */
    std::vector<u64> memory, slots; /* what others see */
    std::vector<u64> written;       /* of each operation from where it begins, what it has written */
    std::vector<u64> flags;         /* of each cell of packets, as others see it */
    std::vector<uint8_t> sent;      /* of each operation whether its packets are on their way */
    std::vector<u64> posted;        /* and what is in them */
};

struct Move {
    int process;
    int carried; /* an operation begun before that is carried out now, or -1 */
};

i64 number() {
    long long found;
    if (scanf("%lld", &found) != 1) {
        fprintf(stderr, "the input ends early\n");
        exit(2);
    }
    return found;
}

class Model {
    int ranks, cells, calls, slots;
    bool races, as_signed;
    i64 most;
    std::vector<Process> processes;
    std::vector<Operation> operations;
    std::vector<std::vector<std::pair<int, u64>>> given, wanted; /* by call and rank */
    std::vector<size_t> place;                                  /* of what operations have written */
    std::vector<u64> first_slots;
    std::vector<uint8_t> in_box; /* of each cell whether it is a packet */
    std::vector<std::vector<int>> blocks, owned; /* of a rank: its blocks, its operations */
    struct Mark {
        u64 a, b;
        bool operator==(const Mark &other) const { return a == other.a && b == other.b; }
    };
    struct Hash {
        size_t operator()(const Mark &mark) const { return mark.a; }
    };
    std::unordered_set<Mark, Hash> seen;
    std::vector<std::string> path;
    std::vector<std::vector<int>> posters; /* of each cell who posts packets there */
    std::vector<u64> flag;                 /* of the packets that an operation takes or posts */
    std::vector<uint8_t> looks;            /* whether it waits for it */
    i64 states = 0;
    size_t room = 0;

    Cells read_cells() {
        Cells found((size_t)number());
        for (int &one : found) one = (int)number();
        return found;
    }

    static void touch(std::vector<uint8_t> &marks, const std::vector<Cells> &some) {
        for (const Cells &one : some)
            for (int cell : one) marks[(size_t)cell] = 1;
    }

  public:
    /* ranks cells calls slots races signed most; initial slots; how many cells are packets, and these; by call and rank what is given and wanted: count, then cell
     * and value; then processes: rank, host, number of actions; an action: kind what value ordered thread call step, behind
     * DATA, START and FINISH also results and operands: how many, and each as a count with cells. */
    void read() {
        ranks = (int)number(), cells = (int)number(), calls = (int)number(), slots = (int)number();
        races = number(), as_signed = number(), most = number();
        for (int i = 0; i < slots; ++i) first_slots.push_back((u64)number());
        in_box.resize((size_t)cells);
        for (i64 k = number(); k > 0; --k) in_box[(size_t)number()] = 1;
        for (int i = 0; i < ranks * calls; ++i)
            for (auto *side : {&given, &wanted}) {
                side->emplace_back();
                for (i64 k = number(); k > 0; --k) {
                    const int cell = (int)number();
                    side->back().push_back({cell, (u64)number()});
                }
            }
        blocks.resize((size_t)ranks), owned.resize((size_t)ranks);
        const i64 count = number();
        for (int p = 0; p < count; ++p) {
            Process process;
            process.rank = (int)number(), process.host = number();
            if (!process.host) blocks[(size_t)process.rank].push_back(p);
            for (i64 k = number(); k > 0; --k) {
                Action action;
                action.kind = (Kind)number(), action.what = (int)number(), action.value = (u64)number();
                action.ordered = number(), action.thread = (int)number();
                action.call = (int)number(), action.step = (int)number();
                if (action.kind == DATA || action.kind == START || action.kind == FINISH) {
                    Operation made;
                    made.process = p, made.rank = process.rank, made.call = action.call, made.host = process.host;
                    for (auto *side : {&made.results, &made.operands})
                        for (i64 n = number(); n > 0; --n) side->push_back(read_cells());
                    for (const Cells &one : made.operands)
                        for (int cell : one) made.takes |= in_box[(size_t)cell] != 0;
                    for (const Cells &one : made.results)
                        for (int cell : one) made.posts |= in_box[(size_t)cell] != 0;
                    action.what = (int)operations.size();
                    owned[(size_t)process.rank].push_back(action.what);
                    place.push_back(room);
                    room += made.results.empty() ? 0 : made.results[0].size();
                    operations.push_back(made);
                }
                process.actions.push_back(action);
            }
            processes.push_back(process);
        }
        posters.resize((size_t)cells);
        for (size_t x = 0; x < operations.size(); ++x)
            for (const Cells &one : operations[x].results)
                for (int cell : one)
                    if (in_box[(size_t)cell]) posters[(size_t)cell].push_back((int)x);
        std::vector<std::vector<uint8_t>> all, changed;
        for (const Operation &one : operations) {
            all.emplace_back((size_t)cells), changed.emplace_back((size_t)cells);
            touch(all.back(), one.results), touch(all.back(), one.operands), touch(changed.back(), one.results);
        }
        for (size_t x = 0; x < operations.size(); ++x)
            for (size_t y = 0; y < operations.size(); ++y) {
                if (x == y) continue;
                bool clash = false;
                for (size_t cell = 0; cell < (size_t)cells; ++cell)
                    clash |= !in_box[cell] && ((changed[x][cell] && all[y][cell]) || (all[x][cell] && changed[y][cell]));
                if (!clash) continue;
                operations[x].clashes.push_back((int)y);
                operations[x].alone &= ordered_by_rank(operations[x], operations[y]) || operations[x].process == operations[y].process;
            }
    }

    int run() {
        if (!overtaking()) return 1;
        State state;
        state.at.resize(processes.size()), state.status.resize(operations.size()), state.hidden.resize(operations.size());
        state.memory.resize((size_t)cells), state.slots = first_slots, state.written.resize(room);
        state.flags.resize((size_t)cells), state.sent.resize(operations.size()), state.posted.resize(operations.size());
        flag.resize(operations.size()), looks.resize(operations.size());
        for (const Process &process : processes)
            for (const Action &action : process.actions)
                if (action.kind == DATA) flag[(size_t)action.what] = action.value, looks[(size_t)action.what] = action.ordered;
        if (!explore(state)) return 1;
        printf("right %lld\n", (long long)states);
        return 0;
    }

  private:
    /* The host waits for all blocks before it returns and calls again. */
    static bool ordered_by_rank(const Operation &one, const Operation &other) {
        return one.rank == other.rank && (one.host || other.host || one.call != other.call);
    }

    bool wrong(const char *what, const std::string &detail) {
        printf("%s: %s\nstates %lld\n", what, detail.c_str(), (long long)states);
        for (const std::string &one : path) printf("  %s\n", one.c_str());
        return false;
    }

    std::string name(int p, const Action &action) const {
        return "rank " + std::to_string(processes[(size_t)p].rank) + " process " + std::to_string(p) + " call " +
               std::to_string(action.call) + " step " + std::to_string(action.step) + " " + NAMES[action.kind];
    }

    std::string name(int operation) const {
        const Operation &one = operations[(size_t)operation];
        for (const Action &action : processes[(size_t)one.process].actions)
            if ((action.kind == DATA || action.kind >= START) && action.what == operation) return name(one.process, action);
        return "";
    }

    /* Two threads may tell one peer at the same time: then the later number could be written over. */
    bool overtaking() {
        for (size_t p = 0; p < processes.size(); ++p) {
            std::map<int, int> told;
            for (const Action &action : processes[p].actions) {
                if (action.kind == SYNC || action.kind == END) told.clear();
                if (action.kind == SIGNAL && told.emplace(action.what, action.thread).first->second != action.thread)
                    return wrong("overtaken", name((int)p, action) + " by another thread than before, without a sync");
            }
        }
        return true;
    }

    Mark mark(const State &state) const {
        Mark made = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu};
        const auto add = [&](u64 value) {
            made.a = (made.a ^ value) * 0xFF51AFD7ED558CCDu, made.a ^= made.a >> 32;
            made.b = (made.b + value) * 0xC4CEB9FE1A85EC53u, made.b ^= made.b >> 29;
        };
        for (uint16_t one : state.at) add(one);
        for (size_t i = 0; i < state.status.size(); ++i) add((u64)state.status[i] * 2 + state.hidden[i]);
        for (u64 one : state.memory) add(one);
        for (u64 one : state.written) add(one);
        for (u64 one : state.flags) add(one);
        for (size_t i = 0; i < state.sent.size(); ++i) add(state.sent[i]), add(state.sent[i] ? state.posted[i] : 0);
        return made;
    }

    bool come(const State &state, const Action &wait) const {
        const u64 there = state.slots[(size_t)wait.what];
        return as_signed ? (i64)(there - wait.value) >= 0 : there >= wait.value;
    }

    /* Whether what was waited for since the last sync has come; without acquire nobody need have seen it before the
     * next signal. */
    bool all_come(const State &state, const Process &process, size_t at, bool signals) const {
        for (size_t i = at; i-- > 0;) {
            const Action &one = process.actions[i];
            if (one.kind == GATE || (one.kind == SYNC && !signals)) return true;
            if (one.kind == WAIT && one.ordered != signals && !come(state, one)) return false;
        }
        return true;
    }

    /* Whether all packets that it takes are there. */
    bool has_come(const State &state, size_t x) const {
        if (!operations[x].takes || !looks[x]) return true;
        for (const Cells &one : operations[x].operands)
            for (int cell : one)
                if (in_box[(size_t)cell] && state.flags[(size_t)cell] != flag[x]) return false;
        return true;
    }

    /* Whether nobody posts any more where it takes packets. */
    bool takes_the_last(const State &state, size_t x) const {
        for (const Cells &one : operations[x].operands)
            for (int cell : one)
                for (int y : posters[(size_t)cell])
                    if (state.status[(size_t)y] <= BEGUN || state.sent[(size_t)y]) return false;
        return true;
    }

    bool is_overtaken(const State &state, size_t x) const {
        for (const Cells &one : operations[x].results)
            for (int cell : one)
                for (int y : posters[(size_t)cell])
                    if ((size_t)y != x && state.sent[(size_t)y]) return true;
        return false;
    }

    bool awaits_packets(const State &state, size_t p) const {
        for (int x : owned[(size_t)processes[p].rank])
            if (operations[(size_t)x].process == (int)p && operations[(size_t)x].takes && state.status[(size_t)x] == BEGUN) return true;
        return false;
    }

    bool is_done(const State &state, size_t p) const { return state.at[p] == processes[p].actions.size(); }

    /* Whether the next action of a process may be done. */
    bool enabled(const State &state, size_t p) const {
        const Process &process = processes[p];
        const Action &next = process.actions[state.at[p]];
        switch (next.kind) {
        case GATE: /* the hosts come first among processes */
            return state.at[(size_t)process.rank] > 2 * next.call;
        case SIGNAL: return all_come(state, process, state.at[p], true);
        case SYNC:
        case END: return all_come(state, process, state.at[p], false) && !awaits_packets(state, p);
        case DATA: return has_come(state, (size_t)next.what);
        case FINISH:
            for (int block : blocks[(size_t)process.rank]) {
                const auto &actions = processes[(size_t)block].actions;
                const size_t at = state.at[(size_t)block];
                if (at < actions.size() && actions[at].call <= next.call) return false;
            }
            return true;
        default: return true;
        }
    }

    static bool writes_where(const Operation &one, const Operation &other) {
        for (const Cells &mine : one.results)
            for (int cell : mine)
                for (const Cells &theirs : other.results)
                    for (int there : theirs)
                        if (cell == there) return true;
        return false;
    }

    void show(State &state, size_t x) {
        if (!state.hidden[x]) return;
        const Operation &one = operations[x];
        for (int y : owned[(size_t)one.rank]) /* what a block writes twice to one place is seen in its order */
            if ((size_t)y < x && state.hidden[(size_t)y] && operations[(size_t)y].process == one.process &&
                writes_where(operations[(size_t)y], one))
                show(state, (size_t)y);
        for (const Cells &result : one.results)
            for (size_t i = 0; i < result.size(); ++i)
                if (!in_box[(size_t)result[i]]) state.memory[(size_t)result[i]] = state.written[place[x] + i];
        for (size_t i = 0; !one.results.empty() && i < one.results[0].size(); ++i) state.written[place[x] + i] = 0;
        state.hidden[x] = 0;
    }

    /* A cell as a process sees it: what its own block has written last, else what all see. */
    u64 looked_at(const State &state, const Operation &one, int cell) const {
        u64 found = state.memory[(size_t)cell];
        for (int x : owned[(size_t)one.rank]) {
            const Operation &other = operations[(size_t)x];
            if (!state.hidden[(size_t)x] || other.process != one.process) continue;
            for (const Cells &result : other.results)
                for (size_t i = 0; i < result.size(); ++i)
                    if (result[i] == cell) found = state.written[place[(size_t)x] + i];
        }
        return found;
    }

    void carry_out(State &state, size_t x) {
        const Operation &one = operations[x];
        state.status[x] = CARRIED;
        if (one.results.empty()) return;
        for (size_t i = 0; i < one.results[0].size(); ++i) {
            u64 sum = 0;
            for (const Cells &operand : one.operands) sum += looked_at(state, one, operand[i]);
            state.written[place[x] + i] = sum;
        }
        state.hidden[x] = 1;
        if (one.posts) state.sent[x] = 1, state.posted[x] = state.written[place[x]];
    }

    /* A packet is there, for all. */
    void arrive(State &state, size_t x) const {
        for (const Cells &one : operations[x].results)
            for (int cell : one)
                if (in_box[(size_t)cell]) state.memory[(size_t)cell] = state.posted[x], state.flags[(size_t)cell] = flag[x];
        state.sent[x] = 0;
    }

    void settle(State &state, int process) {
        for (int x : owned[(size_t)processes[(size_t)process].rank]) {
            if (operations[(size_t)x].process != process) continue;
            if (state.status[(size_t)x] == BEGUN) carry_out(state, (size_t)x);
            if (state.status[(size_t)x] == CARRIED) state.status[(size_t)x] = SETTLED;
        }
    }

    /* A release takes along what is done for this block, and what this rank did before the call. */
    void release(State &state, int process, int call) {
        for (int x : owned[(size_t)processes[(size_t)process].rank]) {
            const Operation &one = operations[(size_t)x];
            if (state.status[(size_t)x] != SETTLED) continue;
            if (one.process == process || one.call < call || one.host) show(state, (size_t)x), state.status[(size_t)x] = CLOSED;
        }
    }

    bool may_race(const State &state, size_t x, int y) const {
        const Operation &one = operations[x], &other = operations[(size_t)y];
        const int status = state.status[(size_t)y];
        if (status == AHEAD || status == CLOSED || ordered_by_rank(one, other)) return false;
        return one.process != other.process || status != SETTLED;
    }

    /* Does an action; false: it is wrong. `later`: data only begins. */
    bool act(State &state, size_t p, bool later) {
        const Process &process = processes[p];
        const Action &next = process.actions[state.at[p]];
        const size_t what = (size_t)next.what;
        state.at[p]++;
        switch (next.kind) {
        case SIGNAL:
            if (next.ordered) release(state, (int)p, next.call);
            state.slots[what] = next.value;
            break;
        case SYNC:
        case END: settle(state, (int)p); break;
        case DATA:
        case START:
        case FINISH:
            if (races)
                for (int y : operations[what].clashes)
                    if (may_race(state, what, y)) return wrong("race", name((int)p, next) + " against " + name(y));
            if (later) {
                state.status[what] = BEGUN;
                break;
            }
            if (next.kind == DATA) {
                carry_out(state, what);
                break;
            }
            for (int x : owned[(size_t)process.rank]) show(state, (size_t)x);
            state.status[what] = SETTLED;
            if (next.kind == START)
                for (const auto &one : given[(size_t)(next.call * ranks + process.rank)])
                    state.memory[(size_t)one.first] = one.second;
            else
                for (const auto &one : wanted[(size_t)(next.call * ranks + process.rank)])
                    if (state.memory[(size_t)one.first] != one.second)
                        return wrong("result", name((int)p, next) + " with cell " + std::to_string(one.first));
            break;
        default: break;
        }
        return true;
    }

    bool has_begun(const State &state, size_t p) const {
        if (races) return false;
        for (int x : owned[(size_t)processes[p].rank])
            if (operations[(size_t)x].process == (int)p && state.status[(size_t)x] == BEGUN) return true;
        return false;
    }

    /* Whether it cannot matter to anybody else when the next action is done: then no other order need be tried. */
    bool is_private(const State &state, size_t p) const {
        const Action &next = processes[p].actions[state.at[p]];
        switch (next.kind) {
        case GATE:
        case WAIT: return true;
        case SYNC:
        case END: return !has_begun(state, p);
        case DATA: {
            const Operation &one = operations[(size_t)next.what];
            if (!next.ordered && (one.takes || one.posts)) return false;
            return races && one.alone && (!one.takes || takes_the_last(state, (size_t)next.what));
        }
        default: return false;
        }
    }

    /* What an operation would read or write and others have written that is not yet seen. */
    Cells unseen(const State &state, size_t x) const {
        Cells found;
        for (int y : operations[x].clashes)
            if (state.hidden[(size_t)y] && operations[(size_t)y].process != operations[x].process) found.push_back(y);
        return found;
    }

    bool explore(State state) {
        const size_t length = path.size();
        for (bool again = true; again;) {
            again = false;
            for (size_t x = 0; x < operations.size(); ++x)
                if (state.sent[x] && !is_overtaken(state, x)) arrive(state, x), again = true;
            for (size_t p = 0; p < processes.size(); ++p)
                while (!is_done(state, p) && is_private(state, p) && enabled(state, p)) {
                    if (!act(state, p, false)) return false;
                    again = true;
                }
        }
        if (!seen.insert(mark(state)).second) return true;
        if (++states > most) return wrong("too many", "states");
        bool any = false, all = true;
        for (size_t x = 0; x < operations.size(); ++x)
            if (state.sent[x]) {
                path.push_back(name((int)x) + " arrives");
                if (!one_way(state, [&](State &next) { return arrive(next, x), true; })) return false;
                path.resize(length), any = true;
            }
        for (size_t p = 0; p < processes.size(); ++p) {
            if (!races)
                for (int x : owned[(size_t)processes[p].rank])
                    if (operations[(size_t)x].process == (int)p && state.status[(size_t)x] == BEGUN &&
                        has_come(state, (size_t)x)) {
                        path.push_back(name(x) + " is carried out");
                        if (!carried_in_all_ways(state, (size_t)x, [&](State &next) { carry_out(next, (size_t)x); return true; }))
                            return false;
                        path.resize(length), any = true;
                    }
            if (is_done(state, p)) continue;
            all = false;
            const Action &next = processes[p].actions[state.at[p]];
            if (!races && next.kind == DATA && operations[(size_t)next.what].takes) { /* its other threads go on */
                path.push_back(name((int)p, next) + " begins");
                if (!one_way(state, [&](State &after) { return act(after, p, true); })) return false;
                path.resize(length), any = true;
                continue;
            }
            if (!enabled(state, p)) continue;
            any = true;
            path.push_back(name((int)p, next));
            const auto now = [&](State &after) { return act(after, p, false); };
            const bool data = next.kind == DATA || next.kind == FINISH || next.kind == START;
            if (!races && data ? !carried_in_all_ways(state, (size_t)next.what, now) : !one_way(state, now)) return false;
            if (!races && next.kind == DATA && !one_way(state, [&](State &after) { return act(after, p, true); })) return false;
            path.resize(length);
        }
        if (!any && !all) {
            std::string stuck;
            for (size_t p = 0; p < processes.size(); ++p)
                if (!is_done(state, p)) stuck += (stuck.empty() ? "" : "; ") + name((int)p, processes[p].actions[state.at[p]]);
            return wrong("deadlock", stuck);
        }
        return true;
    }

    template <typename Work> bool one_way(State state, Work work) { return work(state) && explore(std::move(state)); }

    /* Any of what others have written and is not yet seen may be seen just now. */
    template <typename Work> bool carried_in_all_ways(const State &state, size_t x, Work work) {
        const Cells hidden = unseen(state, x);
        for (u64 some = 0; some < 1ull << hidden.size(); ++some) {
            State next = state;
            for (size_t i = 0; i < hidden.size(); ++i)
                if (some >> i & 1) show(next, (size_t)hidden[i]);
            if (!work(next) || !explore(std::move(next))) return false;
        }
        return true;
    }
};

int main() {
    Model model;
    model.read();
    return model.run();
}
