#include "galley/store.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/entropy.h"
#include "base/page_buffer.h"
#include "base/real_clock.h"
#include "base/result.h"
#include "cache/block_store.h"
#include "cache/posix_disk.h"
#include "cache/segments/segment_store.h"

// Exceptions end here, and what C can get wrong is looked at.

using galley::Code;
using galley::Error;
using galley::fail;
using galley::Result;
namespace cache = galley::cache;

struct galley_store {
  galley::RealClock clock;
  std::unique_ptr<cache::PosixDisk> disk;
  std::unique_ptr<cache::SegmentStore> store;
};

struct galley_store_lease {
  std::unique_ptr<cache::BlockLease> lease;
};

namespace {

static_assert(static_cast<int>(Code::kInvalidArgument) + 1 == GALLEY_STORE_INVALID_ARGUMENT);
static_assert(static_cast<int>(Code::kNotFound) + 1 == GALLEY_STORE_NOT_FOUND);
static_assert(static_cast<int>(Code::kDeadlineExceeded) + 1 == GALLEY_STORE_DEADLINE_EXCEEDED);
static_assert(static_cast<int>(Code::kInternal) + 1 == GALLEY_STORE_INTERNAL);
static_assert(sizeof(galley_store_key) == sizeof(cache::BlockKey));
static_assert(static_cast<int>(cache::MissReason::kExpired) == GALLEY_STORE_MISS_EXPIRED);
static_assert(GALLEY_STORE_NAMESPACE_BYTES_MAX == cache::kNamespaceBytesMax);
static_assert(GALLEY_STORE_PARTS_MAX == cache::kBlockPartsMax);
static_assert(GALLEY_STORE_BLOCK_BYTES_MAX == cache::kBlockBytesMax);

void say(galley_store_error* out, const std::string& text) {
  if (out != nullptr) {
    const std::size_t size = std::min(text.size(), sizeof(out->message) - 1);
    std::memcpy(out->message, text.data(), size);
    out->message[size] = '\0';
  }
}

// Runs `body`, which returns Result<void>.
template <class Body>
galley_store_code guarded(galley_store_error* error, const Body& body) noexcept {
  try {
    const Result<void> result = body();
    if (result) {
      return GALLEY_STORE_OK;
    }
    say(error, to_string(result.error()));
    return static_cast<galley_store_code>(result.error().code) + 1;
  } catch (const std::bad_alloc&) {
    return GALLEY_STORE_OUT_OF_MEMORY;
  } catch (const std::exception& failure) {
    try {
      say(error, failure.what());
    } catch (...) {  // no memory for the words
      return GALLEY_STORE_OUT_OF_MEMORY;
    }
    return GALLEY_STORE_INTERNAL;
  }
}

Result<void> require(bool condition, const char* what) {
  if (!condition) {
    return fail(Code::kInvalidArgument, what);
  }
  return {};
}

// A caller built against an older header has a shorter struct.
template <class T>
Result<T> read_struct(const T* in) {
  GALLEY_CHECK_OK(require(in != nullptr && in->struct_size >= sizeof(in->struct_size),
                          "a struct is NULL or its struct_size is not set"));
  T value{};
  std::memcpy(&value, in, std::min(in->struct_size, sizeof(T)));
  return value;
}

template <class T>
Result<void> write_struct(T value, T* out) {
  GALLEY_CHECK_OK(require(out != nullptr && out->struct_size >= sizeof(out->struct_size),
                          "a struct is NULL or its struct_size is not set"));
  value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min(value.struct_size, sizeof(T)));
  return {};
}

cache::BlockKey key_of(const galley_store_key& key) {
  cache::BlockKey out;
  std::memcpy(out.bytes.data(), key.bytes, out.bytes.size());
  return out;
}

std::string_view text(const char* value) {
  return value == nullptr ? std::string_view() : std::string_view(value);
}

