/* ad_by_host (device.h): the host makes a call of the ranks of its process step by step. Each step (table.h) is enqueued on
 * queues of the devices: a fold as a kernel; a put, which writes to another rank, as a kernel or as a copy by copy engines.
 *
 * Signals between these ranks become events, so no kernel waits for another. Signals to ranks of other processes are stored by
 * a kernel of one thread, and a kernel of one thread waits for theirs. Their values are those of the kernel for whole calls
 * (kernel.h), so each process may make the call in its own way.
 *
 * Every rank has a queue per stream, and one per peer for the copies of all streams to it. BY_STAGES: copies go through memory
 * of the host, over PCIe instead of the links between GPUs. Then the peer's queue copies to the host and a second queue from
 * there to the peer, in two halves of the memory that take turns. Each device defines, before it includes this file:
 *
 *     const char *unreached(const Plan &)          why kernels cannot access the memory of its steps, or NULL
 *     Queue &queue_of(Rank &, u32 number)          a queue of a rank, created by the first use
 *     Event *event_of(Queue &, size_t number)      an event that this queue may record; every call uses it again
 *     void enqueue_copy(Queue &, void *to, const void *from, size_t bytes)
 *     char *stage_of(Queue &)                      2 * STAGE bytes of host memory for this queue; NULL: out of memory
 *     void enqueue_step(Queue &, const Run &, const Step *step, u32 lanes)
 *     void enqueue_record(Queue &, Event &)        the event happens when all that was enqueued before is done
 *     void enqueue_wait(Queue &, Event &)          all that is enqueued later waits for this event, recorded before
 *     void enqueue_signal(Queue &, u64 *at, u64 value)    store a signal; who sees it also sees all that was enqueued before
 *     void enqueue_await(Queue &, const u64 *at, u64 value, const u32 *stop)    wait for a signal, or until *stop is not 0
 *     const u32 *begin_queues(Rank &)              clear the rank's stop flag; return its address on the device
 *     bool queues_end_by(Rank &, double end)       whether all that is enqueued for a rank is done by then (a time of now())
 *     void stop_queues(Rank &)                     set the stop flag: waits end, and later work is skipped
 *     int end_queues(Rank &)                       wait until all that is enqueued for a rank is done; 0: no error
 *     int prepare(Rank &, Plan &, u64 call, ...)   set the arguments of its kernels (rank.run); 0: no error
 *     const Size &size_at(const Plan &)            the cuts and shifts that `prepare` computed, in memory of the host (bind.h)
 *     double now()                                 seconds of a monotonic clock
 *     const char *failure                          the message of the last error in this thread
 *
 * Threading: the thread of the ranks enqueues everything; queues run asynchronously.
 * Ownership: queues and events belong to ranks and devices; the state of a call is on the stack of ad_by_host.
 */
#pragma once
#include <map>
#include <tuple>

#include "bind.h"
#include "device.h"
#include "kernel.h"

namespace {

/* How far a rank is in a stream: its steps up to `at`, and `waits_done` arguments of a WAIT there, are enqueued. */
struct Follower {
    Rank &rank;
    const Table &table;
    Line line;        /* line and shift as in Run (kernel.h), but in memory of the host, which reads them here */
    const i64 *shift;
    u32 stream;     /* its number at the rank */
    i64 at, end;    /* numbers of the next step, and of the first that is not of this stream */
    i64 waits_done;
    std::vector<Event *> copies; /* the ends of copies that the stream does not wait for yet */
};

/* Host memory for copies from a rank to a peer. */
struct Staging {
    char *memory = nullptr;
    u32 turn = 0;                           /* halves filled so far */
    Event *drained[2] = {nullptr, nullptr}; /* per half, when the peer has its data */
};

class ByHost {
    /* events in place of signals between ranks of this process, by stream, sender, receiver, number of the signal */
    std::map<std::tuple<u32, u32, u32, i64>, Event *> signal_events;
    size_t events = 0; /* used so far in this call */
    u64 call;          /* its number, for signals to other processes */
    u32 lanes;         /* thread blocks of a kernel */
    bool by_copies;    /* puts are copies: BY_COPIES, BY_STAGES */
    bool staged;       /* through memory of the host: BY_STAGES */
    size_t width;      /* bytes of an element */
    std::map<std::pair<u32, u32>, Staging> stages; /* by rank and peer */
    std::vector<const u32 *> stop_of; /* per rank its stop flag; NULL: a rank of another process */

