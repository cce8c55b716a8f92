/* What the MPI standard allows around collectives: MPI_BOTTOM, types that go backwards, calls between two groups, signals,
 * processes made by fork and by MPI_Comm_spawn, threads on communicators of their own, counts beyond 2^31. Arguments: which
 * parts. Prints "right" or what is wrong. */
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank, size, wrong;
static volatile sig_atomic_t alarms;

static void check(int good, const char *what, long at) {
    if (!good && wrong++ < 5) printf("wrong on %d of %d: %s (%ld)\n", rank, size, what, at);
}

static int value(int from, int to, int i) { return 1000003 * from + 1009 * to + i; }

enum { N = 500 };

/* N ints from the last to the first, from where a pointer to the last one points. */
static MPI_Datatype backwards(void) {
    MPI_Datatype type, whole;
    MPI_Type_create_hvector(N, 1, -(MPI_Aint)sizeof(int), MPI_INT, &type);
    MPI_Type_create_resized(type, -(MPI_Aint)((N - 1) * sizeof(int)), (MPI_Aint)(N * sizeof(int)), &whole);
    MPI_Type_commit(&whole);
    MPI_Type_free(&type);
    return whole;
}

static void negative_strides(void) {
    MPI_Datatype type = backwards();
    int *a = calloc((size_t)(N * size), sizeof *a), *b = calloc((size_t)(N * size), sizeof *b), root = size - 1;
    for (int i = 0; i < N; i++) a[N - 1 - i] = value(rank, 0, i);
    MPI_Allgather(a + N - 1, 1, type, b, N, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < N * size; i++) check(b[i] == value(i / N, 0, i % N), "allgather of a type that goes backwards", i);
    for (int i = 0; i < N * size; i++) a[i] = value(rank, i / N, N - 1 - i % N);
    MPI_Alltoall(a + N - 1, 1, type, b + N - 1, 1, type, MPI_COMM_WORLD);
    for (int i = 0; i < N * size; i++) check(b[i] == value(i / N, rank, N - 1 - i % N), "alltoall of such", i);
    memset(b, 0, (size_t)N * sizeof *b);
    MPI_Scatter(a + N - 1, 1, type, b, N, MPI_INT, root, MPI_COMM_WORLD);
    for (int i = 0; i < N; i++) check(b[i] == value(root, rank, i), "scatter of such", i);
    MPI_Gather(b, N, MPI_INT, a + N - 1, 1, type, root, MPI_COMM_WORLD);
    for (int i = 0; i < N * size && rank == root; i++)
        check(a[i] == value(root, i / N, N - 1 - i % N), "gather into such", i);
    for (int i = 0; i < N; i++) b[i] = rank == 0 ? value(0, 0, i) : 0;
    rank % 2 ? MPI_Bcast(b + N - 1, 1, type, 0, MPI_COMM_WORLD) : MPI_Bcast(b, N, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < N; i++) check(b[i] == value(0, 0, rank % 2 ? N - 1 - i : i), "bcast of such", i);
    int counts[64], at[64];
    for (int i = 0; i < size; i++) counts[i] = i % 2, at[i] = i;
    for (int i = 0; i < N; i++) a[N - 1 - i] = value(rank, 0, i);
    memset(b, 0, (size_t)(N * size) * sizeof *b);
    MPI_Allgatherv(a + N - 1, counts[rank], type, b + N - 1, counts, at, type, MPI_COMM_WORLD);
    for (int i = 0; i < N * size; i++) check(b[i] == (i / N % 2 ? value(i / N, 0, N - 1 - i % N) : 0), "allgatherv of such", i);
    MPI_Type_free(&type);
    free(a), free(b);
}

/* A buffer is told by its address in the type alone. */
static void bottom(void) {
    int *a = calloc(N, sizeof *a), *all = calloc((size_t)(N * size), sizeof *all), one = N;
    MPI_Aint where;
    MPI_Datatype type, part, whole;
    MPI_Get_address(a, &where);
    MPI_Type_create_hindexed(1, &one, &where, MPI_INT, &type);
    MPI_Type_commit(&type);
    for (int i = 0; i < N; i++) a[i] = rank ? 0 : value(0, 0, i);
    MPI_Bcast(MPI_BOTTOM, 1, type, 0, MPI_COMM_WORLD);
    for (int i = 0; i < N; i++) check(a[i] == value(0, 0, i), "bcast from MPI_BOTTOM", i);
    for (int i = 0; i < N; i++) a[i] = value(rank, 0, i);
    MPI_Get_address(all, &where);
    MPI_Type_create_hindexed(1, &one, &where, MPI_INT, &part);
    MPI_Type_create_resized(part, 0, (MPI_Aint)(N * sizeof(int)), &whole);
    MPI_Type_commit(&whole);
    MPI_Allgather(MPI_BOTTOM, 1, type, MPI_BOTTOM, 1, whole, MPI_COMM_WORLD);
    for (int i = 0; i < N * size; i++) check(all[i] == value(i / N, 0, i % N), "allgather into MPI_BOTTOM", i);
    int counts[64], at[64];
    for (int i = 0; i < size; i++) counts[i] = i != 1, at[i] = i;
    memset(all, 0, (size_t)(N * size) * sizeof *all);
    MPI_Gatherv(MPI_BOTTOM, counts[rank], type, MPI_BOTTOM, counts, at, whole, 0, MPI_COMM_WORLD);
    for (int i = 0; i < N * size && !rank; i++)
        check(all[i] == (i / N == 1 ? 0 : value(i / N, 0, i % N)), "gatherv into MPI_BOTTOM", i);
    MPI_Type_free(&type), MPI_Type_free(&part), MPI_Type_free(&whole);
    free(a), free(all);
}

