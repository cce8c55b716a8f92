/* Messages between processes of one host through memory that all of them map; transports use it for ranks of the same host.
 *
 * Every process has a queue to every other one, and blocks: the sender copies a message into blocks, the receiver copies it
 * out. That is two copies, but no system call and no rendezvous; data sent to several receivers is copied into blocks once.
 * A send is complete when its last byte is in a block.
 *
 * Threading: one thread per process; between processes see shared_messages.c. Ownership: each process frees its ap_shared by
 *   ap_shared_close; buffers of a message are the caller's until the message is complete.
 */
#pragma once

#include "api.h"

typedef struct ap_shared ap_shared;

/* Where the other members find the memory that member 0 made: in file descriptor `file` of `process`. The memory must hold the
 * key. */
typedef struct {
    uint64_t key;
    int64_t process;
    int32_t file;
    uint32_t members;
} ap_shared_name;

/* Bytes of address space for that many members. */
uint64_t ap_shared_bytes(uint32_t members);
/* Makes the memory, at member 0; NULL if the system cannot. */
ap_shared *ap_shared_make(uint32_t members, ap_shared_name *name);
/* Joins the memory, at the other members; NULL if it cannot be opened here. The caller makes sure that then no member uses it. */
ap_shared *ap_shared_join(const ap_shared_name *name, uint32_t me);
/* At member 0, once all others have joined or failed to: closes the file. */
void ap_shared_complete(ap_shared *shared);

/* As `send` and `receive` of a wire (transport.h), with members in place of ranks. Where a function here takes `error`, it returns
 * AP_OK or the error's code. */
int ap_shared_send(ap_shared *shared, uint32_t to, uint32_t channel, const void *data, size_t bytes, uint32_t number,
                   ap_error *error);
int ap_shared_receive(ap_shared *shared, uint32_t from, uint32_t channel, void *data, size_t bytes, uint32_t number,
                      ap_error *error);
/* Copies all that can be copied without waiting. Reports at most `capacity` numbers of messages that are done, their count in
 * *count. *moved: whether anything was copied. */
int ap_shared_progress(ap_shared *shared, uint32_t *numbers, int capacity, int *count, int *moved, ap_error *error);
/* Whether messages are under way, or done and not yet reported. */
int ap_shared_busy(const ap_shared *shared);
/* The number of messages under way. */
int ap_shared_active(const ap_shared *shared);
/* The number of this member. */
uint32_t ap_shared_member(const ap_shared *shared);
/* Whether a message to or from that member is under way. */
int ap_shared_has_messages_with(const ap_shared *shared, uint32_t member);
/* Sleeps until a message or free block arrives, at most `microseconds`. To be called after some polls without progress. */
void ap_shared_sleep(ap_shared *shared, int microseconds);
/* A call of `wire` has begun: messages of another call are AP_MISMATCH. */
void ap_shared_begin(ap_shared *shared, ap_wire *wire);
/* Called after a long wait: an error if a member is in another call, or has given up while a message with it is under way. */
int ap_shared_check_members(ap_shared *shared, ap_error *error);
/* As ap_wire_check_unreceived. */
int ap_shared_check_unreceived(ap_shared *shared, ap_error *error);
/* Notifies the others that this member has failed and sends nothing more. */
void ap_shared_give_up(ap_shared *shared);
/* Touches the memory that messages will go through (prefault.h). */
void ap_shared_prefault(ap_shared *shared, ap_pace *pace);
void ap_shared_close(ap_shared *shared);
