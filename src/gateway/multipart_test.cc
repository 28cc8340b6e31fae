// Goal: a form is read as every client writes it, and nothing else is taken for one.
// Method: small bodies by hand, each cut short at every byte.
#include "gateway/multipart.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace galley::gateway {
namespace {

const std::string kType = "multipart/form-data; boundary=xYz";

std::string part(std::string_view disposition, std::string_view content) {
  return fmt::format("--xYz\r\nContent-Disposition: form-data; {}\r\n\r\n{}\r\n", disposition,
                     content);
}

std::string error(std::string_view type, std::string_view body) {
  const auto parts = parse_multipart(type, body);
  return parts ? "" : parts.error().where + ": " + parts.error().what;
}

TEST(Multipart, ReadsFieldsAndFiles) {
  const std::string body =
      part("name=\"purpose\"", "batch") +
      "--xYz\r\ncontent-type: application/octet-stream\r\nCONTENT-DISPOSITION: form-data ; "
      "filename=\"a \\\"b\\\";c.jsonl\" ; name=file\r\n\r\none\r\n--xY\r\n\r\ntwo\r\n\r\n" +
      "--xYz--\r\nepilogue";
  const auto parts = parse_multipart(kType, body);
  ASSERT_TRUE(parts) << to_string(parts.error());
  ASSERT_EQ(parts->size(), 2U);
  EXPECT_EQ((*parts)[0].name, "purpose");
  EXPECT_EQ((*parts)[0].filename, "");
  EXPECT_EQ((*parts)[0].content, "batch");
  EXPECT_EQ((*parts)[1].name, "file");
  EXPECT_EQ((*parts)[1].filename, "a \"b\";c.jsonl");
  EXPECT_EQ((*parts)[1].content, "one\r\n--xY\r\n\r\ntwo\r\n");
}

TEST(Multipart, APreambleAndAQuotedBoundaryAreRead) {
  const auto parts = parse_multipart("Multipart/Form-Data; charset=utf-8; Boundary=\"xYz\"",
                                     "hello\r\n" + part("name=a", "") + "--xYz--");
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->size(), 1U);
  EXPECT_EQ((*parts)[0].content, "");
  EXPECT_TRUE(parse_multipart(kType, "--xYz--")->empty());
}

TEST(Multipart, WhatIsWrongIsNamed) {
  const std::string good = part("name=a", "b") + "--xYz--";
  EXPECT_EQ(error("application/json", good), "content-type: must be multipart/form-data");
  for (const std::string type : {"multipart/form-data", "multipart/form-data; boundary=",
                                 "multipart/form-data; boundary=\"x"}) {
    EXPECT_EQ(error(type, good), "content-type: needs a boundary of 1 to 70 bytes") << type;
  }
  EXPECT_EQ(error(kType, ""), "body: does not have the boundary that content-type names");
  EXPECT_EQ(error(kType, part("name=a", "b")), "body: ends within a part");
  EXPECT_EQ(error(kType, part("filename=a", "b") + "--xYz--"), "body: part 0 has no name");
  EXPECT_EQ(error(kType, "--xYz\r\nno head\r\n--xYz--"),
            "body: part 0 has no head that ends within 4096 bytes");
  EXPECT_EQ(error(kType, "--xYzA\r\n\r\n\r\n--xYz--"),
            "body: has a boundary that its line does not end with");
}

TEST(Multipart, HoldsItsBounds) {
  std::string body;
  for (std::size_t i = 0; i < kFormPartsMax; ++i) {
    body += part("name=a", "b");
  }
  EXPECT_EQ(error(kType, body + "--xYz--"), "");
  EXPECT_EQ(error(kType, body + part("name=a", "b") + "--xYz--"), "body: has more than 16 parts");
  const auto named = [](std::size_t bytes) {
    return part("name=a; filename=" + std::string(bytes, 'x'), "b") + "--xYz--";
  };
  EXPECT_EQ(error(kType, named(kFilenameBytesMax)), "");
  EXPECT_NE(error(kType, named(kFilenameBytesMax + 1)), "");
  EXPECT_NE(error(kType, named(kFormPartHeadBytesMax)), "");
}

TEST(Multipart, NoPrefixOfAFormIsAForm) {
  const std::string body = part("name=a; filename=\"f\"", "b") + part("name=c", "d") + "--xYz--";
  for (std::size_t cut = 0; cut < body.size(); ++cut) {
    EXPECT_FALSE(parse_multipart(kType, body.substr(0, cut))) << cut;
  }
  EXPECT_TRUE(parse_multipart(kType, body));
}

}  // namespace
}  // namespace galley::gateway