    /* The index of a sender's signal for this stream among the signals of a rank, which here are those of one lane. */
    static i64 signal_index(const Follower &f, i64 sender) { return (i64)f.stream * f.table.head.ranks + sender; }

    Queue &stream_queue(Follower &f) { return queue_of(f.rank, f.stream); }

    Event &record_event(Queue &queue) {
        Event &event = *event_of(queue, events++);
        enqueue_record(queue, event);
        return event;
    }

    /* Makes the later steps of the stream wait for its copies. */
    void wait_for_copies(Follower &f) {
        for (Event *signal : f.copies) enqueue_wait(stream_queue(f), *signal);
        f.copies.clear();
    }

    /* Enqueues the copy of a place. Places count in whole units of the line, then cuts within a unit (`part`, table.h). */
    void copy(Follower &f, const Argument &from, const Argument &to) {
        const i64 end = to.part + to.number;
        const i64 length = f.line.at(to.whole + end / f.line.parts, end % f.line.parts) - f.line.at(to.whole, to.part);
        if (!length) return;
        const auto at = [&](const Argument &a) {
            const i64 element = f.shift[a.region] + f.line.at(a.whole, a.part);
            return f.rank.peers[(size_t)a.rank].buffer[f.table.region(a.region).buffer] + element * (i64)width;
        };
        const i64 peer = to.rank == f.table.head.rank ? from.rank : to.rank; /* a put may also read from the peer */
        /* queues of a rank: one per stream (`blocks`), then one per peer, then a second one per peer for stages */
        Queue &link = queue_of(f.rank, (u32)(f.table.head.blocks + peer));
        enqueue_wait(link, record_event(stream_queue(f))); /* for the earlier steps of the stream */
        if (staged && to.rank != f.table.head.rank)
            f.copies.push_back(copy_by_stages(f, (u32)to.rank, link, at(to), at(from), (size_t)length * width));
        else {
            enqueue_copy(link, at(to), at(from), (size_t)length * width);
            f.copies.push_back(&record_event(link));
        }
    }

    /* Copies STAGE bytes at a time: while one half goes on to the peer, the other is filled. Returns the last copy's event. */
    Event *copy_by_stages(Follower &f, u32 to, Queue &link, char *target, const char *source, size_t bytes) {
        Queue &onward = queue_of(f.rank, (u32)(f.table.head.blocks + f.table.head.ranks) + to);
        Staging &stage = stages[{(u32)f.table.head.rank, to}];
        if (!stage.memory && !(stage.memory = stage_of(link)))
            return problem = "no room in the memory of the host", &record_event(link);
        for (size_t done = 0; done < bytes; done += STAGE) {
            const size_t chunk = bytes - done < STAGE ? bytes - done : (size_t)STAGE;
            const u32 half = stage.turn++ % 2;
            char *const between = stage.memory + half * (size_t)STAGE;
            if (stage.drained[half]) enqueue_wait(link, *stage.drained[half]); /* else this half was not used yet */
            enqueue_copy(link, between, source + done, chunk);
            enqueue_wait(onward, record_event(link));
            enqueue_copy(onward, target + done, between, chunk);
            stage.drained[half] = &record_event(onward);
        }
        return stage.drained[(stage.turn - 1) % 2];
    }

