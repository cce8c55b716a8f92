/* The list of joint memory (device.h): one allocation of all ranks, with an address at each rank and a multicast address. Host
 * only.
 *
 * Threading: a lock for the list; `any` lets calls without such memory skip it. Ownership: the list only; whoever maps the
 *   memory frees it.
 */
#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "world.h"

/* The least multiple of `step` that holds so many bytes, and at least one step. */
inline size_t whole_steps(size_t bytes, size_t step) { return (bytes ? (bytes + step - 1) / step : 1) * step; }

/* Joint memory; without addresses: none. */
struct Joint {
    std::vector<char *> address_of; /* by rank */
    size_t bytes;    /* of each rank */
    char *multicast; /* its multicast address */
};

class Joints {
    std::mutex lock;
    std::vector<Joint> list;
    std::atomic<bool> any{false}; /* whether the list has any: most groups have none, and ask for each call */

  public:
    void add(const Joint &joint) {
        const std::lock_guard<std::mutex> hold(lock);
        list.push_back(joint), any.store(true);
    }
    /* Removes and returns the one whose address at rank 0 this is. */
    Joint take(const void *memory) {
        const std::lock_guard<std::mutex> hold(lock);
        for (size_t i = 0; i < list.size(); ++i)
            if (list[i].address_of[0] == memory) {
                const Joint joint = list[i];
                list.erase(list.begin() + (ptrdiff_t)i), any.store(!list.empty());
                return joint;
            }
        return {};
    }
    /* The multicast address of places, if all ranks' are at the same offset of joint memory; else NULL. places[3 * rank]: the
     * place of a rank, as callers pass an element of an array with three buffers per rank. */
    char *address(char *const *places, u32 ranks) {
        if (!any.load()) return nullptr;
        const std::lock_guard<std::mutex> hold(lock);
        for (const Joint &joint : list) {
            if (joint.address_of.size() != ranks) continue;
            if (places[0] < joint.address_of[0] || places[0] >= joint.address_of[0] + joint.bytes) continue;
            const ptrdiff_t at = places[0] - joint.address_of[0];
            bool alike = true;
            for (u32 i = 0; i < ranks; ++i) alike &= places[3 * i] == joint.address_of[i] + at;
            if (alike) return joint.multicast + at;
        }
        return nullptr;
    }
    /* The joint memory that contains this multicast address; empty if there is none. */
    Joint find(const void *at) {
        const std::lock_guard<std::mutex> hold(lock);
        for (const Joint &joint : list)
            if ((const char *)at >= joint.multicast && (const char *)at < joint.multicast + joint.bytes) return joint;
        return {};
    }
};
