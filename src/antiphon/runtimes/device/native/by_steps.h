/* A call of all ranks of a process that its host makes step by step, on queues of the devices: folds by a kernel each, puts
 * by a kernel or by copies of the device's own engines. An event stands for each signal between these ranks, so nobody waits
 * within a kernel. Ranks of other processes hear the signals that they would hear of the kernel for whole calls, each stored
 * by a kernel of one thread, and a kernel of one thread waits for theirs; so there every process may make a call its own way.
 *
 * Every rank has a queue for each of its streams, and one for each peer that copies go to: there copies of all streams take
 * turns as they are asked for. Where copies go through memory of the host, so that slow links (PCIe) carry them and not those
 * that join devices, a second queue brings on to the peer what the first one brought there, in two halves that take turns.
 * Before this a device says what its queues do:
 *
 *     const char *unreached(const Plan &)          why kernels cannot access what its steps do, or NULL
 *     Queue &queue_of(Rank &, u32 number)          queues of a rank, made when they are asked for
 *     Event *event_of(Queue &, size_t number)      events that this queue may record, used again by every call
 *     void ask_copy(Queue &, void *to, const void *from, size_t bytes)
 *     char *stage_of(Queue &)                      2 * STAGE bytes of the host for this queue; NULL: there is no room
 *     void ask_step(Queue &, const Run &, const Step *step, u32 lanes)
 *     void ask_record(Queue &, Event &)            once all that was asked for before is done, the event has come
 *     void ask_wait(Queue &, Event &)              all that is asked for later waits for it, which was asked for before
 *     void ask_tell(Queue &, u64 *at, u64 value)   all that was asked for before is seen by who hears this signal
 *     void ask_await(Queue &, const u64 *at, u64 value, const u32 *stop)
 *     const u32 *begin_queues(Rank &)              nothing of the rank is stopped: the number that says so
 *     bool queues_end_by(Rank &, double end)       whether all that is asked of a rank is done by then, as now() counts
 *     void stop_queues(Rank &)                     nobody waits any more, and nothing more is done
 *     int end_queues(Rank &)                       until all that is asked of a rank is done; 0: it is
 *
 * Threading: the thread of the ranks enqueues everything; queues run on their own.
 * Ownership: queues and events belong to ranks and devices; the state of a call is on the stack of ad_by_host.
 */
#pragma once
#include <map>
#include <tuple>

#include "bind.h"
#include "device.h"
#include "kernel.h"

namespace {

/* How far a rank is in a stream. `copies`: enqueued, and not waited for yet. */
struct Follower {
    Rank &rank;
    const Table &table;
    Line line; /* as the host has it, and so `shift` */
    const i64 *shift;
    u32 stream;
    i64 at, end;
    i64 part; /* of the arguments of a step, those that are done */
    std::vector<Event *> copies;
};

/* Of a rank and a peer: memory of the host, and when each half of it has been left. */
struct Staging {
    char *memory = nullptr;
    u32 turn = 0;
    Event *drained[2] = {nullptr, nullptr};
};

class ByHost {
    std::map<std::tuple<u32, u32, u32, i64>, Event *> signal_events; /* by stream, from, to, number */
    size_t events = 0;
    u64 call;
    u32 lanes;
    bool by_copies;
    bool staged;
    size_t width;
    std::map<std::pair<u32, u32>, Staging> stages; /* by rank and peer */
    std::vector<const u32 *> stop_of; /* of each rank of this process what stops it, else NULL */

    /* Where among the signals of a rank those of a sender are, in this stream. */
    static i64 place(const Follower &f, i64 sender) { return (i64)f.stream * f.table.head.ranks + sender; }

    Queue &own(Follower &f) { return queue_of(f.rank, f.stream); }

    Event &recorded(Queue &queue) {
        Event &event = *event_of(queue, events++);
        ask_record(queue, event);
        return event;
    }

    /* What copies have done, all that comes later in the stream may use. */
    void gather(Follower &f) {
        for (Event *signal : f.copies) ask_wait(own(f), *signal);
        f.copies.clear();
    }

    void copy(Follower &f, const Argument &from, const Argument &to) {
        const i64 end = to.part + to.number;
        const i64 length = f.line.at(to.whole + end / f.line.parts, end % f.line.parts) - f.line.at(to.whole, to.part);
        if (!length) return;
        const auto at = [&](const Argument &a) {
            const i64 element = f.shift[a.region] + f.line.at(a.whole, a.part);
            return f.rank.peers[(size_t)a.rank].buffer[f.table.region(a.region).buffer] + element * (i64)width;
        };
        const i64 peer = to.rank == f.table.head.rank ? from.rank : to.rank; /* the other rank: it may be read from */
        Queue &link = queue_of(f.rank, (u32)(f.table.head.blocks + peer));
        ask_wait(link, recorded(own(f)));
        if (staged && to.rank != f.table.head.rank)
            f.copies.push_back(copy_by_stages(f, (u32)to.rank, link, at(to), at(from), (size_t)length * width));
        else {
            ask_copy(link, at(to), at(from), (size_t)length * width);
            f.copies.push_back(&recorded(link));
        }
    }

