/* Messages from one process to another, with tags, as programs send them: any thread at any time, beside all calls of the group.
 *
 * Over a wire of its own kind (ap_by_turns), whose messages all know their lengths: so a note goes before each. A short one comes behind its note
 * and waits at the receiver, which is bounded; a long one waits at its sender until it is asked for, and then goes straight to
 * its place. Messages with one tag from one to another are received in the order in which they were sent.
 *
 * Whoever waits for a message also carries all others on. Where nobody waits a thread does. */
#ifndef ANTIPHON_MAIL_H
#define ANTIPHON_MAIL_H

#include "api.h"

typedef struct ap_mail ap_mail;
typedef struct ap_message ap_message; /* one send or receive that is under way */

#define AP_ANYBODY UINT32_MAX

/* By the same way as this wire, before that is used (ap_wire, `beside`). */
ap_mail *ap_mail_open(ap_wire *first, uint32_t rank, ap_error *error);

/* *under_way is NULL where it is over at once. The memory stays as it is until then. */
int ap_mail_send(ap_mail *mail, uint32_t to, int32_t tag, const void *data, uint64_t bytes, ap_message **under_way,
                 ap_error *error);
/* `from`: or AP_ANYBODY. *source: who it came from, where it is over at once. Of a shorter message the rest stays. */
int ap_mail_receive(ap_mail *mail, uint32_t from, int32_t tag, void *data, uint64_t bytes, ap_message **under_way,
                    uint32_t *source, ap_error *error);
/* Until it is over, `seconds` at most (0: as it is now): AP_TIMEOUT where it is not. Else it is no more. *moved: -1 until it has
 * met its other end, then another number whenever something has moved its way between the two. */
int ap_mail_wait(ap_mail *mail, ap_message *one, double seconds, uint32_t *source, int64_t *moved, ap_error *error);
/* All that is under way fails, here and at the others, who can still receive what was sent before. `all`: calls have ended, too, and
 * memory of messages may be gone. */
void ap_mail_end(ap_mail *mail, const char *why, int all);
/* After its end, and when nobody uses it. (In the child of a fork both do nothing.) */
void ap_mail_free(ap_mail *mail);

#endif
