/* Memory that all ranks of this process have alike, as the host knows it: by address and rank. Host only. */
#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "world.h"

struct Joint {
    std::vector<char *> of; /* where each rank has it */
    size_t bytes;
    char *all; /* its multicast address */
};

class Joints {
    std::mutex lock;
    std::vector<Joint> known;
    std::atomic<bool> any{false}; /* most groups have none, and ask for each call */

  public:
    void add(const Joint &one) {
        const std::lock_guard<std::mutex> hold(lock);
        known.push_back(one), any.store(true);
    }
    /* The one that begins there at rank 0, which is known no more. */
    Joint taken(const void *memory) {
        const std::lock_guard<std::mutex> hold(lock);
        for (size_t i = 0; i < known.size(); ++i)
            if (known[i].of[0] == memory) {
                const Joint found = known[i];
                known.erase(known.begin() + (ptrdiff_t)i), any.store(!known.empty());
                return found;
            }
        return {};
    }
    /* The multicast address of places of all ranks, three addresses apart, where there is one; else NULL. */
    char *address(char *const *places, u32 ranks) {
        if (!any.load()) return nullptr;
        const std::lock_guard<std::mutex> hold(lock);
        for (const Joint &one : known) {
            if (one.of.size() != ranks || places[0] < one.of[0] || places[0] >= one.of[0] + one.bytes) continue;
            const ptrdiff_t at = places[0] - one.of[0];
            bool alike = true;
            for (u32 i = 0; i < ranks; ++i) alike &= places[3 * i] == one.of[i] + at;
            if (alike) return one.all + at;
        }
        return nullptr;
    }
    /* What stands behind this multicast address, if anything does. */
    Joint behind(const void *at) {
        const std::lock_guard<std::mutex> hold(lock);
        for (const Joint &one : known)
            if ((const char *)at >= one.all && (const char *)at < one.all + one.bytes) return one;
        return {};
    }
};
