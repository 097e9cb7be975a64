/*
 * Two guests with DPDK's virtio-user driver that send to each other at a given rate: the traffic
 * generator of `scripts/bench --ndr`. One thread sends and receives on both ports.
 *
 * usage: dpdk_load EAL-ARGUMENTS... -- LENGTH
 * LENGTH is that of a frame without FCS. Each line "RATE SECONDS" of standard input is a trial, RATE
 * frames a second of both ports together; its result is a line of JSON. Ends at the end of input.
 *
 * A frame that is due and finds no place in its ring is sent later. Those that are not sent a
 * millisecond after the trial's end never are: they count as lost (RFC 2544 and MLRsearch demand
 * all that was intended). Frames that are under way get 100 ms to arrive.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

#include "dpdk_port.h"

enum {
    PORTS = 2,
    BURST = 32,
    ETHER_TYPE = 0x88b5, /* IEEE 802: for local experiments */
    /* Latencies: a bucket for each eighth of a power of two of cycles. */
    STEPS = 8,
    BUCKETS = 64 * STEPS,
};

struct frame {
    struct rte_ether_hdr ethernet;
    uint16_t trial;
    uint64_t sent_at;
} __attribute__((packed, aligned(2)));

struct port {
    struct rte_ether_addr mac;
    /* Frames that were due and found no place. */
    struct rte_mbuf *waiting[BURST];
    unsigned count;
    uint64_t sent, received, foreign;
};

static struct port ports[PORTS];
static uint64_t latencies[BUCKETS];
static unsigned length;
static uint16_t trial;

static unsigned bucket(uint64_t cycles)
{
    if (cycles < STEPS)
        return (unsigned)cycles;
    unsigned power = 63 - (unsigned)__builtin_clzll(cycles);
    return (power - 2) * STEPS + (unsigned)(cycles >> (power - 3) & (STEPS - 1));
}

/* The middle of a bucket, in cycles. */
static double cycles_of(unsigned at)
{
    if (at < STEPS)
        return at;
    return (STEPS + at % STEPS + 0.5) * (double)(1ull << (at / STEPS - 1));
}

/* Microseconds below which so many of a thousand frames stayed. */
static double quantile(unsigned thousandths, uint64_t frames)
{
    uint64_t below = 0, wanted = (frames * thousandths + 999) / 1000;
    unsigned at = 0;
    while (at < BUCKETS - 1 && (below += latencies[at]) < wanted)
        at++;
    return cycles_of(at) * 1e6 / (double)rte_get_tsc_hz();
}

static void receive(uint16_t id)
{
    struct rte_mbuf *got[BURST];
    uint16_t count = rte_eth_rx_burst(id, 0, got, BURST);
    uint64_t now = rte_rdtsc();
    for (uint16_t i = 0; i < count; i++) {
        const struct frame *frame = rte_pktmbuf_mtod(got[i], const struct frame *);
        if (rte_pktmbuf_pkt_len(got[i]) == length && frame->trial == trial
            && frame->ethernet.ether_type == rte_cpu_to_be_16(ETHER_TYPE)
            && rte_is_same_ether_addr(&frame->ethernet.dst_addr, &ports[id].mac)) {
            ports[id].received++;
            latencies[bucket(now - frame->sent_at)]++;
        } else {
            ports[id].foreign++;
        }
    }
    rte_pktmbuf_free_bulk(got, count);
}

/* Sends what waits and `due` more frames, as many as there is room for. */
static void transmit(uint16_t id, uint64_t due)
{
    struct port *port = &ports[id];
    unsigned more = RTE_MIN(due, (uint64_t)(BURST - port->count));
    if (more && !rte_pktmbuf_alloc_bulk(pool, port->waiting + port->count, more)) {
        for (unsigned i = port->count; i < port->count + more; i++) {
            struct frame *frame = rte_pktmbuf_mtod(port->waiting[i], struct frame *);
            frame->ethernet.src_addr = port->mac;
            frame->ethernet.dst_addr = ports[id ^ 1].mac;
            frame->ethernet.ether_type = rte_cpu_to_be_16(ETHER_TYPE);
            frame->trial = trial;
            port->waiting[i]->data_len = (uint16_t)length;
            port->waiting[i]->pkt_len = length;
        }
        port->count += more;
    }
    if (!port->count)
        return;
    uint64_t now = rte_rdtsc();
    for (unsigned i = 0; i < port->count; i++)
        rte_pktmbuf_mtod(port->waiting[i], struct frame *)->sent_at = now;
    uint16_t sent = rte_eth_tx_burst(id, 0, port->waiting, (uint16_t)port->count);
    port->sent += sent;
    port->count -= sent;
    memmove(port->waiting, port->waiting + sent, port->count * sizeof(port->waiting[0]));
}

static double cpu_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void run(double rate, double seconds)
{
    double hz = (double)rte_get_tsc_hz(), each = rate / PORTS / hz;
    uint64_t intended = (uint64_t)(rate / PORTS * seconds);
    trial++;
    memset(latencies, 0, sizeof(latencies));
    for (unsigned id = 0; id < PORTS; id++)
        ports[id].sent = ports[id].received = ports[id].foreign = 0;
    double cpu = cpu_seconds();
    uint64_t start = rte_rdtsc(), end = start + (uint64_t)((seconds + 0.001) * hz), now;
    while ((now = rte_rdtsc()) < end) {
        uint64_t due = RTE_MIN(intended, (uint64_t)(each * (double)(now - start)));
        for (uint16_t id = 0; id < PORTS; id++) {
            transmit(id, due - RTE_MIN(due, ports[id].sent + ports[id].count));
            receive(id);
        }
    }
    cpu = (cpu_seconds() - cpu) * hz / (double)(now - start);
    for (unsigned id = 0; id < PORTS; id++) {
        rte_pktmbuf_free_bulk(ports[id].waiting, ports[id].count);
        ports[id].count = 0;
    }
    uint64_t sent = ports[0].sent + ports[1].sent, received = 0, foreign = 0;
    end = rte_rdtsc() + (uint64_t)(0.1 * hz);
    while (rte_rdtsc() < end && ports[0].received + ports[1].received < sent)
        for (uint16_t id = 0; id < PORTS; id++)
            receive(id);
    for (unsigned id = 0; id < PORTS; id++) {
        received += ports[id].received;
        foreign += ports[id].foreign;
    }
    printf("{\"intended\": %" PRIu64 ", \"sent\": %" PRIu64 ", \"received\": %" PRIu64
           ", \"foreign\": %" PRIu64 ", \"p50\": %.2f, \"p99\": %.2f, \"cpu\": %.3f}\n",
           intended * PORTS, sent, received, foreign, quantile(500, received),
           quantile(990, received), cpu);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int used = rte_eal_init(argc, argv);
    if (used < 0 || argc - used != 2)
        fail("EAL does not start, or LENGTH is missing");
    length = (unsigned)atoi(argv[used + 1]);
    if (length < sizeof(struct frame) || length > RTE_ETHER_MAX_LEN)
        fail("LENGTH is none of a frame");
    pool = rte_pktmbuf_pool_create("frames", 16383, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
    if (!pool || rte_eth_dev_count_avail() != PORTS)
        fail("needs memory, and two ports");
    for (uint16_t id = 0; id < PORTS; id++)
        start_port(id, &ports[id].mac);
    puts("ready");
    fflush(stdout);
    char line[64];
    double rate, seconds;
    while (fgets(line, sizeof(line), stdin) && sscanf(line, "%lf %lf", &rate, &seconds) == 2)
        run(rate, seconds);
    return rte_eal_cleanup() < 0;
}
