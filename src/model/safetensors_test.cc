// Goal: a lying or cut file is refused whole, by name. Method: small files built byte by byte.
#include "model/safetensors.h"

#include <cstring>
#include <gtest/gtest.h>
#include <string>

namespace galley::model {
namespace {

std::string file_with(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data_bytes, '\x01');
}

auto parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)));
}

TEST(Safetensors, ReadsTensors) {
  const std::string file = file_with(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
      R"("a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"empty":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]}})",
      12);
  const auto tensors = parse(file);
  ASSERT_TRUE(tensors) << to_string(tensors.error());
  EXPECT_EQ(tensors->size(), 3U);
  EXPECT_EQ(tensors->at("a").shape_text(), "[1, 2]");
  EXPECT_EQ(tensors->at("b").elements(), 2);
  EXPECT_EQ(name(tensors->at("a").dtype), "BF16");
}

TEST(Safetensors, RefusesLies) {
  struct Row {
    const char* header;
    std::size_t data;
    const char* where;
  };
  const Row rows[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})", 12,
       "a"},  // size against shape
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", 12, "a"},  // past the end
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}})", 0, "a"},   // negative
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "a"},                                                                  // overflow
      {R"({"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})", 4, "a"},  // dtype
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "a"},  // reversed
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "b"},                                                               // overlap
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "a"},  // hole
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, ""},   // tail
      {R"({"a":[]})", 0, "a"},
      {R"([])", 0, ""},
      {R"({"a":{"dtype":"F32","shape":[[[[[1]]]]],"data_offsets":[0,4]}})", 4, ""},  // depth
  };
  for (const Row& row : rows) {
    const auto tensors = parse(file_with(row.header, row.data));
    ASSERT_FALSE(tensors) << row.header;
    EXPECT_EQ(tensors.error().code, Code::kCorruption);
    EXPECT_EQ(tensors.error().where, row.where) << row.header;
  }
  EXPECT_FALSE(parse("1234567"));
  std::string huge = file_with("{}", 0);
  huge[7] = '\x7f';  // header length near 2^63
  EXPECT_FALSE(parse(huge));
}

}  // namespace
}  // namespace galley::model
