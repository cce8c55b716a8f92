/* The process that plans while the job runs, at process 0 (runtimes/auto). It ends when the pipe to its input does, so it
 * never outlives the job, however that ends. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "preload.h"

enum { PIPE = 1 << 20, GRACE = 3000 }; /* bytes; milliseconds */

static pid_t child;
static int from = -1, to = -1;
static unsigned char *said;
static size_t count, space;

int ap_apart_begin(const char *question, const char *kept) {
    char *name = (char *)(uintptr_t)kept; /* not written to */
    char *const command[] = {AP_PYTHON, "-P", "-m", "antiphon.runtimes.auto", name, NULL};
    size_t left = strlen(question);
    if ((from = ap_start(command, &child, &to)) < 0) return 0;
#ifdef F_SETPIPE_SZ
    fcntl(from, F_SETPIPE_SZ, PIPE);
#endif
    fcntl(from, F_SETFL, fcntl(from, F_GETFL) | O_NONBLOCK);
    while (left) {
        ssize_t got = send(to, question, left, MSG_NOSIGNAL);
        if (got < 0 && errno != EINTR) break;
        if (got > 0) question += got, left -= (size_t)got;
    }
    return !left && send(to, "end\n", 4, MSG_NOSIGNAL) == 4;
}

void ap_apart_lower(void) {
    if (to >= 0) send(to, "lower\n", 6, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int never(const char *text, char *why, size_t room) {
    snprintf(why, room, "%s", text);
    why[strcspn(why, "\n")] = 0;
    return AP_NEVER;
}

int ap_apart_look(unsigned char **answer, uint64_t *bytes, char *why, size_t room) {
    static const char failed[] = "failed\t";
    ssize_t got;
    if (from < 0) return never("the process that plans does not start", why, room);
    do {
        if (count + 1 >= space) {
            size_t more = space ? 2 * space : PIPE;
            unsigned char *larger = realloc(said, more);
            if (!larger) return never("out of memory", why, room);
            said = larger, space = more;
        }
        got = read(from, said + count, space - count - 1);
        if (got > 0) count += (size_t)got;
    } while (got > 0 || (got < 0 && errno == EINTR));
    if (got < 0 && errno == EAGAIN) return AP_PLANNING;
    if (said) said[count] = 0;
    if (count > sizeof failed && !memcmp(said, failed, sizeof failed - 1)) return never((char *)said + sizeof failed - 1, why, room);
    if (!count) return never("the process that plans ended without an answer", why, room);
    *answer = said, *bytes = count;
    said = NULL, count = space = 0;
    return AP_READY;
}

void ap_apart_end(void) {
    const struct timespec pause = {0, 1000000};
    int state = 0;
    if (to >= 0) close(to);
    if (from >= 0) close(from);
    from = to = -1;
    free(said), said = NULL, count = space = 0;
    if (child <= 0) return;
    kill(child, SIGTERM); /* it takes away what it was writing */
    for (int turn = 0; turn < GRACE; turn++) {
        if (waitpid(child, &state, WNOHANG)) {
            child = 0;
            return;
        }
        nanosleep(&pause, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &state, 0);
    child = 0;
}
