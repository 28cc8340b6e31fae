#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gateway/fakes_for_test.h"
#include "recipe/token_source.h"

namespace galley::gateway {

// Keeps what a source delivers, and checks the order the seam promises.
struct RecordingSink final : recipe::TokenSink {
  void on_start(const recipe::Started& value) override {
    EXPECT_EQ(calls++, 0);
    started = value;
  }
  void on_tokens(std::span<const TokenId> new_ids, std::span<const recipe::TokenLogprob>) override {
    ++calls;
    EXPECT_TRUE(started && !finish && !error);
    ids.insert(ids.end(), new_ids.begin(), new_ids.end());
  }
  void on_finish(recipe::SourceFinish reason) override {
    ++calls;
    EXPECT_TRUE(started && !finish && !error);
    finish = reason;
  }
  void on_error(Error value) override {
    ++calls;
    EXPECT_TRUE(!finish && !error);
    error = std::move(value);
  }
  [[nodiscard]] std::string text() const { return small_tokenizer()->decode(ids); }

  int calls = 0;
  std::optional<recipe::Started> started;
  std::vector<TokenId> ids;
  std::optional<recipe::SourceFinish> finish;
  std::optional<Error> error;
};

}  // namespace galley::gateway
