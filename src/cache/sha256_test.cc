// Goal: digests are those of FIPS 180-4. Method: its examples, whole and in pieces.
#include "cache/sha256.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <string>

namespace galley::cache {
namespace {

std::string hex(const Sha256Digest& digest) {
  std::string out;
  for (const std::byte byte : digest) {
    out += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  return out;
}

TEST(Sha256, ExamplesOfTheStandard) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, PiecesAreTheWhole) {
  Sha256 pieces;
  pieces.add(std::as_bytes(std::span(std::string_view("a"))));
  pieces.add({});
  pieces.add(std::as_bytes(std::span(std::string_view("bc"))));
  EXPECT_EQ(pieces.digest(), sha256("abc"));
}

}  // namespace
}  // namespace galley::cache
