/*
 * Two guests with DPDK's virtio-user driver that speak TCP with each other: the traffic generator
 * of the cases `filter-*` of `scripts/bench`. The first guest is the client. One thread serves both.
 *
 * usage: dpdk_tcp EAL-ARGUMENTS... -- stream|new LENGTH
 * Each line "SECONDS LIMIT" of standard input is a run, which ends earlier after LIMIT connections
 * unless LIMIT is 0; the result is a line of JSON. The program ends at the end of input.
 *
 * stream: one connection; frames of LENGTH bytes circle in both directions, as many as fill half a
 * ring; a lost frame circles no more. new: SYN, SYN with ACK, ACK, and a reset of the server; then
 * a connection with other ports takes the place. After 200 ms without an end a connection is lost.
 * Checksums are right. Headers of received frames are checked.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rte_cycles.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_ip.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_tcp.h>

#include "dpdk_port.h"

enum {
    PORTS = 2,
    CLIENT = 0,
    SERVER = 1,
    BURST = 64,
    UNDER_WAY = 128,
    SERVICE = 80,
    /* Of a client's address; the rest of a connection's number is in the address. */
    PORT_BITS = 15,
    FIRST_PORT = 1024,
    CLIENT_SEQUENCE = 1000,
    SERVER_SEQUENCE = 5000,
};

#define CLIENTS 0x0a010000u /* 10.1.0.0/16 */
#define SERVERS 0x0a020001u

struct frame {
    struct rte_ether_hdr ethernet;
    struct rte_ipv4_hdr ip;
    struct rte_tcp_hdr tcp;
} __attribute__((packed, aligned(2)));

/* The kinds of frames, each the answer to the one before, and a server's frame of a stream. */
enum { SYN, SYN_ACK, ACK, RESET, KINDS, SERVER_ACK = KINDS };
static const struct {
    uint8_t flags, sender;
    uint32_t sequence, acknowledged;
} kinds[] = {
    [SYN] = {RTE_TCP_SYN_FLAG, CLIENT, CLIENT_SEQUENCE, 0},
    [SYN_ACK] = {RTE_TCP_SYN_FLAG | RTE_TCP_ACK_FLAG, SERVER, SERVER_SEQUENCE, CLIENT_SEQUENCE + 1},
    [ACK] = {RTE_TCP_ACK_FLAG, CLIENT, CLIENT_SEQUENCE + 1, SERVER_SEQUENCE + 1},
    [RESET] = {RTE_TCP_RST_FLAG | RTE_TCP_ACK_FLAG, SERVER, SERVER_SEQUENCE + 1,
               CLIENT_SEQUENCE + 1},
    [SERVER_ACK] = {RTE_TCP_ACK_FLAG, SERVER, SERVER_SEQUENCE + 1, CLIENT_SEQUENCE + 1},
};

static struct rte_ether_addr macs[PORTS];
static unsigned length;
static uint64_t sent, received, foreign, late, connections, lost;

/* Connections under way, by the last bits of their numbers. */
static struct {
    uint32_t number;
    uint64_t began;
} places[UNDER_WAY];

/* Writes a frame of a connection; `payload` bytes behind its headers are zeros already. */
static void write_frame(struct frame *frame, unsigned kind, uint32_t number, uint16_t payload)
{
    uint8_t sender = kinds[kind].sender;
    bool is_client = sender == CLIENT;
    uint16_t bits = (1 << PORT_BITS) - 1, port = (uint16_t)(FIRST_PORT + (number & bits));
    uint32_t client = CLIENTS | (number >> PORT_BITS & 0xffff);
    frame->ethernet = (struct rte_ether_hdr){
        .src_addr = macs[sender], .dst_addr = macs[sender ^ 1],
        .ether_type = rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4)};
    frame->ip = (struct rte_ipv4_hdr){
        .version_ihl = 0x45, .time_to_live = 64, .next_proto_id = IPPROTO_TCP,
        .fragment_offset = rte_cpu_to_be_16(RTE_IPV4_HDR_DF_FLAG),
        .total_length = rte_cpu_to_be_16(
            (uint16_t)(sizeof(frame->ip) + sizeof(frame->tcp) + payload)),
        .src_addr = rte_cpu_to_be_32(is_client ? client : SERVERS),
        .dst_addr = rte_cpu_to_be_32(is_client ? SERVERS : client)};
    frame->ip.hdr_checksum = rte_ipv4_cksum(&frame->ip);
    frame->tcp = (struct rte_tcp_hdr){
        .src_port = rte_cpu_to_be_16(is_client ? port : SERVICE),
        .dst_port = rte_cpu_to_be_16(is_client ? SERVICE : port),
        .sent_seq = rte_cpu_to_be_32(kinds[kind].sequence),
        .recv_ack = rte_cpu_to_be_32(kinds[kind].acknowledged),
        .data_off = sizeof(frame->tcp) / 4 << 4, .tcp_flags = kinds[kind].flags,
        .rx_win = rte_cpu_to_be_16(0xffff)};
    frame->tcp.cksum = rte_ipv4_udptcp_cksum(&frame->ip, &frame->tcp);
}

