// Goal: the hash is FNV-1a 64. Method: values published with the algorithm, and words as the bytes
// they stand for.

#include "base/fnv1a.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

std::string hash_of(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return hash.hex();
}

TEST(Fnv1a, PublishedValues) {
  EXPECT_EQ(hash_of(""), "cbf29ce484222325");
  EXPECT_EQ(hash_of("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(hash_of("foobar"), "85944171f73967e8");
}

TEST(Fnv1a, AWordIsItsBytesLeastSignificantFirst) {
  Fnv1a word;
  word.add(std::uint32_t{0x80ff4241});
  EXPECT_EQ(word.hex(), hash_of("AB\xff\x80"));
}

}  // namespace
}  // namespace galley
