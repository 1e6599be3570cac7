/* Calls to the emulated GPU. */
#define _GNU_SOURCE
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST_WINDOWS 4

/* A range of device addresses, and the place in the program where their memory is mapped. */
typedef struct {
    uint64_t base, size, offset, fixed;
} Window;

typedef struct {
    int32_t result;
    uint32_t text_bytes, output_bytes, copies;
} Reply;

typedef struct {
    uint64_t to, from, width, rows, to_pitch, from_pitch;
} Copy;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection = -1;
static enum { UNUSED, CONNECTED, FORKED, LOST, LEFT, NOWHERE } state = UNUSED;
static bool initialised;
static Window windows[MOST_WINDOWS];
static unsigned char *mapped[MOST_WINDOWS];
static uint32_t window_count;

/* ---- the connection ---- */

static Result say_lost(void) {
    if (state == CONNECTED) {
        state = LOST;
        fprintf(stderr, "emulated GPU: its process has ended (was `emugpu exec` killed?); all further calls fail\n");
    }
    return DEVICE_UNAVAILABLE;
}

static bool receive(void *to, size_t size) {
    for (unsigned char *at = to; size;) {
        ssize_t got = recv(connection, at, size, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

static bool send_parts(struct iovec *parts, int count) {
    while (count) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t sent = sendmsg(connection, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return false;
        while (count && (size_t)sent >= parts->iov_len) {
            sent -= (ssize_t)parts->iov_len;
            parts++, count--;
        }
        if (count) {
            parts->iov_base = (char *)parts->iov_base + sent;
            parts->iov_len -= (size_t)sent;
        }
    }
    return true;
}

static int receive_memory(void) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec part = {&window_count, sizeof window_count};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t got;
    do {
        got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (got != sizeof window_count || !header || header->cmsg_type != SCM_RIGHTS) return -1;
    int memory;
    memcpy(&memory, CMSG_DATA(header), sizeof memory);
    return memory;
}

#define PROGRAM_END (1ull << 47) /* all addresses of a program are below it */

/* Pinned memory has one address for both sides: the proposed one, or another one if the program already uses that.
 * Device memory is mapped elsewhere than at its device address, which the program cannot reach. */
static bool map_window(Window *window, unsigned char **at, int memory) {
    void *place = (void *)window->base;
    int fixed = MAP_FIXED_NOREPLACE | MAP_NORESERVE;
    bool reachable = !window->fixed && window->base < PROGRAM_END;
    if (reachable && mmap(place, window->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0) != place)
        return false;
    int access = PROT_READ | PROT_WRITE;
    *at = MAP_FAILED;
    if (window->fixed) *at = mmap(place, window->size, access, MAP_SHARED | fixed, memory, (off_t)window->offset);
    if (*at == MAP_FAILED)
        *at = mmap(NULL, window->size, access, MAP_SHARED | MAP_NORESERVE, memory, (off_t)window->offset);
    if (*at == MAP_FAILED) return false;
    madvise(*at, window->size, MADV_DONTDUMP);
    if (window->fixed) window->base = (uint64_t)*at;
    return true;
}

/* Sends the address of pinned memory to the server. */
static bool send_pinned(void) {
    for (uint32_t n = 0; n < window_count; n++) {
        struct iovec part = {&windows[n].base, sizeof windows[n].base};
        if (windows[n].fixed) return send_parts(&part, 1);
    }
    return false;
}

static Result give_up(const char *why) {
    state = NOWHERE;
    if (connection >= 0) close(connection);
    connection = -1;
    fprintf(stderr, "emulated GPU: %s\n", why);
    return NO_DEVICE;
}

static Result open_connection(void) {
    const char *name = getenv("EMULATED_GPU_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!name || strlen(name) + 1 >= sizeof address.sun_path)
        return give_up("this driver library works only in programs that `emugpu exec` starts");
    strcpy(address.sun_path + 1, name); /* a leading zero: an abstract name, not a file */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, size))
        return give_up("`emugpu exec`, which started this program, has ended");
    struct iovec hello = {(void *)table_checksum, sizeof table_checksum};
    if (!send_parts(&hello, 1)) return give_up("its process does not accept messages");
    int memory = receive_memory();
    if (memory < 0 || window_count > MOST_WINDOWS || !receive(windows, window_count * sizeof *windows))
        return give_up("it rejects this driver library (does it come from another version of emugpu?)");
    bool good = true;
    for (uint32_t n = 0; n < window_count; n++) good = good && map_window(&windows[n], &mapped[n], memory);
    close(memory);
    if (!good) return give_up("its memory cannot be mapped into this program (is its address space limited?)");
    if (!send_pinned()) return give_up("its process ended while this program connected");
    state = CONNECTED;
    return SUCCESS;
}

/* As on a GPU, a forked process cannot use what its parent has initialised. */
static void after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    if (state == CONNECTED) {
        close(connection);
        state = FORKED;
    }
}

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }

