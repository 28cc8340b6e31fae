#include "gateway/random_ids.h"

#include <string_view>

namespace galley::gateway {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::size_t kLength = 20;  // 119 bits: no two are ever equal

}  // namespace

std::string RandomIds::next_id() {
  std::string id;
  for (std::size_t i = 0; i < kLength; ++i) {
    id += kAlphabet[random_.next_below(kAlphabet.size())];
  }
  return id;
}

}  // namespace galley::gateway
