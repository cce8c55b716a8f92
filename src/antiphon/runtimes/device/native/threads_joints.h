/* Joint memory (device.h) on processor threads, in place of switches that multicast and reduce: a reserved address range, which
 * must not be accessed, stands for the memory of all ranks. joint.h looks up the ranks' addresses here. Part of threads.cc.
 *
 * Threading: the list has a lock; a thread caches the joint that it looked up last until `joints_version` changes.
 *   Joints are made one at a time, by the thread that connects this process (device/memory.py).
 * Ownership: `joints` holds the memory until ad_joint_free.
 */
#pragma once
#include "joints.h"

namespace {

Joints joints;
thread_local Joint cached; /* the joint that this thread looked up last */
thread_local u32 cached_version = 0; /* the version of the list at that time; 0: nothing was looked up yet */
std::atomic<u32> joints_version{1};  /* changes with the list */

const Joint &find_joint(const void *address) {
    const u32 version = joints_version.load(std::memory_order_relaxed);
    const char *const at = (const char *)address;
    if (cached_version != version || at < cached.multicast || at >= cached.multicast + cached.bytes)
        cached = joints.find(address), cached_version = version;
    return cached;
}

}  // namespace

i64 joined_ranks(const void *address) { return (i64)find_joint(address).address_of.size(); }
char *joined_at(const void *address, i64 rank) {
    const Joint &joint = find_joint(address);
    return joint.address_of[(size_t)rank] + ((const char *)address - joint.multicast);
}

int ad_joint_new(u32 count, void *const *, size_t bytes, void **memory) {
    Joint joint = {{}, whole_steps(bytes, 64), nullptr}; /* whole cache lines of 64 bytes */
    joint.multicast = (char *)mmap(nullptr, joint.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (joint.multicast == MAP_FAILED) return failure = "no address for all ranks can be had", 1;
    bool ok = true;
    for (u32 i = 0; i < count; ++i) {
        joint.address_of.push_back((char *)(memory[i] = aligned_alloc(64, joint.bytes)));
        ok &= memory[i] != nullptr;
    }
    if (!ok) {
        for (char *address : joint.address_of) free(address);
        return munmap(joint.multicast, joint.bytes), failure = "no memory for all ranks can be had", 1;
    }
    for (char *address : joint.address_of) memset(address, 0, joint.bytes);
    joints.add(joint), joints_version.fetch_add(1);
    return 0;
}

void ad_joint_free(void *, void *memory) {
    const Joint joint = joints.take(memory);
    joints_version.fetch_add(1);
    /* frees memory of ad_joint_new, and unmaps the shared memory of ad_joint_all, own or reached */
    for (char *address : joint.address_of) ad_memory_free(nullptr, address);
    if (joint.multicast) munmap(joint.multicast, joint.bytes);
}

namespace {
size_t entered_bytes = 0; /* bytes per rank of the joint memory between ad_joint_enter and ad_joint_all */
}

/* The token of a joint carries its size alone; -1 is in place of a descriptor, as each rank makes its shared memory
 * later (ad_joint_own). */
int ad_joint_make(void *, u32, size_t bytes, void *token) {
    const Token joint = {getpid(), -1, whole_steps(bytes, 64)};
    memset(token, 0, TOKEN), memcpy(token, &joint, sizeof joint);
    return 0;
}

int ad_joint_enter(void *, const void *token) {
    Token other;
    memcpy(&other, token, sizeof other);
    return entered_bytes = other.bytes, 0;
}

void *ad_joint_own(void *rank, void *token) { return ad_memory_shared(rank, entered_bytes, token); }
void *ad_joint_reached(void *rank, const void *token) { return ad_memory_reached(rank, token); }

int ad_joint_all(u32 ranks, void *const *memory) {
    Joint joint = {{}, entered_bytes, nullptr};
    joint.multicast = (char *)mmap(nullptr, joint.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (joint.multicast == MAP_FAILED) return failure = "no address for all ranks can be had", 1;
    for (u32 i = 0; i < ranks; ++i) joint.address_of.push_back((char *)memory[i]);
    joints.add(joint), joints_version.fetch_add(1);
    return entered_bytes = 0;
}

void ad_joint_dropped() { entered_bytes = 0; }
