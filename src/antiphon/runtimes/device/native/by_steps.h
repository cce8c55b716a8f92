/* A call of all ranks of a process that its host makes step by step, on queues of the devices: folds by a kernel each, puts
 * by a kernel or by copies of the device's own engines. An event stands for each signal, so nobody waits within a kernel.
 *
 * Every rank has a queue for each of its streams, and one for each peer that copies go to: there copies of all streams take
 * turns as they are asked for. Before this a device says what its queues do:
 *
 *     Queue &queue_of(Rank &, u32 number)          queues of a rank, made when they are asked for
 *     Event *event_of(Queue &, size_t number)      events that this queue may record, used again by every call
 *     void ask_copy(Queue &, void *to, const void *from, size_t bytes)
 *     void ask_step(Queue &, const Run &, const Step *step, u32 lanes)
 *     void ask_record(Queue &, Event &)            once all that was asked for before is done, the event has come
 *     void ask_wait(Queue &, Event &)              all that is asked for later waits for it, which was asked for before
 *     int end_queues(Rank &, double seconds)       until all that is asked of a rank is done; 0: it is
 */
#pragma once
#include <map>
#include <tuple>

#include "bind.h"
#include "device.h"
#include "kernel.h"

namespace {

/* What a rank has done of a stream. `copies`: asked for, and not waited for yet. */
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

class ByHost {
    std::map<std::tuple<u32, u32, u32, i64>, Event *> told; /* by stream, from, to, number */
    size_t events = 0;
    u32 lanes;
    bool by_copies;
    size_t width;

    Queue &own(Follower &f) { return queue_of(f.rank, f.stream); }

    Event &recorded(Queue &queue) {
        Event &event = *event_of(queue, events++);
        ask_record(queue, event);
        return event;
    }

    /* What copies have done, all that comes later in the stream may use. */
    void gather(Follower &f) {
        for (Event *one : f.copies) ask_wait(own(f), *one);
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
        Queue &link = queue_of(f.rank, (u32)f.table.head.blocks + (u32)to.rank);
        ask_wait(link, recorded(own(f)));
        ask_copy(link, at(to), at(from), (size_t)length * width);
        f.copies.push_back(&recorded(link));
    }

    /* A step; false: what it waits for has not been asked for yet. */
    bool step(Follower &f) {
        const Step &step = f.table.steps[f.at];
        const Argument *a = f.table.arguments + step.first;
        switch (step.kind) {
        case SIGNAL: /* behind a sync, if anything is to be told */
            for (i64 k = 0; k < step.count; ++k)
                told[std::make_tuple(f.stream, (u32)f.table.head.rank, (u32)a[k].rank, a[k].number)] = &recorded(own(f));
            break;
        case WAIT:
            for (; f.part < step.count; ++f.part) {
                const Argument &one = a[f.part];
                const auto found = told.find(std::make_tuple(f.stream, (u32)one.rank, (u32)f.table.head.rank, one.number));
                if (found == told.end()) return false;
                ask_wait(own(f), *found->second);
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
    ByHost(u32 lanes, bool by_copies, int type) : lanes(lanes), by_copies(by_copies), width(WIDTHS[type]) {}

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
        return nullptr;
    }
};

}  // namespace

int ad_by_host(u32 count, void *const *ranks, void *const *plans, i64 unit, int type, int op, u32 lanes, int by_copies,
               char *const *buffers, const i64 *lengths, double seconds) {
    std::vector<Follower> all;
    for (u32 i = 0; i < count; ++i) {
        Rank &rank = *(Rank *)ranks[i];
        Plan &plan = *(Plan *)plans[i];
        if (plan.table.head.atoms) return why = "packets go by one kernel, not by steps", 1;
        if (prepare(rank, plan, 0, unit, type, op, 1, 1, buffers, lengths)) return 1;
        const Size &size = size_at(plan);
        for (i64 k = 0; k < plan.table.head.blocks; ++k) {
            const Block &block = plan.table.blocks[k];
            all.push_back({rank, plan.table, {size.cuts.data(), plan.table.head.parts, unit}, size.shift.data(), (u32)k, block.first, block.first + block.count, 0, {}});
        }
    }
    ByHost host(lanes ? lanes : 1, by_copies != 0, type);
    why = host.go(all);
    int code = why != nullptr;
    for (u32 i = 0; i < count; ++i) code |= end_queues(*(Rank *)ranks[i], seconds);
    return code;
}