static struct rte_mbuf *new_frame(void)
{
    struct rte_mbuf *frame = rte_pktmbuf_alloc(pool);
    if (!frame)
        fail("no memory for a frame");
    frame->data_len = (uint16_t)length;
    frame->pkt_len = length;
    memset(rte_pktmbuf_mtod(frame, void *), 0, length);
    return frame;
}

static void send_all(uint16_t id, struct rte_mbuf **frames, uint16_t count)
{
    for (uint16_t done = 0; done < count;)
        done += rte_eth_tx_burst(id, 0, frames + done, (uint16_t)(count - done));
    sent += count;
}

/* Makes a frame the beginning of the next connection in a place. */
static void begin(struct rte_mbuf *mbuf, unsigned place, uint64_t now)
{
    places[place].number += UNDER_WAY;
    places[place].began = now;
    write_frame(rte_pktmbuf_mtod(mbuf, struct frame *), SYN, places[place].number, 0);
}

/* Connections that did not end in time give their places to others. */
static void begin_again(uint64_t now)
{
    for (unsigned place = 0; place < UNDER_WAY; place++) {
        if (now - places[place].began < rte_get_tsc_hz() / 5)
            continue;
        lost += places[place].began != 0;
        struct rte_mbuf *mbuf = new_frame();
        begin(mbuf, place, now);
        send_all(CLIENT, &mbuf, 1);
    }
}

/* The kind of a frame that has arrived, and the number of its connection. */
static unsigned kind_of(const struct frame *frame, uint16_t id, uint32_t *number)
{
    bool to_client = id == CLIENT;
    uint32_t client = rte_be_to_cpu_32(to_client ? frame->ip.dst_addr : frame->ip.src_addr);
    uint16_t port = rte_be_to_cpu_16(to_client ? frame->tcp.dst_port : frame->tcp.src_port);
    uint16_t service = to_client ? frame->tcp.src_port : frame->tcp.dst_port;
    unsigned kind = 0;
    *number = (client & 0xffff) << PORT_BITS | (uint16_t)(port - FIRST_PORT);
    while (kind < KINDS && (kinds[kind].sender == id || kinds[kind].flags != frame->tcp.tcp_flags))
        kind++;
    bool is_ours = frame->ethernet.ether_type == rte_cpu_to_be_16(RTE_ETHER_TYPE_IPV4)
                   && frame->ip.next_proto_id == IPPROTO_TCP && client >> 16 == CLIENTS >> 16
                   && service == rte_cpu_to_be_16(SERVICE)
                   && rte_is_same_ether_addr(&frame->ethernet.dst_addr, &macs[id]);
    return is_ours ? kind : KINDS;
}

/* Makes the answer of a frame; false if the frame is of no connection under way. */
static bool answer(struct rte_mbuf *mbuf, uint16_t id, uint64_t now)
{
    struct frame *frame = rte_pktmbuf_mtod(mbuf, struct frame *);
    uint32_t number;
    unsigned kind = kind_of(frame, id, &number);
    bool is_late = kind != KINDS && places[number % UNDER_WAY].number != number;
    late += is_late;
    foreign += kind == KINDS;
    if (is_late || kind == KINDS)
        return false;
    connections += kind == ACK;
    if (kind == RESET)
        begin(mbuf, number % UNDER_WAY, now);
    else
        write_frame(frame, kind + 1, number, 0);
    return true;
}

static void turn_new(uint16_t id, uint64_t now)
{
    struct rte_mbuf *got[BURST], *answers[BURST];
    uint16_t count = rte_eth_rx_burst(id, 0, got, BURST), answered = 0;
    received += count;
    for (uint16_t i = 0; i < count; i++) {
        if (answer(got[i], id, now))
            answers[answered++] = got[i];
        else
            rte_pktmbuf_free(got[i]);
    }
    send_all(id, answers, answered);
}

/* What each guest sends in a stream, and what the guest must receive. */
static struct frame stream[PORTS];

