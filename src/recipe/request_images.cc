#include <algorithm>
#include <array>

#include "base/hex.h"
#include "recipe/limits.h"
#include "recipe/names.h"
#include "recipe/request_fields.h"
#include "recipe/request_text.h"

// The content of messages and its images: links and data URLs.
namespace galley::recipe {

void join_block(Content& content, Content block, std::size_t index) {
  if (index == 0) {
    content = std::move(block);
    return;
  }
  content.text.append("\n\n");
  content.append(std::move(block));
}

Content text_block(std::string text) {
  return {std::move(text), {}};
}

Content image_block(Image image) {
  Content content;
  image.offset = 0;
  content.images.push_back(std::move(image));
  return content;
}

Result<ImageDetail> read_detail(const Fields& fields) {
  GALLEY_TRY(const std::optional<std::size_t> index, fields.choice("detail", kNames<ImageDetail>));
  return index ? static_cast<ImageDetail>(*index) : ImageDetail::kHigh;
}

bool is_link(std::string_view url) {
  return equals_ignoring_case(url.substr(0, 4), "http");
}

std::string link_too_long(std::size_t bytes) {
  return "external link length " + std::to_string(bytes) + " too long, max link length " +
         std::to_string(kImageLinkBytesMax) +
         ". Consider passing file data directly with base64 data url instead.";
}

Image image_from_url(std::string url, ImageDetail detail, std::string path) {
  return {.kind = is_link(url) ? Image::Kind::kUrl : Image::Kind::kDataUrl,
          .detail = detail,
          .path = std::move(path),
          .reference = std::move(url)};
}

Result<void> check_data_urls(const Content& content, std::string_view path, const Path& at) {
  for (const Image& image : content.images) {
    if (image.kind != Image::Kind::kDataUrl) {
      continue;
    }
    DataUrlFault fault = DataUrlFault::kNoUrl;
    if (image.reference.find("base64,") != std::string::npos) {
      fault = data_url_fault(image.reference);
    }
    switch (fault) {
      case DataUrlFault::kNone:
        break;
      case DataUrlFault::kNoUrl:
        return invalid(std::string(path) + ": Unsupported image_url format", at);
      case DataUrlFault::kMediaType:
        return invalid(std::string(path) +
                           ": You have uploaded an unsupported image. Please make sure your image "
                           "is valid and has one of the following formats: webp, png, jpeg, and "
                           "gif.",
                       at);
      case DataUrlFault::kBase64:
        return invalid(std::string(path) + ": Invalid base64 data", at);
    }
  }
  return {};
}

namespace {

bool is_url_blank(char c) {  // what a URL parser drops everywhere
  return c == '\t' || c == '\n' || c == '\r';
}

bool is_base64_byte(unsigned char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' ||
         c == '/';
}

// Percent-decoding and the "forgiving" base64 of the Infra standard, up to a fragment.
bool is_forgiving_base64(std::string_view body) {
  std::size_t symbols = 0;
  std::size_t padding = 0;
  for (std::size_t i = 0; i < body.size(); ++i) {
    auto byte = static_cast<unsigned char>(body[i]);
    if (byte == '#') {
      break;
    }
    if (byte == '%' && i + 2 < body.size() && hex_digit(body[i + 1]) >= 0 &&
        hex_digit(body[i + 2]) >= 0) {
      byte = static_cast<unsigned char>(hex_digit(body[i + 1]) * 16 + hex_digit(body[i + 2]));
      i += 2;
    }
    if (is_base64_byte(byte)) {
      if (padding != 0) {
        return false;
      }
      ++symbols;
    } else if (byte == '=') {
      ++padding;
    } else if (byte != ' ' && byte != '\t' && byte != '\n' && byte != '\r' && byte != '\f') {
      return false;
    }
  }
  switch (symbols % 4) {
    case 0:
      return padding == 0;
    case 2:
      return padding == 0 || padding == 2;
    case 3:
      return padding <= 1;
    default:
      return false;
  }
}

// Cuts "; base64" off the end of a data URL's header; false when it is not there.
bool cut_base64_suffix(std::string& header) {
  constexpr std::string_view kWord = "base64";
  if (header.size() < kWord.size() + 1 ||
      !equals_ignoring_case(std::string_view(header).substr(header.size() - kWord.size()), kWord)) {
    return false;
  }
  std::size_t end = header.size() - kWord.size();
  while (end > 0 && header[end - 1] == ' ') {
    --end;
  }
  if (end == 0 || header[end - 1] != ';') {
    return false;
  }
  header.resize(end - 1);
  return true;
}

bool is_image_media_type(std::string_view header) {
  const auto trim = [](std::string_view text) {
    const std::size_t first = text.find_first_not_of(' ');
    return first == std::string_view::npos
               ? std::string_view()
               : text.substr(first, text.find_last_not_of(' ') - first + 1);
  };
  const std::string_view type = trim(header.substr(0, header.find(';')));
  constexpr std::array<std::string_view, 5> kTypes = {"image/jpeg", "image/jpg", "image/png",
                                                      "image/gif", "image/webp"};
  return std::ranges::any_of(
      kTypes, [&](std::string_view known) { return equals_ignoring_case(type, known); });
}

}  // namespace

DataUrlFault data_url_fault(std::string_view url) {
  constexpr std::string_view kScheme = "data:";
  std::size_t begin = 0;
  while (begin < url.size() && static_cast<unsigned char>(url[begin]) <= ' ') {
    ++begin;
  }
  for (std::size_t matched = 0; matched < kScheme.size(); ++begin) {
    if (begin == url.size()) {
      return DataUrlFault::kNoUrl;
    }
    if (is_url_blank(url[begin])) {
      continue;
    }
    if (lower(url[begin]) != kScheme[matched]) {
      return DataUrlFault::kNoUrl;
    }
    ++matched;
  }
  const std::size_t comma = url.find_first_of(",#", begin);
  if (comma == std::string_view::npos || url[comma] == '#') {
    return DataUrlFault::kNoUrl;
  }
  std::string header(url.substr(begin, comma - begin));
  std::erase_if(header, is_url_blank);
  header.erase(0, header.find_first_not_of(' '));
  header.resize(header.find_last_not_of(' ') + 1);
  const bool base64 = cut_base64_suffix(header);
  if (!is_image_media_type(header)) {
    return DataUrlFault::kMediaType;
  }
  std::string_view body = url.substr(comma + 1);
  while (!body.empty() && static_cast<unsigned char>(body.back()) <= ' ') {
    body.remove_suffix(1);
  }
  return base64 && !is_forgiving_base64(body) ? DataUrlFault::kBase64 : DataUrlFault::kNone;
}

bool is_base64(std::string_view data) {
  std::size_t symbols = data.size();
  while (symbols > 0 && data.size() - symbols < 2 && data[symbols - 1] == '=') {
    --symbols;
  }
  if (data.size() % 4 != 0 || !std::ranges::all_of(data.substr(0, symbols), [](char c) {
        return is_base64_byte(static_cast<unsigned char>(c));
      })) {
    return false;
  }
  // The bits of the last symbol that no byte takes must be zero: 2 of them beside one '=', 4 beside
  // two.
  constexpr std::string_view kZeroLow2 = "AEIMQUYcgkosw048";
  constexpr std::string_view kZeroLow4 = "AQgw";
  const std::size_t padding = data.size() - symbols;
  return padding == 0 ||
         (padding == 1 ? kZeroLow2 : kZeroLow4).find(data[symbols - 1]) != std::string_view::npos;
}

namespace {

// The reference's spelling of a place (".messages[2]", "messages.2.content[0]") as a path.
std::string request_path(std::string_view place) {
  std::string out;
  for (std::size_t i = 0; i < place.size(); ++i) {
    if (place[i] != '.' || i + 1 == place.size() || place[i + 1] < '0' || place[i + 1] > '9') {
      if (i != 0 || place[i] != '.') {
        out.push_back(place[i]);
      }
      continue;
    }
    const std::size_t end = std::min(place.find_first_of(".[", i + 1), place.size());
    out.append("[").append(place.substr(i + 1, end - i - 1)).append("]");
    i = end - 1;
  }
  return out;
}

}  // namespace

Result<void> check_image_limits(const Conversation& conversation) {
  std::size_t count = 0;
  std::size_t bytes = 0;
  for (const Message& message : conversation.messages) {
    for (const Image& image : message.content.images) {
      ++count;
      const std::string where = request_path(image.path);
      if (count > kImageCountMax) {
        return fail(Code::kInvalidArgument,
                    "Too many images, the limit is " + std::to_string(kImageCountMax) + ".", where);
      }
      if (image.kind != Image::Kind::kDataUrl) {
        continue;
      }
      bytes += image.reference.size();
      if (image.reference.size() > kImageBytesMax || bytes > kImageBytesTotalMax) {
        return fail(Code::kInvalidArgument,
                    "Images too large, the limit is " + std::to_string(kImageBytesMax) +
                        " encoded bytes for one image and " + std::to_string(kImageBytesTotalMax) +
                        " for all of a request.",
                    where);
      }
    }
  }
  return {};
}

}  // namespace galley::recipe