    /* The last of the events with which all has come. While one half goes on to the peer the other is filled. */
    Event *copy_by_stages(Follower &f, u32 to, Queue &link, char *target, const char *source, size_t bytes) {
        Queue &onward = queue_of(f.rank, (u32)(f.table.head.blocks + f.table.head.ranks) + to);
        Staging &stage = stages[{(u32)f.table.head.rank, to}];
        if (!stage.memory && !(stage.memory = stage_of(link)))
            return wrong = "no room in the memory of the host", &recorded(link);
        for (size_t done = 0; done < bytes; done += STAGE) {
            const size_t chunk = bytes - done < STAGE ? bytes - done : (size_t)STAGE;
            const u32 half = stage.turn++ % 2;
            char *const between = stage.memory + half * (size_t)STAGE;
            if (stage.drained[half]) ask_wait(link, *stage.drained[half]);
            ask_copy(link, between, source + done, chunk);
            ask_wait(onward, recorded(link));
            ask_copy(onward, target + done, between, chunk);
            stage.drained[half] = &recorded(onward);
        }
        return stage.drained[(stage.turn - 1) % 2];
    }

    /* Enqueues a step; false: what it waits for has not been enqueued yet. */
    bool step(Follower &f) {
        const Step &step = f.table.steps[f.at];
        const Argument *a = f.table.arguments + step.first;
        switch (step.kind) {
        case SIGNAL: /* behind a sync, if there is anything to signal */
            for (i64 k = 0; k < step.count; ++k)
                if (!stop_of[(size_t)a[k].rank])
                    ask_tell(own(f), f.rank.peers[(size_t)a[k].rank].signals + place(f, f.table.head.rank),
                             signal_of(call, 0, a[k].number));
                else
                    signal_events[std::make_tuple(f.stream, (u32)f.table.head.rank, (u32)a[k].rank, a[k].number)] = &recorded(
                        own(f));
            break;
        case WAIT:
            for (; f.part < step.count; ++f.part) {
                const Argument &signal = a[f.part];
                if (!stop_of[(size_t)signal.rank]) {
                    const size_t me = (size_t)f.table.head.rank;
                    ask_await(own(f), f.rank.peers[me].signals + place(f, signal.rank), signal_of(call, 0, signal.number),
                              stop_of[me]);
                    continue;
                }
                const auto event = signal_events.find(
                    std::make_tuple(f.stream, (u32)signal.rank, (u32)f.table.head.rank, signal.number));
                if (event == signal_events.end()) return false;
                ask_wait(own(f), *event->second);
            }
            break;
        case SYNC: gather(f); break;
        default:
            if (step.kind == PUT && by_copies)
                for (i64 k = 0; k < step.count; k += 2) copy(f, a[k], a[k + 1]);
            else
                ask_step(own(f), f.rank.run, f.rank.run.steps + f.at, lanes);
        }
        f.part = 0;
        return true;
    }

  public:
    const char *wrong = nullptr;

    ByHost(u64 call, u32 lanes, int method, int type, std::vector<const u32 *> stop_of)
        : call(call), lanes(lanes), by_copies(method != BY_STEPS), staged(method == BY_STAGES), width(WIDTHS[type]),
          stop_of(std::move(stop_of)) {}

    /* Why it cannot be done, or NULL. Among the ranks that are behind all others one can always go on. */
    const char *go(std::vector<Follower> &all) {
        for (bool any = true; any;) {
            any = false;
            for (Follower &f : all)
                for (; f.at < f.end && step(f); ++f.at) any = true;
        }
        for (Follower &f : all)
            if (f.at < f.end) return "somebody waits for a signal that nobody gives";
        for (Follower &f : all) gather(f);
        return wrong;
    }
};

}  // namespace

int ad_by_host(u32 count, void *const *ranks, void *const *plans, u64 call, i64 unit, int type, int op, u32 lanes, int method,
               char *const *buffers, const i64 *lengths, double seconds) {
    std::vector<Follower> all;
    std::vector<const u32 *> stop_of;
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        Plan &plan = *(Plan *)plans[i];
        if (plan.table.head.atoms) return failure = "packets go by one kernel, not by steps", 1;
        if (method == BY_STEPS && (failure = unreached(plan))) return 1; /* copies need no access */
        if (prepare(rank, plan, 0, unit, type, op, 1, 1, buffers, lengths)) return 1;
        const Size &size = size_at(plan);
        stop_of.resize((size_t)plan.table.head.ranks);
        stop_of[(size_t)plan.table.head.rank] = begin_queues(rank);
        for (i64 k = 0; k < plan.table.head.blocks; ++k) {
            const Block &block = plan.table.blocks[k];
            const Line line = {size.cuts.data(), plan.table.head.parts, unit};
            all.push_back({rank, plan.table, line, size.shift.data(), (u32)k, block.first, block.first + block.count, 0, {}});
        }
    }
    ByHost host(call, lanes ? lanes : 1, method, type, stop_of);
    const char *wrong = host.go(all);
    bool late = false;
    const double end = now() + (seconds > 0 ? seconds : 1e9);
    for (u32 i = 0; i < count; ++i) late |= !queues_end_by(*(Rank *)ranks[i], wrong || late ? 0 : end);
    for (u32 i = 0; i < count && late; ++i) stop_queues(*(Rank *)ranks[i]);
    int code = 0;
    for (u32 i = 0; i < count; ++i) code |= end_queues(*(Rank *)ranks[i]);
    if (wrong) return failure = wrong, 1;
    return code ? 1 : late ? (failure = "its time was up", -1) : 0;
}
