/* Queues of by_steps.h on GPUs: streams, events, copies by their engines, a kernel for a step. Part of cuda.cu.
 *
 * Threading: the thread of the ranks; the first error since the last call ended is noted, and reported at its end.
 * Ownership: a rank owns its queues, a device its events.
 */
#pragma once

namespace {

cuda(Error_t) failed_here = cuda(Success); /* the first that went wrong since the last call ended */

void note_error(cuda(Error_t) code) {
    if (failed_here == cuda(Success)) failed_here = code;
}

const Size &size_at(const Plan &plan) { return plan.size; }

Queue &queue_of(Rank &rank, u32 number) {
    std::unique_ptr<Queue> &entry = rank.queues[number];
    if (entry) return *entry;
    entry.reset(new Queue{rank.device, nullptr, rank.threads, nullptr});
    note_error(cuda(SetDevice)(rank.device->number));
    note_error(cuda(StreamCreateWithFlags)(&entry->stream, cuda(StreamNonBlocking)));
    return *entry;
}

Event *event_of(Queue &queue, size_t number) {
    std::unique_ptr<Event> &entry = queue.device->events[number];
    if (entry) return entry.get();
    entry.reset(new Event);
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(EventCreateWithFlags)(&entry->event, cuda(EventDisableTiming)));
    return entry.get();
}

void ask_copy(Queue &queue, void *to, const void *from, size_t bytes) {
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(MemcpyAsync)(to, from, bytes, cuda(MemcpyDefault), queue.stream));
}

char *stage_of(Queue &queue) {
    if (!queue.stage) note_error(cuda(HostAlloc)((void **)&queue.stage, 2 * STAGE, cuda(HostAllocPortable)));
    return queue.stage;
}

void ask_step(Queue &queue, const Run &run, const Step *step, u32 lanes) {
    void *arguments[] = {const_cast<Run *>(&run), &step};
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(LaunchKernel)(KERNELS[run.type].step, dim3(lanes), dim3(queue.threads), arguments, 0, queue.stream));
}

void ask_record(Queue &queue, Event &event) {
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(EventRecord)(event.event, queue.stream));
}

void ask_wait(Queue &queue, Event &event) {
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(StreamWaitEvent)(queue.stream, event.event, 0));
}

void ask_tell(Queue &queue, u64 *at, u64 value) {
    void *arguments[] = {&at, &value};
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(LaunchKernel)((const void *)antiphon_tell, dim3(1), dim3(1), arguments, 0, queue.stream));
}

void ask_await(Queue &queue, const u64 *at, u64 value, const u32 *stop) {
    void *arguments[] = {&at, &value, &stop};
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(LaunchKernel)((const void *)antiphon_await, dim3(1), dim3(1), arguments, 0, queue.stream));
}

const u32 *begin_queues(Rank &rank) {
    *(volatile u32 *)rank.device->stop_here = 0;
    return rank.device->stop;
}

/* Among the ranks of one process nothing can hang: every wait is enqueued behind what it waits for. For those of other
 * processes kernels wait, which are stopped. */
bool queues_end_by(Rank &rank, double end) {
    for (const auto &queue : rank.queues) {
        cuda(Error_t) state;
        while ((state = cuda(StreamQuery)(queue.second->stream)) == cuda(ErrorNotReady))
            if (now() > end) return false;
        note_error(state);
    }
    return true;
}

void stop_queues(Rank &rank) { *(volatile u32 *)rank.device->stop_here = 1; }

int end_queues(Rank &rank) {
    for (const auto &queue : rank.queues) note_error(cuda(StreamSynchronize)(queue.second->stream));
    const cuda(Error_t) code = failed_here;
    failed_here = cuda(Success);
    return code != cuda(Success) && (failure = cuda(GetErrorString)(code));
}

void drop_queues(Rank &rank) {
    for (const auto &queue : rank.queues) {
        (void)cuda(StreamDestroy)(queue.second->stream);
        if (queue.second->stage) (void)cuda(FreeHost)(queue.second->stage);
    }
}

}  // namespace
