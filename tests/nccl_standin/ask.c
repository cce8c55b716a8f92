/* What NCCL says where there is no GPU. */
#include <stdio.h> /* first: for nccl.h, which has its size_t from elsewhere */

#include <nccl.h>

int main(void) {
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    int version = 0;
    printf("%d %d\n", ncclGetVersion(&version), version);
    printf("%d %d\n", ncclGetUniqueId(&id), ncclCommInitRank(&comm, 1, id, 0));
    printf("%d %d\n", ncclGroupStart(), ncclGroupEnd());
    printf("%d\n", ncclAllReduce(NULL, NULL, 1, ncclFloat, ncclSum, NULL, NULL));
    return 0;
}
