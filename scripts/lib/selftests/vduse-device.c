/*
 * Makes a VDUSE network device of three rings, as another program does, and connects it with no
 * driver. Usage: vduse-device NAME
 */
#include <fcntl.h>
#include <linux/vduse.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_net.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

int main(int argc, char **argv)
{
    size_t len = sizeof(struct vduse_dev_config) + sizeof(struct virtio_net_config);
    struct vduse_dev_config *config = calloc(1, len);
    __u64 version = 0;
    int control = open("/dev/vduse/control", O_RDWR);

    if (argc != 2 || !config || control < 0)
        return 2;
    strncpy(config->name, argv[1], sizeof(config->name) - 1);
    config->device_id = VIRTIO_ID_NET;
    config->features = 1ULL << 32 | 1ULL << 33;
    config->vq_num = 3;
    config->vq_align = 4096;
    config->config_size = sizeof(struct virtio_net_config);
    if (ioctl(control, VDUSE_SET_API_VERSION, &version) || ioctl(control, VDUSE_CREATE_DEV, config)) {
        perror("vduse-device");
        return 1;
    }
    return 0;
}
