/* In place of switches that combine: an address that must not be accessed stands for the memory of all ranks. Part of threads.cc.
 *
 * Threading: the list has a lock; a thread caches what it looked up until `joint_changes` counts on.
 * Ownership: `joints` holds the memory until ad_joint_free.
 */
#pragma once
#include "joints.h"

namespace {

Joints joints;
thread_local Joint met; /* what was looked up last */
thread_local u32 met_when = 0;
std::atomic<u32> joint_changes{1};

const Joint &behind(const void *at) {
    const u32 now = joint_changes.load(std::memory_order_relaxed);
    if (met_when != now || (const char *)at < met.multicast || (const char *)at >= met.multicast + met.bytes)
        met = joints.behind(at), met_when = now;
    return met;
}

}  // namespace

i64 joined_ranks(const void *at) { return (i64)behind(at).address_of.size(); }
char *joined_at(const void *at, i64 rank) {
    const Joint &joint = behind(at);
    return joint.address_of[(size_t)rank] + ((const char *)at - joint.multicast);
}

int ad_joint_new(u32 count, void *const *, size_t bytes, void **memory) {
    Joint joint = {{}, whole_steps(bytes, 64), nullptr};
    joint.multicast = (char *)mmap(nullptr, joint.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (joint.multicast == MAP_FAILED) return failure = "no address for all ranks can be had", 1;
    for (u32 i = 0; i < count; ++i) joint.address_of.push_back((char *)(memory[i] = aligned_alloc(64, joint.bytes)));
    for (char *address : joint.address_of) memset(address, 0, joint.bytes);
    joints.add(joint), joint_changes.fetch_add(1);
    return 0;
}

void ad_joint_free(void *, void *memory) {
    const Joint joint = joints.take(memory);
    joint_changes.fetch_add(1);
    for (char *address : joint.address_of) ad_memory_free(nullptr, address);
    if (joint.multicast) munmap(joint.multicast, joint.bytes);
}

namespace {
size_t entered = 0; /* bytes of what ranks of this process have entered */
}

int ad_joint_make(void *, u32, size_t bytes, void *token) {
    const Token joint = {getpid(), -1, whole_steps(bytes, 64)};
    memset(token, 0, TOKEN), memcpy(token, &joint, sizeof joint);
    return 0;
}

int ad_joint_enter(void *, const void *token) {
    Token other;
    memcpy(&other, token, sizeof other);
    return entered = other.bytes, 0;
}

void *ad_joint_own(void *rank, void *token) { return ad_memory_shared(rank, entered, token); }
void *ad_joint_reached(void *rank, const void *token) { return ad_memory_reached(rank, token); }

int ad_joint_all(u32 ranks, void *const *memory) {
    Joint joint = {{}, entered, nullptr};
    joint.multicast = (char *)mmap(nullptr, joint.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (joint.multicast == MAP_FAILED) return failure = "no address for all ranks can be had", 1;
    for (u32 i = 0; i < ranks; ++i) joint.address_of.push_back((char *)memory[i]);
    joints.add(joint), joint_changes.fetch_add(1);
    return entered = 0;
}

void ad_joint_dropped() { entered = 0; }
