/* What by_steps.h asks of GPUs: streams, events, copies by their engines, a kernel for a step. Part of cuda.cu. */
#pragma once

namespace {

cuda(Error_t) failed_here = cuda(Success); /* the first that went wrong since the last call ended */

void asked(cuda(Error_t) code) {
    if (failed_here == cuda(Success)) failed_here = code;
}

const Size &size_at(const Plan &plan) { return plan.size; }

Queue &queue_of(Rank &rank, u32 number) {
    std::unique_ptr<Queue> &found = rank.queues[number];
    if (found) return *found;
    found.reset(new Queue{rank.device, nullptr, rank.threads, nullptr});
    asked(cuda(SetDevice)(rank.device->number));
    asked(cuda(StreamCreateWithFlags)(&found->stream, cuda(StreamNonBlocking)));
    return *found;
}

Event *event_of(Queue &queue, size_t number) {
    std::unique_ptr<Event> &found = queue.device->events[number];
    if (found) return found.get();
    found.reset(new Event);
    asked(cuda(SetDevice)(queue.device->number));
    asked(cuda(EventCreateWithFlags)(&found->event, cuda(EventDisableTiming)));
    return found.get();
}

void ask_copy(Queue &queue, void *to, const void *from, size_t bytes) {
    asked(cuda(SetDevice)(queue.device->number));
    asked(cuda(MemcpyAsync)(to, from, bytes, cuda(MemcpyDefault), queue.stream));
}

char *stage_of(Queue &queue) {
    if (!queue.stage) asked(cuda(HostAlloc)((void **)&queue.stage, 2 * STAGE, cuda(HostAllocPortable)));
    return queue.stage;
}

void ask_step(Queue &queue, const Run &run, const Step *step, u32 lanes) {
    void *arguments[] = {const_cast<Run *>(&run), &step};
    asked(cuda(SetDevice)(queue.device->number));
    asked(cuda(LaunchKernel)(STEPS[run.type], dim3(lanes), dim3(queue.threads), arguments, 0, queue.stream));
}

void ask_record(Queue &queue, Event &event) {
    asked(cuda(SetDevice)(queue.device->number));
    asked(cuda(EventRecord)(event.event, queue.stream));
}

void ask_wait(Queue &queue, Event &event) {
    asked(cuda(SetDevice)(queue.device->number));
    asked(cuda(StreamWaitEvent)(queue.stream, event.event, 0));
}

void ask_tell(Queue &queue, u64 *at, u64 value) {
    void *arguments[] = {&at, &value};
    asked(cuda(SetDevice)(queue.device->number));
    asked(cuda(LaunchKernel)((const void *)antiphon_tell, dim3(1), dim3(1), arguments, 0, queue.stream));
}

void ask_await(Queue &queue, const u64 *at, u64 value, const u32 *stop) {
    void *arguments[] = {&at, &value, &stop};
    asked(cuda(SetDevice)(queue.device->number));
    asked(cuda(LaunchKernel)((const void *)antiphon_await, dim3(1), dim3(1), arguments, 0, queue.stream));
}

const u32 *begin_queues(Rank &rank) {
    *(volatile u32 *)rank.device->stop_here = 0;
    return rank.device->stop;
}

/* Among the ranks of one process nothing can hang: whatever waits was asked for behind what it waits for. For those of other
 * processes kernels wait, which are stopped. */
bool queues_end_by(Rank &rank, double end) {
    for (const auto &one : rank.queues) {
        cuda(Error_t) state;
        while ((state = cuda(StreamQuery)(one.second->stream)) == cuda(ErrorNotReady))
            if (now() > end) return false;
        asked(state);
    }
    return true;
}

void stop_queues(Rank &rank) { *(volatile u32 *)rank.device->stop_here = 1; }

int end_queues(Rank &rank) {
    for (const auto &one : rank.queues) asked(cuda(StreamSynchronize)(one.second->stream));
    const cuda(Error_t) code = failed_here;
    failed_here = cuda(Success);
    return code != cuda(Success) && (why = cuda(GetErrorString)(code));
}

void drop_queues(Rank &rank) {
    for (const auto &one : rank.queues) {
        (void)cuda(StreamDestroy)(one.second->stream);
        if (one.second->stage) (void)cuda(FreeHost)(one.second->stage);
    }
}

}  // namespace
