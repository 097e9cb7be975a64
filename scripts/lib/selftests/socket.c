/*
 * Does with a Unix socket what QEMU does, under the profile of a libvirt domain:
 *
 *   socket open PATH     asks for permission to read and write the file. Some kernels, as Ubuntu's,
 *                        ask for the same permission when a program connects, others, as Debian's,
 *                        for none. ENXIO is success: permitted, but a socket cannot be opened.
 *   socket connect PATH  connects as a vhost-user front-end and waits for the back-end's features
 *   socket listen PATH   makes the socket and removes it
 *
 * Status 0: success; 1: the system call failed, and standard error says why; 2: usage.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int is_open(const char *path)
{
	return open(path, O_RDWR) >= 0 || errno == ENXIO;
}

/* VHOST_USER_GET_FEATURES of protocol version 1, and the reply: a header and 64 bits. */
static int is_served(int fd, const struct sockaddr_un *address)
{
	uint32_t request[3] = { 1, 1, 0 };
	char reply[20];

	return connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0
		&& write(fd, request, sizeof(request)) == sizeof(request)
		&& read(fd, reply, sizeof(reply)) == sizeof(reply);
}

static int is_made(int fd, const struct sockaddr_un *address)
{
	return bind(fd, (const struct sockaddr *)address, sizeof(*address)) == 0
		&& listen(fd, 1) == 0 && unlink(address->sun_path) == 0;
}

int main(int argc, char **argv)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0), ok = 0;

	if (argc != 3 || fd < 0 || strlen(argv[2]) >= sizeof(address.sun_path))
		return 2;
	strcpy(address.sun_path, argv[2]);
	if (!strcmp(argv[1], "open"))
		ok = is_open(argv[2]);
	else if (!strcmp(argv[1], "connect"))
		ok = is_served(fd, &address);
	else if (!strcmp(argv[1], "listen"))
		ok = is_made(fd, &address);
	if (!ok)
		perror(argv[2]);
	return !ok;
}
