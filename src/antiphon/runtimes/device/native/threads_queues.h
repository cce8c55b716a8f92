/* Queues of by_steps.h on threads: each has a thread; and events. Part of threads.cc.
 *
 * Threading: a Queue has a lock; events are atomic (acquire and release). Ownership: a rank owns its queues.
 */
#pragma once

namespace {

Queue &queue_of(Rank &rank, u32 number) { return rank.queues.try_emplace(number, &rank.stop).first->second; }

/* Events are used again by every call of this thread, and any queue may record any of them. A deque, as queues keep their
 * addresses. */
Event *event_of(Queue &, size_t number) {
    static thread_local std::deque<Event> events;
    while (events.size() <= number) events.emplace_back();
    events[number].happened.store(false, std::memory_order_relaxed);
    return &events[number];
}

void enqueue_copy(Queue &queue, void *to, const void *from, size_t bytes) {
    queue.enqueue([=, &queue] {
        if (!load_stop_flag(queue.stop)) memcpy(to, from, bytes);
    });
}

char *stage_of(Queue &queue) {
    queue.stage.resize(2 * STAGE); /* two halves of STAGE bytes, which take turns (by_steps.h) */
    return queue.stage.data();
}

void enqueue_step(Queue &queue, const Run &run, const Step *step, u32 lanes) {
    queue.enqueue([=] { /* the lanes one after another, in one thread */
        for (u32 lane = 0; lane < lanes && !load_stop_flag(run.stop); ++lane)
            typed(run.type, [&](auto *type) { carry_out<Value<decltype(type)>>(run, *step, {lane, lanes}); });
    });
}

void enqueue_record(Queue &queue, Event &event) {
    queue.enqueue([&event] { event.happened.store(true, std::memory_order_release); });
}

void enqueue_wait(Queue &queue, Event &event) {
    queue.enqueue([&event] { /* ends also if calls are stopped, as recording events is never skipped */
        while (!event.happened.load(std::memory_order_acquire)) back_off();
    });
}

void enqueue_signal(Queue &queue, u64 *at, u64 value) {
    queue.enqueue([=, &queue] {
        if (!load_stop_flag(queue.stop)) store(at, value);
    });
}

/* `stop`: what begin_queues returned for the rank, here the same flag as queue.stop. */
void enqueue_await(Queue &queue, const u64 *at, u64 value, const u32 *stop) {
    queue.enqueue([=] { (void)has_come(at, value, stop); });
}

const u32 *begin_queues(Rank &rank) {
    __atomic_store_n(&rank.stop, 0, __ATOMIC_RELAXED);
    return &rank.stop;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool queues_end_by(Rank &rank, double end) {
    for (auto &queue : rank.queues)
        if (!queue.second.is_idle_by(end)) return false;
    return true;
}

void stop_queues(Rank &rank) { __atomic_store_n(&rank.stop, 1, __ATOMIC_RELAXED); }

int end_queues(Rank &rank) {
    for (auto &queue : rank.queues) queue.second.wait_until_idle();
    return 0;
}

}  // namespace
