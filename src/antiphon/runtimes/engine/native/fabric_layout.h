/* What transport_fabric.c uses of libfabric: how its tables lie in memory, and the few numbers that mean something there.
 *
 * Libfabric calls go through tables of functions whose places never change (fabric(7), "ABI changes"): so it is found when it
 * is needed, and nothing of it when this is compiled. Tables grow at their ends, and are never copied here. What is not used
 * is `unused`. tests/test_fabric.py holds all of it against libfabric's own headers, where these are. */
#ifndef ANTIPHON_FABRIC_LAYOUT_H
#define ANTIPHON_FABRIC_LAYOUT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FABRIC_VERSION ((1u << 16) | 9) /* the least that has all of this */
#define FABRIC_TAGGED (UINT64_C(1) << 3)
#define FABRIC_SOURCE (UINT64_C(1) << 57)        /* of a question: the address is this host's */
#define FABRIC_DIRECTED (UINT64_C(1) << 59)      /* receives name the sender */
#define FABRIC_IN_ORDER (UINT64_C(1) << 8)       /* sends after sends */
#define FABRIC_OUT (UINT64_C(1) << 11)           /* of a queue: for what is sent */
#define FABRIC_IN (UINT64_C(1) << 10)
#define FABRIC_OWN_WORDS ((UINT64_C(1) << 59) | (UINT64_C(1) << 52)) /* it may use fabric_words of each message */
/* Registered memory may be named in any way: none is registered here. */
#define FABRIC_ANY_NAMES ((1 << 4) | (1 << 5) | (1 << 6) | (1 << 9))
#define FABRIC_UNKNOWN UINT64_MAX

enum { FABRIC_RELIABLE = 3, FABRIC_ONE_THREAD = 3, FABRIC_CAREFUL = 2, FABRIC_IPV4 = 2 };
enum { FABRIC_WITH_LENGTH = 2, FABRIC_NO_WAIT = 0, FABRIC_WAIT_FILE = 3 };
enum { FABRIC_GET_FILE = 5, FABRIC_ENABLE = 6 };
enum { FABRIC_ERROR_WAITS = 259 };

typedef struct { void *word[8]; } fabric_words;

typedef struct fabric_object fabric_object; /* of any kind: each begins so */

typedef struct {
    size_t size;
    int (*close)(fabric_object *self);
    int (*bind)(fabric_object *self, fabric_object *other, uint64_t flags);
    int (*control)(fabric_object *self, int command, void *argument);
} fabric_ops;

struct fabric_object {
    size_t kind;
    void *context;
    fabric_ops *ops;
};

typedef struct {
    uint64_t caps, mode, flags, order, completion_order;
    size_t inject, size, parts;
} fabric_out;

typedef struct {
    uint64_t caps, mode, flags, order, completion_order;
    size_t buffered, size, parts;
} fabric_in;

typedef struct {
    int type;
    uint32_t protocol, protocol_version;
    size_t longest;
} fabric_end;

typedef struct {
    fabric_object *open;
    char *name;
    int threads, control_progress, data_progress, careful, addresses, names;
} fabric_card;

typedef struct {
    fabric_object *open;
    char *name, *provider;
} fabric_net;

typedef struct fabric_info {
    struct fabric_info *next;
    uint64_t caps, mode;
    uint32_t format;
    size_t own_bytes, other_bytes;
    void *own, *other, *handle;
    fabric_out *out;
    fabric_in *in;
    fabric_end *end;
    fabric_card *card;
    fabric_net *net;
} fabric_info;

/* ---- a provider, a card, the addresses of others, a queue of what is done, and one's own end ---- */

typedef struct fabric_provider fabric_provider;
typedef struct fabric_domain fabric_domain;
typedef struct fabric_book fabric_book;
typedef struct fabric_queue fabric_queue;
typedef struct fabric_endpoint fabric_endpoint;

typedef struct {
    size_t size;
    int (*domain)(fabric_provider *self, fabric_info *info, fabric_domain **made, void *context);
    void *unused[3];
    int (*may_wait)(fabric_provider *self, fabric_object **on, int count);
} fabric_provider_ops;

struct fabric_provider {
    fabric_object object;
    fabric_provider_ops *ops;
};

typedef struct {
    int type, unused;
    size_t count, per_node;
    const char *name;
    void *map;
    uint64_t flags;
} fabric_book_wish;

typedef struct {
    size_t size;
    uint64_t flags;
    int format, wait, vector, condition;
    void *set;
} fabric_queue_wish;

typedef struct {
    size_t size;
    int (*book)(fabric_domain *self, fabric_book_wish *wish, fabric_book **made, void *context);
    int (*queue)(fabric_domain *self, fabric_queue_wish *wish, fabric_queue **made, void *context);
    int (*endpoint)(fabric_domain *self, fabric_info *info, fabric_endpoint **made, void *context);
} fabric_domain_ops;

struct fabric_domain {
    fabric_object object;
    fabric_domain_ops *ops;
};

typedef struct {
    size_t size;
    int (*insert)(fabric_book *self, const void *address, size_t count, uint64_t *number, uint64_t flags, void *context);
} fabric_book_ops;

struct fabric_book {
    fabric_object object;
    fabric_book_ops *ops;
};

typedef struct {
    void *context;
    uint64_t flags;
    size_t length;
} fabric_done;

typedef struct {
    void *context;
    uint64_t flags;
    size_t length;
    void *buffer;
    uint64_t data, tag;
    size_t too_long;
    int error, own_error;
    void *more;
    size_t more_bytes;
} fabric_fault;

typedef struct {
    size_t size;
    ssize_t (*read)(fabric_queue *self, void *buffer, size_t count);
    void *unused;
    ssize_t (*fault)(fabric_queue *self, fabric_fault *fault, uint64_t flags);
} fabric_queue_ops;

struct fabric_queue {
    fabric_object object;
    fabric_queue_ops *ops;
};

typedef struct {
    size_t size;
    void *unused;
    int (*name)(fabric_object *self, void *address, size_t *bytes);
} fabric_meeting_ops;

typedef struct {
    size_t size;
    ssize_t (*receive)(fabric_endpoint *self, void *buffer, size_t bytes, void *key, uint64_t from, uint64_t tag,
                       uint64_t ignored, void *context);
    void *unused[2];
    ssize_t (*send)(fabric_endpoint *self, const void *buffer, size_t bytes, void *key, uint64_t to, uint64_t tag,
                    void *context);
} fabric_tagged_ops;

struct fabric_endpoint {
    fabric_object object;
    void *ops;
    fabric_meeting_ops *meeting;
    void *messages, *memory;
    fabric_tagged_ops *tagged;
};

#endif
