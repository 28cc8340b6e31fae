/* Every call of galley/store.h once, as C. Prints nothing and ends with 0 when all is well. */
#define _GNU_SOURCE /* mkdtemp, aligned_alloc beside it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "galley/store.h"

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

static galley_store_key key(int n) {
  galley_store_key out = {{0}};
  out.bytes[0] = (uint8_t)n;
  return out;
}

int main(void) {
  char folder[] = "/tmp/galley-store-XXXXXX";
  CHECK(mkdtemp(folder) != NULL);
  CHECK(galley_store_abi_version() == GALLEY_STORE_ABI_VERSION);
  galley_store_error error;
  galley_store* store = NULL;
  galley_store_options options = {.struct_size = sizeof(options), .folder = folder};
  CHECK(galley_store_open(NULL, &store, &error) == GALLEY_STORE_INVALID_ARGUMENT);
  CHECK(galley_store_open(&options, NULL, NULL) == GALLEY_STORE_INVALID_ARGUMENT);
  const galley_store_class broken = {.name = "No", .life_s = 1};
  options.classes = &broken;
  options.class_count = 1;
  CHECK(galley_store_open(&options, &store, &error) == GALLEY_STORE_INVALID_ARGUMENT);
  CHECK(strstr(error.message, "No") != NULL);
  const galley_store_class classes[] = {{.name = "short", .life_s = 60},
                                        {.name = "long", .life_s = 6000}};
  options.classes = classes;
  options.class_count = 2;
  CHECK(galley_store_open(&options, &store, &error) == GALLEY_STORE_OK);

  static char first[50000];
  memset(first, 'a', sizeof(first));
  const galley_store_part parts[] = {{first, sizeof(first)}, {"bc", 2}};
  galley_store_block block = {.struct_size = sizeof(block),
                              .name = "tenant",
                              .key = key(1),
                              .parent = key(7),
                              .layout = 3,
                              .numerics = 4,
                              .retention = 1,
                              .parts = parts,
                              .part_count = 2};
  int32_t known = -1;
  CHECK(galley_store_put(store, &block, &known, &error) == GALLEY_STORE_OK && known == 0);
  CHECK(galley_store_put(store, &block, &known, &error) == GALLEY_STORE_OK && known == 1);
  CHECK(galley_store_commit(store, &error) == GALLEY_STORE_OK);
  block.retention = 9;
  block.key = key(2);
  CHECK(galley_store_put(store, &block, NULL, &error) == GALLEY_STORE_INVALID_ARGUMENT);

  const galley_store_key keys[] = {key(1), key(2)};
  galley_store_query query = {
      .struct_size = sizeof(query), .name = "tenant", .layout = 3, .keys = keys, .key_count = 2};
  galley_store_lease* lease = NULL;
  CHECK(galley_store_match(store, &query, &lease, &error) == GALLEY_STORE_OK);
  CHECK(galley_store_lease_size(lease) == 1);
  CHECK(galley_store_lease_miss(lease) == GALLEY_STORE_MISS_UNKNOWN);
  const size_t whole = galley_store_lease_bytes(lease, 0);
  CHECK(whole >= 50002 && galley_store_lease_bytes(lease, 1) == 0);
  galley_store_place places[2];
  galley_store_got got = {.struct_size = sizeof(got)};
  char* memory = aligned_alloc(4096, whole + 4096);
  CHECK(memory != NULL);
  for (int shift = 0; shift < 2; ++shift) { /* straight from the disk, then through a copy */
    char* const begin = memory + shift;
    CHECK(galley_store_get(store, lease, 0, begin, whole, places, 2, &got, &error) ==
          GALLEY_STORE_OK);
    CHECK(got.part_count == 2 && got.numerics == 4 && got.approximate == 0 &&
          got.parent.bytes[0] == 7);
    CHECK(places[0].size == sizeof(first) &&
          memcmp(begin + places[0].offset, first, sizeof(first)) == 0);
    CHECK(places[1].size == 2 && memcmp(begin + places[1].offset, "bc", 2) == 0);
  }
  CHECK(galley_store_get(store, lease, 0, memory + 1, 50001, NULL, 0, NULL, &error) ==
        GALLEY_STORE_TOO_LARGE);
  CHECK(galley_store_get(store, lease, 1, memory, whole, NULL, 0, NULL, &error) ==
        GALLEY_STORE_INVALID_ARGUMENT);
  galley_store_lease_free(lease);
  galley_store_lease_free(NULL);
  query.exact_only = 1;
  CHECK(galley_store_match(store, &query, &lease, &error) == GALLEY_STORE_OK);
  CHECK(galley_store_lease_size(lease) == 0 &&
        galley_store_lease_miss(lease) == GALLEY_STORE_MISS_NUMERICS);
  galley_store_lease_free(lease);

  CHECK(galley_store_maintain(store, &error) == GALLEY_STORE_OK);
  uint64_t purged = 0;
  CHECK(galley_store_purge(store, "tenant", &purged, &error) == GALLEY_STORE_OK && purged == 1);
  galley_store_stat stat = {.struct_size = sizeof(stat)};
  CHECK(galley_store_stats(store, &stat, &error) == GALLEY_STORE_OK);
  CHECK(stat.keys == 0 && stat.puts == 1 && stat.reads >= 2 && stat.read_only == 0);
  CHECK(galley_store_close(store, &error) == GALLEY_STORE_OK);
  CHECK(galley_store_close(NULL, NULL) == GALLEY_STORE_OK);
  free(memory);
  char command[64];
  snprintf(command, sizeof(command), "rm -rf %s", folder);
  return system(command) == 0 ? 0 : 1;
}
