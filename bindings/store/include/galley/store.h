/* C interface of Galley's block store: KV blocks, or any bytes, that outlive the process, in a
 * folder. It knows a namespace, a key, a parent and parts, and nothing of models, so that any
 * engine can attach to it. docs/formats/segment.md describes the bytes.
 *
 * A block is known to matches once a commit after its put has returned GALLEY_STORE_OK: then it is
 * durable. What a get returns was verified; a block that is damaged is a miss.
 *
 * Ownership. The store and leases belong to the caller: galley_store_close, galley_store_lease_free
 * (NULL does nothing). A lease must be freed before its store is closed. Arguments are only read
 * during the call.
 *
 * Threads. Any number may use a store at once; a lease belongs to one at a time. put may write to
 * the disk (when a group is full), commit, maintain, purge and get do; match never does. No thread
 * is started: call galley_store_maintain every few seconds.
 *
 * Errors. Functions return a galley_store_code. `error` may be NULL; on failure it receives a
 * sentence. Output parameters are written on success only. A NULL handle or output parameter, or a
 * struct_size that is not set, is GALLEY_STORE_INVALID_ARGUMENT. No C++ exception leaves the
 * library. Texts are UTF-8 and end with a NUL. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GALLEY_STORE_API __attribute__((visibility("default")))

/* Changes when anything below changes incompatibly. New functions, enum values, and new members at
 * the end of a struct with `struct_size` keep it. */
#define GALLEY_STORE_ABI_VERSION 1
GALLEY_STORE_API uint32_t galley_store_abi_version(void);

typedef int32_t galley_store_code;
enum {
  GALLEY_STORE_OK = 0,
  GALLEY_STORE_INVALID_ARGUMENT = 1,
  GALLEY_STORE_NOT_FOUND = 3,  /* no such folder */
  GALLEY_STORE_TOO_LARGE = 4,  /* above a limit below */
  GALLEY_STORE_OVERLOADED = 5, /* a budget is used up, too much waits, or another writes here */
  GALLEY_STORE_DEADLINE_EXCEEDED = 8, /* the lease is over */
  GALLEY_STORE_CORRUPTION = 9,        /* the block is damaged and no longer known: a miss */
  GALLEY_STORE_UNAVAILABLE = 10,      /* the disk failed, or the store is read-only: try later */
  GALLEY_STORE_INTERNAL = 11,
  GALLEY_STORE_OUT_OF_MEMORY = 12
};

#define GALLEY_STORE_MESSAGE_BYTES 256
typedef struct galley_store_error {
  char message[GALLEY_STORE_MESSAGE_BYTES]; /* cut if longer */
} galley_store_error;

/* ---- The store ------------------------------------------------------------------------------- */

typedef struct galley_store galley_store;

/* How long blocks of a class stay. Blocks of a class that are put in one hour expire together. */
typedef struct galley_store_class {
  const char* name; /* 1 to 15 of [a-z0-9_] */
  int64_t life_s;   /* at least so long after the last put or refresh; a hit near the end is one */
  uint64_t bytes_max; /* 0: only the store's own limit */
} galley_store_class;

typedef struct galley_store_options {
  size_t struct_size;                /* sizeof(galley_store_options) */
  const char* folder;                /* made if it is missing, unless read_only */
  const galley_store_class* classes; /* NULL: "agent" with 3 days, "chat" with 7 */
  size_t class_count;
  uint64_t bytes_max;           /* of all files; 0: none. The coldest segments make room */
  uint64_t namespace_bytes_max; /* of each namespace; 0: none. Above it puts are refused */
  uint64_t segment_bytes;       /* a segment is closed at this size; 0: 1 GiB */
  uint64_t group_bytes;         /* put commits when so many bytes wait; 0: 8 MiB */
  int32_t
      read_only; /* 1: look at a store that may be in use by its writer; sees what is there now */
  int32_t buffered; /* 1: through the system's cache; 0: past it (O_DIRECT) where possible */
  int32_t lease_s;  /* life of a lease; 0: 30 */
} galley_store_options;

GALLEY_STORE_API galley_store_code galley_store_open(const galley_store_options* options,
                                                     galley_store** out,
                                                     galley_store_error* error);
/* Commits what waits and frees the store, also when it returns an error. NULL does nothing. */
GALLEY_STORE_API galley_store_code galley_store_close(galley_store* store,
                                                      galley_store_error* error);

/* Expiry, refreshes, budgets, closing of old segments, and after a failure of the disk another try
 * to write. */
GALLEY_STORE_API galley_store_code galley_store_maintain(galley_store* store,
                                                         galley_store_error* error);

/* Forgets and erases every block of a namespace, for good. `count` may be NULL. */
GALLEY_STORE_API galley_store_code galley_store_purge(galley_store* store,
                                                      const char* name,
                                                      uint64_t* count,
                                                      galley_store_error* error);

/* ---- Putting --------------------------------------------------------------------------------- */

#define GALLEY_STORE_NAMESPACE_BYTES_MAX 63
#define GALLEY_STORE_PARTS_MAX 1024
#define GALLEY_STORE_BLOCK_BYTES_MAX (64u << 20)

