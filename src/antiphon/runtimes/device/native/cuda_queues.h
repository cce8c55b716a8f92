/* The queue functions that by_steps.h calls (it says what each does), on GPUs: a queue is a CUDA stream, a step a kernel, a copy
 * is for copy engines. Part of cuda.cu.
 *
 * Threading: the thread of the ranks. The first error of CUDA during a call is noted, and end_queues reports it.
 * Ownership: a rank owns its queues, a device its events.
 */
#pragma once

namespace {

cuda(Error_t) first_error = cuda(Success); /* since the last call ended */

void note_error(cuda(Error_t) code) {
    if (first_error == cuda(Success)) first_error = code;
}

const Size &size_at(const Plan &plan) { return plan.size; }

Queue &queue_of(Rank &rank, u32 number) {
    std::unique_ptr<Queue> &entry = rank.queues[number];
    if (entry) return *entry;
    entry.reset(new Queue{rank.device, /* stream */ nullptr, rank.threads, /* stage */ nullptr});
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

void enqueue_copy(Queue &queue, void *to, const void *from, size_t bytes) {
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(MemcpyAsync)(to, from, bytes, cuda(MemcpyDefault), queue.stream));
}

char *stage_of(Queue &queue) {
    if (!queue.stage) note_error(cuda(HostAlloc)((void **)&queue.stage, 2 * STAGE, cuda(HostAllocPortable)));
    return queue.stage;
}

void enqueue_step(Queue &queue, const Run &run, const Step *step, u32 lanes) {
    void *arguments[] = {const_cast<Run *>(&run), &step};
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(LaunchKernel)(KERNELS[run.type].step, dim3(lanes), dim3(queue.threads), arguments, 0, queue.stream));
}

void enqueue_record(Queue &queue, Event &event) {
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(EventRecord)(event.event, queue.stream));
}

void enqueue_wait(Queue &queue, Event &event) {
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(StreamWaitEvent)(queue.stream, event.event, 0));
}

void enqueue_signal(Queue &queue, u64 *at, u64 value) {
    void *arguments[] = {&at, &value};
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(LaunchKernel)((const void *)antiphon_signal, dim3(1), dim3(1), arguments, 0, queue.stream));
}

void enqueue_await(Queue &queue, const u64 *at, u64 value, const u32 *stop) {
    void *arguments[] = {&at, &value, &stop};
    note_error(cuda(SetDevice)(queue.device->number));
    note_error(cuda(LaunchKernel)((const void *)antiphon_await, dim3(1), dim3(1), arguments, 0, queue.stream));
}

/* stop_on_host and stop: the same word, by its addresses on the host and on the device. */
const u32 *begin_queues(Rank &rank) {
    *(volatile u32 *)rank.device->stop_on_host = 0;
    return rank.device->stop;
}

/* Only waits for ranks of other processes can hang: those are kernels, which stop_queues ends. Among ranks of one process
 * nothing hangs, as every wait is enqueued after the record of its event. */
bool queues_end_by(Rank &rank, double end) {
    for (const auto &queue : rank.queues) {
        cuda(Error_t) state;
        while ((state = cuda(StreamQuery)(queue.second->stream)) == cuda(ErrorNotReady))
            if (now() > end) return false;
        note_error(state);
    }
    return true;
}

void stop_queues(Rank &rank) { *(volatile u32 *)rank.device->stop_on_host = 1; }

int end_queues(Rank &rank) {
    for (const auto &queue : rank.queues) note_error(cuda(StreamSynchronize)(queue.second->stream));
    const cuda(Error_t) code = first_error;
    first_error = cuda(Success);
    return code != cuda(Success) && (failure = cuda(GetErrorString)(code));
}

void drop_queues(Rank &rank) {
    for (const auto &queue : rank.queues) {
        (void)cuda(StreamDestroy)(queue.second->stream);
        if (queue.second->stage) (void)cuda(FreeHost)(queue.second->stage);
    }
}

}  // namespace
