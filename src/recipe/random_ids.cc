#include "recipe/random_ids.h"

#include <string_view>

namespace galley::recipe {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
}  // namespace

std::string RandomIds::next_id() {
  std::string id(kRandomIdBytes, '\0');
  for (char& c : id) {
    c = kAlphabet[random_.next_below(kAlphabet.size())];
  }
  return id;
}

}  // namespace galley::recipe