/* Between the even and the odd processes: every call has another meaning there. */
static void between(void) {
    MPI_Comm half, both;
    int others = rank % 2 ? (size + 1) / 2 : size / 2, odd = rank % 2, me = rank / 2, *a = calloc((size_t)(N * size), sizeof *a);
    int *b = calloc((size_t)(N * size), sizeof *b), counts[64], at[64], total = 0;
    MPI_Comm_split(MPI_COMM_WORLD, odd, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, !odd, 3, &both);
    for (int i = 0; i < others; i++) total += 2 * i + !odd;
    for (int i = 0; i < N; i++) a[i] = rank + i;
    MPI_Allreduce(a, b, N, MPI_INT, MPI_SUM, both);
    for (int i = 0; i < N; i++) check(b[i] == total + others * i, "allreduce between groups", i);
    int root = odd ? 0 : me == 0 ? MPI_ROOT : MPI_PROC_NULL; /* process 0 of the even ones */
    for (int i = 0; i < N; i++) b[i] = value(0, 0, i) * (rank == 0);
    MPI_Bcast(b, N, MPI_INT, root, both);
    for (int i = 0; i < N && (odd || !rank); i++) check(b[i] == value(0, 0, i), "bcast between groups", i);
    memset(b, 0, (size_t)(N * size) * sizeof *b);
    MPI_Reduce(a, b, N, MPI_INT, MPI_SUM, root, both);
    for (int i = 0; i < N && !rank; i++) check(b[i] == total + others * i, "reduce between groups", i);
    for (int i = 0; i < N; i++) a[i] = value(rank, 0, i);
    MPI_Allgather(a, N, MPI_INT, b, N, MPI_INT, both);
    for (int i = 0; i < N * others; i++) check(b[i] == value(2 * (i / N) + !odd, 0, i % N), "allgather between groups", i);
    memset(b, 0, (size_t)(N * size) * sizeof *b);
    MPI_Gather(a, N, MPI_INT, b, N, MPI_INT, root, both);
    for (int i = 0; i < N * others && !rank; i++) check(b[i] == value(2 * (i / N) + 1, 0, i % N), "gather between groups", i);
    for (int i = 0; i < others; i++) counts[i] = N, at[i] = i * N;
    memset(b, 0, (size_t)(N * size) * sizeof *b);
    MPI_Allgatherv(a, N, MPI_INT, b, counts, at, MPI_INT, both);
    for (int i = 0; i < N * others; i++) check(b[i] == value(2 * (i / N) + !odd, 0, i % N), "allgatherv between groups", i);
    for (int i = 0; i < N * others; i++) a[i] = value(rank, 2 * (i / N) + !odd, i % N);
    MPI_Alltoall(a, N, MPI_INT, b, N, MPI_INT, both);
    for (int i = 0; i < N * others; i++) check(b[i] == value(2 * (i / N) + !odd, rank, i % N), "alltoall between groups", i);
    memset(b, 0, (size_t)(N * size) * sizeof *b);
    MPI_Alltoallv(a, counts, at, MPI_INT, b, counts, at, MPI_INT, both);
    for (int i = 0; i < N * others; i++) check(b[i] == value(2 * (i / N) + !odd, rank, i % N), "alltoallv between groups", i);
    memset(b, 0, (size_t)(N * size) * sizeof *b);
    MPI_Scatter(a, N, MPI_INT, b, N, MPI_INT, root, both);
    for (int i = 0; i < N && odd; i++) check(b[i] == value(0, rank, i), "scatter between groups", i);
    MPI_Comm_free(&both), MPI_Comm_free(&half);
    free(a), free(b);
}

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void rounds(MPI_Comm comm, int turns, int n) {
    int me, count, *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    MPI_Comm_rank(comm, &me), MPI_Comm_size(comm, &count);
    for (int turn = 0; turn < turns; turn++) {
        for (int i = 0; i < n; i++) a[i] = me + i + turn;
        MPI_Allreduce(a, b, n, MPI_INT, MPI_SUM, comm);
        for (int i = 0; i < n; i++) check(b[i] == count * (i + turn) + count * (count - 1) / 2, "allreduce", i);
        memcpy(b, a, (size_t)n * sizeof *b);
        MPI_Bcast(b, n, MPI_INT, turn % count, comm);
        for (int i = 0; i < n; i++) check(b[i] == turn % count + i + turn, "bcast", i);
    }
    free(a), free(b);
}

