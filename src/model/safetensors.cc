#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <limits>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

namespace galley::model {
namespace {

using Node = nlohmann::json;

struct DtypeName {
  std::string_view name;
  Dtype dtype;
  std::size_t bytes;
};
constexpr DtypeName kDtypes[] = {
    {"BOOL", Dtype::kBool, 1}, {"U8", Dtype::kU8, 1},          {"I8", Dtype::kI8, 1},
    {"I16", Dtype::kI16, 2},   {"I32", Dtype::kI32, 4},        {"I64", Dtype::kI64, 8},
    {"F16", Dtype::kF16, 2},   {"BF16", Dtype::kBf16, 2},      {"F32", Dtype::kF32, 4},
    {"F64", Dtype::kF64, 8},   {"F8_E4M3", Dtype::kF8E4m3, 1}, {"F8_E8M0", Dtype::kF8E8m0, 1},
};

std::unexpected<Error> corrupt(std::string where, std::string what) {
  return fail(Code::kCorruption, std::move(what), std::move(where));
}

std::optional<std::int64_t> non_negative(const Node& node) {
  if (!node.is_number_integer() || node.get<std::int64_t>() < 0 ||
      (node.is_number_unsigned() &&
       node.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return node.get<std::int64_t>();
}

// One entry of the header.
Result<TensorView> read_entry(const std::string& tensor,
                              const Node& entry,
                              std::span<const std::byte> data) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    return corrupt(tensor, "want dtype, shape and data_offsets");
  }
  TensorView view;
  const auto* const known = std::ranges::find_if(kDtypes, [&](const DtypeName& d) {
    return entry["dtype"].is_string() && entry["dtype"] == d.name;
  });
  if (known == std::end(kDtypes)) {
    return corrupt(tensor, fmt::format("unknown dtype {}", entry["dtype"].dump()));
  }
  view.dtype = known->dtype;
  constexpr std::size_t kRankMax = 8;
  if (!entry["shape"].is_array() || entry["shape"].size() > kRankMax) {
    return corrupt(tensor, fmt::format("want a shape of at most {} sizes", kRankMax));
  }
  std::int64_t bytes = static_cast<std::int64_t>(known->bytes);
  for (const Node& side : entry["shape"]) {
    const std::optional<std::int64_t> size = non_negative(side);
    if (!size || __builtin_mul_overflow(bytes, *size, &bytes)) {
      return corrupt(tensor, fmt::format("bad shape {}", entry["shape"].dump()));
    }
    view.shape.push_back(*size);
  }
  const Node& offsets = entry["data_offsets"];
  const bool pair = offsets.is_array() && offsets.size() == 2;
  const std::optional<std::int64_t> begin = pair ? non_negative(offsets[0]) : std::nullopt;
  const std::optional<std::int64_t> end = pair ? non_negative(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end || *end > std::ssize(data)) {
    return corrupt(tensor, fmt::format("data_offsets {} lie outside the file's {} data bytes",
                                       offsets.dump(), data.size()));
  }
  if (*end - *begin != bytes) {
    return corrupt(tensor, fmt::format("shape {} of {} needs {} bytes, data_offsets give {}",
                                       entry["shape"].dump(), known->name, bytes, *end - *begin));
  }
  view.bytes = data.subspan(static_cast<std::size_t>(*begin), static_cast<std::size_t>(bytes));
  return view;
}

// No two tensors share a byte and no byte belongs to none: a file that lies about one tensor is not
// used at all.
Result<void> check_cover(const std::map<std::string, TensorView, std::less<>>& tensors,
                         std::span<const std::byte> data) {
  std::vector<std::pair<std::span<const std::byte>, const std::string*>> parts;
  for (const auto& [tensor, view] : tensors) {
    if (!view.bytes.empty()) {
      parts.emplace_back(view.bytes, &tensor);
    }
  }
  std::ranges::sort(parts, {}, [](const auto& part) { return part.first.data(); });
  const std::byte* expected = data.data();
  for (const auto& [bytes, tensor] : parts) {
    if (bytes.data() != expected) {
      return corrupt(
          *tensor, bytes.data() < expected ? "overlaps another tensor" : "leaves a hole before it");
    }
    expected = bytes.data() + bytes.size();
  }
  if (expected != data.data() + data.size()) {
    return corrupt(
        "", fmt::format("{} bytes after the last tensor", data.data() + data.size() - expected));
  }
  return {};
}

}  // namespace

std::string_view name(Dtype dtype) {
  return std::ranges::find(kDtypes, dtype, &DtypeName::dtype)->name;
}

std::size_t bytes_of(Dtype dtype) {
  return std::ranges::find(kDtypes, dtype, &DtypeName::dtype)->bytes;
}

std::int64_t TensorView::elements() const {
  return std::ssize(bytes) / static_cast<std::int64_t>(bytes_of(dtype));
}

std::string TensorView::shape_text() const {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

Result<std::map<std::string, TensorView, std::less<>>> parse_safetensors(
    std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    return corrupt("", "shorter than the 8 bytes of a header length");
  }
  std::memcpy(&length, bytes.data(), sizeof(length));  // little-endian, as is this machine
  if (length > kHeaderBytesMax || length > bytes.size() - sizeof(length)) {
    return corrupt("", fmt::format("header of {} bytes in a file of {} (at most {})", length,
                                   bytes.size(), kHeaderBytesMax));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
  const std::span<const std::byte> data = bytes.subspan(sizeof(length) + length);
  constexpr int kDepthMax = 4;
  bool refused = false;
  std::map<std::string, TensorView, std::less<>> tensors;
  const Node header = Node::parse(
      text,
      [&](int depth, Node::parse_event_t, Node&) {
        return !(refused = refused || depth > kDepthMax);
      },
      false);
  if (refused || header.is_discarded() || !header.is_object()) {
    return corrupt("", "the header is not a flat JSON object");
  }
  for (const auto& [tensor, entry] : header.items()) {
    if (tensor == "__metadata__") {
      continue;
    }
    GALLEY_TRY(TensorView view, read_entry(tensor, entry, data));
    tensors.emplace(tensor, std::move(view));
  }
  GALLEY_CHECK_OK(check_cover(tensors, data));
  return tensors;
}

Result<Safetensors> Safetensors::open(const std::filesystem::path& path) {
  Safetensors out;
  GALLEY_TRY(out.file_, MappedFile::open(path));
  auto tensors = parse_safetensors(out.file_.bytes());
  if (!tensors) {
    Error error = std::move(tensors).error();
    error.where = error.where.empty() ? path.string() : path.string() + ": " + error.where;
    return std::unexpected(std::move(error));
  }
  out.tensors_ = std::move(*tensors);
  return out;
}

std::span<const std::byte> Safetensors::header() const {
  std::uint64_t length = 0;
  std::memcpy(&length, file_.bytes().data(), sizeof(length));  // open() has compared it
  return file_.bytes().first(sizeof(length) + length);
}

const TensorView* Safetensors::find(std::string_view tensor) const {
  const auto it = tensors_.find(tensor);
  return it == tensors_.end() ? nullptr : &it->second;
}

}  // namespace galley::model