Result<cache::StoreOptions> store_options(const galley_store_options& from) {
  cache::StoreOptions out;
  if (from.classes != nullptr) {
    out.classes.clear();
    for (std::size_t i = 0; i < from.class_count; ++i) {
      const galley_store_class& one = from.classes[i];
      constexpr std::int64_t kLifeMax = std::int64_t{100} * 366 * 24 * 3600;
      GALLEY_CHECK_OK(require(one.name != nullptr, "the name of a class is NULL"));
      GALLEY_CHECK_OK(require(one.life_s >= 1 && one.life_s <= kLifeMax,
                              "the life of a class is 1 second to 100 years"));
      out.classes.push_back(
          {.name = one.name, .life = std::chrono::seconds(one.life_s), .bytes_max = one.bytes_max});
    }
  }
  GALLEY_CHECK_OK(require(from.lease_s >= 0, "the life of a lease is below 0"));
  out.bytes_max = from.bytes_max;
  out.space_bytes_max = from.namespace_bytes_max;
  out.segment_bytes = from.segment_bytes == 0 ? out.segment_bytes : from.segment_bytes;
  out.group_bytes = from.group_bytes == 0 ? out.group_bytes : from.group_bytes;
  out.staged_bytes_max = std::max(out.staged_bytes_max, 2 * out.group_bytes);
  out.lease = from.lease_s == 0 ? out.lease : std::chrono::seconds(from.lease_s);
  out.read_only = from.read_only != 0;
  out.seed = galley::entropy_seed();
  return out;
}

}  // namespace

uint32_t galley_store_abi_version(void) {
  return GALLEY_STORE_ABI_VERSION;
}

galley_store_code galley_store_open(const galley_store_options* options,
                                    galley_store** out,
                                    galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const galley_store_options given, read_struct(options));
    GALLEY_CHECK_OK(require(given.folder != nullptr, "folder is NULL"));
    GALLEY_TRY(cache::StoreOptions wanted, store_options(given));
    auto made = std::make_unique<galley_store>();
    GALLEY_TRY(made->disk, cache::PosixDisk::open_folder(given.folder, !wanted.read_only,
                                                         {.direct = given.buffered == 0}));
    GALLEY_TRY(made->store, cache::SegmentStore::open(*made->disk, made->clock, std::move(wanted)));
    *out = made.release();
    return {};
  });
}

galley_store_code galley_store_close(galley_store* store, galley_store_error* error) {
  const std::unique_ptr<galley_store> owned(store);
  return guarded(error, [&]() -> Result<void> {
    return owned == nullptr ? Result<void>{} : owned->store->close();
  });
}

galley_store_code galley_store_maintain(galley_store* store, galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(store != nullptr, "store is NULL"));
    return store->store->maintain();
  });
}

galley_store_code galley_store_purge(galley_store* store,
                                     const char* name,
                                     uint64_t* count,
                                     galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(store != nullptr, "store is NULL"));
    GALLEY_TRY(const std::uint64_t purged, store->store->purge(text(name)));
    if (count != nullptr) {
      *count = purged;
    }
    return {};
  });
}

galley_store_code galley_store_put(galley_store* store,
                                   const galley_store_block* block,
                                   int32_t* known,
                                   galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(store != nullptr, "store is NULL"));
    GALLEY_TRY(const galley_store_block given, read_struct(block));
    GALLEY_CHECK_OK(require(given.parts != nullptr || given.part_count == 0, "parts is NULL"));
    GALLEY_CHECK_OK(require(given.part_count <= GALLEY_STORE_PARTS_MAX, "too many parts"));
    std::vector<std::span<const std::byte>> parts;
    parts.reserve(given.part_count);
    for (std::size_t i = 0; i < given.part_count; ++i) {
      const galley_store_part& part = given.parts[i];
      GALLEY_CHECK_OK(require(part.data != nullptr || part.size == 0, "a part is NULL"));
      parts.emplace_back(static_cast<const std::byte*>(part.data), part.size);
    }
    GALLEY_TRY(const cache::PutOutcome outcome,
               store->store->put({.facts = {.space = text(given.name),
                                            .key = key_of(given.key),
                                            .parent = key_of(given.parent),
                                            .layout = given.layout,
                                            .numerics = given.numerics,
                                            .exact = given.approximate == 0},
                                  .retention = given.retention,
                                  .parts = parts}));
    if (known != nullptr) {
      *known = outcome == cache::PutOutcome::kKnown ? 1 : 0;
    }
    return {};
  });
}

galley_store_code galley_store_commit(galley_store* store, galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(store != nullptr, "store is NULL"));
    return store->store->commit();
  });
}

