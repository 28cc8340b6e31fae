#include "gateway/http_body.h"

#include <algorithm>
#include <utility>

#include "base/hex.h"

namespace galley::gateway {
namespace {

constexpr Refusal kMalformed{400, "The chunked request body is malformed."};
constexpr Refusal kTooLarge{413, "The request body is too large."};

// What may stand inside a line: anything but line ends and other control characters.
bool is_line_byte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte >= 0x20 && byte != 0x7F) || c == '\t';
}

}  // namespace

BodyParser::BodyParser(const HttpHead& head, std::size_t bytes_max)
    : bytes_max_(bytes_max),
      chunked_(head.chunked),
      state_(head.chunked ? State::kSize : (head.body_bytes > 0 ? State::kData : State::kDone)),
      left_(head.body_bytes) {}

std::size_t BodyParser::feed(std::string_view bytes, std::string& body) {
  std::size_t used = 0;
  while (used < bytes.size() && !done() && refusal_.status == 0) {
    if (state_ == State::kData) {
      const std::string_view data = bytes.substr(
          used, static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size() - used)));
      body.append(data);
      used += data.size();
      left_ -= data.size();
      if (left_ == 0) {
        state_ = chunked_ ? State::kDataCr : State::kDone;
      }
      continue;
    }
    if (!take(bytes[used++])) {
      refusal_ = kMalformed;
    } else if (state_ == State::kData && left_ > bytes_max_ - body.size()) {
      refusal_ = kTooLarge;  // a chunk begins that does not fit
    }
  }
  return used;
}

bool BodyParser::take(char byte) {
  const std::size_t framing_max = state_ >= State::kTrailer ? kTrailerBytesMax : kSizeLineBytesMax;
  if (++framing_bytes_ > framing_max) {
    return false;
  }
  const auto expect = [this, byte](char wanted, State next) {
    state_ = next;
    return byte == wanted;
  };
  switch (state_) {
    case State::kSize:
    case State::kSizeMore:
      if (const int digit = hex_digit(byte); digit >= 0) {
        // Saturates: a size beyond any limit stays there, however many digits follow.
        left_ = left_ >> 59U != 0 ? ~std::uint64_t{0} : left_ * 16 + static_cast<unsigned>(digit);
        state_ = State::kSizeMore;
        return true;
      }
      if (state_ == State::kSize) {
        return false;
      }
      state_ = byte == '\r' ? State::kSizeLf : State::kExtension;
      return byte == '\r' || byte == ';' || byte == ' ' || byte == '\t';
    case State::kExtension:
      state_ = byte == '\r' ? State::kSizeLf : State::kExtension;
      return byte == '\r' || is_line_byte(byte);
    case State::kSizeLf:
      framing_bytes_ = 0;
      return expect('\n', left_ == 0 ? State::kTrailer : State::kData);
    case State::kDataCr:
      framing_bytes_ = 0;
      return expect('\r', State::kDataLf);
    case State::kDataLf:
      framing_bytes_ = 0;
      return expect('\n', State::kSize);
    case State::kTrailer:
    case State::kTrailerMore:
      if (byte == '\r') {
        state_ = state_ == State::kTrailer ? State::kLastLf : State::kTrailerLf;
        return true;
      }
      state_ = State::kTrailerMore;
      return is_line_byte(byte);
    case State::kTrailerLf:
      return expect('\n', State::kTrailer);
    case State::kLastLf:
      return expect('\n', State::kDone);
    case State::kData:
    case State::kDone:
      break;  // feed() takes these
  }
  std::unreachable();
}

}  // namespace galley::gateway