typedef struct galley_store_key {
  uint8_t bytes[16];
} galley_store_key;

typedef struct galley_store_part {
  const void* data;
  size_t size;
} galley_store_part;

typedef struct galley_store_block {
  size_t struct_size;
  const char* name;     /* namespace: blocks of different ones never meet. NULL: "" */
  galley_store_key key; /* a wide hash of everything the bytes depend on: equal keys, equal bytes */
  galley_store_key parent; /* of the block in front; zeros for the first */
  uint64_t layout;         /* how the bytes are to be read; another layout never hits */
  uint64_t numerics;       /* whose arithmetic made them */
  int32_t approximate;     /* 1: the block, or one in front of it, is not what an exact run makes */
  uint32_t retention;      /* class, by index */
  const galley_store_part*
      parts; /* in the order they will be used; each has a checksum of its own */
  size_t part_count;
} galley_store_block;

/* Copies the block. `*known` (may be NULL) is 1 when the store has it or is about to, and nothing
 * was done. */
GALLEY_STORE_API galley_store_code galley_store_put(galley_store* store,
                                                    const galley_store_block* block,
                                                    int32_t* known,
                                                    galley_store_error* error);
/* Makes durable what was put before. On an error none of it is known. */
GALLEY_STORE_API galley_store_code galley_store_commit(galley_store* store,
                                                       galley_store_error* error);

/* ---- Matching and getting -------------------------------------------------------------------- */

typedef struct galley_store_query {
  size_t struct_size;
  const char* name;
  uint64_t layout;
  const galley_store_key* keys; /* a chain, from its beginning */
  size_t key_count;
  int32_t exact_only; /* 1: only exact blocks of these numerics */
  uint64_t numerics;
} galley_store_query;

typedef int32_t galley_store_miss;
enum {
  GALLEY_STORE_MISS_NONE = 0,    /* all keys hit */
  GALLEY_STORE_MISS_UNKNOWN = 1, /* never stored, or gone */
  GALLEY_STORE_MISS_LAYOUT = 2,
  GALLEY_STORE_MISS_NUMERICS =
      3, /* approximate, or other arithmetic, and exactness was asked for */
  GALLEY_STORE_MISS_EXPIRED = 4
};

/* The longest run of known keys from the first on. Until it is over its blocks can be got whatever
 * the store does, but for a purge and a broken disk. */
typedef struct galley_store_lease galley_store_lease;
GALLEY_STORE_API galley_store_code galley_store_match(galley_store* store,
                                                      const galley_store_query* query,
                                                      galley_store_lease** out,
                                                      galley_store_error* error);
GALLEY_STORE_API void galley_store_lease_free(galley_store_lease* lease);
GALLEY_STORE_API size_t galley_store_lease_size(const galley_store_lease* lease);
/* Why it ends where it ends. */
GALLEY_STORE_API galley_store_miss galley_store_lease_miss(const galley_store_lease* lease);
/* Memory that a get of this block needs at most; 0 when there is no such block. */
GALLEY_STORE_API size_t galley_store_lease_bytes(const galley_store_lease* lease, size_t index);

/* Where a part is in the caller's memory. */
typedef struct galley_store_place {
  size_t offset;
  size_t size;
} galley_store_place;

typedef struct galley_store_got {
  size_t struct_size;
  galley_store_key parent;
  uint64_t numerics;
  int32_t approximate;
  size_t part_count;
} galley_store_got;

/* Reads and verifies block `index` of a lease. Where `memory` begins at a multiple of 4096 and has
 * galley_store_lease_bytes, the disk writes there and nothing is copied; pinned memory is fine.
 * Else the parts are copied there, one behind the other, and `size` needs only reach for them.
 * `places` receives the parts' places, as many as `place_capacity` allows; `got` may be NULL. */
GALLEY_STORE_API galley_store_code galley_store_get(galley_store* store,
                                                    const galley_store_lease* lease,
                                                    size_t index,
                                                    void* memory,
                                                    size_t size,
                                                    galley_store_place* places,
                                                    size_t place_capacity,
                                                    galley_store_got* got,
                                                    galley_store_error* error);

/* ---- Figures --------------------------------------------------------------------------------- */

typedef struct galley_store_stat {
  size_t struct_size;
  uint64_t keys;
  uint64_t segments;
  uint64_t bytes;       /* of files */
  uint64_t index_bytes; /* of memory */
  uint64_t puts;
  uint64_t puts_known;
  uint64_t puts_refused;
  uint64_t put_bytes;     /* durable, without heads and padding */
  uint64_t written_bytes; /* given to the disk: endurance */
  uint64_t copied_bytes;
  uint64_t refreshed_bytes;
  uint64_t lost_blocks; /* put and not written, as the disk failed */
  uint64_t keys_asked;
  uint64_t keys_hit;
  uint64_t reads;
  uint64_t damaged_blocks;
  uint64_t expired_segments;
  uint64_t evicted_segments;
  int32_t read_only; /* now */
} galley_store_stat;

GALLEY_STORE_API galley_store_code galley_store_stats(const galley_store* store,
                                                      galley_store_stat* out,
                                                      galley_store_error* error);

#ifdef __cplusplus
}
#endif
