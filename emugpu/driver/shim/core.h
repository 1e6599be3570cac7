/* What the driver library has beside the API itself: calls to the emulated GPU, contexts, memory that both map.
 *
 * A call is one message and one answer over a private socket; `functions.txt` says what each carries, and
 * emugpu/driver/protocol.py has the format. One call at a time: a lock keeps the threads of a program apart.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t Result; /* CUresult */

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
};

#define API __attribute__((visibility("default")))
#define MOST_PARTS 24
#define MOST_OUTPUTS 8
#define HEAD_BYTES 1024

typedef struct {
    const void *from;
    size_t size;
} Part;

typedef struct {
    void *to;
    size_t size;
} Output;

/* A message that is being put together, and where its answer goes. */
typedef struct {
    unsigned char head[HEAD_BYTES];
    size_t used, flushed;
    Part parts[MOST_PARTS];
    int part_count;
    Output outputs[MOST_OUTPUTS];
    int output_count;
} Call;

void begin(Call *call, uint32_t number);
void put_scalar(Call *call, uint64_t value);
void put_float(Call *call, float value);
void put_bytes(Call *call, const void *from, size_t size);
void put_text(Call *call, const char *text);
void put_image(Call *call, const void *image);
void put_output(Call *call, void *to, size_t size);
Result finish(Call *call);
/* Of functions that are refused: nothing is sent but their number. */
Result refuse(uint32_t number);

/* The same by name, for functions of other libraries. */
API Result emulatedGpuRefuses(const char *name);

/* Whether cuInit was called and the thread has a context; else the error to return. */
Result require_context(void);
bool is_initialised(void);
Result initialise(void);
/* How many bytes attributes have, by their number. */
size_t pointer_attribute_bytes(int attribute);
size_t pool_attribute_bytes(int attribute);
/* How many extents a tensor map has, less so many; none if its rank cannot be. */
size_t extents(uint32_t rank, uint32_t less);

/* Generated beside the stubs. */
typedef struct {
    const char *name, *base;
    int since;
    void *function;
} Entry;
extern const Entry entries[];
extern const int entry_count;
extern const unsigned char table_checksum[8];
typedef struct {
    int code;
    const char *name, *text;
} ResultName;
extern const ResultName result_names[];
extern const int result_name_count;