static Result connected(void) {
    if (state == UNUSED) return open_connection();
    switch (state) {
        case CONNECTED: return SUCCESS;
        case FORKED: return NOT_INITIALIZED;
        case LOST: return DEVICE_UNAVAILABLE;
        case LEFT: return DEINITIALIZED;
        default: return NO_DEVICE;
    }
}

/* The program ends. What its libraries still unload then has the answer of a driver that shuts down. */
API void emulatedGpuLeaves(void) {
    pthread_mutex_lock(&lock);
    if (state == CONNECTED) {
        close(connection);
        state = LEFT;
    }
    pthread_mutex_unlock(&lock);
}

Result initialise(void) {
    pthread_mutex_lock(&lock);
    Result result = connected();
    if (result == SUCCESS) initialised = true;
    pthread_mutex_unlock(&lock);
    return result;
}

bool is_initialised(void) { return initialised && state != FORKED; }

/* ---- messages ---- */

static void flush_head(Call *call) {
    if (call->used > call->flushed) {
        call->parts[call->part_count++] = (Part){call->head + call->flushed, call->used - call->flushed};
        call->flushed = call->used;
    }
}

void begin(Call *call, uint32_t number) {
    call->used = call->flushed = 0;
    call->part_count = call->output_count = 0;
    uint32_t frame[2] = {0, number}; /* finish() fills in the size */
    memcpy(call->head, frame, sizeof frame);
    call->used = sizeof frame;
}

void put_scalar(Call *call, uint64_t value) {
    memcpy(call->head + call->used, &value, sizeof value);
    call->used += sizeof value;
}

void put_float(Call *call, float value) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    put_scalar(call, bits);
}

void put_bytes(Call *call, const void *from, size_t size) {
    put_scalar(call, from ? size : 0);
    if (from && size) {
        flush_head(call);
        call->parts[call->part_count++] = (Part){from, size};
    }
}

void put_text(Call *call, const char *text) { put_bytes(call, text, text ? strlen(text) : 0); }

void put_output(Call *call, void *to, size_t size) {
    put_scalar(call, to ? size : 0);
    call->outputs[call->output_count++] = (Output){to, size};
}

static bool take_text(uint32_t size) {
    char buffer[4096];
    while (size) {
        uint32_t now = size < sizeof buffer ? size : sizeof buffer;
        if (!receive(buffer, now)) return false;
        fwrite(buffer, 1, now, stdout);
        size -= now;
    }
    fflush(stdout);
    return true;
}

static bool take_outputs(Call *call) {
    for (int n = 0; n < call->output_count; n++) {
        uint64_t size;
        if (!receive(&size, sizeof size) || size > call->outputs[n].size) return false;
        if (size && (!call->outputs[n].to || !receive(call->outputs[n].to, size))) return false;
    }
    return true;
}

static unsigned char *within_reach(uint64_t address) {
    for (uint32_t n = 0; n < window_count; n++)
        if (address - windows[n].base < windows[n].size) return mapped[n] + (address - windows[n].base);
    return (unsigned char *)address;
}

