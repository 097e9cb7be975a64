/*
 * Attaches an XDP program that lets all frames pass, inside a guest: what a guest with Cilium, a
 * packet filter or a load balancer does to its network card. The program stays when this ends.
 *
 *   xdp INTERFACE
 */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void check(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

/* return XDP_PASS; */
static int load(void)
{
	struct bpf_insn pass[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	static char log[4096];
	union bpf_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.prog_type = BPF_PROG_TYPE_XDP;
	attr.insns = (uintptr_t)pass;
	attr.insn_cnt = sizeof pass / sizeof *pass;
	attr.license = (uintptr_t) "GPL";
	attr.log_buf = (uintptr_t)log;
	attr.log_size = sizeof log;
	attr.log_level = 1;
	return (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr);
}

static void add(struct nlmsghdr *to, unsigned short type, const void *value, unsigned short len)
{
	struct rtattr *attr = (struct rtattr *)((char *)to + NLMSG_ALIGN(to->nlmsg_len));

	attr->rta_type = type;
	attr->rta_len = (unsigned short)RTA_LENGTH(len);
	memcpy(RTA_DATA(attr), value, len);
	to->nlmsg_len = NLMSG_ALIGN(to->nlmsg_len) + RTA_ALIGN(attr->rta_len);
}

int main(int argc, char **argv)
{
	struct {
		struct nlmsghdr head;
		struct ifinfomsg link;
		char attributes[64];
	} ask = { .head = { .nlmsg_len = NLMSG_LENGTH(sizeof ask.link), .nlmsg_type = RTM_SETLINK,
			    .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK } };
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
		char more[4096];
	} answer = { .error.error = 0 };
	struct rtattr *nested;
	uint32_t flags = XDP_FLAGS_DRV_MODE;
	int program, s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	if (argc != 2) {
		fputs("usage: xdp INTERFACE\n", stderr);
		return 2;
	}
	ask.link.ifi_index = (int)if_nametoindex(argv[1]);
	check(ask.link.ifi_index > 0, argv[1]);
	check((program = load()) >= 0, "BPF_PROG_LOAD");
	nested = (struct rtattr *)((char *)&ask + ask.head.nlmsg_len);
	add(&ask.head, IFLA_XDP | NLA_F_NESTED, "", 0);
	add(&ask.head, IFLA_XDP_FD, &program, sizeof program);
	add(&ask.head, IFLA_XDP_FLAGS, &flags, sizeof flags);
	nested->rta_len = (unsigned short)((char *)&ask + ask.head.nlmsg_len - (char *)nested);
	check(send(s, &ask, ask.head.nlmsg_len, 0) == (ssize_t)ask.head.nlmsg_len, "send");
	check(recv(s, &answer, sizeof answer, 0) > 0, "recv");
	errno = -answer.error.error;
	check(answer.head.nlmsg_type == NLMSG_ERROR && errno == 0, "IFLA_XDP");
	return 0;
}
