/* The memory of a plan, touched before its first run. */
#include "stage.h"
#include "touch.h"
#include "transport.h"

/* What messages of several stretches are put together in, for as many as can be under way; kept in the plan's pool. */
static int touch_stages(ap_plan *plan, size_t item, ap_pace *pace) {
    ap_layout *l = &plan->layout;
    int good = 1;
    for (uint32_t i = 0; i < l->lanes; i++) {
        const ap_lane *lane = &l->lane_of[i];
        uint32_t end = lane->end - lane->begin < AP_WINDOW ? lane->end : lane->begin + AP_WINDOW;
        for (uint32_t q = lane->begin; q < end && good; q++) {
            uint32_t instance = l->queue[q];
            ap_stretch only = {0, 0, 0, 0};
            int several = 0;
            size_t bytes = ap_message_bytes(plan, item, &plan->step[l->step[instance]], instance, &only, &several);
            if (!several) continue;
            if (!(l->stage[instance] = ap_take_stage(plan, bytes))) good = 0;
            if (good) ap_touch(l->stage[instance], bytes, pace);
        }
    }
    for (uint32_t instance = 0; instance < l->instances; instance++) {
        if (!l->stage[instance]) continue;
        ap_stretch only = {0, 0, 0, 0};
        int several = 0;
        ap_give_stage(plan, l->stage[instance],
                      ap_message_bytes(plan, item, &plan->step[l->step[instance]], instance, &only, &several));
        l->stage[instance] = NULL;
    }
    return good;
}

int ap_warm(ap_plan *plan, int type, ap_pace *pace, ap_error *error) {
    int code = ap_ready(plan, type, error);
    if (code) return code;
    ap_touch(plan->scratch, plan->scratch_bytes, pace);
    return touch_stages(plan, ap_type_size(type), pace) ? AP_OK : ap_fail(error, AP_MEMORY, "out of memory");
}