galley_store_code galley_store_match(galley_store* store,
                                     const galley_store_query* query,
                                     galley_store_lease** out,
                                     galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(store != nullptr && out != nullptr, "store or out is NULL"));
    GALLEY_TRY(const galley_store_query given, read_struct(query));
    GALLEY_CHECK_OK(require(given.keys != nullptr || given.key_count == 0, "keys is NULL"));
    std::vector<cache::BlockKey> keys;
    keys.reserve(given.key_count);
    for (std::size_t i = 0; i < given.key_count; ++i) {
      keys.push_back(key_of(given.keys[i]));
    }
    auto lease = std::make_unique<galley_store_lease>();
    lease->lease = store->store->match({.space = text(given.name),
                                        .layout = given.layout,
                                        .keys = keys,
                                        .exact_only = given.exact_only != 0,
                                        .numerics = given.numerics});
    *out = lease.release();
    return {};
  });
}

void galley_store_lease_free(galley_store_lease* lease) {
  delete lease;
}

size_t galley_store_lease_size(const galley_store_lease* lease) {
  return lease == nullptr ? 0 : lease->lease->size();
}

galley_store_miss galley_store_lease_miss(const galley_store_lease* lease) {
  return lease == nullptr ? GALLEY_STORE_MISS_UNKNOWN
                          : static_cast<galley_store_miss>(lease->lease->miss());
}

size_t galley_store_lease_bytes(const galley_store_lease* lease, size_t index) {
  return index < galley_store_lease_size(lease) ? lease->lease->read_bytes(index) : 0;
}

galley_store_code galley_store_get(galley_store* store,
                                   const galley_store_lease* lease,
                                   size_t index,
                                   void* memory,
                                   size_t size,
                                   galley_store_place* places,
                                   size_t place_capacity,
                                   galley_store_got* got,
                                   galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(store != nullptr && lease != nullptr, "store or lease is NULL"));
    GALLEY_CHECK_OK(require(index < lease->lease->size(), "the lease has no such block"));
    GALLEY_CHECK_OK(require(memory != nullptr || size == 0, "memory is NULL"));
    GALLEY_CHECK_OK(require(places != nullptr || place_capacity == 0, "places is NULL"));
    auto* const begin = static_cast<std::byte*>(memory);
    const std::size_t whole = lease->lease->read_bytes(index);
    const bool straight =
        size >= whole && reinterpret_cast<std::uintptr_t>(memory) % galley::kDiskPage == 0;
    galley::PageBuffer between(straight ? 0 : whole);
    GALLEY_TRY(const cache::BlockView view,
               store->store->read_into(*lease->lease, index,
                                       straight ? std::span(begin, whole) : between.bytes()));
    std::size_t at = 0;
    for (std::size_t i = 0; i < view.parts.size(); ++i) {
      const auto& part = view.parts[i];
      if (!straight) {
        if (part.size() > size - at) {
          return fail(Code::kTooLarge, "the parts are larger than the memory", "size");
        }
        std::copy(part.begin(), part.end(), begin + at);
      }
      if (i < place_capacity) {
        places[i] = {.offset = straight ? static_cast<std::size_t>(part.data() - begin) : at,
                     .size = part.size()};
      }
      at += part.size();
    }
    if (got != nullptr) {
      galley_store_got out{.struct_size = 0,
                           .parent = {},
                           .numerics = view.numerics,
                           .approximate = view.exact ? 0 : 1,
                           .part_count = view.parts.size()};
      std::memcpy(out.parent.bytes, view.parent.bytes.data(), sizeof(out.parent.bytes));
      return write_struct(out, got);
    }
    return {};
  });
}

galley_store_code galley_store_stats(const galley_store* store,
                                     galley_store_stat* out,
                                     galley_store_error* error) {
  return guarded(error, [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(store != nullptr, "store is NULL"));
    const cache::StoreStats stats = store->store->stats();
    return write_struct(galley_store_stat{.struct_size = 0,
                                          .keys = stats.keys,
                                          .segments = stats.segments,
                                          .bytes = stats.bytes,
                                          .index_bytes = stats.index_bytes,
                                          .puts = stats.puts,
                                          .puts_known = stats.puts_known,
                                          .puts_refused = stats.puts_refused,
                                          .put_bytes = stats.put_bytes,
                                          .written_bytes = stats.written_bytes,
                                          .copied_bytes = stats.copied_bytes,
                                          .refreshed_bytes = stats.refreshed_bytes,
                                          .lost_blocks = stats.lost_blocks,
                                          .keys_asked = stats.keys_asked,
                                          .keys_hit = stats.keys_hit,
                                          .reads = stats.reads,
                                          .damaged_blocks = stats.damaged_blocks,
                                          .expired_segments = stats.expired_segments,
                                          .evicted_segments = stats.evicted_segments,
                                          .read_only = stats.read_only_because.empty() ? 0 : 1},
                        out);
  });
}
