// Goal: Responses bodies become the requests the reference makes of them, or better ones (spec
// recipe 6.4), and every wrong body gets an error with its place. Method: the golden errors,
// hand-written bodies for each rule of Galley mode, mutations of a body that uses every field,
// large inputs.
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "recipe/golden_for_test.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

namespace galley::recipe {
namespace {

TEST(ResponsesRequest, GoldenErrors) {
  int passed = 0;
  for (const Json& record : golden_records("error", "responses")) {
    const std::string& id = golden_string(record, "id");
    const Result<Request> request =
        parse_responses_request(golden_string(record, "body"), golden_options(record));
    ASSERT_FALSE(request) << id;
    EXPECT_EQ(request.error().code, Code::kInvalidArgument) << id;
    EXPECT_FALSE(request.error().where.empty()) << id;
    if (*record.find("exact")->boolean()) {
      EXPECT_EQ(request.error().what, golden_string(record, "message")) << id;
    }
    ++passed;
  }
  EXPECT_EQ(passed, 32);
}

}  // namespace
}  // namespace galley::recipe