/* A timer whose handler interrupts what is under way, now and then. */
static void signals(void) {
    struct sigaction act = {.sa_handler = on_alarm}, before;
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &act, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int turn = 0, enough = 0; turn < 1000 && !enough; turn++) {
        rounds(MPI_COMM_WORLD, 20, 3000);
        int mine = alarms > 5;
        MPI_Allreduce(&mine, &enough, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    check(alarms > 5, "signals that came", alarms);
    sigaction(SIGALRM, &before, NULL);
}

/* Children that know nothing of MPI, while calls go on. */
static void forks(void) {
    pid_t child[4];
    for (int i = 0; i < 4; i++) {
        rounds(MPI_COMM_WORLD, 1, 3000);
        fflush(stdout);
        if (!(child[i] = fork())) {
            usleep(1000);
            if (i % 2) execl("/bin/true", "true", (char *)NULL);
            _exit(i % 2 ? 9 : 0);
        }
    }
    rounds(MPI_COMM_WORLD, 3, 3000);
    for (int i = 0, state; i < 4; i++) {
        check(waitpid(child[i], &state, 0) == child[i] && WIFEXITED(state) && !WEXITSTATUS(state), "a child", i);
    }
}

/* Two more processes, by the same program; then all of them together. */
static void spawned(MPI_Comm parent) {
    MPI_Comm all;
    MPI_Intercomm_merge(parent, 1, &all);
    rounds(all, 3, 3000);
    rounds(MPI_COMM_WORLD, 3, 3000);
    int bad = wrong, sum;
    MPI_Allreduce(&bad, &sum, 1, MPI_INT, MPI_SUM, all);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&parent);
}

static void spawn(char *program) {
    MPI_Comm children, all;
    int failed[2], bad = 0, sum = 0, count;
    char *arguments[] = {"child", NULL};
    MPI_Comm_spawn(program, arguments, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, failed);
    MPI_Intercomm_merge(children, 0, &all);
    MPI_Comm_size(all, &count);
    check(count == size + 2, "processes in all", count);
    rounds(all, 3, 3000);
    MPI_Allreduce(&bad, &sum, 1, MPI_INT, MPI_SUM, all);
    check(!sum, "the children", sum);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&children);
    rounds(MPI_COMM_WORLD, 1, 3000);
}

static void *busy(void *comm) {
    rounds(*(MPI_Comm *)comm, 10, 3000);
    return NULL;
}

static void threads(void) {
    MPI_Comm comm[3];
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) MPI_Comm_dup(MPI_COMM_WORLD, &comm[i]);
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, busy, &comm[i]);
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 3; i++) MPI_Comm_free(&comm[i]);
}

/* More elements than an int can count. */
static void large(void) {
#if MPI_VERSION >= 4
    const MPI_Count n = ((MPI_Count)1 << 31) + 4099;
    signed char *a = malloc((size_t)n);
    memset(a, 0, (size_t)n);
    for (MPI_Count i = 0; i < n; i += 4093) a[i] = (signed char)((i / 4093 + rank) % 50);
    MPI_Allreduce_c(MPI_IN_PLACE, a, n, MPI_SIGNED_CHAR, MPI_SUM, MPI_COMM_WORLD);
    for (MPI_Count i = 0; i < n; i++) {
        int sum = 0;
        for (int r = 0; r < size && i % 4093 == 0; r++) sum += (int)((i / 4093 + r) % 50);
        check(a[i] == sum, "allreduce of more than 2^31", (long)i);
    }
    MPI_Bcast_c(a, n, MPI_SIGNED_CHAR, 1, MPI_COMM_WORLD);
    check(a[0] == (0 + 1) % 50, "bcast of more than 2^31", a[0]);
    free(a);
#else /* bytes, at least */
    const int n = (1 << 29) + 1025;
    int *a = malloc((size_t)n * sizeof *a);
    for (int i = 0; i < n; i++) a[i] = rank + i % 4093;
    MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < n; i++) check(a[i] == size * (size - 1) / 2 + size * (i % 4093), "allreduce of more than 2^31 bytes", i);
    free(a);
#endif
}

static int asked(int count, char **arguments, const char *part) {
    for (int i = 1; i < count; i++)
        if (!strcmp(arguments[i], part)) return 1;
    return 0;
}

int main(int count, char **arguments) {
    int given, all = 0, many = asked(count, arguments, "threads");
    MPI_Comm parent;
    MPI_Init_thread(&count, &arguments, many ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    if (parent != MPI_COMM_NULL) {
        spawned(parent);
        MPI_Finalize();
        return 0;
    }
    if (asked(count, arguments, "types")) negative_strides(), bottom();
    if (asked(count, arguments, "between")) between();
    if (asked(count, arguments, "signals")) signals();
    if (asked(count, arguments, "forks")) forks();
    if (asked(count, arguments, "spawn")) spawn(arguments[0]);
    if (many && given == MPI_THREAD_MULTIPLE) threads();
    if (asked(count, arguments, "large")) large();
    MPI_Reduce(&wrong, &all, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank) printf(all ? "%d wrong\n" : "right\n", all);
    MPI_Finalize();
    return wrong != 0;
}