static void copy(const Copy *plan) {
    unsigned char *to = within_reach(plan->to);
    const unsigned char *from = within_reach(plan->from);
    for (uint64_t row = 0; row < plan->rows; row++)
        memmove(to + row * plan->to_pitch, from + row * plan->from_pitch, plan->width);
}

static Result exchange(Call *call, Copy **plans, uint32_t *plan_count) {
    Result ready = connected();
    if (ready != SUCCESS) return ready;
    struct iovec parts[MOST_PARTS];
    uint64_t size = 0;
    for (int n = 0; n < call->part_count; n++) {
        parts[n] = (struct iovec){(void *)call->parts[n].from, call->parts[n].size};
        size += call->parts[n].size;
    }
    if (size > UINT32_MAX) return INVALID_VALUE;
    uint32_t payload = (uint32_t)size - 8;
    memcpy(call->head, &payload, sizeof payload);
    Reply reply;
    if (!send_parts(parts, call->part_count) || !receive(&reply, sizeof reply)) return say_lost();
    if (!take_text(reply.text_bytes)) return say_lost();
    if (reply.output_bytes && !take_outputs(call)) return say_lost();
    if (reply.copies) {
        *plans = malloc(reply.copies * sizeof(Copy));
        if (!*plans || !receive(*plans, reply.copies * sizeof(Copy))) return say_lost();
        *plan_count = reply.copies;
    }
    return reply.result;
}

Result finish(Call *call) {
    Copy *plans = NULL;
    uint32_t plan_count = 0;
    flush_head(call);
    pthread_mutex_lock(&lock);
    Result result = exchange(call, &plans, &plan_count);
    pthread_mutex_unlock(&lock);
    for (uint32_t n = 0; n < plan_count; n++) copy(&plans[n]);
    free(plans);
    return result;
}

Result refuse(uint32_t number) {
    Call call;
    begin(&call, number);
    Result result = finish(&call);
    return result == SUCCESS ? NOT_SUPPORTED : result;
}

/* ---- sizes that follow from the content ---- */

#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u
#define ELF 0x464c457fu

static size_t elf_size(const unsigned char *image) {
    uint64_t sections, segments;
    uint16_t section_size, section_count, segment_size, segment_count;
    memcpy(&segments, image + 32, 8);
    memcpy(&sections, image + 40, 8);
    memcpy(&segment_size, image + 54, 2);
    memcpy(&segment_count, image + 56, 2);
    memcpy(&section_size, image + 58, 2);
    memcpy(&section_count, image + 60, 2);
    uint64_t end = sections + (uint64_t)section_size * section_count;
    uint64_t other = segments + (uint64_t)segment_size * segment_count;
    uint64_t header = 64;
    return end > other && end > header ? end : other > header ? other : header;
}

void put_image(Call *call, const void *image) {
    uint32_t magic = 0;
    if (!image) {
        put_bytes(call, NULL, 0);
        return;
    }
    if (!((const char *)image)[0]) { /* empty text is shorter than the magic numbers */
        put_bytes(call, "", 0);
        return;
    }
    memcpy(&magic, image, sizeof magic);
    if (magic == FATBIN_WRAPPER) {
        memcpy(&image, (const char *)image + 8, sizeof image);
        memcpy(&magic, image, sizeof magic);
    }
    if (magic == FATBIN) {
        uint16_t header;
        uint64_t body;
        memcpy(&header, (const char *)image + 6, sizeof header);
        memcpy(&body, (const char *)image + 8, sizeof body);
        put_bytes(call, image, header + body);
    } else {
        put_bytes(call, image, magic == ELF ? elf_size(image) : strlen(image));
    }
}

size_t pointer_attribute_bytes(int attribute) {
    switch (attribute) {
        case 5: return 16; /* peer-to-peer tokens */
        case 2: case 6: case 8: case 9: case 10: case 13: case 15: case 16: case 21: return 4;
        default: return 8;
    }
}

size_t pool_attribute_bytes(int attribute) { return attribute <= 3 ? 4 : 8; }

size_t extents(uint32_t rank, uint32_t less) { return rank > 5 || rank < less ? 0 : rank - less; }
