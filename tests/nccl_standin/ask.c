/* What NCCL says where there is no GPU. */
#include <stdio.h> /* first: for nccl.h, which has its size_t from elsewhere */

#include <nccl.h>

int main(void) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    int version = 0;
    printf("%d %d\n", ncclGetVersion(&version), version);
    printf("%d\n", ncclGetUniqueId(&id));
    printf("%d\n", ncclCommInitRank(&comm, 1, id, 0));
    printf("%d\n", ncclGroupEnd());
    printf("%d\n", ncclGroupStart());
    printf("%d\n", ncclAllReduce(NULL, NULL, 1, ncclFloat, ncclSum, NULL, NULL));
    printf("%d\n", ncclGroupEnd());
    return 0;
}
