/* Memory that all ranks of this process have alike, as the host knows it: by address and rank. Host only.
 *
 * Threading: a lock for the list; `any` lets calls without such memory skip it. Ownership: the list only; who maps the memory
 *   frees it.
 */
#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "world.h"

/* The least multiple of `step` that holds so many bytes, and at least one step. */
inline size_t whole_steps(size_t bytes, size_t step) { return (bytes ? (bytes + step - 1) / step : 1) * step; }

struct Joint {
    std::vector<char *> of; /* where each rank has it */
    size_t bytes;
    char *all; /* its multicast address */
};

class Joints {
    std::mutex lock;
    std::vector<Joint> list;
    std::atomic<bool> any{false}; /* most groups have none, and ask for each call */

  public:
    void add(const Joint &joint) {
        const std::lock_guard<std::mutex> hold(lock);
        list.push_back(joint), any.store(true);
    }
    /* The one that begins there at rank 0, which is known no more. */
    Joint take(const void *memory) {
        const std::lock_guard<std::mutex> hold(lock);
        for (size_t i = 0; i < list.size(); ++i)
            if (list[i].of[0] == memory) {
                const Joint joint = list[i];
                list.erase(list.begin() + (ptrdiff_t)i), any.store(!list.empty());
                return joint;
            }
        return {};
    }
    /* The multicast address of places of all ranks, three addresses apart, where there is one; else NULL. */
    char *address(char *const *places, u32 ranks) {
        if (!any.load()) return nullptr;
        const std::lock_guard<std::mutex> hold(lock);
        for (const Joint &joint : list) {
            if (joint.of.size() != ranks || places[0] < joint.of[0] || places[0] >= joint.of[0] + joint.bytes) continue;
            const ptrdiff_t at = places[0] - joint.of[0];
            bool alike = true;
            for (u32 i = 0; i < ranks; ++i) alike &= places[3 * i] == joint.of[i] + at;
            if (alike) return joint.all + at;
        }
        return nullptr;
    }
    /* What stands behind this multicast address, if anything does. */
    Joint behind(const void *at) {
        const std::lock_guard<std::mutex> hold(lock);
        for (const Joint &joint : list)
            if ((const char *)at >= joint.all && (const char *)at < joint.all + joint.bytes) return joint;
        return {};
    }
};