static void turn_stream(uint16_t id)
{
    struct rte_mbuf *got[BURST];
    uint16_t count = rte_eth_rx_burst(id, 0, got, BURST);
    received += count;
    for (uint16_t i = 0; i < count; i++) {
        struct frame *frame = rte_pktmbuf_mtod(got[i], struct frame *);
        bool is_ours = rte_pktmbuf_pkt_len(got[i]) == length
                       && !memcmp(frame, &stream[id ^ 1], sizeof(*frame));
        foreign += !is_ours;
        *frame = stream[id];
    }
    send_all(id, got, count);
}

/* Whether a frame arrives within 100 ms; frames are dropped. */
static bool comes(uint16_t id)
{
    struct rte_mbuf *got[BURST];
    uint16_t count = 0;
    for (uint64_t end = rte_rdtsc() + rte_get_tsc_hz() / 10; !count && rte_rdtsc() < end;)
        count = rte_eth_rx_burst(id, 0, got, BURST);
    rte_pktmbuf_free_bulk(got, count);
    return count;
}

/* The handshake, and the frames that circle. A switch may lose frames until it has both ports. */
static void begin_stream(void)
{
    struct rte_mbuf *frames[UNDER_WAY];
    for (unsigned kind = SYN; kind <= ACK; kind++) {
        unsigned tries = 0;
        do {
            frames[0] = new_frame();
            write_frame(rte_pktmbuf_mtod(frames[0], struct frame *), kind, 0, 0);
            send_all(kinds[kind].sender, frames, 1);
        } while (!comes(kinds[kind].sender ^ 1) && ++tries < 50);
        if (tries == 50)
            fail("no connection");
    }
    while (comes(CLIENT) || comes(SERVER))
        ;
    for (uint16_t id = 0; id < PORTS; id++) {
        for (unsigned i = 0; i < UNDER_WAY; i++) {
            frames[i] = new_frame();
            struct frame *frame = rte_pktmbuf_mtod(frames[i], struct frame *);
            write_frame(frame, id == CLIENT ? ACK : SERVER_ACK, 0,
                        (uint16_t)(length - sizeof(*frame)));
            stream[id] = *frame;
        }
        send_all(id, frames, UNDER_WAY);
    }
}

static double cpu_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void run(bool is_stream, double seconds, uint64_t limit)
{
    double hz = (double)rte_get_tsc_hz(), cpu = cpu_seconds();
    uint64_t start = rte_rdtsc(), end = start + (uint64_t)(seconds * hz), now, looked = start;
    sent = received = foreign = late = connections = lost = 0;
    for (unsigned place = 0; place < UNDER_WAY; place++)
        places[place].began = places[place].began ? start : 0;
    while ((now = rte_rdtsc()) < end && (!limit || connections < limit)) {
        for (uint16_t id = 0; id < PORTS; id++) {
            if (is_stream)
                turn_stream(id);
            else
                turn_new(id, now);
        }
        if (!is_stream && (now - looked) * 1000 > rte_get_tsc_hz()) {
            begin_again(now);
            looked = now;
        }
    }
    double took = (double)(now - start) / hz;
    printf("{\"sent\": %" PRIu64 ", \"received\": %" PRIu64 ", \"foreign\": %" PRIu64
           ", \"late\": %" PRIu64 ", \"connections\": %" PRIu64 ", \"lost\": %" PRIu64
           ", \"seconds\": %.4f, \"cpu\": %.3f}\n",
           sent, received, foreign, late, connections, lost, took, (cpu_seconds() - cpu) / took);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int used = rte_eal_init(argc, argv);
    if (used < 0 || argc - used != 3)
        fail("EAL does not start, or the pattern or LENGTH is missing");
    bool is_stream = !strcmp(argv[used + 1], "stream");
    length = (unsigned)atoi(argv[used + 2]);
    if (length < RTE_ETHER_MIN_LEN - RTE_ETHER_CRC_LEN || length > RTE_ETHER_MAX_LEN)
        fail("LENGTH is none of a frame");
    pool = rte_pktmbuf_pool_create("frames", 16383, 256, 0, RTE_MBUF_DEFAULT_BUF_SIZE,
                                   SOCKET_ID_ANY);
    if (!pool || rte_eth_dev_count_avail() != PORTS)
        fail("needs memory, and two ports");
    for (uint16_t id = 0; id < PORTS; id++)
        start_port(id, &macs[id]);
    for (unsigned place = 0; place < UNDER_WAY; place++)
        places[place].number = place - UNDER_WAY;
    if (is_stream)
        begin_stream();
    puts("ready");
    fflush(stdout);
    char line[64];
    double seconds;
    uint64_t limit;
    while (fgets(line, sizeof(line), stdin) && sscanf(line, "%lf %" SCNu64, &seconds, &limit) == 2)
        run(is_stream, seconds, limit);
    return rte_eal_cleanup() < 0;
}
