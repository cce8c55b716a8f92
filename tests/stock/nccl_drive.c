/* Asks a tuner plugin as NCCL does, by any version of the interface, without NCCL: which algorithm, protocol and channels
 * NCCL would take. The structures are declared here anew, as NCCL's documents and not as the plugin has them.
 *
 * drive PLUGIN VERSION RANKS NODES, and on stdin a line for each call: collective, nbytes, whether switches can help in
 * the network and in the box, then 21 costs. A line for each: what is taken, channels, how many costs were changed, and the
 * bytes of a chunk, which NCCL would make 512 KiB.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>

#ifdef WITH_NCCL_H
#include <nccl.h>
#else
typedef enum { ncclSuccess = 0 } ncclResult_t;
#endif

#define ALGORITHMS 7
#define PROTOCOLS 3

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);
typedef ncclResult_t (*ending)(void *);

typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, logger logFunction, void **context);
    ncclResult_t (*getCollInfo)(void *context, int collType, size_t nBytes, int collNetSupport, int nvlsSupport,
                                int numPipeOps, int *algorithm, int *protocol, int *nChannels);
    ending destroy;
} version2;

typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, logger logFunction, void **context);
    ncclResult_t (*getCollInfo)(void *context, int collType, size_t nBytes, int numPipeOps, float **collCostTable,
                                int numAlgo, int numProto, int *nChannels);
    ending destroy;
} version3;

typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, logger logFunction, void **context);
    ncclResult_t (*getCollInfo)(void *context, int collType, size_t nBytes, int numPipeOps, float **collCostTable,
                                int numAlgo, int numProto, int regBuff, int *nChannels);
    ending destroy;
} version4;

typedef struct {
    const char *name;
    ncclResult_t (*init)(void **context, uint64_t commId, size_t nRanks, size_t nNodes, logger logFunction,
                         void *nvlDomainInfo, void *constants);
    ncclResult_t (*getCollInfo)(void *context, int collType, size_t nBytes, int numPipeOps, float **collCostTable,
                                int numAlgo, int numProto, int regBuff, int *nChannels);
    ending finalize;
    ncclResult_t (*getChunkSize)(void *context, int collType, size_t nBytes, int algo, int proto, int nChannels,
                                 size_t *chunkSize); /* from version 6 on */
} version6;

static void say(int level, unsigned long flags, const char *file, int line, const char *form, ...) {
    (void)flags, (void)file, (void)line;
    va_list more;
    va_start(more, form);
    fprintf(stderr, "%s ", level == 2 ? "WARN" : "INFO");
    vfprintf(stderr, form, more);
    fputc('\n', stderr);
    va_end(more);
}

int main(int count, char **given) {
    if (count != 5) return 2;
    int version = atoi(given[2]);
    char symbol[64];
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
    void *library = dlopen(given[1], RTLD_NOW | RTLD_LOCAL), *plugin = library ? dlsym(library, symbol) : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    const version2 *two = plugin;
    const version3 *three = plugin;
    const version4 *four = plugin;
    const version6 *six = plugin;
    size_t ranks = (size_t)atol(given[3]), nodes = (size_t)atol(given[4]);
    void *context = NULL;
    double constants[512] = {0}, untouched[512] = {0};
    ncclResult_t result = version < 5 ? two->init(ranks, nodes, say, &context)
                                      : six->init(&context, 7, ranks, nodes, say, NULL, constants);
    if (result != ncclSuccess || memcmp(constants, untouched, sizeof constants)) return 4;
    int collective, network, box;
    size_t nbytes;
    while (scanf("%d %zu %d %d", &collective, &nbytes, &network, &box) == 4) {
        float costs[ALGORITHMS][PROTOCOLS], before[ALGORITHMS][PROTOCOLS], least = 1e30f;
        for (int i = 0; i < ALGORITHMS * PROTOCOLS; i++)
            if (scanf("%f", &costs[i / PROTOCOLS][i % PROTOCOLS]) != 1) return 6;
        memcpy(before, costs, sizeof costs);
        int algorithm = -1, protocol = -1, channels = 0, changed = 0;
        float **table = (float **)costs;
        if (version == 2)
            result = two->getCollInfo(context, collective, nbytes, network, box, 1, &algorithm, &protocol, &channels);
        else if (version == 3)
            result = three->getCollInfo(context, collective, nbytes, 1, table, ALGORITHMS, PROTOCOLS, &channels);
        else
            result = (version == 4 ? four->getCollInfo : six->getCollInfo)(context, collective, nbytes, 1, table, ALGORITHMS,
                                                                           PROTOCOLS, 0, &channels);
        for (int i = 0; i < ALGORITHMS * PROTOCOLS; i++)
            changed += costs[i / PROTOCOLS][i % PROTOCOLS] != before[i / PROTOCOLS][i % PROTOCOLS];
        int told = algorithm >= 0 && protocol >= 0;
        for (int a = 0; a < ALGORITHMS && !told; a++)
            for (int p = 0; p < PROTOCOLS; p++)
                if (costs[a][p] >= 0 && costs[a][p] < least) least = costs[a][p], algorithm = a, protocol = p;
        size_t chunk = 512 << 10;
        if (version == 6 && result == ncclSuccess)
            result = six->getChunkSize(context, collective, nbytes, algorithm, protocol, channels, &chunk);
        printf("%d %d %d %d %d %zu\n", (int)result, algorithm, protocol, channels, changed, chunk);
    }
    return version < 5 ? (int)two->destroy(context) : (int)six->finalize(context);
}
