/*
 * UDP datagrams for the tests of offloads and of groups, inside a guest.
 *
 *   datagrams send ADDRESS PORT SIZE COUNT <FILE   the file in datagrams of SIZE bytes, the kernel
 *                                                  given COUNT of them in one write (UDP_SEGMENT), or as many writes
 *                                                  where the device computes no checksums
 *   datagrams receive PORT                         what comes, to standard output, until nothing
 *                                                  has come for two seconds; the first may take ten
 *   datagrams join GROUP INTERFACE                 a member of a multicast group until it is killed
 *
 * At the end `receive` says on standard error which sizes it saw, as lines of "SIZE TIMES".
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define LARGEST 65536

/* Between two writes: less than a receiver's socket buffer holds must be under way. */
#define PAUSE_US 20000

static char buffer[LARGEST];

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* IPv4 as ::ffff:a.b.c.d, so that one socket does for both. */
static struct sockaddr_in6 address(const char *text, int port)
{
	struct sockaddr_in6 to = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	char mapped[64];

	snprintf(mapped, sizeof mapped, strchr(text, ':') ? "%s" : "::ffff:%s", text);
	check(inet_pton(AF_INET6, mapped, &to.sin6_addr) == 1, text);
	return to;
}

/* One by one: Linux before 6.11 refuses UDP_SEGMENT (EIO) on devices without checksum offload. */
static void send_each(int s, ssize_t all, int size)
{
	int none = 0;

	check(setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &none, sizeof none) == 0, "UDP_SEGMENT");
	for (ssize_t at = 0; at < all; at += size) {
		size_t n = (size_t)(all - at < size ? all - at : size);

		check(send(s, buffer + at, n, 0) == (ssize_t)n, "send");
	}
	check(setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size) == 0, "UDP_SEGMENT");
}

static int send_file(const char *to, int port, int size, int count)
{
	struct sockaddr_in6 peer = address(to, port);
	int s = socket(AF_INET6, SOCK_DGRAM, 0);
	ssize_t n;

	check(size > 0 && count > 0 && size * count <= LARGEST, "size");
	check(setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size) == 0, "UDP_SEGMENT");
	check(connect(s, (struct sockaddr *)&peer, sizeof peer) == 0, "connect");
	while ((n = read(0, buffer, (size_t)(size * count))) > 0) {
		ssize_t sent = send(s, buffer, (size_t)n, 0);

		if (sent < 0 && errno == EIO)
			send_each(s, n, size);
		else
			check(sent == n, "send");
		usleep(PAUSE_US);
	}
	return 0;
}

static int receive(int port)
{
	struct sockaddr_in6 here = address("::", port);
	struct timeval patience = { .tv_sec = 10 };
	int s = socket(AF_INET6, SOCK_DGRAM, 0);
	int memory = 4 << 20;
	static unsigned seen[LARGEST + 1];
	ssize_t n;

	check(bind(s, (struct sockaddr *)&here, sizeof here) == 0, "bind");
	check(setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &memory, sizeof memory) == 0, "buffer");
	do {
		check(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0,
		      "time limit");
		n = recv(s, buffer, sizeof buffer, 0);
		patience.tv_sec = 2;
		if (n >= 0) {
			seen[n]++;
			check(write(1, buffer, (size_t)n) == n, "write");
		}
	} while (n >= 0);
	for (n = 0; n <= LARGEST; n++)
		if (seen[n])
			fprintf(stderr, "%zd %u\n", n, seen[n]);
	return 0;
}

static int join(const char *group, const char *device)
{
	struct sockaddr_in6 to = address(group, 0);
	struct ipv6_mreq v6 = { to.sin6_addr, if_nametoindex(device) };
	struct ip_mreqn v4 = { .imr_ifindex = (int)v6.ipv6mr_interface };
	int s = socket(AF_INET6, SOCK_DGRAM, 0);

	memcpy(&v4.imr_multiaddr, &to.sin6_addr.s6_addr[12], sizeof v4.imr_multiaddr);
	if (strchr(group, ':'))
		check(setsockopt(s, IPPROTO_IPV6, IPV6_JOIN_GROUP, &v6, sizeof v6) == 0, group);
	else
		check(setsockopt(s, IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof v4) == 0, group);
	return pause();
}

int main(int argc, char **argv)
{
	if (argc == 6 && !strcmp(argv[1], "send"))
		return send_file(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
	if (argc == 3 && !strcmp(argv[1], "receive"))
		return receive(atoi(argv[2]));
	if (argc == 4 && !strcmp(argv[1], "join"))
		return join(argv[2], argv[3]);
	fputs("usage: datagrams send ADDRESS PORT SIZE COUNT | receive PORT | join GROUP INTERFACE\n",
	      stderr);
	return 2;
}