    /* Enqueues a step; false: a signal that it waits for has not been enqueued yet. */
    bool step(Follower &f) {
        const Step &step = f.table.steps[f.at];
        const Argument *a = f.table.arguments + step.first;
        switch (step.kind) {
        case SIGNAL: /* a SYNC precedes it if there are copies to signal */
            for (i64 k = 0; k < step.count; ++k)
                if (!stop_of[(size_t)a[k].rank])
                    enqueue_signal(stream_queue(f),
                                   f.rank.peers[(size_t)a[k].rank].signals + signal_index(f, f.table.head.rank),
                                   signal_of(call, /* round */ 0, a[k].number));
                else
                    signal_events[std::make_tuple(f.stream, (u32)f.table.head.rank, (u32)a[k].rank, a[k].number)] =
                        &record_event(stream_queue(f));
            break;
        case WAIT:
            for (; f.waits_done < step.count; ++f.waits_done) {
                const Argument &signal = a[f.waits_done];
                if (!stop_of[(size_t)signal.rank]) {
                    const size_t me = (size_t)f.table.head.rank;
                    enqueue_await(stream_queue(f), f.rank.peers[me].signals + signal_index(f, signal.rank),
                                  signal_of(call, /* round */ 0, signal.number), stop_of[me]);
                    continue;
                }
                const auto event = signal_events.find(
                    std::make_tuple(f.stream, (u32)signal.rank, (u32)f.table.head.rank, signal.number));
                if (event == signal_events.end()) return false;
                enqueue_wait(stream_queue(f), *event->second);
            }
            break;
        case SYNC: wait_for_copies(f); break;
        default:
            if (step.kind == PUT && by_copies)
                for (i64 k = 0; k < step.count; k += 2) copy(f, a[k], a[k + 1]);
            else
                enqueue_step(stream_queue(f), f.rank.run, f.rank.run.steps + f.at, lanes);
        }
        f.waits_done = 0;
        return true;
    }

  public:
    const char *problem = nullptr;

    ByHost(u64 call, u32 lanes, int method, int type, std::vector<const u32 *> stop_of)
        : call(call), lanes(lanes), by_copies(method != BY_STEPS), staged(method == BY_STAGES), width(WIDTHS[type]),
          stop_of(std::move(stop_of)) {}

    /* Enqueues the whole call; returns a problem, or NULL. Streams are advanced in turn, each until a signal is missing: in a
     * legal plan signals form no cycle, so some stream can always go on. */
    const char *enqueue_all(std::vector<Follower> &all) {
        for (bool any = true; any;) {
            any = false;
            for (Follower &f : all)
                for (; f.at < f.end && step(f); ++f.at) any = true;
        }
        for (Follower &f : all)
            if (f.at < f.end) return "somebody waits for a signal that nobody gives";
        for (Follower &f : all) wait_for_copies(f);
        return problem;
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
        if (plan.table.head.by_packets()) return failure = "packets go by one kernel, not by steps", 1;
        if (method == BY_STEPS && (failure = unreached(plan))) return 1; /* copies need no access */
        /* call 0: its kernels carry out steps without signals; the number counts only in signals to other processes */
        if (prepare(rank, plan, /* call */ 0, unit, type, op, /* lanes */ 1, /* rounds */ 1, buffers, lengths)) return 1;
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
    const char *problem = host.enqueue_all(all);
    bool late = false;
    const double end = now() + (seconds > 0 ? seconds : 1e9); /* 0: no limit */
    /* end 0 is over: with a problem, or after a rank that is late, do not wait */
    for (u32 i = 0; i < count; ++i) late |= !queues_end_by(*(Rank *)ranks[i], problem || late ? 0 : end);
    for (u32 i = 0; i < count && late; ++i) stop_queues(*(Rank *)ranks[i]);
    int code = 0;
    for (u32 i = 0; i < count; ++i) code |= end_queues(*(Rank *)ranks[i]);
    if (problem) return failure = problem, 1;
    return code ? 1 : late ? (failure = "its time was up", -1) : 0;
}
