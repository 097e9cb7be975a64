/* Ports of DPDK for the generators: what dpdk_load.c and dpdk_tcp.c share. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_ethdev.h>
#include <rte_mempool.h>

enum {
    RING = 256,
};

static struct rte_mempool *pool;

static void fail(const char *what)
{
    fprintf(stderr, "generator: %s\n", what);
    exit(1);
}

/* Starts a port, and writes its address to `mac`. */
static void start_port(uint16_t id, struct rte_ether_addr *mac)
{
    struct rte_eth_conf conf = {0};
    if (rte_eth_dev_configure(id, 1, 1, &conf)
        || rte_eth_rx_queue_setup(id, 0, RING, SOCKET_ID_ANY, NULL, pool)
        || rte_eth_tx_queue_setup(id, 0, RING, SOCKET_ID_ANY, NULL)
        || rte_eth_dev_start(id) || rte_eth_macaddr_get(id, mac))
        fail("a port does not start");
}
