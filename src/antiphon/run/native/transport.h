/* What a transport must do. Messages from one rank to another on one channel arrive in the order in which they were
 * sent, and match receives in the order in which these were started. */
#ifndef ANTIPHON_TRANSPORT_H
#define ANTIPHON_TRANSPORT_H

#include "api.h"

enum { AP_LETTER = 128 };

struct ap_wire {
    /* Start a message; `number` comes back from `completed` once. The memory stays as it is until then. */
    int (*send)(ap_wire *self, uint32_t peer, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                ap_error *error);
    int (*receive)(ap_wire *self, uint32_t peer, uint32_t channel, void *data, size_t bytes, uint32_t number,
                   ap_error *error);
    /* Numbers of messages that are done: at most `most`, their count in *count. With `block`, waits until there is one;
     * with `timeout` > 0 not longer than so many seconds (then AP_TIMEOUT). */
    int (*completed)(ap_wire *self, int block, double timeout, uint32_t *numbers, int most, int *count,
                     ap_error *error);
    void (*close)(ap_wire *self);
    uint64_t expected; /* bytes that the run receives, and AP_LETTER for each of its messages */
    uint32_t ranks;
    int broken;
};

int ap_fail(ap_error *error, int code, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

#endif
