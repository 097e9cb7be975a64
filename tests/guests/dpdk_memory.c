/*
 * One DPDK process with two virtio-user ports, whose memory grows and shrinks while frames flow
 * between them. For each change the driver disables its rings, sends a new memory table and
 * enables them again (22.11, virtio_user_mem_event_cb), while the sending thread goes on polling.
 *
 * Each round makes a pool of packet buffers, which needs new huge pages, has frames sent out of
 * it, and gives it back. Frames are numbered and filled with their number, and each one received
 * is checked; losses are for the test to judge, by the switch's counters.
 *
 * usage: dpdk_memory EAL-ARGUMENTS... -- ROUNDS
 * Prints one line of "name value" pairs at the end. Exit status 1 if nothing moves for 10 s.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_memory.h>
#include <rte_mempool.h>

enum {
    PORTS = 2,
    BURST = 32,
    LENGTH = 1024,
    ETHER_TYPE = 0x88b5, /* IEEE 802: for local experiments */
    MAGIC = 0x6d656d6f,
    BASE_BUFFERS = 4096,
    /* About 18 MiB: more than the heap has to spare. */
    ROUND_BUFFERS = 8192,
    /* Frames to come through on each port before the next change. */
    ENOUGH = 5000,
    PATIENCE_S = 10,
};

struct frame {
    struct rte_ether_hdr ethernet;
    uint16_t from;
    uint32_t magic;
    uint64_t number;
    uint8_t filler[];
} __attribute__((packed, aligned(2)));

struct counts {
    atomic_ulong sent, received;
    uint64_t lost, disordered, foreign, corrupt;
    uint64_t next; /* the number expected */
    uint64_t last_tsc, longest_gap;
};

static struct counts ports[PORTS];
static struct rte_ether_addr addresses[PORTS];
static struct rte_mempool *base_pool;
/* Where the sender takes buffers from. The mark of the sender says which it saw last, so that the
 * other thread knows when a pool will no longer be asked for buffers. */
static _Atomic(struct rte_mempool *) pool, pool_seen;
static atomic_bool done;
/* Pieces of memory that came or went. */
static atomic_ulong changes;

static void fail(const char *what)
{
    fprintf(stderr, "dpdk_memory: %s\n", what);
    /* EAL's and the sender's threads are of no interest any more. */
    _exit(1);
}

static int start_port(uint16_t port)
{
    struct rte_eth_conf conf = {0};
    return rte_eth_dev_configure(port, 1, 1, &conf)
        || rte_eth_rx_queue_setup(port, 0, 256, SOCKET_ID_ANY, NULL, base_pool)
        || rte_eth_tx_queue_setup(port, 0, 256, SOCKET_ID_ANY, NULL)
        || rte_eth_dev_start(port)
        || rte_eth_macaddr_get(port, &addresses[port]);
}

static void fill(struct rte_mbuf *m, uint16_t from, uint64_t number)
{
    struct frame *f = rte_pktmbuf_mtod(m, struct frame *);
    f->ethernet.dst_addr = addresses[!from];
    f->ethernet.src_addr = addresses[from];
    f->ethernet.ether_type = rte_cpu_to_be_16(ETHER_TYPE);
    f->from = from;
    f->magic = MAGIC;
    f->number = number;
    memset(f->filler, (int)number, LENGTH - sizeof *f);
    m->data_len = m->pkt_len = LENGTH;
}

static void send_burst(uint16_t port, struct rte_mempool *from)
{
    struct rte_mbuf *burst[BURST];
    unsigned long first = ports[port].sent;
    uint16_t sent;

    if (rte_pktmbuf_alloc_bulk(from, burst, BURST))
        return; /* all under way */
    for (unsigned i = 0; i < BURST; i++)
        fill(burst[i], port, first + i);
    sent = rte_eth_tx_burst(port, 0, burst, BURST);
    rte_pktmbuf_free_bulk(burst + sent, BURST - sent);
    ports[port].sent += sent;
}

static void check(uint16_t port, const struct rte_mbuf *m)
{
    const struct frame *f = rte_pktmbuf_mtod(m, const struct frame *);
    struct counts *c = &ports[port];

    if (m->pkt_len != LENGTH || m->data_len != LENGTH || f->magic != MAGIC || f->from != !port
        || !rte_is_same_ether_addr(&f->ethernet.dst_addr, &addresses[port])) {
        c->foreign++;
        return;
    }
    for (size_t i = 0; i < LENGTH - sizeof *f; i++)
        if (f->filler[i] != (uint8_t)f->number) {
            c->corrupt++;
            break;
        }
    if (f->number < c->next) {
        c->disordered++;
        return;
    }
    c->lost += f->number - c->next;
    c->next = f->number + 1;
}

