/* Messages between processes of one host through memory that all of them map; transports use it for ranks of the same host.
 *
 * Every process has a queue to every other one, and blocks: the sender copies a message into blocks, the receiver copies it
 * out. That is two copies, but no system call and no rendezvous; data sent to several receivers is copied into blocks once.
 * A send is complete when its last byte is in a block.
 *
 * Threading: one thread per process; between processes see shared_messages.c. Ownership: each process frees its ap_shared by
 *   ap_shared_close; buffers of a message are the caller's until the message is complete.
 */
#ifndef ANTIPHON_SHARED_H
#define ANTIPHON_SHARED_H

#include "api.h"

typedef struct ap_shared ap_shared;

/* What the others need to find the memory that one of them made. */
typedef struct {
    uint64_t key;
    int64_t process;
    int32_t file;
    uint32_t members;
} ap_shared_name;

/* Address space for that many members. */
uint64_t ap_shared_bytes(uint32_t members);
/* By member 0; NULL where the system has no such memory. */
ap_shared *ap_shared_make(uint32_t members, ap_shared_name *name);
/* By the others; NULL where it cannot be seen from here: all must ask all then, and do without. */
ap_shared *ap_shared_join(const ap_shared_name *name, uint32_t me);
/* By member 0, when all others have joined, or never will. */
void ap_shared_complete(ap_shared *shared);

/* As of a transport (transport.h). */
int ap_shared_send(ap_shared *shared, uint32_t to, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                   ap_error *error);
int ap_shared_receive(ap_shared *shared, uint32_t from, uint32_t channel, void *data, size_t bytes, uint32_t number,
                      ap_error *error);
/* Copies what can be copied, without waiting. Numbers of messages that are done: at most `capacity`, their count in *count;
 * *moved: whether anything was. */
int ap_shared_progress(ap_shared *shared, uint32_t *numbers, int capacity, int *count, int *moved, ap_error *error);
/* Whether messages are under way, or done and not yet collected; how many are under way; whether any with that member. */
int ap_shared_busy(const ap_shared *shared);
int ap_shared_active(const ap_shared *shared);
uint32_t ap_shared_member(const ap_shared *shared); /* this one's number */
int ap_shared_waits_for(const ap_shared *shared, uint32_t member);
/* After some fruitless polls: sleeps until there is something for this process, or that long. */
void ap_shared_doze(ap_shared *shared, int microseconds);
/* A call of `wire` has begun: what comes for another one is AP_MISMATCH. */
void ap_shared_begin(ap_shared *shared, ap_wire *wire);
/* After a long wait: an error if another process is in another call, or has given up while a message waits for it. */
int ap_shared_look_around(ap_shared *shared, ap_error *error);
/* ap_wire_left. */
int ap_shared_left(ap_shared *shared, ap_error *error);
/* Notifies the others that nothing more comes from here. */
void ap_shared_give_up(ap_shared *shared);
/* Touches what messages will go through (prefault.h). */
void ap_shared_prefault(ap_shared *shared, ap_pace *pace);
void ap_shared_close(ap_shared *shared);

#endif
