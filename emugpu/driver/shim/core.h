/* The internals of the driver library: calls to the emulated GPU, contexts, and the memory that both sides map.
 *
 * A call is one message and one reply over a private socket. `functions.txt` lists the contents of each, and
 * emugpu/driver/protocol.py describes the format. A lock serialises the calls of a program's threads.
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
    DEINITIALIZED = 4,
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

/* A message that is being built, and the places for its reply. */
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
/* Refuses a function: sends only its number. */
Result refuse(uint32_t number);

/* Refuses a function of another library, by its name. */
API Result emulatedGpuRefuses(const char *name);
API void emulatedGpuLeaves(void);

/* Returns SUCCESS if cuInit was called and the thread has a context, else the error for the caller to return. */
Result require_context(void);
bool is_initialised(void);
Result initialise(void);
/* Return the size of an attribute in bytes. */
size_t pointer_attribute_bytes(int attribute);
size_t pool_attribute_bytes(int attribute);
/* Returns the number of extents of a tensor map minus `less`, or 0 if the rank is invalid. */
size_t extents(uint32_t rank, uint32_t less);

/* Generated together with the stubs. */
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
