// Any bytes as pages of a segment: nothing is read outside of them, and what a decoder lets pass is
// written again as it was.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "cache/segments/format.h"

namespace {

namespace cache = galley::cache;

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  (void)cache::parse_file_stem({reinterpret_cast<const char*>(data), size});
  (void)cache::decode_segment_head(bytes);
  (void)cache::decode_segment_end(bytes);
  (void)cache::begins_like_record(bytes);
  (void)cache::begins_like_table(bytes);
  (void)cache::table_bytes(bytes);
  if (const auto head = cache::decode_record_head(bytes)) {
    if (const auto parts = cache::record_parts(*head, bytes, false)) {
      for (const std::span<const std::byte> part : *parts) {
        require(part.data() >= bytes.data() && part.data() + part.size() <= bytes.data() + size);
      }
    }
  }
  // Random bytes never have the right checksum, so the reader behind it is run without.
  for (const bool verify : {true, false}) {
    if (const auto table = cache::decode_table(bytes, verify)) {
      for (const cache::TableRow& row : table->rows) {
        require(row.scope < table->scopes.size());
      }
    }
  }
  return 0;
}