static void receive_burst(uint16_t port)
{
    struct rte_mbuf *burst[BURST];
    uint16_t n = rte_eth_rx_burst(port, 0, burst, BURST);
    struct counts *c = &ports[port];
    uint64_t now = rte_get_tsc_cycles();

    if (n == 0)
        return;
    for (uint16_t i = 0; i < n; i++)
        check(port, burst[i]);
    rte_pktmbuf_free_bulk(burst, n);
    if (c->last_tsc && now - c->last_tsc > c->longest_gap)
        c->longest_gap = now - c->last_tsc;
    c->last_tsc = now;
    c->received += n;
}

/* Waits until each port has received so many more frames. */
static void wait_for_frames(void)
{
    unsigned long goals[PORTS];
    uint64_t end = rte_get_tsc_cycles() + PATIENCE_S * rte_get_tsc_hz();

    for (int p = 0; p < PORTS; p++)
        goals[p] = ports[p].received + ENOUGH;
    while (ports[0].received < goals[0] || ports[1].received < goals[1]) {
        if (rte_get_tsc_cycles() > end)
            fail("no frames come through any more");
        usleep(1000);
    }
}

/* Has the sender take its buffers from another pool. */
static void send_from(struct rte_mempool *other)
{
    pool = other;
    while (pool_seen != other)
        usleep(100);
}

static void change_memory(int round)
{
    uint64_t end;
    char name[32];
    struct rte_mempool *fresh;

    snprintf(name, sizeof name, "round %d", round);
    /* No cache: at the end all buffers must be back in the pool itself. */
    fresh = rte_pktmbuf_pool_create(name, ROUND_BUFFERS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
                                    SOCKET_ID_ANY);
    if (fresh == NULL)
        fail("no memory for another pool");
    send_from(fresh);
    wait_for_frames();
    send_from(base_pool);
    end = rte_get_tsc_cycles() + PATIENCE_S * rte_get_tsc_hz();
    while (rte_mempool_avail_count(fresh) < ROUND_BUFFERS) {
        if (rte_get_tsc_cycles() > end)
            fail("buffers do not come back");
        usleep(100);
    }
    rte_mempool_free(fresh);
    wait_for_frames();
}

static void count_change(enum rte_mem_event type, const void *address, size_t length, void *unused)
{
    (void)type, (void)address, (void)length, (void)unused;
    changes++;
}

static void *change(void *rounds)
{
    if (rte_thread_register())
        fail("the thread cannot be registered");
    wait_for_frames();
    for (int round = 0; round < *(int *)rounds; round++)
        change_memory(round);
    done = true;
    return NULL;
}

/* Frames still under way. */
static void drain(void)
{
    uint64_t end = rte_get_tsc_cycles() + rte_get_tsc_hz() / 2;
    while (rte_get_tsc_cycles() < end)
        for (uint16_t p = 0; p < PORTS; p++)
            receive_burst(p);
}

int main(int argc, char **argv)
{
    int used = rte_eal_init(argc, argv), rounds;
    pthread_t changer;

    if (used < 0 || argc - used != 2)
        fail("usage: dpdk_memory EAL-ARGUMENTS... -- ROUNDS");
    rounds = atoi(argv[used + 1]);
    base_pool = rte_pktmbuf_pool_create("base", BASE_BUFFERS, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
                                        SOCKET_ID_ANY);
    if (base_pool == NULL || rte_eth_dev_count_avail() != PORTS)
        fail("no pool, or not two ports");
    for (uint16_t p = 0; p < PORTS; p++)
        if (start_port(p))
            fail("a port does not start");
    if (rte_mem_event_callback_register("count", count_change, NULL))
        fail("changes of memory are not announced");
    pool = base_pool;
    if (pthread_create(&changer, NULL, change, &rounds))
        fail("no thread");
    while (!done) {
        struct rte_mempool *from = pool;
        for (uint16_t p = 0; p < PORTS; p++) {
            send_burst(p, from);
            receive_burst(p);
        }
        pool_seen = from;
    }
    pthread_join(changer, NULL);
    drain();
    for (int p = 0; p < PORTS; p++)
        printf("port %d changes %lu sent %lu received %lu lost %lu disordered %lu foreign %lu "
               "corrupt %lu gap_us %lu\n",
               p, changes, ports[p].sent, ports[p].received, ports[p].lost, ports[p].disordered,
               ports[p].foreign, ports[p].corrupt,
               ports[p].longest_gap * 1000000 / rte_get_tsc_hz());
    fflush(stdout);
    for (uint16_t p = 0; p < PORTS; p++)
        rte_eth_dev_stop(p);
    return 0;
}
